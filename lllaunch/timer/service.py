"""`TimerService`: the server's side of the FIFO, for an event loop of one thread.

The form is torch's (``torch.distributed.elastic.timer``, version 1): one JSON object a line, of at
most PIPE_BUF bytes with its newline, so that requests of several writers are never mixed.

Nothing here waits. The loop waits until `TimerService.fileno` is readable or `next_in` seconds have
passed, then calls `dispatch` and `expired`.

A wall clock that is set changes no timer: expirations are made moments of the monotonic clock when
requests are read. No process is ever signalled by its number: a pidfd is opened at the first
request, and a process counts as ended when that says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, NamedTuple

import msgspec

from lllaunch.linux.process import open_pidfd, process_ended, send_signal
from lllaunch.text import printable
from lllaunch.timer.api import FileTimerRequest

_TEXT = 120


class Rejected(NamedTuple):
    """A request that was not understood or not allowed."""

    pid: int | None  # the process that it says it comes from; None if it does not say
    reason: str
    text: str  # what was read, shortened and printable; empty if the reason says it all


class _Fields(msgspec.Struct):
    """What is written of a request. torch's server does not ask for the version."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    scope_id: str
    expiration_time: Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    signal: Annotated[int, msgspec.Meta(le=64)]
    version: Literal[1] = 1


_decode = msgspec.json.Decoder(_Fields).decode


class RequestReader:
    """Splits what is read into lines and understands them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> tuple[list[FileTimerRequest], list[tuple[bytes, str]]]:
        """Take the next bytes; return the requests in order, and bad lines with what is wrong."""
        lines = (self._rest + block).split(b"\n")
        # so much shows that it is too long
        self._rest = lines.pop()[: select.PIPE_BUF]
        requests: list[FileTimerRequest] = []
        wrong: list[tuple[bytes, str]] = []
        for line in filter(bytes.strip, lines):
            found = parse(line)
            if isinstance(found, FileTimerRequest):
                requests.append(found)
            else:
                wrong.append((line, found))
        return requests, wrong


def parse(line: bytes) -> FileTimerRequest | str:
    """Return the request that a line is, or what is wrong with it."""
    if len(line) >= select.PIPE_BUF:
        return f"it is longer than {select.PIPE_BUF} bytes"
    try:
        fields = _decode(line)
    except msgspec.ValidationError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    return FileTimerRequest(fields.pid, fields.scope_id, fields.expiration_time, fields.signal)


# So many rejections are reported in so many seconds.
_REPORTED = 20
_PERIOD = 10.0
# Processes that may have timers: each costs a descriptor.
_PROCESSES = 4096
_TIMERS_PER_PROCESS = 10_000
# As much as a user may have without privileges, by default: 9000 requests.
_PIPE_BYTES = 1 << 20


class Timer(NamedTuple):
    """A timer that runs; moments are seconds of the monotonic clock."""

    deadline: float
    since: float
    request: FileTimerRequest


class Process(NamedTuple):
    """A process that was alive when it first set a timer."""

    owner: int
    pidfd: int  # descriptor that is readable once it has ended
    timers: dict[str, Timer]  # by name


class Expired(NamedTuple):
    """A process of which timers have expired.

    The first of them that asks for a signal stands for all; if none does, the first.
    """

    owner: int  # what ``owner_of`` returned for it
    pid: int
    scope: str
    after: float  # seconds from its arrival to its deadline
    signum: int  # the signal that it asks for; 0 or less for none


def make_fifo(path: str) -> int:
    """Make a FIFO that only this user may use; its descriptor.

    It is opened for writing too: there is never an end of file, nor a hang-up, when clients leave.
    """
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        # It says what, but not where.
        raise OSError(error.errno, error.strerror, path) from None
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        os.unlink(path)
        raise
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return fd


class TimerService:
    """Serves a FIFO.

    ``owner_of``: tells whose a process is, the local rank of a worker; None if it is nobody's, and
    its timers are not accepted. Asked once for each process, at its first timer. ``wall_clock``:
    tells the seconds since the epoch, in which clients write expirations.

    Raises:
        OSError: the FIFO cannot be made, and the error names the path; no descriptors are left.
    """

    def __init__(
        self,
        path: str,
        *,
        owner_of: Callable[[int], int | None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._owner_of, self._clock, self._wall_clock = owner_of, clock, wall_clock
        self._reader = RequestReader()
        # All that was written until then has been read.
        self.read_until = -math.inf
        self._rejected: list[Rejected] = []
        self._left = _REPORTED  # so many rejections are still reported in this period
        self._period_ends = -math.inf
        self._refused: set[tuple[int, str]] = set()  # what was reported of processes
        self._processes: dict[int, Process] = {}  # by process id, those that had timers and live
        self._epoll = select.epoll()
        try:
            self._fifo = make_fifo(path)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._fifo, select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor that is readable when `dispatch` has something to do."""
        return self._epoll.fileno()

    def dispatch(self) -> list[Rejected]:
        """Read what is in the FIFO, and forget the timers of ended processes.

        It reads what was written before, a megabyte at most, and leaves the rest to the next call.
        """
        now = self._clock()
        if now >= self._period_ends:
            self._period_ends, self._left = now + _PERIOD, _REPORTED
        (waiting,) = struct.unpack("i", fcntl.ioctl(self._fifo, termios.FIONREAD, bytes(4)))
        requests, wrong = self._reader.feed(os.read(self._fifo, waiting) if waiting else b"")
        for line, reason in wrong:
            self._reject(reason, line)
        self.read_until = now
        # Between reading and registering: what was read may come from a process that has got the
        # number of one that has ended.
        ready = {fd for fd, _ in self._epoll.poll(0)}
        for pid, process in [*self._processes.items()] if ready else ():
            if process.pidfd in ready:
                self._epoll.unregister(process.pidfd)
                os.close(process.pidfd)
                del self._processes[pid]
        self.register(requests)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _reject(self, reason: str, line: bytes = b"", pid: int | None = None) -> None:
        """Take note of one; ``line`` is what was read, if the reason does not say it all."""
        if self._left:
            text = printable(line[: 2 * _TEXT].decode(errors="backslashreplace"), _TEXT)
            self._rejected.append(Rejected(pid, reason, text))
            self._left -= 1
            if not self._left:
                reason = f"further requests for timers are rejected, not reported for {_PERIOD:g} s"
                self._rejected.append(Rejected(None, reason, ""))

    def register(self, requests: Iterable[FileTimerRequest]) -> None:
        """Set timers and take them back. What is wrong with them, the next `dispatch` tells."""
        now = self._clock()
        offset = now - self._wall_clock()
        strangers: set[int] = set()
        for request in requests:
            pid, scope = request.worker_pid, request.scope_id
            if request.expiration_time < 0:
                if pid in self._processes:
                    self._processes[pid].timers.pop(scope, None)
                continue
            refusal = "" if pid in strangers else self._refusal(pid)
            if refusal is not None:
                strangers.add(pid)
                # once for a process, which may go on asking
                if refusal and (pid, refusal) not in self._refused:
                    self._refused.add((pid, refusal))
                    self._reject(refusal, pid=pid)
                continue
            timers = self._processes[pid].timers
            if len(timers) < _TIMERS_PER_PROCESS or scope in timers:
                timers[scope] = Timer(request.expiration_time + offset, now, request)
            else:
                reason = f"process {pid} has {_TIMERS_PER_PROCESS} timers already"
                self._reject(reason, pid=pid)

    def _refusal(self, pid: int) -> str | None:
        """Why a process may have no timer; empty if it has ended, None if it may."""
        if pid in self._processes:
            return None
        if len(self._processes) >= _PROCESSES:
            return f"{_PROCESSES} processes have timers already"
        try:
            pidfd = open_pidfd(pid)
        except (OSError, OverflowError, TypeError) as error:
            return f"process {pid!r} cannot be watched ({error})"
        if pidfd is None:
            return ""
        owner = self._owner_of(pid)
        # Asked in this order: as it lives now, nobody else had its number in between.
        if owner is None or process_ended(pidfd):
            os.close(pidfd)
            return f"process {pid} is no worker's" if owner is None else ""
        self._epoll.register(pidfd, select.EPOLLIN)
        self._processes[pid] = Process(owner, pidfd, {})
        return None

    def next_in(self) -> float | None:
        """Seconds until the next timer expires, 0 if one has, None if none is set.

        It may be longer than a clock goes, or than system calls can wait.
        """
        deadlines = [each.deadline for each in self._running()]
        return max(0.0, min(deadlines) - self._clock()) if deadlines else None

    def _running(self) -> list[Timer]:
        return [each for process in self._processes.values() for each in process.timers.values()]

    def expired(self) -> list[Expired]:
        """The processes of which timers had expired at the last `dispatch`; each is told once.

        All timers of these processes are forgotten. Those that expired later are left to the next
        `dispatch`: their process may have taken them back in what is still to be read.
        """
        over: dict[int, list[Timer]] = {}
        for timer in sorted(self._running(), key=lambda timer: timer.deadline):
            if timer.deadline <= self.read_until:
                over.setdefault(timer.request.worker_pid, []).append(timer)
        expired = []
        for pid, timers in over.items():
            first = next((timer for timer in timers if timer.request.signal > 0), timers[0])
            after, request = max(0.0, first.deadline - first.since), first.request
            owner, _, own = self._processes[pid]
            own.clear()
            expired.append(Expired(owner, pid, request.scope_id, after, request.signal))
        return expired

    def signal(self, pid: int, signum: int) -> bool:
        """Send a signal to a process that has set a timer; False if it is gone.

        Raises:
            OSError: it may not be signalled.
        """
        known = self._processes.get(pid)
        return known is not None and send_signal(known.pidfd, max(0, signum))

    def close(self) -> None:
        """Remove the FIFO, unless something else has taken its place; close all. Idempotent."""
        if self._fifo < 0:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._fifo), os.lstat(self._path)):
                os.unlink(self._path)
        for fd in (self._fifo, *(process.pidfd for process in self._processes.values())):
            os.close(fd)
        self._fifo = -1
        self._processes.clear()
        self._epoll.close()
