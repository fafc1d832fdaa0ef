"""The timers of one attempt's workers: whose they are, and which ran out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lllaunch.errors import OutputError
from lllaunch.linux import proc
from lllaunch.policies import TIMER_FILE
from lllaunch.timer.service import Rejected, TimerService
from lllaunch.watchdog.findings import TimerExpired
from lllaunch.watchdog.scratch import remove_abandoned


class WorkerTimers:
    """Serves timers to workers and all that they start, and to nobody else.

    Args:
        path: where to make the FIFO; one that a launcher left behind is replaced.
        clock: tells the time in seconds; never goes back.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pids: Callable[[], Mapping[int, int]] = dict
        self._starter = 0
        try:
            remove_abandoned(path)
            self._service = TimerService(path, owner_of=self._owner_of, clock=clock)
        except OSError as error:
            what = f"{error.strerror or error} (it shall be the FIFO of {TIMER_FILE})"
            raise OutputError(path, what) from error

    def begin(self, pids: Callable[[], Mapping[int, int]], starter: int) -> None:
        """The workers have been ordered; arguments as for `Watch.begin`."""
        self._pids, self._starter = pids, starter

    def _owner_of(self, pid: int) -> int | None:
        """The process id of the worker that a process is or descends from.

        Not the rank: a worker may ask for a timer before it is known here to have started.
        """
        workers = set(self._pids().values()) - {self._starter}
        known = proc.facts(pid)
        while known is not None and known.pid > 1:
            if known.pid in workers or known.session in workers:
                return known.pid if known.pid in workers else known.session
            if self._starter and known.ppid == self._starter:
                # A worker leads a session, and what it orphaned is still in it.
                return known.session
            known = proc.facts(known.ppid)
        return None

    def fileno(self) -> int:
        """Readable when `reports` or `drain` has something to do."""
        return self._service.fileno()

    def next_in(self) -> float | None:
        """Seconds until a timer runs out, or None."""
        return self._service.next_in()

    def reports(self) -> list[TimerExpired | Rejected]:
        """What was wrong with requests, and which timers ran out; waits for nothing."""
        found: list[TimerExpired | Rejected] = [*self._service.dispatch()]
        ranks = {pid: rank for rank, pid in self._pids().items()}
        for each in self._service.expired():
            # The others are leftovers of an attempt before.
            if each.owner in ranks:
                rank = ranks[each.owner]
                found.append(TimerExpired(rank, each.pid, each.scope, each.after, each.signum))
        return found

    def drain(self) -> None:
        """Let no worker wait for room in the FIFO, whatever it wants to say."""
        self._service.dispatch()
        self._service.expired()

    def signal(self, pid: int, signum: int) -> bool:
        """Send a process the signal that its timer asked for.

        Returns:
            False if it is gone, or is not ours to signal.
        """
        try:
            return self._service.signal(pid, signum)
        except OSError:
            # It changed its user. The group ends all the same.
            return False

    def close(self) -> None:
        """Remove the FIFO; idempotent."""
        self._service.close()
