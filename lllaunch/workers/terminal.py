"""Where teed lines go: destinations that several threads share without mixing their lines.

Every writer of this process to one terminal, pipe or file uses one `Screen` and with it one lock,
whatever Python objects stand for that file. On a terminal the screen keeps a live area at its
bottom: text that is not a whole line yet, and below it the status: a line or a table that shows how
a run or a sweep goes on, if there is one. The area is erased before whole lines are written, and
drawn again after them.

With a status the cursor rests where the live area begins. A terminal that is resized and breaks
its lines anew takes the cursor along with the character under it, so that whatever the area has
become, it is all that there is from the cursor on, and nothing above it is ever erased.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import stat
import threading
import time
import unicodedata
import weakref
from typing import TYPE_CHECKING, Any, TextIO

from lllaunch.linux.process import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


_ERASE = b"\r\033[K"
_ERASE_BELOW = b"\r\033[J"
# A line that is wider than it was thought to be must not take two.
_NO_WRAP, _WRAP = b"\033[?7l", b"\033[?7h"
# Escape sequences and control characters, which would move the cursor out of the live area.
_UNPRINTABLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]?|[\x00-\x1f\x7f-\x9f]")
_WIDE = frozenset("WF")
# Of a pipe: so many bytes are taken as a whole or not at all (Linux' PIPE_BUF).
_AT_ONCE = 4096
_NEWLINE = ord("\n")


def moves_cursor() -> bool:
    """Return whether the terminal, if there is one, obeys more than line ends: TERM says so."""
    return os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


class Screen:
    """What all writers to one terminal, pipe or file share."""

    def __init__(self, owner: object) -> None:
        # held by who is next, so that one writer of many lines lets others come between them
        self._turnstile = threading.Lock()
        self._lock = threading.RLock()
        self.owner = owner  # the object that a screen without a file is known by
        # texts of lines that have not ended, by who wrote them; the last one is shown
        self.live: dict[object, str] = {}
        # returns the rows below all else for a terminal of so many columns and lines, with their
        # colours; None if there are none, or it has failed
        self.status: Callable[[int, int], Sequence[str] | None] | None = None
        self.hidden = False  # whether there is no live area for now
        # what takes the live area away; to be written in a turn
        self.erasure = b""
        # of those who hold lines for a moment: what has these shown, and waits for that at most so
        # many seconds
        self.holders: set[Callable[[float], object]] = set()

    def settle(self, seconds: float) -> None:
        """Have lines shown that are held for a moment: what is written next comes after them.

        ``seconds``: how long to wait for that at most.
        """
        deadline = time.monotonic() + seconds
        for show_held in tuple(self.holders):
            show_held(max(0.0, deadline - time.monotonic()))

    @contextlib.contextmanager
    def turn(self, seconds: float | None = None) -> Iterator[bool]:
        """Be the only writer in the block, in which whole lines are written.

        ``seconds``: how long to wait for that; None for as long as it takes. Yields whether it is
        so; False if it took too long.
        """
        held = False
        if self._turnstile.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            try:
                held = self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
            finally:
                self._turnstile.release()
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def drawing(self, descriptor: int) -> bytes:
        """Return what draws the live area where a line begins; to be written in the same turn.

        ``descriptor``: of the terminal.
        """
        if self.hidden or not (self.live or self.status) or not in_foreground(descriptor):
            self.erasure = b""
            return b""
        size = size_of(descriptor)
        partial = [fit(next(reversed(self.live.values())), size.columns - 1)] if self.live else []
        status = () if self.status is None else self.status(size.columns, size.lines) or ()
        rows = [*partial, *status[: max(0, size.lines - 1 - len(partial))]]
        text = "\n".join(rows).encode("utf-8", "replace")
        if len(rows) == len(partial):
            self.erasure = _ERASE if partial else b""
            return text
        self.erasure = _ERASE_BELOW
        up = b"\033[%dA" % (len(rows) - 1) if len(rows) > 1 else b""
        return b"".join((_NO_WRAP, text, _WRAP, b"\r", up))


_screens: weakref.WeakValueDictionary[tuple[object, ...], Screen] = weakref.WeakValueDictionary()
_screens_lock = threading.Lock()


def _forget_screens() -> None:
    """In a forked child: the threads that may have held these locks are not there."""
    global _screens_lock  # noqa: PLW0603 - the lock is what has to be replaced
    _screens_lock = threading.Lock()
    _screens.clear()


os.register_at_fork(after_in_child=_forget_screens)


def screen_of(stream: object) -> Screen:
    """Return what all writers to a stream share."""
    descriptor = descriptor_of(stream)
    key: tuple[object, ...] = ("object", id(stream))
    if descriptor is not None:
        status = os.fstat(descriptor)
        key = ("file", status.st_dev, status.st_ino)
    with _screens_lock:
        screen = _screens.get(key)
        if screen is None:
            screen = _screens[key] = Screen(stream)
        return screen


def descriptor_of(dst: object) -> int | None:
    """Return the descriptor that may be written to instead of the object, or None.

    None also where somebody's own ``write`` would be passed by.
    """
    plain = isinstance(dst, io.TextIOWrapper) and type(dst).write is io.TextIOWrapper.write
    if not plain and not isinstance(dst, (io.BufferedIOBase, io.RawIOBase)):
        return None
    try:
        return dst.fileno()  # type: ignore[attr-defined, no-any-return]
    except (OSError, ValueError):
        return None


class Destination:
    """One place that lines are written to.

    ``dst``: a text stream. Where it is a plain file object, bytes go to its descriptor as they are;
    elsewhere they are decoded as UTF-8, what is none being replaced.
    """

    def __init__(self, dst: TextIO) -> None:
        self._dst: Any = dst
        self._fd = descriptor_of(dst)
        # what it shares with all who write to the same terminal, pipe or file
        self.screen = screen_of(dst)
        # whether there is a live area
        self.is_terminal = self._fd is not None and os.isatty(self._fd) and moves_cursor()
        self._is_pipe = self._fd is not None and stat.S_ISFIFO(os.fstat(self._fd).st_mode)
        self.failed = False  # whether writing has failed, and that was reported
        self.silent = False  # whether no further line is to begin; one that has begun is ended
        self.taken = 0  # how often something was taken by it

    def write(self, parts: Iterable[bytes], sources: Collection[object] = ()) -> None:
        """Writes whole lines; nothing of any other writer comes into one.

        A pipe gets lines that are not longer than 4096 bytes as a whole or not at all, also if this
        process ends meanwhile.

        ``parts``: the lines, cut anywhere. ``sources``: whose lines in the live area end with them.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        if self._fd is None:
            with self.screen.turn():
                if not self.silent:
                    self._end_live(sources)
                    self._write_text(parts)
            return
        with contextlib.ExitStack() as turn:
            inside = False
            for piece in (
                piece
                for part in parts
                for piece in whole_lines(part, _AT_ONCE if self._is_pipe else len(part))
            ):
                before = b""
                if not inside:
                    turn.enter_context(self.screen.turn())
                    # not before the turn: others may have said their last words in one meanwhile
                    if self.silent:
                        return
                    self._flush()
                    before = self.screen.erasure
                    self._end_live(sources)
                inside = piece[-1] != _NEWLINE
                after = b"" if inside or not self.is_terminal else self.screen.drawing(self._fd)
                # in one piece, so that nobody sees the terminal without its live area
                self._put(b"".join((before, piece, after)) if before or after else piece)
                if not inside:
                    turn.close()

    def _end_live(self, sources: Collection[object]) -> None:
        for source in sources:
            self.screen.live.pop(source, None)

    def show(self, source: object, text: bytes | None) -> None:
        """Puts a line that has not ended in the live area; does nothing where there is none.

        ``source``: whose line it is. ``text``: the line so far; None to take it away.
        """
        if not self.is_terminal:
            return
        with self.screen.turn():
            live = self.screen.live
            if text is None and source not in live:
                return
            self._flush()
            erasure = self.screen.erasure
            live.pop(source, None)
            if text is not None:
                live[source] = text.decode("utf-8", "replace")
            assert self._fd is not None
            self._put(erasure + self.screen.drawing(self._fd))

    def _put(self, data: bytes | memoryview) -> None:
        assert self._fd is not None
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
                self.taken += 1
            except BlockingIOError:
                # Somebody made the terminal non-blocking; it wakes us when it takes more.
                wait(writable=(self._fd,))

    def _write_text(self, parts: Iterable[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for part in parts:
            text = decoder.decode(part)
            if text:
                self._dst.write(text)
                self.taken += 1
        rest = decoder.decode(b"", final=True)
        if rest:
            self._dst.write(rest)
        self._flush()

    def _flush(self) -> None:
        flush = getattr(self._dst, "flush", None)
        if flush is not None:
            flush()


def whole_lines(data: bytes, limit: int) -> Iterator[memoryview]:
    """Cut lines into pieces at their ends.

    ``data``: lines; the last one need not have ended. ``limit``: bytes of a piece, but for a line
    that is longer. Returns the pieces.
    """
    view, start = memoryview(data), 0
    while len(data) - start > limit:
        end = data.rfind(b"\n", start, start + limit) + 1 or data.find(b"\n", start) + 1
        if not end:
            break
        yield view[start:end]
        start = end
    if start < len(data):
        yield view[start:]


def size_of(descriptor: int) -> os.terminal_size:
    """Return the size of a terminal; no lines, and columns as of old, if it cannot be found."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(descriptor)
        return os.terminal_size((size.columns or 80, size.lines))
    return os.terminal_size((80, 0))


def in_foreground(descriptor: int) -> bool:
    """Return whether this process may draw: a shell does while it has put its job aside."""
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    return True  # it is not the terminal of our session


def cells(text: str) -> int:
    """Return how many columns a text takes that has no control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def cut(text: str, columns: int, more: str = "...") -> str:
    """Return a text of at most so many columns; a longer one ends in `more` if that has room."""
    if cells(text) <= columns:
        return text
    more = more if columns > 2 * len(more) else ""
    room = max(0, columns - len(more))
    if text.isascii():
        return text[:room] + more
    for index, char in enumerate(text):
        room -= _cells(char)
        if room < 0:
            return text[:index] + more
    return text


def fit(text: str, columns: int) -> str:
    """Return the beginning of a text that fits on one line, without what a terminal obeys."""
    return cut(_UNPRINTABLE.sub("", text.replace("\t", " ")), columns, "")
