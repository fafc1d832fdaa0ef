"""The watchdog of a run: it makes events of findings, and takes stacks."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lllaunch.linux import proc
from lllaunch.linux.process import wait_readable
from lllaunch.spawner.evidence import SOCKET, TRACE_FILE
from lllaunch.spec import WatchdogPolicy
from lllaunch.supervisor.machine import (
    SignalProcess,
    StacksTaken,
    WatchdogFired,
    WorkersStuck,
)
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    NotFinite,
    TimedOut,
    TimerExpired,
    is_of_all,
    kind_of,
    limit_of,
    suspects,
)

if TYPE_CHECKING:
    from lllaunch.watchdog.collector import StackCollector, TraceSource
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.watch import AttemptWatch
    from lllaunch.workers.group import WorkerProcesses


logger = logging.getLogger(__name__)

# torch's variable: seconds of uninterruptible sleep after which a worker counts as stuck.
TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

# Stacks that are not there by then are left out: whoever hangs holds GPUs.
STACKS_SECONDS = 8.0
ASKED_SECONDS = 3.0
# A run without output and heartbeats for so long when Ctrl-C comes perhaps hangs.
SILENT_SECONDS = 2.0

_STACKS = "stacks.txt"
# How long workers that are about to be ended may take to tell of their collectives, which is
# milliseconds where the machine is not overloaded.
_MOMENT_SECONDS = 1.0
# Between two looks at who sleeps in the kernel, seconds.
_LONGEST_INTERVAL = 5.0


def _state(pid: int) -> str:
    facts = proc.facts(pid)
    return facts.state if facts is not None else ""


class KernelSleep:
    """Remember since when processes are in uninterruptible sleep.

    ``timeout``: seconds after which one counts as stuck.
    """

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str] = _state,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._state = state
        self._since: dict[int, float] = {}

    @classmethod
    def configured(cls, timeout: float | None) -> KernelSleep | None:
        """One with the given timeout, or the environment's; None if it is 0 or no number."""
        if timeout is None:
            text = os.environ.get(TIMEOUT_VARIABLE, "0")
            try:
                timeout = float(text)
            except ValueError:
                logger.warning("%s: %r is not a number of seconds", TIMEOUT_VARIABLE, text)
                return None
        return cls(timeout) if timeout > 0 else None

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(_LONGEST_INTERVAL, self._timeout / 4)

    def stuck(self, pids: Mapping[int, int]) -> dict[int, float]:
        """Look at processes; those that sleep for too long, with the seconds.

        ``pids``: process ids, by local rank.
        """
        now = self._clock()
        asleep = {pid for pid in pids.values() if self._state(pid) == "D"}
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            pid: now - since for pid, since in self._since.items() if now - since >= self._timeout
        }


class WatchdogDriver:
    """Watches a run, one attempt after another.

    ``policy``: what for; None for nothing. ``kernel_sleep``: remembers who is in uninterruptible
    sleep; None if nobody asks. ``run_began``: moment of the clock at which the run began; None for
    the start of its first attempt. ``timer_file``: where the FIFO of timers is made; None for a
    private directory. ``confirm``: asked of what is about all workers, each time it is seen:
    whether it is so for those of other nodes as well; None if there are none. ``samples``: seconds
    between two samples of what workers do, which `events` has among what it returns; None for none.
    ``visible``: tells CUDA_VISIBLE_DEVICES of the workers whose GPUs are looked at for samples, by
    local rank, None where it is not set. ``steps``: whether `furthest_step` is asked for, also
    where nothing is watched for.
    """

    def __init__(
        self,
        policy: WatchdogPolicy | None = None,
        kernel_sleep: KernelSleep | None = None,
        clock: Callable[[], float] = time.monotonic,
        run_began: float | None = None,
        hide: Callable[[str], str] = str,
        timer_file: str | None = None,
        confirm: Callable[[Finding], bool] | None = None,
        samples: float | None = None,
        visible: Callable[[], Mapping[int, str | None]] = dict,
        steps: bool = False,
    ) -> None:
        self._policy = policy or WatchdogPolicy()
        self._confirm = confirm
        self._timer_file = timer_file
        self._samples = samples
        self._visible = visible
        self._steps = steps
        self._on = self._policy.looks or samples is not None or steps
        self._clock = clock
        self._kernel_sleep = kernel_sleep
        self._next_kernel_look: float | None = None
        self._run_began = run_began
        self._hide = hide
        self._run_ends: float | None = None
        self._run_over_told = False
        self._watch: AttemptWatch | None = None
        self._recorders: dict[int, TraceSource] = {}
        self._context: WorkerProcesses | None = None
        self._began_at = 0.0
        self._finding: Finding | None = None
        self._hung: tuple[int, ...] = ()
        self._collector: StackCollector | None = None
        self._collected_for: Finding | None = None
        self._collect_until = 0.0

    # One attempt after another

    def prepare(self, ranks: int) -> None:
        """Get ready for an attempt; the watch of the one before ends.

        Raises:
            OutputError: the FIFO, or the place for it, cannot be made.
        """
        if not self._on:
            return
        from lllaunch.watchdog.watch import AttemptWatch  # noqa: PLC0415 - only for a watched run

        self._end_attempt()
        if self._run_began is None:
            self._run_began = self._clock()
        if self._policy.run_timeout is not None and not self._run_over_told:
            self._run_ends = self._run_began + self._policy.run_timeout
        self._recorders.clear()
        self._watch = AttemptWatch(
            self._policy,
            ranks,
            self._timer_file,
            self._clock,
            samples=self._samples,
            alone=self._confirm is None,
            steps=self._steps,
        )

    def environment(
        self, rank: int, others: Mapping[str, str] = MappingProxyType({})
    ) -> Mapping[str, str]:
        """Variables that a worker of the attempt needs to be watched."""
        if self._watch is None:
            return {}
        own = self._watch.environment(rank)
        number = others.get("RANK") or os.environ.get("RANK", "")
        if SOCKET in own and number.isdecimal():
            self._recorders[rank] = int(number), own[SOCKET]
        return own

    def recorders(self, ranks: Iterable[int]) -> dict[int, TraceSource]:
        """How the workers of local ranks can be asked for their collectives."""
        return {rank: self._recorders[rank] for rank in ranks if rank in self._recorders}

    def begin(self, context: WorkerProcesses) -> None:
        """The workers of the attempt have been ordered."""
        self._context = context
        self._began_at = time.time()
        if self._kernel_sleep is not None:
            self._next_kernel_look = self._clock() + self._kernel_sleep.interval
        if self._watch is not None:
            files = (context.stdouts, context.stderrs)
            outputs = {
                rank: tuple(paths[rank] for paths in files if paths[rank] not in ("", os.devnull))
                for rank in range(context.nprocs)
            }
            unseen = frozenset(rank for rank, paths in outputs.items() if len(paths) < len(files))
            self._watch.begin(
                context.watched_pids, outputs, unseen, context.parent, self._visible()
            )

    def _end_attempt(self) -> None:
        self._end_collection()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._context = self._finding = self._next_kernel_look = None
        self._hung = ()

    def _end_collection(self) -> None:
        if self._collector is not None:
            self._collector.close()
            self._collector = self._collected_for = None

    def close(self) -> None:
        """Watch no more; idempotent."""
        self._end_attempt()

    # For the agent's loop

    def files(self) -> list[Any]:
        """Descriptors that are readable when `events` has something to tell."""
        files: list[Any] = self._watch.files() if self._watch is not None else []
        return files if self._collector is None else [*files, self._collector]

    def next_in(self, *, healthy: bool) -> float | None:
        """Seconds until `events` has something to tell though no file is readable, or None."""
        now = self._clock()
        moments = [self._run_ends, self._next_kernel_look if healthy else None]
        waits = [None if moment is None else moment - now for moment in moments]
        if self._collector is not None:
            waits.append(self._collect_until - now)
        elif healthy and self._watch is not None and self._finding is None:
            waits.append(self._watch.next_in())
        elif self._watch is not None:
            waits.append(self._watch.next_sample_in())
        known = [max(0.0, wait) for wait in waits if wait is not None]
        return min(known, default=None)

    def events(self, *, healthy: bool) -> list[object]:
        """What happened since the last call, without waiting.

        Returns events, for the group's machine; requests for timers that were refused, and samples,
        are none, but worth knowing.
        """
        found: list[object] = []
        if self._run_ends is not None and self._clock() >= self._run_ends:
            found.append(self._run_over())
        if self._collector is not None:
            found += self._stacks_taken(self._collector)
        if healthy and self._kernel_sleep is not None:
            found += self._stuck(self._kernel_sleep)
        if self._watch is not None:
            if healthy and self._finding is None and self._collector is None:
                found += self._findings(self._watch)
            else:
                self._watch.drain()
                found += self._watch.samples()
        return found

    def _run_over(self) -> WatchdogFired:
        self._run_ends, self._run_over_told = None, True
        assert self._policy.run_timeout is not None
        finding = TimedOut(self._policy.run_timeout, "run")
        if limit_of(finding) in self._policy.report:
            return WatchdogFired(finding, "timeout", ends=False)
        self._finding = self._finding or finding
        return WatchdogFired(finding, "timeout", whole_run=True)

    def _findings(self, watch: AttemptWatch) -> list[object]:
        found: list[object] = []
        for finding in watch.reports():
            if not isinstance(finding, Finding):
                found.append(finding)
                continue
            if self._confirm and is_of_all(finding) and not self._confirm(finding):
                continue
            name = limit_of(finding)
            limited = getattr(self._policy, name, None) is not None
            reported = name in self._policy.report
            if isinstance(finding, NotFinite) and not (finding.chosen and limited and not reported):
                # where the workers stand says nothing of it
                found.append(finding)
                continue
            if reported:
                found.append(WatchdogFired(finding, kind_of(finding), ends=False))
                watch.settle(name)
                continue
            self._finding = self._finding or finding
            asked = None
            if isinstance(finding, TimerExpired) and finding.signum > 0:
                asked = SignalProcess(finding.rank, finding.pid, finding.signum)
            found.append(WatchdogFired(finding, kind_of(finding), asked=asked))
        return found

    def _stuck(self, kernel_sleep: KernelSleep) -> list[WorkersStuck]:
        if self._next_kernel_look is None or self._clock() < self._next_kernel_look:
            return []
        self._next_kernel_look = self._clock() + kernel_sleep.interval
        assert self._context is not None
        stuck = kernel_sleep.stuck(self._context.known_pids())
        for pid, seconds in stuck.items():
            logger.error("worker pid %d is in uninterruptible sleep for %.0f s", pid, seconds)
        return [WorkersStuck()] if stuck else []

    def at_fault(self) -> dict[int, str] | None:
        """Who of the present attempt hangs, or did what is not allowed, by local rank, and why.

        Returns None if nothing was found.
        """
        if self._finding is None or self._context is None:
            return None

        ranks = self._hung or suspects(self._finding) or range(self._context.nprocs)
        return {rank: f"worker {rank} {self._finding}" for rank in ranks}

    def progress(self, ranks: Collection[int] | None = None) -> dict[int, Progress]:
        """Look how far the workers of the present attempt are; as `AttemptWatch.progress`."""
        return {} if self._watch is None else self._watch.progress(ranks)

    def furthest_step(self) -> float | None:
        """Return the highest step that a worker of the present attempt has shown, if one has.

        After their end, too, until the next attempt is prepared.
        """
        return None if self._watch is None else self._watch.furthest_step()

    def interrupted(self, signum: int) -> Asked | None:
        """What to take the stacks of all ranks for when a signal ends the run; None to end it.

        They are worth the wait if nothing was written, and no heartbeat came, for some seconds:
        then perhaps it hangs.
        """
        busy = self._finding is not None or self._collector is not None
        if busy or self._context is None or not self._context.known_pids():
            return None
        files = {*self._context.stdouts.values(), *self._context.stderrs.values()}
        moments = [self._began_at]
        for path in files - {"", os.devnull}:
            with contextlib.suppress(OSError):
                moments.append(os.stat(path).st_mtime)
        silent = time.time() - max(moments)
        beat = None if self._watch is None else self._watch.last_heartbeat()
        beats = beat is not None and time.monotonic() - beat < SILENT_SECONDS
        if silent < SILENT_SECONDS or beats:
            return None

        # Of streams that go to the console nobody knows.
        return Asked(signum, None if "" in files else silent)

    # Carrying out

    @property
    def taking_stacks(self) -> bool:
        """Whether workers are just being asked where they stand."""
        looks = self._watch is not None and self._watch.asks_frames
        return looks or self._collector is not None

    def take_stacks(self, ranks: frozenset[int], finding: Finding, base_rank: int = 0) -> None:
        """Begin to write down where workers stand; `events` tells when that is done.

        Stacks that are still being taken for something else are given up.
        """
        from lllaunch.watchdog.collector import (  # noqa: PLC0415 - seldom
            StackCollector,
            Written,
        )

        assert self._context is not None
        self._end_collection()
        if self._watch is not None:
            self._watch.end_frames()
        pids, errors = self._context.known_pids(), self._context.error_files
        places = {rank: _beside(errors.get(rank, ""), _STACKS) for rank in ranks}
        chosen = {rank: pids[rank] for rank in sorted(ranks) if rank in pids}
        found = str(finding) if isinstance(finding, Asked) else f"the watchdog found: {finding}"
        heading = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {found}"
        attempts = {os.path.dirname(os.path.dirname(place)) for place in places.values() if place}
        self._collector = StackCollector(
            chosen,
            Written(heading, places, min(attempts, default=""), base_rank, self._hide),
            parent=self._context.parent,
            recorders=self.recorders(chosen),
        )
        self._collected_for = finding
        # Who pressed Ctrl-C waits for it.
        seconds = ASKED_SECONDS if isinstance(finding, Asked) else STACKS_SECONDS
        self._collect_until = self._clock() + seconds
        self._collector.start()

    def record_collectives(self) -> None:
        """Write down which collectives the live workers have come to, before they are ended.

        For a worker that aborted itself: so do gloo, where another one's call does not fit, and
        NCCL's watchdog. The others would soon be gone, too. Waits a moment at most.
        """
        if self._context is None or self._collector is not None:
            return
        sources = self.recorders(self._context.known_pids())
        if not sources:
            return
        from lllaunch.watchdog.collector import ask  # noqa: PLC0415 - seldom

        answers = ask(sources, time.monotonic() + _MOMENT_SECONDS, lambda: False)
        for rank, data in answers.items():
            path = _beside(self._context.error_files.get(rank, ""), TRACE_FILE)
            if path:
                # One that has raised meanwhile writes its own.
                with contextlib.suppress(OSError), open(path, "xb") as file:
                    file.write(self._hide(data.decode(errors="replace")).encode())

    def _stacks_taken(self, collector: StackCollector) -> list[StacksTaken]:
        from lllaunch.watchdog.blame import blame  # noqa: PLC0415 - as above
        from lllaunch.watchdog.collectives import latest  # noqa: PLC0415 - seldom

        if not wait_readable(collector, 0) and self._clock() < self._collect_until:
            return []
        stacks = collector.result()
        if collector.problem:
            logger.warning("not all stacks could be written: %s", collector.problem)
        finding = self._collected_for
        self._end_collection()
        assert finding is not None
        judged = blame(stacks, finding)
        stacks = tuple(replace(each, trace=each.trace and latest(each.trace)) for each in stacks)
        if finding is self._finding:
            self._hung = judged.hung
        return [StacksTaken(stacks, judged, finding)]

    def signal(self, action: SignalProcess) -> None:
        """Send a process the signal that its timer asked for."""
        if self._watch is not None:
            self._watch.signal(action.pid, action.signum)


def _beside(error_file: str, name: str) -> str:
    """A file beside a worker's error.json; nowhere if there is no directory."""
    if error_file in ("", os.devnull):
        return ""
    return os.path.join(os.path.dirname(error_file), name)
