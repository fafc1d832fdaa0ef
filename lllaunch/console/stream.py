"""Whole lines to a stream, without ever waiting long for its reader.

``O_NONBLOCK`` belongs to what the shell, the launcher and the workers share, so it must not be set
on standard error itself. Instead:

- a pipe, FIFO or terminal is opened anew through ``/proc``, which gives us flags of our own;
- each call to a socket asks not to wait.

If neither is possible (no ``/proc``, another user's terminal), `select.poll` is asked first, and
then at most 4096 bytes are written. That waits only if another writer was faster, or if the
terminal takes less than it said.

A full pipe that nobody reads and a terminal stopped by Ctrl-S let a writer wait for ever, and the
launcher has workers to look after. What is not taken in time is kept, up to a limit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

from lllaunch.linux.process import wait
from lllaunch.signal_source import SignalException
from lllaunch.text import first_line
from lllaunch.words import counted
from lllaunch.workers.terminal import descriptor_of, screen_of, whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lllaunch.workers.terminal import Screen


# Linux' PIPE_BUF: a pipe takes so many bytes as a whole or not at all.
_PIECE = 4096
# /dev/ptmx: opened anew it is another terminal.
_NEW_TERMINAL = os.makedev(5, 2)


class _Channel(NamedTuple):
    """The descriptor of a stream that may take nothing for long, and how to write to it."""

    descriptor: int
    write: Callable[[bytes], int]


@contextlib.contextmanager
def _opened(stream: TextIO) -> Iterator[_Channel | None]:
    """Give a stream's channel; None if it never blocks, or is somebody's own object."""
    if (descriptor := descriptor_of(stream)) is None:
        yield None
        return
    status = os.fstat(descriptor)
    mode = status.st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        yield None
        return
    with contextlib.ExitStack() as ours:
        yield _Channel(descriptor, _writer(descriptor, status, ours))


def _writer(
    descriptor: int, status: os.stat_result, ours: contextlib.ExitStack
) -> Callable[[bytes], int]:
    """Return how to write; what is opened for it is closed by ``ours``."""
    if stat.S_ISSOCK(status.st_mode):
        import socket  # noqa: PLC0415 - rare

        sock = ours.enter_context(socket.socket(fileno=os.dup(descriptor)))
        return lambda piece: sock.send(piece, socket.MSG_DONTWAIT)
    if status.st_rdev != _NEW_TERMINAL:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            own = os.open(f"/proc/self/fd/{descriptor}", flags)
            ours.callback(os.close, own)
            return lambda piece: os.write(own, piece)
    return lambda piece: os.write(descriptor, piece)


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def encodable(text: str, stream: TextIO) -> str:
    """Return a text in which characters that a stream's encoding lacks are escaped."""
    encoding = _encoding(stream)
    if not text.isascii():
        with contextlib.suppress(UnicodeEncodeError):
            return text.encode(encoding).decode(encoding)
        text = text.replace("→", "->")
    return text.encode(encoding, "backslashreplace").decode(encoding)


KEPT = 1 << 20
"""Bytes that are kept for a stream that takes nothing."""

# A terminal may say that it takes text and take none; it is asked again after so many seconds.
_PAUSE_S = 0.01


class Outlet:
    """One stream, and what it has not taken.

    What it does not take in time is kept up to some size, and goes before later text. What is
    beyond that is left out, and a line reports the number of those messages. A stream without a
    descriptor, or that of a regular file, is simply written to.

    `elsewhere` is where messages are that are not shown.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        elsewhere: str = "events.jsonl",
    ) -> None:
        self.stream = stream
        self._clock = clock
        self._elsewhere = elsewhere
        self._blocked = False
        self._left_out = 0
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._rest = b""  # being written

    @property
    def pending(self) -> bool:
        """Whether text is kept."""
        return bool(self._rest or self._kept)

    def awaited(self) -> int:
        """Return the descriptor that is writable when it can go on; -1 if nothing is kept."""
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
            return self.stream.fileno() if self.pending else -1
        return -1

    def put(self, text: str, patience: float, *, last: bool = False) -> None:
        """Write as `write` does; text for a stream that is closed or refuses it is forgotten."""
        with contextlib.suppress(OSError, ValueError):
            self.write(encodable(text, self.stream), patience, last=last)

    def hold(self, text: str) -> None:
        """Keep whole lines for the next `push`; one call is one message."""
        data = encodable(text, self.stream).encode(_encoding(self.stream), "backslashreplace")
        if data and self._size > KEPT:
            self._left_out += 1
            return
        for piece in whole_lines(data, _PIECE):
            self._kept.append(bytes(piece))
        self._size += len(data)

    def push(self, patience: float = 0.0, *, last: bool = False) -> None:
        """Write what is kept, as far as the stream takes it."""
        if self.pending:
            self.put("", patience, last=last)

    def write(self, text: str, patience: float, *, last: bool = False) -> None:
        """Write whole lines, in one piece where they fit into 4096 bytes.

        It waits at most `patience` seconds, and not at all if the stream did not take all of the
        message before; the `last` one waits even then.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        deadline = self._clock() + (patience if last or not self._blocked else 0.0)
        screen = screen_of(self.stream)
        screen.settle(deadline - self._clock())
        # others may be in the middle of a line
        with _opened(self.stream) as channel, screen.turn(deadline - self._clock()) as mine:
            if channel is None:
                held = b"".join(self._kept).decode(_encoding(self.stream))
                self._kept.clear()
                self._size = 0
                self.stream.write(held + text)
                self.stream.flush()
                return
            self.hold(text)
            try:
                self._blocked = not (mine and self._write_kept(screen, channel, deadline))
            except (OSError, ValueError):
                self._rest, self._size, self._left_out = b"", 0, 0
                self._kept.clear()
                raise

    def redraw(self, patience: float = 0.0) -> bool:
        """Draw the live area anew, or take it away; return whether all of it was taken.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        deadline, screen = self._clock() + patience, screen_of(self.stream)
        with _opened(self.stream) as channel, screen.turn(max(patience, _PAUSE_S)) as mine:
            if channel is None or not mine or self.pending or not self._ready(channel, deadline):
                return False
            self.stream.flush()
            self._rest = screen.erasure + screen.drawing(channel.descriptor)
            return self._drain(channel, deadline)

    def _write_kept(self, screen: Screen, channel: _Channel, deadline: float) -> bool:
        """Write what is kept, and how much was left out; return whether all of it was taken."""
        if not self._ready(channel, deadline):
            return False
        # what others left in Python's buffer is part of a line and comes first
        self.stream.flush()
        while self._drain(channel, deadline):
            if not (self._kept or self._left_out):
                return True
            if not self._ready(channel, deadline):
                return False
            if self._kept:
                text = self._kept.popleft()
                while self._kept and len(text) + len(self._kept[0]) <= _PIECE:
                    text += self._kept.popleft()
                self._size -= len(text)
            else:
                # what is kept came before it
                text, self._left_out = self._notice().encode(), 0
            before, after = screen.erasure, b""
            if self._kept or self._left_out:
                screen.erasure = b""
            else:
                after = screen.drawing(channel.descriptor)
            # in one piece, so that nobody sees the terminal without its live area
            self._rest = before + text + after
        return False

    def _notice(self) -> str:
        were = "was" if self._left_out == 1 else "were"
        missed = f"{counted(self._left_out, 'message')} {were} not shown"
        return f"lllaunch: {missed}: the console took nothing; see {self._elsewhere}\n"

    def _drain(self, channel: _Channel, deadline: float) -> bool:
        """Write what is to be written; return whether nothing of it is left."""
        while self._rest:
            if not self._ready(channel, deadline):
                return False
            count = 0
            with contextlib.suppress(BlockingIOError):
                count = channel.write(self._rest[:_PIECE])
            self._rest = self._rest[count:]
            if not count:
                if self._clock() >= deadline:
                    return False
                time.sleep(_PAUSE_S)
        return True

    def _ready(self, channel: _Channel, deadline: float) -> bool:
        """Wait until the stream takes text or has an error; return False if it is too late."""
        return bool(wait(writable=(channel.descriptor,), seconds=deadline - self._clock()))


def given_or_nowhere(stream: TextIO | None) -> TextIO:
    """Return a stream; what is written goes nowhere where there is none (pythonw, ``2>&-``)."""
    return open(os.devnull, "w", encoding="utf-8") if stream is None else stream


def same_file(one: TextIO, other: TextIO) -> bool:
    """Return whether two streams write to one file, pipe or terminal."""
    with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
        ours, theirs = os.fstat(one.fileno()), os.fstat(other.fileno())
        return os.path.samestat(ours, theirs)
    return False


T = TypeVar("T")

_PATIENCE_S = 0.2


@contextlib.contextmanager
def showing(what: str) -> Iterator[None]:
    """Leave out the rest of a block that only shows something where an error comes.

    Standard error says that there is no `what`, unless that is empty: it was said before.
    """
    try:
        yield
    except SignalException:
        # no error of what is shown: it asks this process to end
        raise
    except Exception as error:  # noqa: BLE001 - a bug of a display is no reason to end a training
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = first_line(f"{type(error).__name__}: {error}")
        if what and sys.stderr is not None:
            line = f"lllaunch: no {what}: {text} ({frame.filename}:{frame.lineno})\n"
            with contextlib.suppress(Exception):
                Outlet(sys.stderr).put(line, _PATIENCE_S)


def display(what: str, *last: str) -> Callable[[type[T]], type[T]]:
    """Make what its public methods show end nothing, by a decorator of a class.

    The first error of an object switches it off, and says that there is no `what`. Its methods do
    nothing from then on, and return None. Those that are `last` are tried all the same.
    """

    def guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_off or name in last:
                with showing("" if self.is_off else what):
                    return method(self, *args, **kwargs)
                self.is_off = True
            return None

        return call

    def decorated(cls: type[T]) -> type[T]:
        shown: Any = cls
        shown.is_off = False
        for name, method in list(vars(cls).items()):
            if callable(method) and (name == "__init__" or not name.startswith("_")):
                setattr(shown, name, guarded(name, method))
        return cls

    return decorated
