"""`TimerService`: the server's side of the FIFO, for an event loop of one thread.

Nothing here waits. The loop waits until `TimerService.fileno` is readable or `next_in` seconds have
passed, then calls `dispatch` and `expired`.

A wall clock that is set changes no timer: expirations are made moments of the monotonic clock when
requests are read. No process is ever signalled by its number: a pidfd is opened at the first
request, and a process counts as ended when that says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lllaunch.timer.backlog import Backlog
from lllaunch.timer.fifo import Fifo
from lllaunch.timer.processes import Processes
from lllaunch.timer.reading import Rejected, RequestReader
from lllaunch.timer.registry import Timer, TimerRegistry
from lllaunch.timer.rejections import Rejections
from lllaunch.timer.request import FileTimerRequest

__all__ = ["Expired", "Rejected", "TimerService"]

_TIMERS_PER_PROCESS = 10_000
# So many refused processes are remembered, to be told once each.
_REFUSED = 1024


class Expired(NamedTuple):
    """A process of which timers have expired.

    The first of them that asks for a signal stands for all; if none does, the first.

    Attributes:
        owner: what ``owner_of`` returned for it, the local rank.
        pid: its process id.
        scope: name of the timer.
        after: seconds from its arrival to its deadline.
        signum: the signal that it asks for; 0 or less for none.
        scopes: names of all expired timers of the process, the earliest first.
        requests: what had set them, in the same order.
    """

    owner: int
    pid: int
    scope: str
    after: float
    signum: int
    scopes: tuple[str, ...]
    requests: tuple[FileTimerRequest, ...]


class TimerService:
    """Serves a FIFO.

    Args:
        path: where to make it; nothing may be there.
        owner_of: tells the local rank that a process belongs to; None if it is no worker's, whose
            timers are not accepted. Asked once for each process, at its first timer.
        clock: tells the time in seconds; never goes back.
        wall_clock: tells the seconds since the epoch, in which clients write expirations.

    Raises:
        OSError: the FIFO cannot be made; names the path.
    """

    def __init__(
        self,
        path: str,
        *,
        owner_of: Callable[[int], int | None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._reader = RequestReader()
        self._backlog = Backlog()
        self._rejections = Rejections()
        self._timers: TimerRegistry[FileTimerRequest] = TimerRegistry()
        self._received = 0
        self._refused: set[tuple[int, str]] = set()
        self._processes = Processes(owner_of)
        try:
            self._fifo = Fifo(path)
        except OSError:
            self._processes.close()
            raise
        self._processes.watch(self._fifo.fileno())
        _open.add(self)

    @property
    def received(self) -> int:
        """How many requests were understood so far."""
        return self._received

    @property
    def read_until(self) -> float:
        """The moment until which all requests have been read, by the clock; minus infinity first.

        A later one may have been read, too.
        """
        return self._backlog.until

    def fileno(self) -> int:
        """The descriptor that is readable when `dispatch` has something to do."""
        return self._processes.fileno()

    def dispatch(self) -> list[Rejected]:
        """Reads what is in the FIFO, and forgets the timers of ended processes.

        It reads 64 KiB at most, so that it takes milliseconds whatever is written there. If there
        is more, `fileno` is still readable.

        Returns:
            What was wrong with requests. Of those that come at a high rate only some are told, and
            the number of the others.
        """
        now = self._clock()
        block = self._fifo.read()
        self._backlog.note(now, len(block), self._fifo.waiting())
        self._rejections.begin(now)
        read = self._reader.feed(block, self._rejections.left)
        for each in read.rejected:
            self._rejections.add(each)
        self._rejections.count(read.others)
        # Between reading and registering: what was read may come from a process that has got the
        # number of one that has ended.
        for pid in self._processes.ended():
            self._timers.drop(pid)
        self.register(read.requests)
        return self._rejections.take()

    def register(self, requests: Iterable[FileTimerRequest]) -> None:
        """Sets timers and takes them back. What is wrong with them, the next `dispatch` tells."""
        # Of many requests for one timer the last counts. Those that are taken back come first, so
        # that there is room for the others.
        last: dict[tuple[int, str], FileTimerRequest] = {}
        for request in requests:
            last[request.worker_id, request.scope_id] = request
            self._received += 1
        now = self._clock()
        offset = now - self._wall_clock()
        acquired = []
        for (pid, scope), request in last.items():
            if request.expiration_time < 0:
                self._timers.release(pid, scope)
            else:
                acquired.append(request)
        strangers: set[int] = set()
        for request in acquired:
            if request.worker_pid not in strangers and not self._acquire(request, now, offset):
                strangers.add(request.worker_pid)

    def _acquire(self, request: FileTimerRequest, now: float, offset: float) -> bool:
        """Sets a timer, or adds to the rejections; False if the process can have none now."""
        pid, scope = request.worker_pid, request.scope_id
        process = self._processes.admit(pid)
        if process is None:
            # It has ended, and its timers with it.
            return False
        if isinstance(process, str):
            self._refuse(pid, process)
            return False
        if self._timers.count(pid) < _TIMERS_PER_PROCESS or (pid, scope) in self._timers:
            self._timers.acquire(pid, scope, request.expiration_time + offset, now, request)
        else:
            reason = f"process {pid} has {_TIMERS_PER_PROCESS} timers already"
            self._rejections.add(Rejected(pid, reason, ""))
        return True

    def _refuse(self, pid: int, reason: str) -> None:
        """Adds to the rejections, once for a process: it may go on asking for as long as it lives.

        Another that gets its number later may go untold.
        """
        if (pid, reason) in self._refused:
            return
        if self._rejections.left:
            if len(self._refused) >= _REFUSED:
                self._refused.clear()
            self._refused.add((pid, reason))
        self._rejections.add(Rejected(pid, reason, ""))

    def next_in(self) -> float | None:
        """Seconds until the next timer expires, 0 if one has, None if none is set.

        It may be longer than a clock goes, or than system calls can wait.
        """
        deadline = self._timers.next_deadline()
        return None if deadline is None else max(0.0, deadline - self._clock())

    def expired(self) -> list[Expired]:
        """The processes of which timers have expired; each is told once.

        All timers of these processes are forgotten. While there is more in the FIFO than was read,
        a timer is told when all has been read that was there when it expired: its process may have
        taken it back in time.
        """
        now = self._backlog.until if self._backlog.behind else self._clock()
        found = self._timers.take_expired(now)
        return [self._expired(pid, timers) for pid, timers in found.items()]

    def _expired(self, pid: int, timers: list[Timer]) -> Expired:
        process = self._processes.get(pid)
        first = next((timer for timer in timers if timer.request.signal > 0), timers[0])
        return Expired(
            # A process with timers is known until it has ended, and then has none.
            owner=pid if process is None else process.owner,
            pid=pid,
            scope=first.scope,
            after=max(0.0, first.deadline - first.since),
            signum=first.request.signal,
            scopes=tuple(timer.scope for timer in timers),
            requests=tuple(timer.request for timer in timers),
        )

    def running(self, until: float) -> dict[int, list[FileTimerRequest]]:
        """The requests of the timers that expire at a moment of the wall clock or before, by pid.

        Args:
            until: seconds since the epoch.
        """
        over = self._timers.over(until + self._clock() - self._wall_clock())
        return {pid: [timer.request for timer in timers] for pid, timers in over.items()}

    def forget(self, pids: Iterable[int]) -> None:
        """Takes back all timers of processes."""
        for pid in pids:
            self._timers.drop(pid)

    def signal(self, pid: int, signum: int) -> bool:
        """Sends a signal to a process that has set a timer.

        Args:
            pid: its id.
            signum: the signal; 0 or less sends nothing.

        Returns:
            False if it is gone.

        Raises:
            OSError: it may not be signalled.
        """
        return self._processes.signal(pid, max(0, signum))

    def close(self) -> None:
        """Removes the FIFO and closes all descriptors; idempotent."""
        self._fifo.remove()
        self._processes.close()
        _open.discard(self)

    def abandon(self) -> None:
        """Closes all descriptors: in a fork, which would keep the FIFO readable for nobody."""
        self._fifo.close()
        self._processes.close()


_open: set[TimerService] = set()


def _abandon_all() -> None:
    for service in _open:
        service.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
