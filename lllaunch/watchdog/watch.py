"""`AttemptWatch`: all that one attempt is watched for, for an event loop.

It waits for nothing itself: the loop waits for `files` and for `next_in` seconds at most, and asks
for the findings then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import structs

from lllaunch.errors import OutputError
from lllaunch.heartbeats import HEARTBEAT, make_places, place_of, read_heartbeats
from lllaunch.linux import proc
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.evidence import SOCKET, WATCHED, dumped
from lllaunch.spec import TIMER_FILE, WatchdogPolicy
from lllaunch.watchdog.findings import (
    Finding,
    OverMemory,
    Spinning,
    Stalled,
    TimedOut,
    TimerExpired,
)
from lllaunch.watchdog.sampling import Sample, Sampler, SampleSeries, Usage, size_of
from lllaunch.watchdog.stall import (
    Detector,
    SilenceDetector,
    SpinDetector,
    StallDetector,
    heartbeats_lost,
    next_silence,
)

if TYPE_CHECKING:
    from io import FileIO

    from lllaunch.linux.gpu_meter import GpuMeter
    from lllaunch.timer.service import Rejected, TimerService
    from lllaunch.watchdog.collector import StackCollector
    from lllaunch.watchdog.progress import Progress, ProgressReader


_PREFIX = "lllaunch-watch-"
# Younger ones may be about to be locked.
_ABANDONED_SECONDS = 60.0


class Scratch:
    """A directory that only this user can enter, under a name that nobody can foresee.

    It is not in the run's directory: that may lie on a file system that knows no FIFOs, or shares
    no memory between processes. It is locked as long as it is used; those that launchers left
    behind when they were killed are removed by the next one.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self) -> None:
        import tempfile  # noqa: PLC0415 - only a watched run needs it

        try:
            self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        except OSError as error:
            where = error.filename or "the directory for temporary files"
            raise OutputError(str(where), error.strerror or str(error)) from error
        self._lock = _locked(self.path)
        remove_left()

    def file(self, name: str) -> str:
        """The path of a file in it: ``timers``, ``heartbeats``, or the number of a worker."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove it with all that is in it; idempotent.

        Where no descriptor is left, that of the lock is the one that a list of the files needs.
        """
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _remove(self.path)


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


def _remove(path: str) -> None:
    """Remove a directory, unless there is something in it that no launcher has made."""
    with contextlib.suppress(OSError):
        names = os.listdir(path)
        if all(name in ("timers", "heartbeats") or name.isdecimal() for name in names):
            for name in names:
                os.unlink(os.path.join(path, name))
            os.rmdir(path)


def remove_left(pid: int | None = None) -> None:
    """Remove what this user's launchers have left behind that were killed.

    ``pid``: of one that has been waited for; None for all that were killed a while ago.
    """
    import tempfile  # noqa: PLC0415 - as above

    prefix = _PREFIX if pid is None else f"{_PREFIX}{pid}-"
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            facts = entry.stat(follow_symlinks=False)
            old = pid is not None or time.time() - facts.st_mtime > _ABANDONED_SECONDS
            fd = _locked(entry.path) if old and facts.st_uid == os.getuid() else -1
            if fd >= 0:
                _remove(entry.path)
                os.close(fd)


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


def _is_due(moment: float, now: float, interval: float) -> bool:
    """Whether something is done with a look that is taken now, if not for its own sake."""
    return moment - now <= _EARLY * interval


# State letters of processes that have ended, and are yet to be reaped.
_ENDED = frozenset("ZX")
# Later than this, seconds, and the launcher was stopped meanwhile.
_LATE = 1.0
# Between two looks at memory, seconds.
_MEMORY_INTERVAL = 1.0
# Who can say when it last called a collective has done so by then, seconds.
_ANSWER_SECONDS = 0.5
# Where the workers are is known by then, or not at all, seconds.
_FRAMES_SECONDS = 4.0

# What is due within this part of its interval is done with a look that is taken anyway.
_EARLY = 0.1

Report: TypeAlias = "Finding | Sample | Rejected"


class AttemptWatch:
    """Watches one attempt.

    ``timer_file``: path of the timer FIFO; None for one in a private directory. ``samples``:
    seconds between two samples; None for none. ``steps``: whether `furthest_step` is asked for,
    whatever else is.

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
        samples: float | None = None,
        *,
        alone: bool = True,
        steps: bool = False,
    ) -> None:
        self._policy = policy
        self._steps = steps
        self._alone = alone
        self._ranks = ranks
        self._clock = clock
        self._sampler = sampler or Sampler()
        self._scratch: Scratch | None = None
        self._timers: TimerService | None = None
        self._beats: FileIO | None = None
        # who only takes samples leaves workers as they are
        watched = {WATCHED: "1"} if policy.looks else {}
        self._environment = {rank: {**watched} for rank in range(ranks)}
        self._pids: Callable[[], Mapping[int, int]] = dict
        self._starter = 0
        self._visible: Mapping[int, str | None] = {}
        self._meter: GpuMeter | None = None
        self._outputs: Mapping[int, tuple[str, ...]] = {}
        self._unseen: frozenset[int] = frozenset()
        self._due: float | None = None
        self._thawed = 0.0
        self._started: float | None = None
        # By the limits that they are for, and the moments of their next looks.
        self._detectors: dict[str, Detector] = {}
        self._due_looks: dict[str, float] = {}
        self._spin: SpinDetector | None = None
        # Finds where the workers are, while that is asked for; not later than at that moment.
        self._frames: StackCollector | None = None
        self._frames_until = 0.0
        self._series = None if samples is None else SampleSeries(samples)
        self._progress: ProgressReader | None = None
        progress = None if policy.progress is None else policy.progress.shortest
        limits = (policy.stall, policy.silence, policy.spin, policy.heartbeat, progress)
        self._tolerance = max(_LATE, min(filter(None, limits), default=0.0) / 4)
        self._next_memory: float | None = None
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
            from lllaunch.timer.service import TimerService  # noqa: PLC0415 - most need none

            try:
                remove_abandoned(path)
                self._timers = TimerService(path, owner_of=self._owner_of, clock=self._clock)
            except OSError as error:
                what = f"{error.strerror or error} (it shall be the FIFO of {TIMER_FILE})"
                raise OutputError(path, what) from error
            for variables in self._environment.values():
                variables[TIMER_FILE] = path
        if self._policy.looks or self._series is not None or self._steps:
            path = self._private("heartbeats")
            try:
                self._beats = make_places(path, self._ranks)
            except OSError as error:
                why = shortage(error) or error.strerror or str(error)
                raise OutputError(path, why) from error
            for rank, variables in self._environment.items():
                variables[HEARTBEAT] = place_of(path, rank)
        if self._policy.collectives and self._policy.looks:
            for rank, variables in self._environment.items():
                variables[SOCKET] = self._private(str(rank))

    def _owner_of(self, pid: int) -> int | None:
        """The process id of the worker that a process is or descends from; None for others.

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

    def _timer_reports(self, timers: TimerService) -> list[Report]:
        """What was wrong with requests, and which timers ran out; waits for nothing."""
        found: list[Report] = [*timers.dispatch()]
        ranks = {pid: rank for rank, pid in self._pids().items()}
        for each in timers.expired():
            # The others are leftovers of an attempt before.
            if each.owner in ranks:
                rank = ranks[each.owner]
                found.append(TimerExpired(rank, each.pid, each.scope, each.after, each.signum))
        return found

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
        visible: Mapping[int, str | None] = MappingProxyType({}),
    ) -> None:
        """The workers have been ordered: the clocks run.

        ``pids``: tells the process ids of live workers by local rank; for those that have not
        started yet, the process that starts them. ``outputs``: files of their output, by local
        rank. ``visible``: their CUDA_VISIBLE_DEVICES by local rank, None where it is not set; of
        those that are not named no GPUs are looked at.
        """
        now = self._clock()
        self._pids, self._outputs, self._unseen, self._started = pids, outputs, unseen, now
        self._starter, self._visible = starter, visible
        policy = self._policy
        starts = now + policy.warmup
        if policy.stall is not None:
            self._detectors["stall"] = StallDetector(policy.stall, policy.stall_scope, starts)
        if policy.silence is not None:
            self._detectors["silence"] = SilenceDetector(policy.silence, starts)
        if policy.spin is not None:
            # A group that does nothing at all is told as a stall, and told once; but those of
            # another node may be busy.
            idle = not self._alone or policy.stall is None or policy.stall > policy.spin
            self._detectors["spin"] = self._spin = SpinDetector(policy.spin, starts, idle=idle)
        if policy.progress is not None:
            from lllaunch.watchdog.progress import ProgressDetector  # noqa: PLC0415 - most need none

            tracker = self._progress_reader().tracker
            # imports and compilers have no time of their own: `first_within` has theirs in it
            self._detectors["progress"] = ProgressDetector(policy.progress, tracker, now)
        self._due_looks = dict.fromkeys(self._detectors, now)
        if policy.memory is not None:
            self._next_memory = now
        if self._series is not None:
            self._series.begin(now)

    def files(self) -> list[TimerService | StackCollector]:
        """Descriptors that are readable when `reports` or `drain` has something to do."""
        return [each for each in (self._timers, self._frames) if each is not None]

    def next_in(self) -> float | None:
        """Seconds until `reports` has something to do though no file is readable, or None."""
        now, policy = self._clock(), self._policy
        self._notice_freeze(now)
        waits = [None if self._timers is None else self._timers.next_in()]
        if self._frames is not None:
            waits.append(self._frames_until - now)
        if self._started is not None and policy.timeout is not None:
            waits.append(self._started + policy.timeout - now)
        waits += [moment - now for moment in self._moments()]
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
            for detector in self._detectors.values():
                detector.forgive(now)

    def reports(self) -> list[Report]:
        """What is wrong now, and what was wrong with requests; waits for nothing."""
        found: list[Report] = []
        if self._timers is not None:
            found += self._timer_reports(self._timers)
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
        if self._frames is not None:
            found += self._compare(now, self._frames)
        if any(now >= moment for moment in self._moments()):
            found += self._look(now)
        if self._spin is not None and self._spin.wants_stacks and self._frames is None:
            self._ask_frames(now)
        return found

    def settle(self, limit: str) -> None:
        """Watch for a limit no more in this attempt."""
        off: dict[str, Any] = {limit: None}
        self._policy = replace(self._policy, **off)
        self._detectors.pop(limit, None)
        if limit == "memory":
            self._next_memory = None
        elif limit == "spin":
            self._spin = None
            self.end_frames()

    def _moments(self) -> list[float]:
        """Moments of the next looks."""
        detectors = [self._due_looks[name] for name in self._detectors]
        moments = [*detectors, self._next_memory, self._next_sample()]
        return [moment for moment in moments if moment is not None]

    def next_sample_in(self) -> float | None:
        """Seconds until `samples` has something to tell, or None."""
        moment = self._next_sample()
        return None if moment is None else max(0.0, moment - self._clock())

    def samples(self) -> list[Sample]:
        """The sample that is due; for a time in which nobody asks for `reports`."""
        now, due = self._clock(), self._next_sample()
        if due is None or now < due:
            return []
        pids, written = self._pids(), self._written()
        self._look_at_progress(now, list(pids), written)
        return self._sample(now, pids, self._sampler.usage(pids), written)

    def _next_sample(self) -> float | None:
        """Moment of the next sample, None if there is nobody of whom to take one."""
        if self._series is None or self._started is None or not self._pids():
            return None
        return self._series.due

    def _sample(
        self,
        now: float,
        pids: Mapping[int, int],
        usage: Mapping[int, Usage],
        written: Mapping[int, int],
    ) -> list[Sample]:
        if self._series is None:
            return []
        # where one has not started yet, its parent stands for it; what has just ended has no memory
        started = {
            rank: used
            for rank, used in usage.items()
            if pids[rank] != self._starter and used.state not in _ENDED
        }
        sample = self._series.take(now, started, written)
        if not started:
            return []
        if self._progress is not None:
            sample = sample._replace(progress=self._progress.tracker.at(now))
        if self._meter is None and self._visible and proc.has_gpu_driver():
            # no descriptor is left for the import: there are other samples
            with contextlib.suppress(ImportError, OSError):
                from lllaunch.linux.gpu_meter import GpuMeter  # noqa: PLC0415 - seldom

                self._meter = GpuMeter([*self._visible.values()])
        reading = None if self._meter is None else self._meter.take(self._series.interval)
        if reading is not None:
            seen = dict(zip(self._visible, reading.seen, strict=True))
            workers = {
                rank: worker._replace(gpus=seen.get(rank, ()))
                for rank, worker in sample.workers.items()
            }
            sample = sample._replace(workers=workers, gpus=reading.gpus)
        return [sample]

    def _written(self) -> dict[int, int]:
        """Bytes in the files of workers' output, by local rank of those that have any."""
        return {rank: size_of(paths) for rank, paths in self._outputs.items() if paths}

    # How far they are

    def progress(self, ranks: Collection[int] | None = None) -> dict[int, Progress]:
        """Look how far the workers are.

        ``ranks``: local ranks to look at; None for all. Of the others it is known what was seen
        last. Returns by local rank; those that have not said are left out.
        """
        now = self._clock()
        self._look_at_progress(now, range(self._ranks) if ranks is None else ranks)
        return {} if self._progress is None else self._progress.tracker.at(now)

    def furthest_step(self) -> float | None:
        """Return the highest step that any worker has shown by now; None if none has shown any."""
        self._look_at_progress(self._clock(), range(self._ranks))
        return None if self._progress is None else self._progress.tracker.furthest()

    def _progress_reader(self) -> ProgressReader:
        if self._progress is None:
            from lllaunch.watchdog.progress import ProgressReader  # noqa: PLC0415 - see its caller

            limit = self._policy.progress
            pattern = "" if limit is None else limit.pattern
            self._progress = ProgressReader(self._beats, self._outputs, pattern)
        return self._progress

    def _look_at_progress(
        self, now: float, ranks: Collection[int], written: Mapping[int, int] | None = None
    ) -> None:
        # what reads it is imported when there is something to read
        if self._progress is None and not self.last_heartbeat():
            written = self._written() if written is None else written
            if not any(written.values()):
                return
        # no descriptor is left for the import, or for a file: there are other looks
        with contextlib.suppress(ImportError, OSError):
            self._progress_reader().look(now, ranks)

    def drain(self) -> None:
        """Let no worker wait for room in the FIFO, whatever it wants to say; find nothing."""
        if self._timers is not None:
            self._timers.dispatch()
            self._timers.expired()
        self.end_frames()

    @property
    def asks_frames(self) -> bool:
        """Whether workers are just being asked where they are."""
        return self._frames is not None

    def end_frames(self) -> None:
        """Ask nobody any more where the workers are, so that somebody else may; idempotent."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _ask_frames(self, now: float) -> None:
        from lllaunch.watchdog.collector import StackCollector  # noqa: PLC0415 - seldom

        live = {rank: pid for rank, pid in self._pids().items() if pid != self._starter}
        self._frames = StackCollector(live, seconds=_FRAMES_SECONDS, parent=self._starter)
        # one that hangs in the kernel tells nothing
        self._frames_until = now + 2 * _FRAMES_SECONDS
        self._frames.start()

    def _compare(self, now: float, collector: StackCollector) -> list[Finding]:
        """Let the detector of spins know where the workers are, if that is known by now."""
        if not wait_readable(collector, 0) and now < self._frames_until:
            return []
        stands = {stack.rank: stack for stack in collector.result()}
        self.end_frames()
        if self._spin is None:
            return []
        # they may have gone on meanwhile
        usage = self._sampler.usage(self._pids())
        self._spin.look(now, self._activities(usage, self._written()))
        return self._without_moving(now, self._spin, self._spin.compare(now, stands))

    def last_heartbeat(self) -> float | None:
        """Return when a worker last said that it gets on, monotonic seconds; None if none has."""
        beats = [] if self._beats is None else read_heartbeats(self._beats, self._ranks)
        return max(beats) / 1e9 if any(beats) else None

    def _live_beats(self) -> dict[int, int]:
        if self._beats is None:
            return {}
        beats = read_heartbeats(self._beats, self._ranks)
        return {rank: beats[rank] for rank in self._pids()}

    def _look(self, now: float) -> list[Report]:
        found: list[Report] = []
        pids = self._pids()
        usage = self._sampler.usage(pids)
        if self._policy.memory is not None:
            found += self._over_memory(now, usage, self._policy.memory)
            self._next_memory = now + _MEMORY_INTERVAL
        written = self._written()
        self._look_at_progress(now, list(pids), written)
        if self._progress is not None:
            found += self._progress.tracker.not_finite()
        if self._series is not None and _is_due(self._series.due, now, self._series.interval):
            found += self._sample(now, pids, usage, written)
        due = [
            name
            for name, detector in self._detectors.items()
            if _is_due(self._due_looks[name], now, detector.interval)
        ]
        looks = self._activities(usage, written) if due else {}
        for name in due:
            detector = self._detectors[name]
            self._due_looks[name] = now + detector.interval
            found += self._without_moving(now, detector, detector.look(now, looks))
        return found

    def _without_moving(
        self, now: float, detector: Detector, finding: Finding | None
    ) -> list[Finding]:
        """A finding, if what it says of workers is so for those that call collectives, too.

        One that sleeps between them, or waits in each for a straggler, gets on.
        """
        if not isinstance(finding, (Stalled, Spinning)):
            return [] if finding is None else [finding]
        called = self._last_calls(now, finding.ranks)
        since = now - finding.seconds
        still = tuple(rank for rank in finding.ranks if called.get(rank, since) <= since)
        if still == finding.ranks:
            return [finding]
        if still and isinstance(finding, Stalled) and finding.scope == "rank":
            return [structs.replace(finding, ranks=still)]
        detector.forgive(max(called.values()))
        return []

    def _last_calls(self, now: float, ranks: Collection[int]) -> dict[int, float]:
        """Ask workers when they last called a collective; by local rank of those that tell."""
        from lllaunch.watchdog.collector import ask  # noqa: PLC0415 - seldom

        sources = {
            rank: (rank, self._environment[rank][SOCKET])
            for rank in ranks
            if SOCKET in self._environment[rank]
        }
        if not sources:
            return {}
        from lllaunch.watchdog.collectives import last_call_ns, read_trace  # noqa: PLC0415 - seldom

        answers = ask(sources, time.monotonic() + _ANSWER_SECONDS, lambda: False)
        at = time.time_ns()
        found = {}
        for rank, text in answers.items():
            trace = read_trace(text, rank)
            if trace is not None and (moment := last_call_ns(trace)):
                found[rank] = now - max(0, at - moment) / 1e9
        return found

    def _activities(
        self, usage: Mapping[int, Usage], written: Mapping[int, int]
    ) -> dict[int, Usage]:
        """What looks at workers show.

        ``usage``: of the workers, by local rank. ``written``: bytes in the files of their output.
        """
        beats = self._live_beats()
        found = {}
        for rank, used in usage.items():
            output, io, wrote = written.get(rank, 0), used.io, used.written
            if self._spin is not None or rank in self._unseen:
                # its stacks, which it wrote when it was asked, are nothing that it did by itself
                asked = dumped(used.pids[0])
                output += used.written - asked if rank in self._unseen else 0
                io, wrote = io - asked, wrote - asked
            beat = beats.get(rank, 0)
            found[rank] = used._replace(output=output, beat=beat, io=io, written=wrote)
        return found

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

        Returns False if it is gone, or is not ours to signal.
        """
        try:
            return self._timers is not None and self._timers.signal(pid, signum)
        except OSError:
            # It changed its user. The group ends all the same.
            return False

    def close(self) -> None:
        """End the watch; idempotent. A signal that interrupts it leaves no directory behind."""
        try:
            self.end_frames()
            if self._timers is not None:
                self._timers.close()
                self._timers = None
            if self._meter is not None:
                self._meter.close()
                self._meter = None
            if self._beats is not None:
                self._beats.close()
                self._beats = self._progress = None
        finally:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None
        self._started = None
