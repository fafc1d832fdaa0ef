"""`Watch`: all that one attempt is watched for, for an event loop.

It waits for nothing itself: the loop waits for `files` and for `next_in` seconds at most, and asks
for the findings then.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from lllaunch.errors import OutputError
from lllaunch.heartbeats import HEARTBEAT, make_places, place_of, read_heartbeats
from lllaunch.linux import proc
from lllaunch.policies import WatchdogPolicy
from lllaunch.spawner.dump import WATCHED
from lllaunch.watchdog.findings import Finding, OverMemory, TimedOut, TimerExpired
from lllaunch.watchdog.sampling import Sampler, Usage, size_of
from lllaunch.watchdog.scratch import Scratch
from lllaunch.watchdog.stall import (
    Look,
    StallDetector,
    heartbeats_lost,
    look_interval,
    next_silence,
)

if TYPE_CHECKING:
    from mmap import mmap

    from lllaunch.timer.service import Rejected, TimerService

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"

# Memory is looked at this often, seconds, if nothing else asks for more.
_MEMORY_INTERVAL = 5.0

Report: TypeAlias = "Finding | Rejected"


class Watch:
    """Watches one attempt.

    Args:
        policy: what for.
        ranks: number of local ranks.
        timer_file: path of the timer FIFO; None for one in a private directory.
        clock: tells the time in seconds; never goes back.
        sampler: looks at processes.

    Raises:
        OutputError: the FIFO, or the place for it, cannot be made.
    """

    def __init__(
        self,
        policy: WatchdogPolicy,
        ranks: int,
        timer_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sampler: Sampler | None = None,
    ) -> None:
        self._policy = policy
        self._ranks = ranks
        self._clock = clock
        self._sampler = sampler or Sampler()
        self._scratch: Scratch | None = None
        self._timers: TimerService | None = None
        self._beats: mmap | None = None
        self._environment: dict[int, dict[str, str]] = {
            rank: {WATCHED: "1"} for rank in range(ranks)
        }
        self._pids: Callable[[], Mapping[int, int]] = dict
        self._outputs: Mapping[int, tuple[str, ...]] = {}
        self._starter = 0
        self._started: float | None = None
        self._stall: StallDetector | None = None
        self._next_look: float | None = None
        try:
            self._prepare(timer_file)
        except BaseException:
            self.close()
            raise

    def _prepare(self, timer_file: str | None) -> None:
        if self._policy.timers:
            self._serve_timers(timer_file or self._private("timers"))
        if self._policy.stall or self._policy.heartbeat:
            path = self._private("heartbeats")
            try:
                self._beats = make_places(path, self._ranks)
            except OSError as error:
                raise OutputError(path, error.strerror or str(error)) from error
            for rank, variables in self._environment.items():
                variables[HEARTBEAT] = place_of(path, rank)

    def _private(self, name: str) -> str:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.file(name)

    def _serve_timers(self, path: str) -> None:
        from lllaunch.timer.service import TimerService  # noqa: PLC0415 - only where it is used

        try:
            with contextlib.suppress(FileNotFoundError):
                # What an attempt before this one, or an agent before this one, left there.
                if stat.S_ISFIFO(os.lstat(path).st_mode):
                    os.unlink(path)
            self._timers = TimerService(path, owner_of=self._owner_of, clock=self._clock)
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
        for variables in self._environment.values():
            variables[TIMER_FILE] = path

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

    def _expired_timers(self, timers: TimerService) -> list[TimerExpired]:
        ranks = {pid: rank for rank, pid in self._pids().items()}
        return [
            TimerExpired(ranks[each.owner], each.pid, each.scope, each.after, each.signum)
            for each in timers.expired()
            # The others are leftovers of an attempt before.
            if each.owner in ranks
        ]

    def environment(self, rank: int) -> Mapping[str, str]:
        """Variables that a worker needs to be watched."""
        return self._environment[rank]

    def begin(
        self,
        pids: Callable[[], Mapping[int, int]],
        outputs: Mapping[int, tuple[str, ...]],
        starter: int = 0,
    ) -> None:
        """The workers have been ordered: the clocks run.

        Args:
            pids: tells the process ids of live workers by local rank; for those that have not
                started yet, the process that starts them.
            outputs: files of their output, by local rank.
            starter: process id of the process that starts them; 0 if that is this one.
        """
        now = self._clock()
        self._starter = starter
        self._pids, self._outputs, self._started = pids, outputs, now
        policy = self._policy
        if policy.stall is not None:
            self._stall = StallDetector(policy.stall, policy.stall_scope, now + policy.warmup)
        if self._interval is not None:
            self._next_look = now

    @property
    def _interval(self) -> float | None:
        """Seconds between two looks, None if there is nothing to look at."""
        limits = [limit for limit in (self._policy.stall, self._policy.heartbeat) if limit]
        intervals = [look_interval(limit) for limit in limits]
        if self._policy.memory is not None:
            intervals.append(_MEMORY_INTERVAL)
        return min(intervals, default=None)

    def files(self) -> list[TimerService]:
        """Descriptors that are readable when `reports` has something to do."""
        return [] if self._timers is None else [self._timers]

    def next_in(self) -> float | None:
        """Seconds until `reports` has something to do though no file is readable, or None."""
        now, policy = self._clock(), self._policy
        waits = [None if self._timers is None else self._timers.next_in()]
        if self._started is not None and policy.timeout is not None:
            waits.append(self._started + policy.timeout - now)
        if self._next_look is not None:
            waits.append(self._next_look - now)
        if policy.heartbeat is not None and self._started is not None:
            waits.append(next_silence(policy.heartbeat, now, self._live_beats(), self._counts_from))
        known = [max(0.0, wait) for wait in waits if wait is not None]
        return min(known, default=None)

    @property
    def _counts_from(self) -> float:
        return (self._started or 0.0) + self._policy.warmup

    def reports(self) -> list[Report]:
        """What is wrong now, and what was wrong with requests; waits for nothing."""
        found: list[Report] = []
        if self._timers is not None:
            found += self._timers.dispatch()
            found += self._expired_timers(self._timers)
        if self._started is None:
            return found
        now, policy = self._clock(), self._policy
        if policy.timeout is not None and now >= self._started + policy.timeout:
            found.append(TimedOut(policy.timeout))
        if policy.heartbeat is not None:
            beats = self._live_beats()
            lost = heartbeats_lost(policy.heartbeat, now, beats, self._counts_from)
            found += [lost] if lost is not None else []
        if self._next_look is not None and now >= self._next_look:
            self._next_look = now + (self._interval or 0.0)
            found += self._look(now)
        return found

    def drain(self) -> None:
        """Let no worker wait for room in the FIFO, whatever it wants to say."""
        if self._timers is not None:
            self._timers.dispatch()
            self._timers.expired()

    def _live_beats(self) -> dict[int, int]:
        if self._beats is None:
            return {}
        beats = read_heartbeats(self._beats, self._ranks)
        return {rank: beats[rank] for rank in self._pids()}

    def _look(self, now: float) -> list[Finding]:
        found: list[Finding] = []
        usage = self._sampler.usage(self._pids())
        if self._policy.memory is not None:
            found += self._over_memory(usage, self._policy.memory)
        if self._stall is not None:
            beats = self._live_beats()
            looks = {
                rank: Look(
                    used.cpu, size_of(self._outputs.get(rank, ())), beats.get(rank, 0), used.state
                )
                for rank, used in usage.items()
            }
            stalled = self._stall.look(now, looks)
            found += [stalled] if stalled is not None else []
        return found

    def _over_memory(self, usage: Mapping[int, Usage], limit: int) -> list[Finding]:
        for rank, used in sorted(usage.items()):
            if used.rss > limit:
                exact = self._sampler.shared_out(used)
                if exact > limit:
                    return [OverMemory(rank, exact, limit)]
        return []

    def signal(self, pid: int, signum: int) -> bool:
        """Send a process of an expired timer the signal that it asked for.

        Returns:
            False if it is gone, or is not ours to signal.
        """
        try:
            return self._timers is not None and self._timers.signal(pid, signum)
        except OSError:
            # It changed its user. The group ends all the same.
            return False

    def close(self) -> None:
        """End the watch; idempotent."""
        if self._timers is not None:
            self._timers.close()
            self._timers = None
        if self._beats is not None:
            self._beats.close()
            self._beats = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None
        self._started = self._next_look = None
