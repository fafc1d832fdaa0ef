"""Output files as they grow: followed, cut into lines and shown.

The thread sleeps until the kernel says that a file has changed (inotify) or that it is to stop
(an eventfd). Only files that inotify cannot watch are looked at once a second, and those that are
not there yet ten times; the files of workers are made before.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO, TypeAlias

from lllaunch.files import naming, open_file
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import Inotify, wait
from lllaunch.workers.lines import LineCollapser, LineSplitter, Span
from lllaunch.workers.terminal import Destination, screen_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lllaunch.workers.log_files import LogsDest

logger = logging.getLogger(__name__)

Report: TypeAlias = Callable[[int, str], object]
"""Takes trouble with a level of `logging` and a text, from any thread."""

# How long a progress bar that others own is waited for, seconds.
_PATIENCE_S = 1.0


class BarGate:
    """The older interface to a progress bar that someone else draws at the bottom.

    Before writing, ``trigger_clear`` is set and ``cleared`` waited for, which says that the bar
    is off the screen; after writing, ``trigger_clear`` is reset. Where nobody answers, that is
    waited for once.

    ``events``: both, of `threading` or `multiprocessing`.
    """

    def __init__(self, events: Mapping[str, Any]) -> None:
        self._trigger = events["trigger_clear"]
        self._cleared = events["cleared"]
        self._answered = True

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """While inside, the bar is off the screen, if there is one."""
        expected = self._answered or self._cleared.is_set()
        self._cleared.clear()
        self._trigger.set()
        try:
            self._answered = self._cleared.wait(_PATIENCE_S if expected else 0)
            yield
        finally:
            self._trigger.clear()


# Files that the kernel cannot watch are looked at so often, and those that are not there yet,
# seconds.
_POLL_S = 1.0
_AWAIT_S = 0.1
# What stops a file from being opened now but not for ever.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Watching:
    """The files of one thread that follows them, and what it sleeps on.

    ``wake``: an eventfd that ends a wait; not closed here. ``elsewhere``: whether other machines
    write to the files, of which this one's kernel cannot tell.
    """

    def __init__(self, wake: int, *, elsewhere: bool = False, report: Report = logger.log) -> None:
        self._wake = wake
        self._report = report
        # what is meant to be so needs no warning
        self._warned = elsewhere
        # those to be looked at, that which changed first before others
        self._changed: dict[FollowedFile, None] = {}
        # Files that the kernel cannot watch, and those that are not there yet.
        self._polled: set[FollowedFile] = set()
        self._await_interval = _POLL_S if elsewhere else _AWAIT_S
        self._next_look = math.inf
        # Files by the number of the watch that tells of them.
        self._watched: dict[int, set[FollowedFile]] = {}
        self._inotify: Inotify | None = None
        self._reason = ""
        if elsewhere:
            return
        try:
            self._inotify = Inotify()
        except (AttributeError, OSError) as error:
            self._reason = _reason(error)

    def close(self) -> None:
        """Ends all watches."""
        if self._inotify is not None:
            self._inotify.close()

    def add(self, file: FollowedFile) -> None:
        """Takes in a file, whether it is there or not."""
        opened = False
        with self.minding(file):
            try:
                opened = file.open()
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                self._warn(f"{file.path}: {error.strerror}")
        if file.dropped:
            return
        interval = self._await_interval
        if opened:
            self._changed[file] = None
            reason, interval = self._reason, _POLL_S
            if self._inotify is not None:
                try:
                    number = self._inotify.watch(file.path)
                except OSError as error:
                    reason = f"{file.path}: {error.strerror}"
                else:
                    self._watched.setdefault(number, set()).add(file)
                    return
            self._warn(reason)
        self._polled.add(file)
        self._next_look = min(self._next_look, time.monotonic() + interval)

    def catch_up(self) -> None:
        """Takes note of all changes until now, without waiting."""
        self._take_changes()
        self._look()

    @contextmanager
    def minding(self, file: FollowedFile) -> Iterator[None]:
        """Gives a file up, with a message, if the block cannot open or read it."""
        try:
            yield
        except OSError as error:
            self._report(logging.ERROR, f"{file.path} cannot be followed: {_reason(error)}")
            file.dropped = True
            self._changed.pop(file, None)

    def drain(self) -> bool:
        """Shows a block of every file that has changed; whether there was any."""
        busy = False
        files = [file for file in self._changed if not file.dropped]
        self._changed.clear()
        for file in files:
            with self.minding(file):
                busy = file.drain() or busy
                if file.behind:
                    self._changed[file] = None
        return busy

    def wait(self, due: float | None, gather: float) -> None:
        """Sleeps until a file changes, the eventfd is written to, or a time has come.

        ``due``: latest end, by `time.monotonic`; None for none. ``gather``: seconds in which
        changes are not looked at, but only the eventfd.
        """
        end = min(self._next_look, math.inf if due is None else due)
        left = 0.0 if self._changed else max(0.0, end - time.monotonic())
        if min(gather, left) and wait((self._wake,), seconds=min(gather, left)):
            self._clear_wake()
            return
        left = 0.0 if self._changed else max(0.0, end - time.monotonic())
        files = (self._wake,) if self._inotify is None else (self._wake, self._inotify)
        if self._wake in wait(files, seconds=left):
            self._clear_wake()
        self._take_changes()
        if time.monotonic() >= self._next_look:
            self._look()

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _take_changes(self) -> None:
        numbers, overflow = ([], False) if self._inotify is None else self._inotify.read()
        for number in tuple(self._watched) if overflow else numbers:
            self._changed.update(dict.fromkeys(self._watched.get(number, ())))

    def _look(self) -> None:
        """Look at what the kernel cannot tell of."""
        polled, self._polled, self._next_look = self._polled, set(), math.inf
        for file in polled:
            self.add(file)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            self._report(
                logging.WARNING,
                f"output is looked for every {_POLL_S:g} s, since the kernel cannot "
                f"tell of it: {reason}",
            )


# Bytes read at a time: large enough for few calls, small enough that files take turns.
_BLOCK = 256 * 1024
# The same of files whose lines are compared; a line that is longer is compared with none.
_COMPARED = 64 * 1024
# A line is held for so long, to see whether others say the same, seconds; and so much of all.
_HELD_S = 0.1
_HELD_BYTES = 1024 * 1024
# When so much of a file waits to be shown, its blocks are compared and not its lines, until nothing
# waits: comparing lines takes longer than writing them.
_FLOOD = 4 * 1024 * 1024
# Of so many sets of ranks the headers are kept.
_HEADERS = 1024
# A filter sees at most so many bytes of a line.
_FILTERED = 64 * 1024 * 1024
# Of a line that has not ended, at most so many bytes are looked at for the live area.
_LIVE = 4096
# A line without an end is shown when it is so old, seconds.
_PARTIAL_S = 1.0


class CollapsedFiles(LineCollapser):
    """Files of which lines that are the same at about the same time are shown as one.

    Each is a member. ``header``: returns what stands before a line that some of these ranks have
    said.
    """

    def __init__(
        self, streams: Sequence[Sequence[int]], header: Callable[[Sequence[int]], bytes]
    ) -> None:
        super().__init__(streams, _HELD_S, _HELD_BYTES)
        all_ranks = [rank for ranks in streams for rank in ranks]

        @functools.lru_cache(_HEADERS)
        def header_of(members: int) -> bytes:
            return header([rank for n, rank in enumerate(all_ranks) if members >> n & 1])

        self._header_of = header_of
        self.files: list[FollowedFile] = []

    def show(self, *, everything: bool = False) -> None:
        """Show what need not be held any longer, or all that is held."""
        self._write(self.take_all() if everything else self.take(time.monotonic()))

    def show_all_of(self, member: int) -> None:
        """Show what is held of a file, and of the other one of its rank."""
        self._write(self.take_all(member))

    def _write(self, shown: Sequence[tuple[int, bytes]]) -> None:
        for stream, lines in itertools.groupby(
            shown, lambda line: self._stream[line[0].bit_length() - 1]
        ):
            parts: list[bytes] = []
            said = 0
            for members, line in lines:
                said |= members
                header = self._header_of(members)
                parts += [header, line.replace(b"\n", b"\n" + header), b"\n"]
            speakers = [member for member in stream if said >> member & 1]
            files = [self.files[member] for member in speakers if not self.holds(member)]
            self.files[speakers[0]].write([b"".join(parts)], files)
            for file in files:
                file.update_live_area()


class FollowedFile:
    """One file on its way to one destination.

    ``path``: the file; it need not exist yet. ``line_filter``: says of a line, as text with its
    newline, whether it is shown; None for all. ``collapsed``: what its lines are shown by, together
    with those of other files; None for itself.
    """

    def __init__(
        self,
        path: str,
        prefix: bytes,
        destination: Destination,
        line_filter: Callable[[str], bool] | None = None,
        *,
        gate: BarGate | None = None,
        collapsed: CollapsedFiles | None = None,
        report: Report = logger.log,
    ) -> None:
        self.path = path
        self.dropped = False
        self.behind = False  # there was more to be shown when it was last looked at
        # when, by `time.monotonic`, the line in the making is to be shown; None if it is not
        self.due: float | None = None
        self.blocks = 0
        self._fd: int | None = None
        self._flooded = False
        self._destination = destination
        self._filter = line_filter
        self._gate = gate
        self._report = report
        # Under a foreign bar every line starts at the left edge and erases what is there.
        over_bar = gate is not None and destination.is_terminal
        self._prefix = b"\r\033[K" + prefix if over_bar else prefix
        self._collapsed = collapsed
        self._member = 0
        if collapsed is not None:
            self._member = len(collapsed.files)
            collapsed.files.append(self)
        keep = None if line_filter is None else self._keep
        self._splitter = LineSplitter(self._prefix if collapsed is None else b"", keep)
        self._has_live_area = destination.is_terminal and gate is None and line_filter is None

    def open(self) -> bool:
        """Opens the file, if it is not open; returns False if it is not there yet."""
        if self._fd is None:
            with contextlib.suppress(FileNotFoundError):
                self._fd = open_file(self.path)
        return self._fd is not None

    @property
    def position(self) -> int:
        """Offset of the next byte that is to be shown."""
        return self._splitter.position

    def size(self) -> int:
        """Bytes in the file now; 0 while it is not there."""
        return 0 if self._fd is None else os.fstat(self._fd).st_size

    def drain(self) -> bool:
        """Shows the next block; returns whether there was one."""
        if self._fd is None:
            return False
        position, size = self.position, self.size()
        if size < position:
            self._say_truncated()
            position = 0
        most = _BLOCK
        if self._collapsed is not None:
            self._flooded = size - position > _FLOOD or (self._flooded and self.behind)
            # up to a multiple: files with the same in them are cut in the same places
            most = 2 * _COMPARED - position % _COMPARED
        block = os.pread(self._fd, min(most, size - position), position)
        if self._flooded:
            block = block[: block.rfind(b"\n") + 1] or block
        self.behind = position + len(block) < size
        if not block:
            return False
        for piece in self._splitter.feed(block):
            self._show(piece)
        self.blocks += 1
        if self._collapsed is None or not self._collapsed.holds(self._member):
            self.update_live_area()
        return True

    def finish(self) -> None:
        """Shows the line in the making as it is; the last one need not have ended."""
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
        span, text = self._splitter.pending, None
        if span is not None:
            text = self._prefix + self._read(span.start, min(span.end, span.start + _LIVE))
        try:
            self._destination.show(self, text)
        except Exception as error:  # noqa: BLE001 - as in `write`
            self._complain(f"it cannot be shown: {_reason(error)}")

    def update_live_area(self) -> None:
        """Shows the line in the making in the live area, or says when that is to be done."""
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
            self._complain(f"the filter of lines failed on it: {_reason(error)}")
            return True

    def _show(self, piece: bytes | Span) -> None:
        if self._collapsed is not None:
            if not isinstance(piece, Span):
                text = piece[:-1]
                lines = [text] if self._flooded else text.split(b"\n")
                self._collapsed.add(self._member, lines, time.monotonic())
                return
            if piece.end - piece.start <= _COMPARED:
                line = self._read(piece.start, piece.end)
                self._collapsed.add(self._member, [line], time.monotonic())
                return
            self._collapsed.show_all_of(self._member)
        if not isinstance(piece, Span):
            self.write([piece])
            return
        if self._filter is not None:
            head = self._read(piece.start, min(piece.end, piece.start + _FILTERED))
            if not self._keep(head):
                return
        self.write(self._parts(piece))

    def _parts(self, span: Span) -> Iterator[bytes]:
        """A line that is still in the file, with prefix and newline, block by block."""
        if span.end - span.start <= _BLOCK:
            yield self._prefix + self._read(span.start, span.end) + b"\n"
            return
        yield self._prefix
        for start in range(span.start, span.end, _BLOCK):
            yield self._read(start, min(span.end, start + _BLOCK))
        yield b"\n"

    def _read(self, start: int, end: int) -> bytes:
        try:
            return b"" if self._fd is None else os.pread(self._fd, end - start, start)
        except OSError as error:
            self._complain(f"it cannot be read: {_reason(error)}")
            return b""

    def _say_truncated(self) -> None:
        self._splitter.reset()
        self.due = None
        if self._filter is None:
            name = os.path.basename(self.path)
            notice = f"[{name} truncated by the worker]".encode("utf-8", "surrogateescape")
            if self._collapsed is not None:
                self._collapsed.add(self._member, [notice], time.monotonic())
                return
            self.write([self._prefix + notice + b"\n"])

    def write(self, parts: Iterable[bytes], sources: Collection[object] | None = None) -> None:
        """Write whole lines to the destination; trouble is reported once.

        ``sources``: whose lines in the live area end with them; None for this one's.
        """
        try:
            with nullcontext() if self._gate is None else self._gate.lifted():
                self._destination.write(parts, (self,) if sources is None else sources)
        except BrokenPipeError:
            # who read it has gone, as `| head` does; there is nobody to tell
            self._destination.failed = True
        except Exception as error:  # noqa: BLE001 - whatever a foreign stream raises; others go on
            self._complain(f"it cannot be shown: {_reason(error)}")

    def _complain(self, what: str) -> None:
        """Reports the first trouble of a destination; every block would have the same."""
        if not self._destination.failed:
            self._destination.failed = True
            text = f"{self.path}: {what} (reported once; the file is complete)"
            self._report(logging.ERROR, text)


def _reason(error: Exception) -> str:
    """Return what an error says: of one of the system its words, of others their kind as well."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or repr(error)


# After something was shown, so long nothing is, seconds: what is written line by line then
# comes in blocks, and costs a hundred looks a second at most.
_GATHER_S = 0.01
# stop() gives up on a destination that takes nothing for so long, seconds.
_STOP_PATIENCE_S = 10.0


class Follower:
    """Shows files as they grow, whole lines only, each with a prefix; one thread for all of them.

    ``elsewhere``: as for `Watching`. ``report``: takes what cannot be followed, read or shown, from
    the thread; by default it is logged.
    """

    def __init__(
        self, name: str = "tail", *, elsewhere: bool = False, report: Report = logger.log
    ) -> None:
        self._elsewhere = elsewhere
        self._report = report
        self._name = name
        self._added: collections.deque[FollowedFile] = collections.deque()
        self._files: list[FollowedFile] = []
        self._collapsed: list[CollapsedFiles] = []
        # of those who wait until what is held is shown
        self._asked: collections.deque[threading.Event] = collections.deque()
        self._destinations: dict[int, tuple[TextIO, Destination]] = {}
        # Reentrant: a signal handler may call stop() while its thread is in one of these methods.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._wake: int | None = None
        self._stopping = False
        self._given_up = False
        self._done = threading.Event()

    def add(
        self,
        path: str,
        prefix: bytes,
        dst: TextIO,
        line_filter: Callable[[str], bool] | None = None,
        *,
        progbar_events: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a file, before `start` or after.

        ``path``: the file; it need not exist yet, nor its directory. ``/dev/null`` shows nothing.
        ``line_filter``: says of a line, as text with its newline, whether it is shown; None for
        all. It sees the first 64 MiB of a line. ``progbar_events``: events ``trigger_clear`` and
        ``cleared`` of a progress bar that is to be taken off the screen while writing.

        Raises:
            RuntimeError: it was stopped.
            KeyError: an event is missing.
        """
        if path == os.devnull:
            return
        with self._lock:
            destination = self._destination(dst)
            gate = None if progbar_events is None else BarGate(progbar_events)
            file = FollowedFile(
                path, prefix, destination, line_filter, gate=gate, report=self._report
            )
            self._added.append(file)
            self._notify()

    def add_collapsed(
        self,
        streams: Sequence[tuple[Mapping[int, str], TextIO]],
        header: Callable[[Sequence[int]], bytes],
    ) -> None:
        """Adds files of which identical lines of a stream, within 100 ms, are shown as one.

        ``streams``: the files of each, by rank, and where its lines go. Those of one rank stay in
        the order in which they were seen, over all streams. ``header``: returns what stands before
        a line that some of these ranks have said.
        """
        with self._lock:
            collapsed = CollapsedFiles([sorted(paths) for paths, _ in streams], header)
            self._collapsed.append(collapsed)
            for paths, dst in streams:
                destination = self._destination(dst)
                destination.screen.holders.add(self.show_held)
                self._added.extend(
                    FollowedFile(
                        *(path, header([rank]), destination),
                        collapsed=collapsed,
                        report=self._report,
                    )
                    for rank, path in sorted(paths.items())
                )
            self._notify()

    def _destination(self, dst: TextIO) -> Destination:
        if self._stopping:
            raise RuntimeError("a stopped Follower takes no more files")
        return self._destinations.setdefault(id(dst), (dst, Destination(dst)))[1]

    def show_held(self, seconds: float) -> None:
        """Have lines shown that are held to see whether others say the same."""
        shown = threading.Event()
        with self._lock:
            ended = self._wake is None or self._given_up
            if ended or threading.current_thread() is self._thread:
                return
            if self._asked:
                seconds = 0.0
            self._asked.append(shown)
            self._notify()
        shown.wait(seconds)

    def start(self) -> Self:
        """Starts the thread; does nothing the second time.

        Raises:
            OSError: no descriptor is left.
            RuntimeError: no thread can be started, or it was stopped.
        """
        with self._lock:
            if self._stopping:
                raise RuntimeError("a stopped Follower cannot be started again")
            if self._thread is None:
                wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                # A daemon: a destination that blocks for ever must not keep the process alive.
                thread = threading.Thread(
                    target=self._run, args=(wake,), name=self._name, daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    os.close(wake)
                    raise
                self._wake, self._thread = wake, thread
        return self

    def stop(self, *, join: bool = True) -> None:
        """Shows everything that was written before this call, then ends; idempotent.

        Last lines without a newline get one. Returns earlier only if a destination takes nothing
        for ten seconds; that is reported, unless standard error is such a one, and nothing is lost
        from the files. Then, and when a signal ends the wait, no further line begins.

        ``join``: whether the thread is waited for. When all is shown it has only an inotify
        descriptor left to close, for which the kernel takes 8 to 16 ms.
        """
        with self._lock:
            self._stopping = True
            self._notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            try:
                self._wait()
            finally:
                # a signal, or nobody reads: the process may end at any moment, and would cut a line
                if not self._done.is_set():
                    for _, destination in list(self._destinations.values()):
                        destination.silent = True
            if join and not self._given_up:
                thread.join()

    def stopped(self) -> bool:
        """Whether it was stopped and nothing more is shown."""
        running = self._thread is not None and not self._done.is_set()
        return self._stopping and (self._given_up or not running)

    def _notify(self) -> None:
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def _wait(self) -> None:
        while not self._done.is_set() and not self._given_up:
            before = self._progress()
            self._done.wait(_STOP_PATIENCE_S)
            if not self._done.is_set() and self._progress() == before:
                self._given_up = True
                # to a console that takes nothing nobody else can write
                with screen_of(sys.stderr).turn(0.0) as others_can:
                    say = self._report if others_can else logger.log
                level = logging.WARNING if others_can else logging.DEBUG
                say(level, "the console takes no output of the workers any more; see the files")

    def _progress(self) -> int:
        taken = sum(destination.taken for _, destination in list(self._destinations.values()))
        return taken + sum(file.blocks for file in self._files)

    def _run(self, wake: int) -> None:
        # the main thread is to stop for it (`SignalSource.stop_until_continued`)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        watching: Watching | None = None
        try:
            watching = Watching(wake, elsewhere=self._elsewhere, report=self._report)
            while not self._stopping:
                self._take_added(watching)
                busy = self._look(watching)
                # lines in the making, or held, that are to be shown then
                times = [file.due for file in self._files] + [each.due for each in self._collapsed]
                due = min((moment for moment in times if moment is not None), default=None)
                watching.wait(due, gather=_GATHER_S if busy else 0.0)
            self._take_added(watching)
            self._finish(watching)
        except Exception as error:
            if short := shortage(error):
                text = f"the output is not shown any more, it is in the files: {short}"
                self._report(logging.ERROR, text)
            else:
                logger.exception("the tail ended by an error of its own; the files are complete")
        finally:
            for file in self._files:
                file.close()
            for _, destination in list(self._destinations.values()):
                destination.screen.holders.discard(self.show_held)
            with self._lock:
                os.close(wake)
                self._wake = None
                for shown in self._asked:
                    shown.set()
            self._done.set()
            if watching is not None:
                watching.close()

    def _take_added(self, watching: Watching) -> None:
        while self._added:
            file = self._added.popleft()
            self._files.append(file)
            watching.add(file)

    def _look(self, watching: Watching) -> bool:
        """Takes one turn: a block of every file that has changed. Whether there was any."""
        asked = len(self._asked)
        if asked:
            watching.catch_up()
        busy, now = watching.drain(), time.monotonic()
        for file in self._files:
            if file.due is not None and file.due <= now:
                file.tick()
        for collapsed in self._collapsed:
            collapsed.show(everything=bool(asked))
        for _ in range(asked):
            self._asked.popleft().set()
        return busy

    def _finish(self, watching: Watching) -> None:
        # All sizes first: what is written after this moment need not be shown, so that a worker
        # that never stops writing cannot keep us here.
        ends = {}
        for file in self._files:
            with watching.minding(file):
                if not file.dropped and file.open():
                    ends[file] = file.size()
        while ends:
            for file, end in tuple(ends.items()):
                with watching.minding(file):
                    if file.position < end and file.drain():
                        continue
                    file.finish()
                del ends[file]
            for collapsed in self._collapsed:
                collapsed.show()
        for collapsed in self._collapsed:
            collapsed.show(everything=True)


_MAKE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Shown(NamedTuple):
    """How the output of workers is shown."""

    # headers of lines by local rank, instead of ``[<name><rank>]:``
    prefixes: Mapping[int, str] | None = None
    # returns the header on the console of a line that some ranks have said; None for those above
    header: Callable[[Sequence[int]], str] | None = None
    # whether identical lines of several ranks are shown as one; needs ``header``
    collapse: bool = False
    # teed lines that hold one of these texts go to a file of their own as well
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()
    progbar_events: Mapping[str, Any] | None = None  # as for `Follower.add`
    # takes what cannot be shown, from a thread of its own; None: it is logged
    report: Report | None = None


class Tees:
    """The teed streams of the workers of an attempt.

    ``name``: default header of lines: ``[<name><rank>]:``.
    """

    def __init__(self, name: str, files: LogsDest, shown: Shown) -> None:
        self._name = name
        self._how = shown
        self._report = shown.report or logger.log
        self._follower = Follower(f"tee {name}", report=self._report)
        # a program without a console (pythonw, some daemons) has None there
        consoles = ((files.tee_stdouts, sys.stdout), (files.tee_stderrs, sys.stderr))
        self._streams = [(paths, dst) for paths, dst in consoles if paths and dst is not None]
        self._filtered: list[TextIO] = []
        self._copy(files.tee_stdouts, files.filtered_stdout, shown.stdout_filters)
        self._copy(files.tee_stderrs, files.filtered_stderr, shown.stderr_filters)

    def _copy(self, files: Mapping[int, str], path: str, filters: Sequence[str]) -> None:
        """Write lines that hold one of some texts to a file of their own."""
        if not filters:
            return
        with naming(path):
            dst = open(path, "w", errors="replace", buffering=1)  # noqa: SIM115 - closed by `stop`
        self._filtered.append(dst)
        for rank, file in files.items():
            self._follower.add(
                file,
                self._header_of(rank),
                dst,
                lambda line: any(needle in line for needle in filters),
            )

    def _header(self, ranks: Sequence[int]) -> bytes:
        if self._how.header is None:
            return self._header_of(ranks[0])
        return self._how.header(ranks).encode("utf-8", "surrogateescape")

    def _header_of(self, rank: int) -> bytes:
        header = (self._how.prefixes or {}).get(rank, f"[{self._name}{rank}]:")
        return header.encode("utf-8", "surrogateescape")

    def start(self) -> None:
        """Begin to show; without a file there is no thread.

        If there is no room for it, that is said, and nothing else fails for it.
        """
        if not self._streams and not self._filtered:
            return
        for files, _ in self._streams:
            for path in files.values():
                # so that the kernel can tell of it from the beginning
                with contextlib.suppress(OSError):
                    os.close(os.open(path, _MAKE, 0o666))
        if self._how.collapse and any(len(files) > 1 for files, _ in self._streams):
            self._follower.add_collapsed(self._streams, self._header)
        else:
            for files, dst in self._streams:
                for rank, path in files.items():
                    header, events = self._header([rank]), self._how.progbar_events
                    self._follower.add(path, header, dst, progbar_events=events)
        try:
            self._follower.start()
        except (OSError, RuntimeError) as error:
            reason = shortage(error)
            if not reason:
                raise
            text = f"the output is not shown, it is in the files: {reason}"
            self._report(logging.ERROR, text)

    def stop(self) -> None:
        """Show what was written before this call, then end; idempotent."""
        self._follower.stop(join=False)
        for file in self._filtered:
            file.close()
