"""One followed file: what has been written to it since the last look, shown line by line."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from typing import TYPE_CHECKING

from lllaunch.multiprocessing.guards import guarded
from lllaunch.multiprocessing.lines import LineSplitter, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lllaunch.multiprocessing.guards import BarGate, LockLike
    from lllaunch.multiprocessing.output import Destination

logger = logging.getLogger(__name__)

# Bytes read at a time: large enough for few calls, small enough that files take turns.
_BLOCK = 256 * 1024
# A filter sees at most so many bytes of a line.
_FILTERED = 64 * 1024 * 1024
# Of a line that has not ended, at most so many bytes are looked at for the live area.
_LIVE = 4096
# A line without an end is shown when it is so old, seconds.
_PARTIAL_S = 1.0


class FollowedFile:
    """One file on its way to one destination.

    Args:
        path: the file; it need not exist yet.
        prefix: put before every line.
        destination: where the lines go.
        line_filter: says of a line, as text with its newline, whether it is shown; None for all.
        lock: somebody else's lock, held while writing.
        gate: somebody else's progress bar, lifted while writing.

    Attributes:
        dropped: it cannot be followed, and that was said.
        behind: there was more to be shown when it was last looked at.
        due: when, by `time.monotonic`, the line in the making is to be shown; None if it is not.
        blocks: how many blocks have been read and shown.
    """

    def __init__(
        self,
        path: str,
        prefix: bytes,
        destination: Destination,
        line_filter: Callable[[str], bool] | None = None,
        *,
        lock: LockLike | None = None,
        gate: BarGate | None = None,
    ) -> None:
        self.path = path
        self.dropped = False
        self.behind = False
        self.due: float | None = None
        self.blocks = 0
        self._fd: int | None = None
        self._destination = destination
        self._filter = line_filter
        self._lock = lock
        self._gate = gate
        # Under a foreign bar every line starts at the left edge and erases what is behind it.
        over_bar = gate is not None and destination.is_terminal
        self._splitter = LineSplitter(
            b"\r" + prefix if over_bar else prefix,
            b"\033[K" if over_bar else b"",
            None if line_filter is None else self._keep,
        )
        self._has_live_area = destination.is_terminal and gate is None and line_filter is None

    @property
    def is_open(self) -> bool:
        """Whether the file was there when it was last looked for."""
        return self._fd is not None

    def open(self) -> bool:
        """Opens the file.

        Returns:
            False if it is not there yet.

        Raises:
            OSError: it is there and cannot be opened, or is no regular file.
        """
        try:
            # Non-blocking, since opening a pipe waits for its other end.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", self.path)
        self._fd = descriptor
        return True

    def size(self) -> int:
        """Bytes in the file now; 0 while it is not there."""
        return 0 if self._fd is None else os.fstat(self._fd).st_size

    def drain(self) -> bool:
        """Shows the next block.

        Returns:
            Whether there was one.

        Raises:
            OSError: the file cannot be read.
        """
        if self._fd is None:
            return False
        position = self._splitter.position
        size = self.size()
        if size < position:
            self._say_truncated()
            position = 0
        block = os.pread(self._fd, min(_BLOCK, size - position), position)
        self.behind = position + len(block) < size
        if not block:
            return False
        for piece in self._splitter.feed(block):
            self._show(piece)
        self.blocks += 1
        self._update_live_area()
        return True

    def drain_to(self, end: int) -> None:
        """Shows everything up to an offset, and then the last line also if it has no newline.

        Args:
            end: bytes; what is written beyond may be shown too.

        Raises:
            OSError: the file cannot be read.
        """
        while self._splitter.position < end and self.drain():
            pass
        self.finish()

    def finish(self) -> None:
        """Shows the line in the making as it is."""
        span = self._splitter.finish()
        if span is not None:
            self._show(span)
        self.due = None

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def tick(self) -> None:
        """Shows the line in the making in the live area; its time has come."""
        self.due = None
        span = self._splitter.pending
        if span is None:
            self._live(None)
            return
        visible = self._read(span.start, min(span.end, span.start + _LIVE))
        self._live(self._splitter.prefix + visible)

    def _update_live_area(self) -> None:
        if not self._has_live_area:
            return
        if self._splitter.pending is None or self._splitter.redrawn:
            self.tick()
        elif self.due is None:
            self.due = time.monotonic() + _PARTIAL_S

    def _keep(self, line: bytes) -> bool:
        assert self._filter is not None
        try:
            return bool(self._filter(line.decode("utf-8", "replace") + "\n"))
        except Exception as error:  # noqa: BLE001 - any error of the user's filter; the line is shown
            self._complain(f"the filter of lines failed on it: {error!r}")
            return True

    def _show(self, piece: bytes | Span) -> None:
        if not isinstance(piece, Span):
            self._write([piece])
            return
        if self._filter is not None:
            head = self._read(piece.start, min(piece.end, piece.start + _FILTERED))
            if not self._keep(head):
                return
        self._write(self._parts(piece))

    def _parts(self, span: Span) -> Iterator[bytes]:
        """A line that is still in the file, with prefix and newline, block by block."""
        end = self._splitter.suffix + b"\n"
        if span.end - span.start <= _BLOCK:
            yield self._splitter.prefix + self._read(span.start, span.end) + end
            return
        yield self._splitter.prefix
        for start in range(span.start, span.end, _BLOCK):
            yield self._read(start, min(span.end, start + _BLOCK))
        yield end

    def _read(self, start: int, end: int) -> bytes:
        try:
            return b"" if self._fd is None else os.pread(self._fd, end - start, start)
        except OSError as error:
            self._complain(f"it cannot be read: {error}")
            return b""

    def _say_truncated(self) -> None:
        self._splitter.reset()
        self.due = None
        if self._filter is None:
            name = os.path.basename(self.path)
            notice = f"[{name} truncated by the worker]".encode("utf-8", "surrogateescape")
            end = self._splitter.suffix + b"\n"
            self._write([self._splitter.prefix + notice + end])

    def _write(self, parts: Iterable[bytes]) -> None:
        try:
            with guarded(self._lock, self._gate):
                self._destination.write(parts, self)
        except BrokenPipeError:
            # who read it has gone, as `| head` does; there is nobody to tell
            self._destination.failed = True
        except Exception as error:  # noqa: BLE001 - whatever a foreign stream raises; others go on
            self._complain(f"it cannot be shown: {error!r}")

    def _live(self, text: bytes | None) -> None:
        try:
            with guarded(self._lock, None):
                self._destination.show(self, text)
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(f"it cannot be shown: {error!r}")

    def _complain(self, what: str) -> None:
        """Reports the first trouble of a destination; every block would have the same."""
        if not self._destination.failed:
            self._destination.failed = True
            logger.error("%s: %s (reported once; the file is complete)", self.path, what)
