"""`AttemptWatch`: all that one attempt is watched for, for an event loop.

It waits for nothing itself: the loop waits for `files` and for `next_in` seconds at most, and asks
for the findings then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from lllaunch.errors import OutputError
from lllaunch.heartbeats import HEARTBEAT, make_places, place_of, read_heartbeats
from lllaunch.linux import proc
from lllaunch.linux.cgroup import shortage
from lllaunch.spawner.dump import WATCHED
from lllaunch.spec import TIMER_FILE, WatchdogPolicy
from lllaunch.watchdog.findings import Finding, OverMemory, TimedOut, TimerExpired
from lllaunch.watchdog.sampling import Sampler, Usage, size_of
from lllaunch.watchdog.stall import (
    SilenceDetector,
    StallDetector,
    WorkerActivity,
    heartbeats_lost,
    look_interval,
    next_silence,
)

if TYPE_CHECKING:
    from mmap import mmap

    from lllaunch.timer.service import Rejected


_PREFIX = "lllaunch-watch-"
# What a launcher makes in one. Nothing else is ever removed from a directory that was only found.
FILES = ("timers", "heartbeats")
# Younger ones may be about to be locked.
_ABANDONED_SECONDS = 60.0


class Scratch:
    """A directory that only this user can enter, under a name that nobody can foresee.

    It is not in the run's directory: that may lie on a file system that knows no FIFOs, or shares
    no memory between processes. It is locked as long as it is used; those that launchers left
    behind when they were killed are removed by the next one.

    Attributes:
        path: the directory, absolute.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self) -> None:
        import tempfile  # noqa: PLC0415 - only a watched run needs it

        self._lock = -1
        try:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
        except OSError as error:
            where = error.filename or "the directory for temporary files"
            raise OutputError(str(where), error.strerror or str(error)) from error
        self._lock = _locked(self.path)
        _remove_others(os.path.dirname(self.path))

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove it with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(path: str) -> int:
    """Lock a directory; the descriptor that holds the lock, or -1 if somebody else does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _remove_others(directory: str) -> None:
    """Remove this user's that nobody holds."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_old(entry):
                _remove_unheld(entry.path)


def _remove_unheld(path: str) -> None:
    fd = _locked(path)
    if fd < 0:
        return
    with contextlib.suppress(OSError):
        if set(os.listdir(path)) <= set(FILES):
            shutil.rmtree(path)
    os.close(fd)


def _is_old(entry: os.DirEntry[str]) -> bool:
    facts = entry.stat(follow_symlinks=False)
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return ours and time.time() - facts.st_mtime > _ABANDONED_SECONDS


def remove_abandoned(path: str) -> None:
    """Remove a FIFO that a launcher before this one left behind.

    Raises:
        OSError: somebody reads from it.
    """
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # Nobody reads.
        os.unlink(path)
        return
    raise OSError(errno.EBUSY, "another launcher serves it", path)


class WorkerTimers:
    """Serves timers to workers and all that they start, and to nobody else.

    Args:
        path: where to make the FIFO; one that a launcher left behind is replaced.
        clock: tells the time in seconds; never goes back.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        from lllaunch.timer.service import TimerService  # noqa: PLC0415 - most runs serve no timers

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


# Later than this, seconds, and the launcher was stopped meanwhile.
_LATE = 1.0
# Memory is looked at this often, seconds, if nothing else asks for more; and the more often, the
# sooner it would reach its limit if it went on growing like this.
_MEMORY_INTERVAL = 5.0
_SHORTEST_INTERVAL = 0.2

Report: TypeAlias = "Finding | Rejected"


class AttemptWatch:
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
        self._timers: WorkerTimers | None = None
        self._beats: mmap | None = None
        self._environment: dict[int, dict[str, str]] = {
            rank: {WATCHED: "1"} for rank in range(ranks)
        }
        self._pids: Callable[[], Mapping[int, int]] = dict
        self._outputs: Mapping[int, tuple[str, ...]] = {}
        self._unseen: frozenset[int] = frozenset()
        self._due: float | None = None
        self._thawed = 0.0
        self._started: float | None = None
        # With the moment of its next look.
        self._detectors: dict[StallDetector | SilenceDetector, float] = {}
        limits = [limit for limit in (policy.stall, policy.silence, policy.heartbeat) if limit]
        self._tolerance = max(_LATE, min(limits, default=0.0) / 4)
        intervals = [look_interval(limit) for limit in limits]
        if policy.memory is not None:
            intervals.append(_MEMORY_INTERVAL)
        # Seconds between two looks, None if there is nothing to look at.
        self._interval = min(intervals, default=None)
        self._next_look: float | None = None
        self._memory_lasts = float("inf")
        self._waited = 0.0
        # Of each worker, when it was looked at last and what it used then.
        self._sizes: dict[int, tuple[float, int]] = {}
        # When each worker was last seen below its limit of memory.
        self._below: dict[int, float] = {}
        try:
            self._prepare(timer_file)
        except BaseException:
            self.close()
            raise

    def _prepare(self, timer_file: str | None) -> None:
        if self._policy.timers:
            path = timer_file or self._private("timers")
            self._timers = WorkerTimers(path, self._clock)
            for variables in self._environment.values():
                variables[TIMER_FILE] = path
        if self._policy.stall or self._policy.heartbeat:
            path = self._private("heartbeats")
            try:
                self._beats = make_places(path, self._ranks)
            except OSError as error:
                why = shortage(error) or error.strerror or str(error)
                raise OutputError(path, why) from error
            for rank, variables in self._environment.items():
                variables[HEARTBEAT] = place_of(path, rank)

    def _private(self, name: str) -> str:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.file(name)

    def environment(self, rank: int) -> Mapping[str, str]:
        """Variables that a worker needs to be watched."""
        return self._environment[rank]

    def begin(
        self,
        pids: Callable[[], Mapping[int, int]],
        outputs: Mapping[int, tuple[str, ...]],
        unseen: frozenset[int] = frozenset(),
        starter: int = 0,
    ) -> None:
        """The workers have been ordered: the clocks run.

        Args:
            pids: tells the process ids of live workers by local rank; for those that have not
                started yet, the process that starts them.
            outputs: files of their output, by local rank.
            unseen: local ranks with output that goes to no file. Of them whatever they write,
                anywhere, counts as output.
            starter: process id of the process that starts them; 0 if that is this one.
        """
        now = self._clock()
        self._pids, self._outputs, self._unseen, self._started = pids, outputs, unseen, now
        if self._timers is not None:
            self._timers.begin(pids, starter)
        policy = self._policy
        starts = now + policy.warmup
        if policy.stall is not None:
            self._detectors[StallDetector(policy.stall, policy.stall_scope, starts)] = now
        if policy.silence is not None:
            self._detectors[SilenceDetector(policy.silence, starts)] = now
        if self._interval is not None:
            self._next_look = now

    def files(self) -> list[WorkerTimers]:
        """Descriptors that are readable when `reports` has something to do."""
        return [] if self._timers is None else [self._timers]

    def next_in(self) -> float | None:
        """Seconds until `reports` has something to do though no file is readable, or None."""
        now, policy = self._clock(), self._policy
        self._notice_freeze(now)
        waits = [None if self._timers is None else self._timers.next_in()]
        if self._started is not None and policy.timeout is not None:
            waits.append(self._started + policy.timeout - now)
        if self._next_look is not None:
            waits.append(self._next_look - now)
        if policy.heartbeat is not None and self._started is not None:
            waits.append(next_silence(policy.heartbeat, now, self._live_beats(), self._counts_from))
        known = [max(0.0, wait) for wait in waits if wait is not None]
        wait = min(known, default=None)
        self._due = None if wait is None else now + wait
        return wait

    @property
    def _counts_from(self) -> float:
        return max((self._started or 0.0) + self._policy.warmup, self._thawed)

    def _notice_freeze(self, now: float) -> None:
        """Forgive the workers time in which nobody ran: suspended machines, stopped containers."""
        if self._due is not None and now > self._due + self._tolerance:
            self._thawed = now
            for detector in self._detectors:
                detector.forgive(now)

    def reports(self) -> list[Report]:
        """What is wrong now, and what was wrong with requests; waits for nothing."""
        found: list[Report] = []
        if self._timers is not None:
            found += self._timers.reports()
        if self._started is None:
            return found
        now, policy = self._clock(), self._policy
        self._notice_freeze(now)
        if policy.timeout is not None and now >= self._started + policy.timeout:
            found.append(TimedOut(policy.timeout))
        if policy.heartbeat is not None:
            beats = self._live_beats()
            lost = heartbeats_lost(policy.heartbeat, now, beats, self._counts_from)
            found += [lost] if lost is not None else []
        if self._next_look is not None and now >= self._next_look:
            found += self._look(now)
            self._next_look = now + self._until_next_look()
        return found

    def _until_next_look(self) -> float:
        """Seconds: the interval, or half of what memory needs to reach its limit as it grows.

        Looks begin frequent and become rarer: nobody knows yet how fast it grows.
        """
        assert self._interval is not None
        if self._policy.memory is None:
            return self._interval
        soon = max(_SHORTEST_INTERVAL, min(self._memory_lasts / 2, 2 * self._waited))
        self._waited = min(self._interval, soon)
        return self._waited

    def drain(self) -> None:
        """Let no worker wait for room in the FIFO, whatever it wants to say."""
        if self._timers is not None:
            self._timers.drain()

    def _live_beats(self) -> dict[int, int]:
        if self._beats is None:
            return {}
        beats = read_heartbeats(self._beats, self._ranks)
        return {rank: beats[rank] for rank in self._pids()}

    def _look(self, now: float) -> list[Finding]:
        found: list[Finding] = []
        usage = self._sampler.usage(self._pids(), self._unseen)
        if self._policy.memory is not None:
            found += self._over_memory(now, usage, self._policy.memory)
            self._memory_lasts = self._estimate(now, usage, self._policy.memory)
        due = [detector for detector, moment in self._detectors.items() if now >= moment]
        if due:
            beats = self._live_beats()
            looks = {
                rank: WorkerActivity(
                    used.cpu,
                    size_of(self._outputs.get(rank, ())) + used.written,
                    beats.get(rank, 0),
                    used.state,
                )
                for rank, used in usage.items()
            }
            for detector in due:
                self._detectors[detector] = now + detector.interval
                finding = detector.look(now, looks)
                found += [] if finding is None else [finding]
        return found

    def _estimate(self, now: float, usage: Mapping[int, Usage], limit: int) -> float:
        """Seconds until a worker reaches the limit of memory if it goes on growing as it does."""
        before, self._sizes = self._sizes, {rank: (now, used.rss) for rank, used in usage.items()}
        lasts = float("inf")
        for rank, (_, size) in self._sizes.items():
            then, smaller = before.get(rank, (now, size))
            if size > smaller and now > then:
                lasts = min(lasts, (limit - size) / ((size - smaller) / (now - then)))
        return max(0.0, lasts)

    def _over_memory(self, now: float, usage: Mapping[int, Usage], limit: int) -> list[Finding]:
        for rank, used in sorted(usage.items()):
            exact = self._sampler.shared_out(used) if used.rss > limit else 0
            if exact > limit:
                below = self._below.get(rank)
                return [OverMemory(rank, exact, limit, None if below is None else now - below)]
            self._below[rank] = now
        return []

    def signal(self, pid: int, signum: int) -> bool:
        """Send a process of an expired timer the signal that it asked for.

        Returns:
            False if it is gone, or is not ours to signal.
        """
        return self._timers is not None and self._timers.signal(pid, signum)

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
