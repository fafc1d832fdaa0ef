"""Writing to a descriptor without waiting.

``O_NONBLOCK`` belongs to what the shell, the launcher and the workers share, so it must not be set
on standard error itself. Instead:

- a pipe, FIFO or terminal is opened anew through ``/proc``, which gives us flags of our own;
- a socket is told with every call not to wait.

Where neither can be had (no ``/proc``, another user's terminal), `select.poll` has to do: who asks
it first and then writes at most 4096 bytes waits only if another writer was faster, or if the
terminal takes less than it said.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import stat
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Linux' PIPE_BUF: a pipe takes so many bytes as a whole or not at all.
PIECE = 4096
# /dev/ptmx: opened anew it is another terminal.
_NEW_TERMINAL = os.makedev(5, 2)


class Channel:
    """A stream whose descriptor may take nothing for long.

    Args:
        stream: the stream.
        descriptor: to be asked whether it takes something.
        write: takes at most `PIECE` bytes; returns how many were taken, 0 if none can be now.
    """

    def __init__(self, stream: TextIO, descriptor: int, write: Callable[[bytes], int]) -> None:
        self.descriptor = descriptor
        self._stream = stream
        self._write = write

    def flush(self) -> None:
        """Lets go what others left in Python's buffer; it comes before what is written here.

        To be called when the descriptor takes something: what is left there is part of a line.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        self._stream.flush()

    def encoded(self, text: str) -> bytes:
        """The bytes of a text whose characters the stream's encoding has."""
        return text.encode(_encoding(self._stream), "backslashreplace")

    def write(self, piece: bytes) -> int:
        """Writes bytes.

        Returns:
            How many were taken; 0 if none can be now.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        try:
            return self._write(piece)
        except BlockingIOError:
            return 0


@contextlib.contextmanager
def opened(stream: TextIO) -> Iterator[Channel | None]:
    """A stream's channel; None where nothing is in the way of simply writing to it.

    Raises:
        ValueError: the stream is closed.
    """
    descriptor = _descriptor_of(stream)
    if descriptor is None:
        yield None
        return
    with contextlib.ExitStack() as ours:
        yield Channel(stream, descriptor, _writer(stream, descriptor, ours))


def _descriptor_of(stream: TextIO) -> int | None:
    """The descriptor if it may take nothing for long."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, NotImplementedError, OSError, TypeError):  # somebody's own object
        return None
    slow = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return descriptor if slow else None


def _writer(stream: TextIO, descriptor: int, ours: contextlib.ExitStack) -> Callable[[bytes], int]:
    """How to write; what is opened for it is closed by ``ours``."""
    if not _is_plain(stream):
        return _through(stream)
    status = os.fstat(descriptor)
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


def _is_plain(stream: TextIO) -> bool:
    """Whether nobody's own ``write`` would be passed by."""
    return isinstance(stream, io.TextIOWrapper) and type(stream).write is io.TextIOWrapper.write


def _through(stream: TextIO) -> Callable[[bytes], int]:
    decoder = codecs.getincrementaldecoder(_encoding(stream))("replace")

    def write(piece: bytes) -> int:
        stream.write(decoder.decode(piece))
        stream.flush()
        return len(piece)

    return write


def _encoding(stream: TextIO) -> str:
    return getattr(stream, "encoding", None) or "utf-8"
