"""The watchdog of a run: it looks at workers, makes events of what it finds, and takes stacks.

It waits for nothing itself: the supervisor waits for `files` and for `next_in` seconds at most, and
asks for the events then.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from lllaunch.errors import OutputError
from lllaunch.files import read_text
from lllaunch.heartbeats import HEARTBEAT, make_places, place_of, read_heartbeats
from lllaunch.linux import proc
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.evidence import SOCKET, WATCHED, dumped
from lllaunch.spec import TIMER_FILE, WatchdogPolicy
from lllaunch.supervisor.machine import SignalProcess, StacksTaken, WatchdogFired, WorkersStuck
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    GaveUp,
    KernelSleep,
    NotFinite,
    Spinning,
    Stalled,
    Straggler,
    TimedOut,
    TimerExpired,
    gave_up,
    is_of_all,
    kind_of,
    limit_of,
    suspects,
)
from lllaunch.watchdog.sampling import Sample, Sampler, Usage, between, size_of

if TYPE_CHECKING:
    from io import FileIO

    from lllaunch.events import Exited
    from lllaunch.linux.gpus import GpuMeter
    from lllaunch.timer.service import TimerService
    from lllaunch.watchdog.collector import StackCollector, TraceSource
    from lllaunch.watchdog.progress import Progress, ProgressTracker
    from lllaunch.watchdog.scratch import Scratch
    from lllaunch.watchdog.stall import Detector, SpinDetector
    from lllaunch.workers.group import WorkerProcesses


logger = logging.getLogger(__name__)

# Stacks that are not there by then are left out: whoever hangs holds GPUs.
STACKS_SECONDS = 8.0
ASKED_SECONDS = 3.0
# A run without output and heartbeats for so long when Ctrl-C comes perhaps hangs.
SILENT_SECONDS = 2.0

VISIBLE = "CUDA_VISIBLE_DEVICES"
_STACKS = "stacks.txt"
# How long workers that are about to be ended may take to tell of their collectives, which is
# milliseconds where the machine is not overloaded.
_MOMENT_SECONDS = 1.0
# Bytes of the end of an error.json, where the exception stands.
_MOST_SAID = 64 * 1024
# State letters of processes that have ended, and are yet to be reaped.
_ENDED = frozenset("ZX")
# Later than this, seconds, and the launcher was stopped meanwhile.
_LATE = 1.0
# Who can say when it last called a collective has done so by then, seconds.
_ANSWER_SECONDS = 0.5
# Who receives so many bytes in that time gets on.
_DOWNLOADED = 64 * 1024
# Where the workers are is known by then, or not at all, seconds.
_FRAMES_SECONDS = 4.0

# What is due within this part of its interval is done with a look that is taken anyway.
_EARLY = 0.1


class _Taking(NamedTuple):
    """Stacks that are being taken."""

    collector: StackCollector
    until: float  # moment by which it must be done
    finding: Finding | None = None  # what for; None for a glance of the detector of spins


class WatchdogDriver:
    """Watches a run, one attempt after another.

    ``policy``: what for; None for nothing. ``kernel_sleep``: seconds of uninterruptible sleep that
    are too long; 0 for any. ``timer_file``: where the FIFO of timers is made; None for a private
    directory. ``confirm``: asked of what is about all workers, each time it is seen: whether it is
    so for those of other nodes as well; None if there are none. ``samples``: seconds between two
    samples of what workers do, which `events` has among what it returns; None for none. ``steps``:
    whether `furthest_step` is asked for, also where nothing is watched for.
    """

    def __init__(
        self,
        policy: WatchdogPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        hide: Callable[[str], str] = str,
        *,
        kernel_sleep: float = 0.0,
        timer_file: str | None = None,
        confirm: Callable[[Finding], bool] | None = None,
        samples: float | None = None,
        steps: bool = False,
    ) -> None:
        self._policy = policy = policy or WatchdogPolicy()
        self._confirm = confirm
        self._timer_file = timer_file
        self._samples = samples
        # whether files of the workers' heartbeats are there; they tell how far the workers are, too
        self._beaten = policy.looks or samples is not None or steps
        self._clock = clock
        self._kernel_sleep = kernel_sleep
        self._hide = hide
        self._run_ends = None if policy.run_timeout is None else clock() + policy.run_timeout
        self._sampler = Sampler()
        progress = None if policy.progress is None else policy.progress.shortest
        limits = (policy.stall, policy.silence, policy.spin, policy.heartbeat, progress)
        self._tolerance = max(_LATE, min(filter(None, limits), default=0.0) / 4)
        self._reset(0)

    def _reset(self, ranks: int) -> None:
        """Forget the attempt before."""
        self._ranks = ranks
        self._recorders: dict[int, TraceSource] = {}
        self._scratch: Scratch | None = None
        self._timers: TimerService | None = None
        self._beats: FileIO | None = None
        self._context: WorkerProcesses | None = None
        # when the workers were ordered, by the clock and in seconds since the epoch
        self._started = self._began_at = 0.0
        # CUDA_VISIBLE_DEVICES of the workers, by local rank; None where it is not set
        self.visible: dict[int, str | None] = {}
        self._meter: GpuMeter | None = None
        # Files of the workers' output, two for those whose output is all in such.
        self._outputs: dict[int, tuple[str, ...]] = {}
        # By the limits that they are for: all but what was reported.
        self._detectors: dict[str, Detector] = {}
        # Moments of the next looks: of detectors, of a `sample`, and when the `timeout` of the
        # attempt is over.
        self._due: dict[str, float] = {}
        # The moment of the last sample, and of what it was made, by local rank.
        self._sampled: dict[int, tuple[float, Usage]] = {}
        self._progress: ProgressTracker | None = None
        self._finding: Finding | None = None
        self._hung: tuple[int, ...] = ()
        self._knows_straggler = False
        self._taking: _Taking | None = None

    # One attempt after another

    def prepare(self, ranks: int) -> None:
        """Get ready for an attempt; the watch of the one before ends.

        Raises:
            OutputError: the FIFO, or the place for it, cannot be made.
        """
        self.close()
        self._reset(ranks)
        try:
            if self._policy.timers:
                self._serve_timers(self._timer_file or self._private("timers"))
            if self._beaten:
                path = self._private("heartbeats")
                try:
                    self._beats = make_places(path, ranks)
                except OSError as error:
                    why = shortage(error) or error.strerror or str(error)
                    raise OutputError(path, why) from error
        except BaseException:
            self.close()
            raise

    def _serve_timers(self, path: str) -> None:
        from lllaunch.timer.service import TimerService  # noqa: PLC0415 - most need none
        from lllaunch.watchdog.scratch import remove_abandoned  # noqa: PLC0415 - as above

        try:
            remove_abandoned(path)
            self._timers = TimerService(path, owner_of=self._owner_of, clock=self._clock)
        except OSError as error:
            what = f"{error.strerror or error} (it shall be the FIFO of {TIMER_FILE})"
            raise OutputError(path, what) from error

    def _owner_of(self, pid: int) -> int | None:
        """The process id of the worker that a process is or descends from; None for others.

        Not the rank: a worker may ask for a timer before it is known here to have started.
        """
        workers = set(self._pids.values()) - {self._starter}
        known = proc.facts(pid)
        while known is not None and known.pid > 1:
            if known.pid in workers or known.session in workers:
                return known.pid if known.pid in workers else known.session
            if self._starter and known.ppid == self._starter:
                # A worker leads a session, and what it orphaned is still in it.
                return known.session
            known = proc.facts(known.ppid)
        return None

    def _private(self, name: str) -> str:
        if self._scratch is None:
            from lllaunch.watchdog.scratch import Scratch  # noqa: PLC0415 - only for a watched run

            self._scratch = Scratch()
        return os.path.join(self._scratch.path, name)

    @property
    def _pids(self) -> Mapping[int, int]:
        """Process ids of live workers; of those to come, that of the process that starts them."""
        return {} if self._context is None else self._context.watched_pids()

    @property
    def _starter(self) -> int:
        return 0 if self._context is None else self._context.parent

    def environment(
        self, rank: int, others: Mapping[str, str] = MappingProxyType({})
    ) -> Mapping[str, str]:
        """Variables that a worker of the attempt needs to be watched."""
        # who only takes samples leaves the workers as they are
        own = {WATCHED: "1"} if self._policy.looks else {}
        if self._timers is not None:
            own[TIMER_FILE] = self._timer_file or self._private("timers")
        if self._beats is not None:
            own[HEARTBEAT] = place_of(self._private("heartbeats"), rank)
        if self._policy.collectives and self._policy.looks:
            own[SOCKET] = self._private(str(rank))
        self.visible[rank] = others.get(VISIBLE, os.environ.get(VISIBLE))
        number = others.get("RANK") or os.environ.get("RANK", "")
        if SOCKET in own and number.isdecimal():
            self._recorders[rank] = int(number), own[SOCKET]
        return own

    def recorders(self, ranks: Iterable[int]) -> dict[int, TraceSource]:
        """How the workers of local ranks can be asked for their collectives."""
        return {rank: self._recorders[rank] for rank in ranks if rank in self._recorders}

    def begin(self, context: WorkerProcesses) -> None:
        """The workers of the attempt have been ordered: the clocks run."""
        self._context = context
        self._started, self._began_at = now, _ = self._clock(), time.time()
        streams = (context.stdouts, context.stderrs)
        for rank in range(context.nprocs):
            paths = [each[rank] for each in streams if each[rank] not in ("", os.devnull)]
            self._outputs[rank] = tuple(paths)
        self._detectors = self._made_detectors(now)
        self._due = dict.fromkeys(self._detectors, now)
        if self._samples is not None:
            self._due["sample"] = now + self._samples
        if self._policy.timeout is not None:
            self._due["timeout"] = now + self._policy.timeout

    def _made_detectors(self, now: float) -> dict[str, Detector]:
        """Return what looks at workers for the limits of the policy, by their names."""
        policy, starts = self._policy, now + self._policy.warmup
        found: dict[str, Detector] = {}
        if not policy.looks and not self._kernel_sleep:
            return found
        from lllaunch.watchdog import stall  # noqa: PLC0415 - most need none

        if policy.memory is not None:
            found["memory"] = stall.MemoryDetector(policy.memory, self._sampler.shared_out)
        if policy.heartbeat is not None:
            found["heartbeat"] = stall.HeartbeatDetector(policy.heartbeat, starts)
        if policy.stall is not None:
            found["stall"] = stall.StallDetector(policy.stall, policy.stall_scope, starts)
            least = stall.LEAST_LEARNED
            if policy.stall_scope == "group" and policy.stall > least:
                longest = self._longest_step
                found["learned"] = stall.StallDetector(least, "group", starts, longest)
        if policy.silence is not None:
            found["silence"] = stall.SilenceDetector(policy.silence, starts)
        if policy.spin is not None:
            # A group that does nothing at all is told as a stall, and told once; but those of
            # another node may be busy.
            idle = self._confirm is not None or not policy.stall or policy.stall > policy.spin
            found["spin"] = stall.SpinDetector(policy.spin, starts, idle=idle)
        if self._kernel_sleep > 0:
            found["kernel"] = stall.KernelDetector(self._kernel_sleep, lambda: self._starter)
        if policy.progress is not None:
            from lllaunch.watchdog.progress import ProgressDetector  # noqa: PLC0415 - most need none

            # imports and compilers have no time of their own: `first_within` has theirs in it
            progress = ProgressDetector(policy.progress, self._progress_tracker(), now)
            found["progress"] = progress
        return found

    def _longest_step(self) -> float | None:
        return None if self._progress is None else self._progress.longest_step

    def close(self) -> None:
        """Watch no more; idempotent. A signal that interrupts it leaves no directory behind."""
        try:
            self._end_taking()
            for each in (self._timers, self._meter, self._beats):
                if each is not None:
                    each.close()
        finally:
            if self._scratch is not None:
                self._scratch.remove()
            self._reset(0)

    # For the agent's loop

    def files(self) -> list[Any]:
        """Descriptors that are readable when `events` has something to tell."""
        taking = None if self._taking is None else self._taking.collector
        return [each for each in (self._timers, taking) if each is not None]

    def next_in(self, *, healthy: bool) -> float | None:
        """Seconds until `events` has something to tell though no file is readable, or None."""
        now, watching = self._clock(), self._watches(healthy=healthy)
        waits = [moment - now for moment in self._moments(watching=watching)]
        waits += [] if self._run_ends is None else [self._run_ends - now]
        waits += [] if self._taking is None else [self._taking.until - now]
        timer = self._timers.next_in() if self._timers is not None and watching else None
        waits += [] if timer is None else [timer]
        return max(0.0, min(waits)) if waits else None

    def _moments(self, *, watching: bool) -> list[float]:
        """Moments of the next looks; without workers there is nobody of whom to take a sample."""
        names = self._due.keys() if watching else {"sample"} & self._due.keys()
        return [self._due[name] for name in names if name != "sample" or self._pids]

    def _watches(self, *, healthy: bool) -> bool:
        """Whether something may be found in the attempt: no stacks are taken but for a glance."""
        takes_all = self._taking is not None and self._taking.finding is not None
        return healthy and self._finding is None and not takes_all

    def events(self, *, healthy: bool) -> list[object]:
        """What happened since the last call, without waiting.

        Returns events, for the group's machine; requests for timers that were refused, and samples,
        are none, but worth knowing.
        """
        now, taking = self._clock(), self._taking
        found: list[object] = []
        if self._run_ends is not None and now >= self._run_ends:
            self._run_ends = None
            found += self._fired(TimedOut(self._policy.run_timeout or 0.0, "run"))
        if taking is not None and taking.finding is not None:
            found += self._stacks_taken(taking, taking.finding)
        # let no worker wait for room in the FIFO, whatever it wants to say
        timed = self._timed()
        if not self._watches(healthy=healthy):
            if self._taking is not None and self._taking.finding is None:
                self._end_taking()
            return [*found, *self._look(now, watching=False)]
        if now > min(self._moments(watching=True), default=now) + self._tolerance:
            # forgive the time in which nobody ran: suspended machines, stopped containers
            for detector in self._detectors.values():
                detector.forgive(now)
        if now >= self._due.get("timeout", math.inf):
            timed.append(TimedOut(self._due["timeout"] - self._started))
        compared = [] if self._taking is None else self._compare(now, self._taking)
        for each in (*timed, *compared, *self._look(now, watching=True)):
            if isinstance(each, KernelSleep):
                for pid, seconds in each.seconds.items():
                    text = "worker pid %d is in uninterruptible sleep for %.0f s"
                    logger.error(text, pid, seconds)
                found.append(WorkersStuck())
            else:
                found += self._fired(each) if isinstance(each, Finding) else [each]
        return found

    def _timed(self) -> list[object]:
        """Timers that ran out, and requests for some that were refused."""
        if self._timers is None:
            return []
        refused: list[object] = [*self._timers.dispatch()]
        ranks = {pid: rank for rank, pid in self._pids.items()}
        # the others are leftovers of an attempt before
        return refused + [
            TimerExpired(ranks[each.owner], each.pid, each.scope, each.after, each.signum)
            for each in self._timers.expired()
            if each.owner in ranks
        ]

    def _fired(self, finding: Finding) -> list[object]:
        """What follows from a finding."""
        if self._confirm and is_of_all(finding) and not self._confirm(finding):
            return []
        name = limit_of(finding)
        if isinstance(finding, Stalled) and finding.seconds < (self._policy.stall or 0.0):
            name = "learned"
        limited = getattr(self._policy, name, None) is not None
        self._knows_straggler |= isinstance(finding, Straggler)
        reported = name in ("learned", "straggler", *self._policy.report)
        if isinstance(finding, NotFinite) and not (finding.chosen and limited and not reported):
            # where the workers stand says nothing of it
            return [finding]
        if reported:
            # it is watched for no more in this attempt
            self._detectors.pop(name, None)
            self._due.pop(name, None)
            if name == "spin":
                self._end_taking()
            return [WatchdogFired(finding, kind_of(finding), ends=False)]
        self._finding = self._finding or finding
        asked = None
        if isinstance(finding, TimerExpired) and finding.signum > 0:
            asked = SignalProcess(finding.rank, finding.pid, finding.signum)
        return [WatchdogFired(finding, kind_of(finding), name == "run_timeout", asked)]

    # Looking

    def _look(self, now: float, *, watching: bool) -> list[object]:
        """Take the looks that are due, and those that nearly are."""
        if all(now < moment for moment in self._moments(watching=watching)):
            return []
        due = {
            name: detector
            for name, detector in self._detectors.items()
            if watching and self._due[name] - now <= _EARLY * detector.interval
        }
        early = now + _EARLY * (self._samples or 0.0)
        sample = bool(self._pids) and self._due.get("sample", math.inf) <= early
        if not due and not sample:
            return []
        looks, found = self._usage(now), list[object]()
        if watching and self._progress is not None:
            found += self._progress.not_finite()
        if sample:
            found += self._sample(now, looks)
        for name, detector in due.items():
            finding = detector.look(now, looks)
            self._due[name] = now + detector.interval
            found += self._without_moving(now, detector, finding)
        spin = self._spin
        if spin is not None and spin.wants_stacks and self._taking is None:
            from lllaunch.watchdog.collector import StackCollector  # noqa: PLC0415 - seldom

            live = {rank: pid for rank, pid in self._pids.items() if pid != self._starter}
            collector = StackCollector(live, seconds=_FRAMES_SECONDS, parent=self._starter)
            # one that hangs in the kernel tells nothing
            self._taking = _Taking(collector, now + 2 * _FRAMES_SECONDS)
            collector.start()
        return found

    @property
    def _spin(self) -> SpinDetector | None:
        return cast("SpinDetector | None", self._detectors.get("spin"))

    def _compare(self, now: float, glance: _Taking) -> list[object]:
        """Let the detector of spins know where the workers are, if that is known by now."""
        if not wait_readable(glance.collector, 0) and now < glance.until:
            return []
        stands = {stack.rank: stack for stack in glance.collector.result()}
        self._end_taking()
        if (spin := self._spin) is None:
            return []
        # they may have gone on meanwhile
        spin.look(now, self._usage(now))
        return self._without_moving(now, spin, spin.compare(now, stands))

    def _usage(self, now: float) -> dict[int, Usage]:
        """What a look at the live workers shows, by local rank.

        How far they are, which they print, is read at the same time.
        """
        pids = self._pids
        usage, sizes = self._sampler.usage(pids), self._read_outputs(now, pids)
        beats = [] if self._beats is None else read_heartbeats(self._beats, self._ranks)
        for rank, used in usage.items():
            output, io, wrote = sizes[rank], used.io, used.written
            unseen = len(self._outputs[rank]) < 2
            if "spin" in self._detectors or unseen:
                # its stacks, which it wrote when it was asked, are nothing that it did by itself
                asked = dumped(used.pids[0])
                io, wrote = io - asked, wrote - asked
                output += wrote if unseen else 0
            beat = beats[rank] if beats else 0
            usage[rank] = used._replace(output=output, beat=beat, io=io, written=wrote)
        return usage

    def _read_outputs(self, now: float, ranks: Iterable[int]) -> dict[int, int]:
        """Bytes in the files of workers' output, by local rank; read how far some of them are."""
        sizes = {rank: size_of(paths) for rank, paths in self._outputs.items()}
        # what reads it is imported when there is something to read
        if self._progress is not None or any(sizes.values()) or self._last_heartbeat():
            # no descriptor is left for the import, or for a file: there are other looks
            with contextlib.suppress(ImportError, OSError):
                self._progress_tracker().read(now, ranks)
        return sizes

    def _last_heartbeat(self) -> float:
        """When a worker last said that it gets on, monotonic seconds; 0 if none has."""
        beats = [] if self._beats is None else read_heartbeats(self._beats, self._ranks)
        return max(beats, default=0) / 1e9

    def _sample(self, now: float, looks: Mapping[int, Usage]) -> list[Sample]:
        assert self._samples is not None
        self._due["sample"] = now + self._samples
        # where one has not started yet, its parent stands for it; what has just ended has no memory
        pids = self._pids
        started = {
            rank: used
            for rank, used in looks.items()
            if pids[rank] != self._starter and used.state not in _ENDED
        }
        if not started:
            return []
        if self._meter is None and self.visible and proc.has_gpu_driver():
            # no descriptor is left for the import: there are other samples
            with contextlib.suppress(ImportError, OSError):
                from lllaunch.linux.gpus import GpuMeter  # noqa: PLC0415 - seldom

                self._meter = GpuMeter([*self.visible.values()], self._samples)
        reading = None if self._meter is None else self._meter.take()
        seen = dict(zip(self.visible, reading.seen, strict=True)) if reading else {}
        nothing, workers = (self._started, Usage(0.0)), {}
        for rank, used in started.items():
            logged = size_of(self._outputs[rank]) if self._outputs[rank] else None
            made = between(*self._sampled.get(rank, nothing), now, used, logged)
            workers[rank] = made._replace(gpus=seen.get(rank, ()))
            self._sampled[rank] = now, used
        progress = {} if self._progress is None else self._progress.at(now)
        return [Sample(workers, reading.gpus if reading else {}, progress)]

    # How far they are

    def progress(self, ranks: Collection[int] | None = None) -> dict[int, Progress]:
        """Look how far the workers are.

        ``ranks``: local ranks to look at; None for all. Of the others it is known what was seen
        last. Returns by local rank; those that have not said are left out.
        """
        now = self._clock()
        self._read_outputs(now, range(self._ranks) if ranks is None else ranks)
        return {} if self._progress is None else self._progress.at(now)

    def furthest_step(self) -> float | None:
        """Return the highest step that any worker has shown by now; None if none has shown any."""
        self._read_outputs(self._clock(), range(self._ranks))
        return None if self._progress is None else self._progress.furthest()

    def _progress_tracker(self) -> ProgressTracker:
        if self._progress is None:
            from lllaunch.watchdog.progress import ProgressTracker  # noqa: PLC0415 - see its caller

            limit = self._policy.progress
            pattern = "" if limit is None else limit.pattern
            self._progress = ProgressTracker(self._beats, self._outputs, pattern)
        return self._progress

    def _without_moving(
        self, now: float, detector: Detector, finding: object | None
    ) -> list[object]:
        """A finding, if what it says is so of workers that download or call collectives, too.

        One that sleeps between them, or waits in each for a straggler, gets on.
        """
        if not isinstance(finding, (Stalled, Spinning)):
            return [] if finding is None else [finding]
        from lllaunch.watchdog import collectives  # noqa: PLC0415 - as above
        from lllaunch.watchdog.collector import ask  # noqa: PLC0415 - seldom

        until = time.monotonic() + _ANSWER_SECONDS
        answers = ask(self.recorders(finding.ranks), until, lambda: False)
        at, since = time.time_ns(), now - finding.seconds
        read = {rank: collectives.read_trace(text, rank) for rank, text in answers.items()}
        traces = {rank: trace for rank, trace in read.items() if trace is not None}
        called = {
            rank: now - max(0, at - collectives.last_call_ns(trace)) / 1e9
            for rank, trace in traces.items()
        }
        still = tuple(rank for rank in finding.ranks if called.get(rank, since) <= since)
        alone = isinstance(finding, Stalled) and finding.scope == "rank"
        if still == finding.ranks or (still and alone):
            if not self._receives(still):
                return [replace(finding, ranks=still)]
            detector.forgive(now)
            return []
        detector.forgive(max(called.values()))
        slow = None if self._knows_straggler else collectives.straggler(traces)
        return [] if slow is None else [Straggler(*slow)]

    def _receives(self, ranks: Collection[int]) -> bool:
        """Whether more comes to workers by TCP than what is said to show that one lives."""
        from lllaunch.watchdog.collector import received  # noqa: PLC0415 - seldom

        usage = self._sampler.usage(self._pids)
        pids = {pid for rank in ranks if rank in usage for pid in usage[rank].pids}
        before = received(pids)
        if before:
            time.sleep(_ANSWER_SECONDS)
        return before > 0 and received(pids) - before > _DOWNLOADED

    def at_fault(self) -> dict[int, str] | None:
        """Who of the present attempt hangs, or did what is not allowed, by local rank, and why.

        Returns None if nothing was found.
        """
        if self._finding is None or self._context is None:
            return None
        ranks = self._hung or suspects(self._finding) or range(self._context.nprocs)
        return {rank: f"worker {rank} {self._finding}" for rank in ranks}

    def interrupted(self, signum: int) -> Asked | None:
        """What to take the stacks of all ranks for when a signal ends the run; None to end it.

        They are worth the wait if nothing was written, and no heartbeat came, for some seconds:
        then perhaps it hangs.
        """
        busy = not self._watches(healthy=True)
        if busy or self._context is None or not self._context.known_pids():
            return None
        files = {*self._context.stdouts.values(), *self._context.stderrs.values()}
        moments = [self._began_at]
        for path in files - {"", os.devnull}:
            with contextlib.suppress(OSError):
                moments.append(os.stat(path).st_mtime)
        silent = time.time() - max(moments)
        if min(silent, time.monotonic() - self._last_heartbeat()) < SILENT_SECONDS:
            return None
        # Of streams that go to the console nobody knows.
        return Asked(signum, None if "" in files else silent)

    # Carrying out

    @property
    def taking_stacks(self) -> bool:
        """Whether workers are just being asked where they stand."""
        return self._taking is not None

    def _end_taking(self) -> None:
        """Ask nobody any more where the workers are, so that somebody else may; idempotent."""
        if self._taking is not None:
            self._taking.collector.close()
            self._taking = None

    def take_stacks(self, ranks: frozenset[int], finding: Finding, base_rank: int = 0) -> None:
        """Begin to write down where workers stand; `events` tells when that is done.

        Stacks that are still being taken for something else are given up.
        """
        self._end_taking()
        # Who pressed Ctrl-C waits for it.
        asked = isinstance(finding, Asked)
        found = str(finding) if asked else f"the watchdog found: {finding}"
        until = self._clock() + (ASKED_SECONDS if asked else STACKS_SECONDS)
        self._taking = _Taking(self._collector(ranks, found, base_rank), until, finding)

    def last_look(self, ended: Iterable[Exited], base_rank: int = 0) -> list[StacksTaken]:
        """Look where the live workers stand before they are ended, if one has given up on them.

        So does gloo, where another one's call does not fit, or when its own time is over, and so
        does NCCL's watchdog. Waits a moment at most.
        """
        takes_all = self._taking is not None and self._taking.finding is not None
        if self._context is None or takes_all or not self._recorders:
            return []
        from lllaunch.watchdog.evidence import NOBODY  # noqa: PLC0415 - on failure

        errors, failed = self._context.error_files, [each for each in ended if each.exitcode]
        said = [read_text(errors.get(each.local_rank, ""), _MOST_SAID) or "" for each in failed]
        aborted = any(each.exitcode == -signal.SIGABRT for each in failed)
        finding = next(filter(None, map(gave_up, said)), GaveUp() if aborted else None)
        live = {*self._context.known_pids()} - {each.local_rank for each in failed}
        if finding is None or not live:
            return []
        collector = self._collector(live, "others gave up on them", base_rank, _MOMENT_SECONDS)
        wait_readable(collector, _MOMENT_SECONDS)
        stacks = collector.result()
        collector.close()
        return [StacksTaken(stacks, NOBODY, finding)]

    def _collector(
        self, ranks: Collection[int], found: str, base_rank: int, seconds: float = 5.0
    ) -> StackCollector:
        """Begin to take stacks, and to write them down."""
        from lllaunch.watchdog.collector import (  # noqa: PLC0415 - seldom
            StackCollector,
            Written,
        )

        assert self._context is not None
        pids, errors = self._context.known_pids(), self._context.error_files
        chosen = {rank: pids[rank] for rank in sorted(ranks) if rank in pids}
        # beside a worker's error.json; nowhere if there is no directory
        directories = {rank: os.path.dirname(errors.get(rank, "")) for rank in chosen}
        places = {
            rank: os.path.join(path, _STACKS)
            for rank, path in directories.items()
            if path not in ("", os.path.dirname(os.devnull))
        }
        heading = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {found}"
        attempt = min((os.path.dirname(directories[rank]) for rank in places), default="")
        collector = StackCollector(
            chosen,
            Written(heading, places, attempt, base_rank, self._hide),
            seconds=seconds,
            parent=self._context.parent,
            recorders=self.recorders(chosen),
        )
        collector.start()
        return collector

    def _stacks_taken(self, taking: _Taking, finding: Finding) -> list[StacksTaken]:
        from lllaunch.watchdog.blame import blame  # noqa: PLC0415 - as above
        from lllaunch.watchdog.collectives import latest  # noqa: PLC0415 - seldom

        if not wait_readable(taking.collector, 0) and self._clock() < taking.until:
            return []
        stacks = taking.collector.result()
        if taking.collector.problem:
            logger.warning("not all stacks could be written: %s", taking.collector.problem)
        self._end_taking()
        judged = blame(stacks, finding)
        stacks = tuple(replace(each, trace=each.trace and latest(each.trace)) for each in stacks)
        if finding is self._finding:
            self._hung = judged.hung
        return [StacksTaken(stacks, judged, finding)]

    def signal(self, action: SignalProcess) -> None:
        """Send a process the signal that its timer asked for, unless it is gone."""
        # one that has changed its user is not ours to signal; the group ends all the same
        with contextlib.suppress(OSError):
            if self._timers is not None:
                self._timers.signal(action.pid, action.signum)
