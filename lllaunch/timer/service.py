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
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from lllaunch.linux.process import open_pidfd, process_ended, send_signal
from lllaunch.text import printable
from lllaunch.timer.client import SERVED_BY_US, FileTimerRequest

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


class _Pid(msgspec.Struct):
    pid: int


_decode = msgspec.json.Decoder(_Fields).decode
_decode_pid = msgspec.json.Decoder(_Pid).decode
_TOO_LONG = f"it is longer than {select.PIPE_BUF} bytes"


def request_of(pid: Any, scope: Any, expiration_time: Any, signum: int) -> FileTimerRequest:
    """A request whose fields somebody has put together.

    Raises:
        ValueError: they are none of a request.
    """
    fields = {"pid": pid, "scope_id": scope, "expiration_time": expiration_time, "signal": signum}
    read = msgspec.convert(fields, _Fields)
    return FileTimerRequest(read.pid, read.scope_id, read.expiration_time, read.signal)


class RequestReader:
    """Splits what is read into lines and understands them."""

    def __init__(self) -> None:
        self._rest = b""
        self._overlong = False

    def feed(self, block: bytes) -> tuple[list[FileTimerRequest], list[tuple[bytes, str]]]:
        """Take the next bytes; return the requests in order, and bad lines with what is wrong."""
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        requests: list[FileTimerRequest] = []
        wrong: list[tuple[bytes, str]] = []
        if self._overlong and lines:
            # It was reported when it grew too long.
            self._overlong = False
            del lines[0]
        for line in filter(None, lines):
            found = parse(line)
            if isinstance(found, FileTimerRequest):
                requests.append(found)
            elif found:
                wrong.append((line, found))
        if len(self._rest) >= select.PIPE_BUF:
            if not self._overlong:
                wrong.append((self._rest, _TOO_LONG))
            self._rest, self._overlong = b"", True
        return requests, wrong


def parse(line: bytes) -> FileTimerRequest | str:
    """The request that a line is, or what is wrong with it; an empty text for a blank line."""
    if len(line) >= select.PIPE_BUF:
        return _TOO_LONG if line.strip() else ""
    text = line.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        # Told without a parser, which takes its time.
        return "it is not a JSON object" if text else ""
    try:
        read = _decode(text)
    except msgspec.ValidationError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    return FileTimerRequest(read.pid, read.scope_id, read.expiration_time, read.signal)


_TOLD = 20
_PERIOD = 10.0


class Rejections:
    """Tells at most 20 rejections in 10 seconds one by one, and counts the others."""

    def __init__(self) -> None:
        self._told: list[Rejected] = []
        self.left = _TOLD  # so many are told one by one now
        self._others = 0
        self._period_ends = 0.0
        self._counted = False
        self._refused: set[tuple[int, str]] = set()

    def refuse(self, pid: int, reason: str) -> None:
        """Take note of a refusal, told once for a process: it may go on asking while it lives."""
        if (pid, reason) not in self._refused:
            if len(self._refused) >= _REFUSED:
                self._refused.clear()
            if self.left:
                self._refused.add((pid, reason))
            self.add(reason, pid=pid)

    def begin(self, now: float) -> None:
        """Note that time has passed; to be called before what is found at ``now`` is added."""
        if now >= self._period_ends:
            self._period_ends = now + _PERIOD
            self.left, self._counted = _TOLD, False

    def add(self, reason: str, line: bytes = b"", pid: int | None = None) -> None:
        """Take note of one; ``line`` is what was read, if the reason does not say it all."""
        if not self.left:
            self._others += 1
            return
        self.left -= 1
        if line:
            with contextlib.suppress(ValueError, RecursionError):
                pid = _decode_pid(line).pid
        text = printable(line[: 2 * _TEXT].decode(errors="backslashreplace"), _TEXT)
        self._told.append(Rejected(pid, reason, text))

    def take(self) -> list[Rejected]:
        """Return what is to be told now; the others, once a period, as one."""
        told, self._told = self._told, []
        if self._others and not self._counted:
            requests = "1 more request" if self._others == 1 else f"{self._others} more requests"
            told.append(Rejected(None, f"{requests} for timers could not be accepted", ""))
            self._others, self._counted = 0, True
        return told


class Backlog:
    """Tells up to which moment everything that was written has been read.

    A timer that is over may have been taken back in a part that is still to be read.
    """

    def __init__(self) -> None:
        self.until = -math.inf  # at least until then all has been read
        self.behind = False  # there was more at the last reading
        # When what is to be read now had been written, and how much is left of it.
        self._began = -math.inf
        self._left = 0

    def note(self, now: float, got: int, waiting: int) -> None:
        """Take note of a reading that began ``now``: bytes that it got, and that it left."""
        self.behind = waiting > 0
        self._left -= got
        if not waiting:
            self.until = self._began = now
            self._left = 0
        elif self._left <= 0:
            # All that was there when `_left` was set has been read; what is there now is next.
            self.until = self._began
            self._began, self._left = now, waiting


# Processes that may have timers: each costs a descriptor.
_PROCESSES = 4096
_TIMERS_PER_PROCESS = 10_000
# So many refused processes are remembered, to be told once each.
_REFUSED = 1024
# As much as a user may have without privileges, by default: 9000 requests.
_PIPE_BYTES = 1 << 20
# A few milliseconds of work, whatever is in it: who reads has other things to do as well.
_READ_BYTES = 1 << 16


class Process(NamedTuple):
    """A process that was alive when it was first seen."""

    owner: int
    pidfd: int  # descriptor that is readable once it has ended


class Timer(NamedTuple):
    """A timer that runs; moments are seconds of the monotonic clock."""

    deadline: float
    since: float
    request: FileTimerRequest


class Expired(NamedTuple):
    """A process of which timers have expired.

    The first of them that asks for a signal stands for all; if none does, the first.
    """

    owner: int  # what ``owner_of`` returned for it
    pid: int
    scope: str
    after: float  # seconds from its arrival to its deadline
    signum: int  # the signal that it asks for; 0 or less for none
    requests: tuple[FileTimerRequest, ...]  # of all its expired timers, the earliest first


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
    # A filesystem that keeps no such bit costs clients an open for each request.
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o600 | SERVED_BY_US)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return fd


class TimerService:
    """Serves a FIFO, or without one the requests that `register` is given.

    ``owner_of``: tells whose a process is, the local rank of a worker; None if it is nobody's, and
    its timers are not accepted. Asked once for each process, at its first timer. ``wall_clock``:
    tells the seconds since the epoch, in which clients write expirations.

    Raises:
        OSError: the FIFO cannot be made, and the error names the path; no descriptors are left.
    """

    def __init__(
        self,
        path: str | None,
        *,
        owner_of: Callable[[int], int | None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._owner_of, self._clock, self._wall_clock = owner_of, clock, wall_clock
        self._reader = RequestReader()
        self.backlog = Backlog()
        self._rejections = Rejections()
        self._timers: dict[int, dict[str, Timer]] = {}  # by process and name
        # When the next is over; None where that is to be found out.
        self._next: float | None = None
        self.received = 0  # requests that were understood
        self._processes: dict[int, Process] = {}  # by process id, those that had timers and live
        self._pids: dict[int, int] = {}  # by descriptor
        self._fifo = -1
        self._epoll = select.epoll()
        if path is not None:
            try:
                self._fifo = make_fifo(path)
            except OSError:
                self._epoll.close()
                raise
            self._epoll.register(self._fifo, select.EPOLLIN)
        _open.add(self)

    def fileno(self) -> int:
        """The descriptor that is readable when `dispatch` has something to do."""
        return self._epoll.fileno()

    def dispatch(self) -> list[Rejected]:
        """Read what is in the FIFO, and forget the timers of ended processes.

        It reads 64 KiB at most, so that it takes milliseconds whatever is written there. If there
        is more, `fileno` is still readable.
        """
        now = self._clock()
        self._rejections.begin(now)
        requests: list[FileTimerRequest] = []
        if self._fifo >= 0:
            block = b""
            with contextlib.suppress(BlockingIOError):
                block = os.read(self._fifo, _READ_BYTES)
            (left,) = struct.unpack("i", fcntl.ioctl(self._fifo, termios.FIONREAD, bytes(4)))
            self.backlog.note(now, len(block), left)
            requests, wrong = self._reader.feed(block)
            for line, reason in wrong:
                self._rejections.add(reason, line)
        # Between reading and registering: what was read may come from a process that has got the
        # number of one that has ended.
        for fd, _ in self._epoll.poll(0):
            pid = self._pids.pop(fd, None)
            if pid is not None:
                self._epoll.unregister(fd)
                os.close(fd)
                del self._processes[pid]
                self.forget([pid])
        self.register(requests)
        return self._rejections.take()

    def register(self, requests: Iterable[FileTimerRequest]) -> None:
        """Set timers and take them back. What is wrong with them, the next `dispatch` tells."""
        # Of many requests for one timer the last counts. Those that are taken back come first, so
        # that there is room for the others.
        last: dict[tuple[int, str], FileTimerRequest] = {}
        for request in requests:
            last[request.worker_id, request.scope_id] = request
            self.received += 1
        now = self._clock()
        offset = now - self._wall_clock()
        acquired = []
        for (pid, scope), request in last.items():
            if request.expiration_time >= 0:
                acquired.append(request)
            elif self._timers.get(pid, {}).pop(scope, None) is not None:
                self._next = None
                if not self._timers[pid]:
                    del self._timers[pid]
        strangers: set[int] = set()
        for request in acquired:
            pid, scope = request.worker_pid, request.scope_id
            if pid in strangers:
                continue
            refusal = self._refusal(pid)
            if refusal is not None:
                strangers.add(pid)
                if refusal:
                    self._rejections.refuse(pid, refusal)
                continue
            timers = self._timers.setdefault(pid, {})
            if len(timers) < _TIMERS_PER_PROCESS or scope in timers:
                timers[scope] = Timer(request.expiration_time + offset, now, request)
                self._next = None
            else:
                reason = f"process {pid} has {_TIMERS_PER_PROCESS} timers already"
                self._rejections.add(reason, pid=pid)

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
        self._pids[pidfd] = pid
        self._processes[pid] = Process(owner, pidfd)
        return None

    def next_in(self) -> float | None:
        """Seconds until the next timer expires, 0 if one has, None if none is set.

        It may be longer than a clock goes, or than system calls can wait.
        """
        return max(0.0, self._next_deadline() - self._clock()) if self._timers else None

    def _next_deadline(self) -> float:
        if self._next is None:
            deadlines = (
                timer.deadline for timers in self._timers.values() for timer in timers.values()
            )
            self._next = min(deadlines, default=math.inf)
        return self._next

    def expired(self) -> list[Expired]:
        """The processes of which timers have expired; each is told once.

        All timers of these processes are forgotten. While there is more in the FIFO than was read,
        a timer is told when all has been read that was there when it expired: its process may have
        taken it back in time.
        """
        now = self.backlog.until if self.backlog.behind else self._clock()
        expired = []
        over = self._over(now) if self._next_deadline() <= now else {}
        for pid, timers in over.items():
            first = next((timer for timer in timers if timer.request.signal > 0), timers[0])
            expired.append(
                Expired(
                    # A process with timers is known until it has ended, and then has none.
                    owner=self._processes[pid].owner,
                    pid=pid,
                    scope=first.request.scope_id,
                    after=max(0.0, first.deadline - first.since),
                    signum=first.request.signal,
                    requests=tuple(timer.request for timer in timers),
                )
            )
        self.forget(over)
        return expired

    def _over(self, now: float) -> dict[int, list[Timer]]:
        """The timers that are over at ``now``, by process, the earliest first."""
        timers = (
            timer
            for scopes in self._timers.values()
            for timer in scopes.values()
            if timer.deadline <= now
        )
        found: dict[int, list[Timer]] = {}
        for timer in sorted(timers, key=lambda timer: timer.deadline):
            found.setdefault(timer.request.worker_pid, []).append(timer)
        return found

    def running(self, until: float) -> dict[int, list[FileTimerRequest]]:
        """The requests of the timers that expire at a moment of the wall clock or before, by pid.

        ``until``: seconds since the epoch.
        """
        over = self._over(until + self._clock() - self._wall_clock())
        return {pid: [timer.request for timer in timers] for pid, timers in over.items()}

    def forget(self, pids: Iterable[int]) -> None:
        """Take back all timers of processes."""
        for pid in pids:
            if self._timers.pop(pid, None) is not None:
                self._next = None

    def signal(self, pid: int, signum: int) -> bool:
        """Send a signal to a process that has set a timer; False if it is gone.

        Raises:
            OSError: it may not be signalled.
        """
        known = self._processes.get(pid)
        return known is not None and send_signal(known.pidfd, max(0, signum))

    def close(self) -> None:
        """Remove the FIFO, unless something else has taken its place; close all. Idempotent."""
        if self._fifo >= 0 and self._path is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._fifo), os.lstat(self._path)):
                    os.unlink(self._path)
        self.abandon()
        _open.discard(self)

    def abandon(self) -> None:
        """Close all descriptors: in a fork, which would keep the FIFO readable for nobody."""
        for fd in (self._fifo, *self._pids):
            if fd >= 0:
                os.close(fd)
        self._fifo = -1
        self._processes.clear()
        self._pids.clear()
        self._epoll.close()


_open: set[TimerService] = set()


def _abandon_all() -> None:
    for service in _open:
        service.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
