"""What launcher and spawner send each other: messages, orders, and events (`lllaunch.events`).

A message is a pickled mapping (the header) and descriptors; both ends are processes of a launcher.
It is one packet of a Unix socket: how many bytes the header has (64 bits, big-endian), how many
descriptors there are (32 bits), and the header. One that is too long for a packet is in a memory
file, the first of the descriptors. The kernel drops descriptors for which the receiver has no room,
the last ones first.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from lllaunch.clock import from_boot
from lllaunch.events import Exited, Ready, SpawnerEvent, Started, StartFailed
from lllaunch.linux.process import wait


class Program(NamedTuple):
    """An executable, looked up on the worker's PATH when it holds no slash, and its arguments."""

    path: str
    argv: tuple[str, ...] = ()


class Script(NamedTuple):
    """A Python file, run as ``python -u path argv...`` would."""

    path: str
    argv: tuple[str, ...] = ()


class Module(NamedTuple):
    """A Python module, run as ``python -u -m name argv...`` would."""

    name: str
    argv: tuple[str, ...] = ()


class Function(NamedTuple):
    """An importable function; ``call`` is the pickled ``(args, kwargs)``."""

    module: str
    qualname: str
    call: bytes


class Pickled(NamedTuple):
    """A callable of the calling process, as `lllaunch.spawner.pickling.dump` makes it."""

    payload: bytes  # the pickled ``(preparation, function, args)``
    # descriptors that the payload refers to by index; they are duplicated on sending
    fds: tuple[int, ...] = ()


class Forked(NamedTuple):
    """A callable of the calling process, which is forked to be the spawner: start method ``fork``.

    It may be a closure; nothing of it is pickled.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


PythonTarget = Script | Module | Function | Pickled | Forked
Target = Program | PythonTarget


def dated(event: SpawnerEvent) -> SpawnerEvent:
    """Return an event of the spawner's, which counts from the machine's start, with a time of day.

    The spawner's own clock began at another moment, and the wall clock may have been set between.
    """
    if isinstance(event, (Ready, Started, StartFailed, Exited)):
        return event._replace(time_ns=from_boot(event.time_ns))
    return event


_PREFIX = struct.Struct("!QI")
# What is longer goes through the memory file.
_MOST_INLINE = 64 * 1024
# The kernel's limit of descriptors in one packet (SCM_MAX_FD), less the memory file.
MAX_FDS = 252


def connected() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection, each for a `Channel`."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Message(NamedTuple):
    """One received message."""

    header: dict[str, Any]
    fds: list[int]  # descriptors that came with it; the receiver owns them
    lost: int = 0  # how many more were sent with it, for which this process had no room


class _Packet(NamedTuple):
    data: bytes
    fds: tuple[int, ...]
    to_close: tuple[int, ...]  # of these, when it has left


class Channel:
    """One end of the connection: sends without blocking, receives what is there."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._out: deque[_Packet] = deque()
        self._sends = True
        self.closed = False  # whether the other end is gone and all that it sent has been received

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def queue(
        self, header: dict[str, Any], fds: tuple[int, ...] = (), close_fds: bool = False
    ) -> None:
        """Put a message in the queue and send what the socket takes.

        ``fds``: descriptors to send along; they stay open until they have left.

        Raises:
            ValueError: more descriptors than a message can carry.
            OSError: no descriptor is left for what does not fit into a packet.
        """
        if len(fds) > MAX_FDS:
            raise ValueError(f"{len(fds)} descriptors in one message are too many")
        data, to_close = pickle.dumps(header), fds if close_fds else ()
        prefix = _PREFIX.pack(len(data), len(fds))
        if len(prefix) + len(data) > _MOST_INLINE:
            memory = os.memfd_create("lllaunch-message", os.MFD_CLOEXEC)
            with open(os.dup(memory), "wb") as file:
                file.write(data)
            data, fds, to_close = b"", (memory, *fds), (memory, *to_close)
        self._out.append(_Packet(prefix + data, fds, to_close))
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket takes now."""
        while self._out:
            packet = self._out[0]
            try:
                if self._sends:
                    socket.send_fds(self._sock, [packet.data], packet.fds)
            except BlockingIOError:
                return
            except OSError:
                # The other end is gone. What it sent before is still to be received; should it be
                # there all the same, it shall not wait for more.
                self._sends = False
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
            self._out.popleft()
            for fd in packet.to_close:
                os.close(fd)

    def drain(self, other_fd: int) -> bool:
        """Send all of the queue, waiting; False if the peer is gone or ``other_fd`` readable."""
        while self._out:
            if other_fd in wait((other_fd,), (self._sock,)):
                return False
            self.flush()
        return self._sends

    def receive(self) -> list[Message]:
        """All messages that have arrived; sets `closed` when the other end is gone.

        Raises:
            OSError: no descriptor was left for one that did not fit into its packet.
        """
        messages = []
        while not self.closed:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    _MOST_INLINE, socket.CMSG_SPACE((MAX_FDS + 1) * 4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                break
            except OSError:
                data, ancillary = b"", []
            if data:
                rights = (raw[: len(raw) - len(raw) % 4] for _, _, raw in ancillary)
                messages.append(_message(data, [*array.array("i", b"".join(rights))]))
            else:
                self.closed, self._sends = True, False
        return messages

    def close(self) -> None:
        """Close the socket; idempotent."""
        self.closed, self._sends = True, False
        self.flush()
        self._sock.close()


def _message(data: bytes, fds: list[int]) -> Message:
    size, count = _PREFIX.unpack_from(data)
    data = data[_PREFIX.size :]
    if len(data) < size:
        if not fds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with open(fds.pop(0), "rb") as file:
            file.seek(0)
            data = file.read()
    header = pickle.loads(data)  # noqa: S301 - of a process that is the launcher's own
    return Message(header, fds, count - len(fds))


class SpawnRequest(NamedTuple):
    """What to start and how.

    ``env``: variables that differ from the spawner's own. ``stdout``: file for standard output,
    appended to; empty: the launcher's. ``fresh``: run in a fresh interpreter instead of a fork.
    """

    target: Target | None  # None: the call of its rank that the spawner was forked with
    cwd: str
    env: dict[str, str]
    stdout: str = ""
    stderr: str = ""
    fresh: bool = False
