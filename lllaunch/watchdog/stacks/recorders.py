"""Asks workers which collectives they have come to.

torch's server in each worker (`lllaunch.spawner.evidence`) is asked over its socket, all of
them at once. It answers from a thread in C++, so also if the worker waits in a collective, sleeps,
or holds the interpreter's lock; only which ranks are in which group needs that lock.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lllaunch.linux.process import short_address
from lllaunch.spawner.evidence import GROUPS

# What keeps the last 2000 collectives writes 1 MiB.
_MAX_BYTES = 16 << 20
_GLANCE_SECONDS = 0.1
_GOOD = 200
# Of backends on the CPU, and of NCCL where torch has it.
_TRACES = ("fr_trace_json", "dump_nccl_trace_json")
_REQUEST = (
    "POST /handler/{} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True)
class TraceSource:
    """How a worker can be asked for its collectives."""

    rank: int
    socket: str = ""  # path of the socket that it serves, if it does
    # path of the FIFO that makes NCCL's own recorder write its files; empty for none
    pipe: str = ""


class _Question:
    """One request, and what has come of its answer."""

    def __init__(self, path: str, handler: str) -> None:
        self.data = bytearray()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self.socket.setblocking(False)
            with short_address(path) as address:
                self.socket.connect(address)
            self.socket.send(_REQUEST.format(handler).encode())
        except OSError:
            self.socket.close()
            raise

    def read(self) -> bool:
        """Take what is there; whether that is all."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.data += data
        return not data or len(self.data) > _MAX_BYTES

    @property
    def answer(self) -> tuple[int, bytes]:
        """Status and body of a whole answer; the status is 0 if it is none."""
        head, _, body = bytes(self.data).partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        lengths = [
            value.strip()
            for name, _, value in (field.partition(b":") for field in fields)
            if name.lower() == b"content-length"
        ]
        status = first.split(b" ")[1:2]
        whole = lengths == [str(len(body)).encode()] and status and status[0].isdigit()
        return (int(status[0]), body) if whole else (0, b"")


def ask(
    recorders: Mapping[int, TraceSource], deadline: float, unwanted: Callable[[], bool]
) -> dict[int, bytes]:
    """Ask workers for their collectives.

    ``recorders``: of each worker that can be asked, by local rank. Returns JSON, as
    `lllaunch.watchdog.collectives.read_trace` reads it, of those that have told all: who keeps one
    of two traces to itself may have called in that what is missing in the other.
    """
    questions: dict[int, tuple[int, str, _Question]] = {}
    poll = select.poll()
    try:
        for rank, recorder in recorders.items():
            for handler in (*_TRACES, GROUPS):
                # Nobody serves it: the worker has not imported torch.distributed.
                with contextlib.suppress(OSError):
                    question = _Question(recorder.socket, handler)
                    questions[question.socket.fileno()] = (rank, handler, question)
                    poll.register(question.socket, select.POLLIN)
        left = len(questions)
        while left and time.monotonic() < deadline and not unwanted():
            for fd, _ in poll.poll(_GLANCE_SECONDS * 1000):
                if questions[fd][2].read():
                    poll.unregister(fd)
                    left -= 1
    finally:
        for _, _, question in questions.values():
            question.socket.close()
    found: dict[int, dict[str, bytes]] = {}
    silent = set()
    for rank, handler, question in questions.values():
        status, body = question.answer
        if status == _GOOD:
            found.setdefault(rank, {})[handler] = body
        elif not status and handler in _TRACES:
            silent.add(rank)
    known = {rank for rank, parts in found.items() if not parts.keys() <= {GROUPS}}
    return {rank: _document(found[rank]) for rank in sorted(known - silent)}


def _document(parts: Mapping[str, bytes]) -> bytes:
    """What a worker has answered, as one object: each answer as it came."""
    traces = b", ".join(parts[name] for name in _TRACES if name in parts)
    return b'{"groups": %b, "traces": [%b]}\n' % (parts.get(GROUPS, b"{}"), traces)


def poke(path: str) -> bool:
    """Make NCCL's recorder of a worker write its files, by its FIFO; whether somebody reads that.

    torch makes it if TORCH_NCCL_DEBUG_INFO_PIPE_FILE is set; any byte makes it write.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return False
        fd = os.open(path, flags)
        try:
            return os.write(fd, b"1\n") > 0
        finally:
            os.close(fd)
    except OSError:
        return False
