"""Asks workers which collectives they have come to.

torch's server in each worker (`lllaunch.spawner.evidence`) is asked over its socket, all of
them at once. It answers from a thread in C++, so also if the worker waits in a collective, sleeps,
or holds the interpreter's lock; only which ranks are in which group needs that lock.
"""

from __future__ import annotations

import os
import re
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
_LAST_SECONDS = 0.01
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


def _asked(path: str, handler: str) -> socket.socket | None:
    """The socket on which an answer comes; None where nobody serves it."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        asked.setblocking(False)
        with short_address(path) as address:
            asked.connect(address)
        asked.send(_REQUEST.format(handler).encode())
    except OSError:
        asked.close()
        return None
    return asked


def _answer(asked: socket.socket, deadline: float, unwanted: Callable[[], bool]) -> bytes:
    """What has come until the other side closes it, or the time is over."""
    data = bytearray()
    while len(data) <= _MAX_BYTES and not unwanted():
        # one that has answered is heard also where another has taken all the time
        asked.settimeout(min(_GLANCE_SECONDS, max(_LAST_SECONDS, deadline - time.monotonic())))
        try:
            block = asked.recv(1 << 20)
        except TimeoutError:
            if time.monotonic() >= deadline:
                break
            continue
        except OSError:
            break
        if not block:
            break
        data += block
    return bytes(data)


def _parsed(answer: bytes) -> tuple[int, bytes]:
    """Status and body of a whole answer; the status is 0 if it is none."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+) *\r?$", head)
    status = re.match(rb"\S+ (\d+)", head)
    whole = length is not None and int(length[1]) == len(body)
    return (int(status[1]), body) if whole and status else (0, b"")


def ask(
    recorders: Mapping[int, TraceSource], deadline: float, unwanted: Callable[[], bool]
) -> dict[int, bytes]:
    """Ask workers for their collectives.

    ``recorders``: of each worker that can be asked, by local rank. Returns JSON, as
    `lllaunch.watchdog.collectives.read_trace` reads it, of those that have told all: who keeps one
    of two traces to itself may have called in that what is missing in the other.
    """
    questions = {
        (rank, handler): asked
        for rank, recorder in recorders.items()
        for handler in (*_TRACES, GROUPS)
        if (asked := _asked(recorder.socket, handler)) is not None
    }
    found: dict[int, dict[str, bytes]] = {}
    silent = set()
    try:
        for (rank, handler), asked in questions.items():
            status, body = _parsed(_answer(asked, deadline, unwanted))
            if status == _GOOD:
                found.setdefault(rank, {})[handler] = body
            elif not status and handler in _TRACES:
                silent.add(rank)
    finally:
        for asked in questions.values():
            asked.close()
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
