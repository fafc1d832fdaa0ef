"""What launcher and spawner send each other: messages, orders, and events (`lllaunch.events`).

A message is a JSON object (the header), opaque bytes (the payload), and descriptors. On the wire:
two 32-bit and one 64-bit big-endian lengths and counts, the header, the payload; the descriptors
ride on the first byte (SCM_RIGHTS). The kernel never merges bytes of two such sends, so descriptors
arrive in the order of their messages. A receive that brings descriptors ends within the message
that they belong to, which is how they are told apart when the kernel drops some: it does that
where the receiver has no room for them.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lllaunch.clock import from_boot
from lllaunch.events import (
    Exited,
    Orphan,
    OrphansGone,
    PreloadBroken,
    Ready,
    SpawnerEvent,
    Started,
    StartFailed,
)
from lllaunch.linux.process import wait


@dataclass(frozen=True)
class Program:
    """An executable, looked up on the worker's PATH when it holds no slash, and its arguments."""

    path: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Script:
    """A Python file, run as ``python -u path argv...`` would."""

    path: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """A Python module, run as ``python -u -m name argv...`` would."""

    name: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """An importable function; ``call`` is the pickled ``(args, kwargs)``."""

    module: str
    qualname: str
    call: bytes


@dataclass(frozen=True)
class Pickled:
    """A callable of the calling process, as `lllaunch.spawner.pickling.dump` makes it."""

    payload: bytes  # the pickled ``(preparation, function, args)``
    # descriptors that the payload refers to by index; they are duplicated on sending
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Check(Function):
    """A function that is only imported, and its arguments bound.

    What is wrong, at most `MAX_PROBLEM` bytes, is written to the descriptor that is sent along.
    """

    fds: tuple[int, ...] = ()


# What a pipe takes without a reader.
MAX_PROBLEM = 4096


@dataclass(frozen=True)
class Kept:
    """A call that the spawner was forked with."""

    local_rank: int


Target = Program | Script | Module | Function | Pickled | Kept


@dataclass(frozen=True)
class Forked:
    """A callable of the calling process, which is forked to be the spawner: start method ``fork``.

    It may be a closure; nothing of it is pickled.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


def event_of(header: dict[str, Any], attempt: int = 0, local_rank: int = -1) -> SpawnerEvent:
    """Return the event that a message from the spawner is about."""
    kind = header["event"]
    at = from_boot(header.get("time_ns", 0))
    if kind == "ready":
        return Ready(header["seconds"], header["fork_safe"], at)
    if kind == "broken":
        return PreloadBroken(header["module"], header["reason"], header["traceback"])
    if kind == "orphans_gone":
        return OrphansGone(tuple(Orphan(*orphan) for orphan in header["orphans"]))
    if kind == "started":
        return Started(local_rank, header["pid"], at, attempt)
    if kind == "failed":
        path, reason, errno = header["path"], header["reason"], header["errno"]
        return StartFailed(local_rank, path, reason, errno, at, attempt)
    return Exited(
        local_rank=local_rank,
        pid=header["pid"],
        exitcode=header["exitcode"],
        time_ns=at,
        max_rss=header["max_rss"],
        cpu_seconds=header["cpu"],
        core_dumped=header["core"],
        attempt=attempt,
    )


_PREFIX = struct.Struct("!IIQ")
_CHUNK = 1 << 20
# The kernel's limit of descriptors in one send (SCM_MAX_FD); more go in several.
MAX_FDS = 253


class Message(NamedTuple):
    """One received message."""

    header: dict[str, Any]
    payload: bytes
    fds: list[int]  # descriptors that came with it; the receiver owns them
    lost: int = 0  # how many more were sent with it, for which this process had no room


class Channel:
    """One end of the connection: sends without blocking, receives what is there."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._out: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._to_close: set[int] = set()
        self._buffer = bytearray()
        # Each with the position in the stream of a byte of the message that it belongs to.
        self._fds: deque[tuple[int, int]] = deque()
        self._taken = 0
        self._sends = True
        self.closed = False  # whether the other end is gone and all that it sent has been received

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def unclaimed(self) -> list[int]:
        """Descriptors that arrived ahead of the rest of their message."""
        return [fd for _, fd in self._fds]

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def queue(
        self,
        header: dict[str, Any],
        payload: bytes = b"",
        fds: tuple[int, ...] = (),
        close_fds: bool = False,
    ) -> None:
        """Put a message in the queue and send what the socket takes.

        ``payload``: opaque bytes. ``fds``: descriptors to send along; they stay open until they
        have left.

        Raises:
            ValueError: more descriptors than a message can carry.
        """
        text = json.dumps(header).encode()
        start = memoryview(_PREFIX.pack(len(text), len(fds), len(payload)) + text)
        if len(fds) > MAX_FDS * _PREFIX.size:
            raise ValueError(f"{len(fds)} descriptors in one message are too many")
        if close_fds:
            self._to_close.update(fds)
        # One byte for each full load of descriptors, and the rest of the bytes with the last.
        while len(fds) > MAX_FDS:
            self._out.append((start[:1], fds[:MAX_FDS]))
            start, fds = start[1:], fds[MAX_FDS:]
        self._out.append((start, fds))
        if payload:
            self._out.append((memoryview(payload), ()))
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket takes now."""
        if not self._sends:
            self._stop_sending()
        while self._out:
            data, fds = self._out[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._sock.sendmsg([data[:_CHUNK]], rights)
            except BlockingIOError:
                return
            except OSError:
                # The other end is gone. What it sent before is still to be received.
                self._stop_sending()
                return
            self._close_sent(fds)
            if sent < len(data):
                self._out[0] = (data[sent:], ())
            else:
                self._out.popleft()

    def _stop_sending(self) -> None:
        self._sends = False
        self._out.clear()
        self._close_sent(tuple(self._to_close))
        # Should the other end be there all the same, it shall not wait for more.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _close_sent(self, fds: Iterable[int]) -> None:
        for fd in self._to_close.intersection(fds):
            self._to_close.remove(fd)
            os.close(fd)

    def drain(self, other_fd: int) -> bool:
        """Send all of the queue, waiting; False if the peer is gone or ``other_fd`` readable."""
        while self._out:
            if other_fd in wait((other_fd,), (self._sock,)):
                return False
            self.flush()
        return self._sends

    def receive(self) -> list[Message]:
        """All messages that are complete; sets `closed` when the other end is gone."""
        while not self.closed:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    _CHUNK, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                break
            except OSError:
                data, ancillary = b"", []
            for _, _, raw in ancillary:
                whole = len(raw) - len(raw) % 4
                last = self._taken + len(self._buffer) + len(data) - 1
                self._fds.extend((last, fd) for fd in array.array("i", raw[:whole]))
            if not data:
                self.closed, self._sends = True, False
            self._buffer += data
        return self._take()

    def _take(self) -> list[Message]:
        messages = []
        position = 0
        while len(self._buffer) - position >= _PREFIX.size:
            header, fds, payload = _PREFIX.unpack_from(self._buffer, position)
            end = position + _PREFIX.size + header + payload
            if len(self._buffer) < end:
                break
            middle = position + _PREFIX.size + header
            arrived = self._fds_before(self._taken + end)
            messages.append(
                Message(
                    json.loads(self._buffer[position + _PREFIX.size : middle]),
                    bytes(self._buffer[middle:end]),
                    arrived,
                    fds - len(arrived),
                )
            )
            position = end
        del self._buffer[:position]
        self._taken += position
        return messages

    def _fds_before(self, position: int) -> list[int]:
        fds = []
        while self._fds and self._fds[0][0] < position:
            fds.append(self._fds.popleft()[1])
        return fds

    def close(self) -> None:
        """Close the socket; idempotent."""
        self.closed, self._sends = True, False
        self._close_sent(tuple(self._to_close))
        while self._fds:
            os.close(self._fds.popleft()[1])
        self._sock.close()


@dataclass(frozen=True)
class SpawnRequest:
    """What to start and how; sent pickled, since the spawner is the launcher's own.

    ``key``: number by which the client knows the worker, unique per spawner. ``env``: variables
    that differ from the spawner's own. ``stdout``: file for standard output, appended to; empty:
    the launcher's. ``fresh``: run in a fresh interpreter instead of a fork of the spawner.
    """

    key: int
    target: Target
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    fresh: bool = False
