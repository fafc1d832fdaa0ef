"""The watchdog of a run: it makes events of findings, and takes stacks."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lllaunch.linux import proc
from lllaunch.linux.process import wait_readable
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
    TimedOut,
    TimerExpired,
    is_of_all,
    kind_of,
    limit_of,
    suspects,
)

if TYPE_CHECKING:
    from lllaunch.watchdog.stacks.collector import StackCollector
    from lllaunch.watchdog.watch import AttemptWatch
    from lllaunch.workers.group import WorkerProcesses


logger = logging.getLogger(__name__)

# torch's variable: seconds of uninterruptible sleep after which a worker counts as stuck.
TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

# Stacks that are not there by then are left out: whoever hangs holds GPUs.
STACKS_SECONDS = 8.0
ASKED_SECONDS = 3.0
# A run that has written nothing for so long when Ctrl-C comes perhaps hangs.
SILENT_SECONDS = 2.0

_STACKS = "stacks.txt"
# Between two looks at who sleeps in the kernel, seconds.
_LONGEST_INTERVAL = 5.0


def _state(pid: int) -> str:
    facts = proc.facts(pid)
    return facts.state if facts is not None else ""


class KernelSleep:
    """Remember since when processes are in uninterruptible sleep.

    Args:
        timeout: seconds after which one counts as stuck.
        clock: tells the time in seconds.
        state: tells the state letter of a process.
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

        Args:
            pids: process ids, by local rank.
        """
        now = self._clock()
        asleep = {pid for pid in pids.values() if self._state(pid) == "D"}
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            pid: now - since for pid, since in self._since.items() if now - since >= self._timeout
        }


class WatchdogDriver:
    """Watches a run, one attempt after another.

    Args:
        policy: what for; None for nothing.
        kernel_sleep: remembers who is in uninterruptible sleep; None if nobody asks.
        run_began: moment of the clock at which the run began; None for the start of its first
            attempt.
        hide: applied to stacks before they are written.
        clock: tells the time in seconds; never goes back.
        timer_file: where the FIFO of timers is made; None for a private directory.
        confirm: asked of what is about all workers, each time it is seen: whether it is so for
            those of other nodes as well.
    """

    def __init__(
        self,
        policy: WatchdogPolicy | None = None,
        kernel_sleep: KernelSleep | None = None,
        clock: Callable[[], float] = time.monotonic,
        run_began: float | None = None,
        hide: Callable[[str], str] = str,
        timer_file: str | None = None,
        confirm: Callable[[Finding], bool] = lambda _: True,
    ) -> None:
        self._policy = policy or WatchdogPolicy()
        self._confirm = confirm
        self._timer_file = timer_file
        self._on = self._policy != WatchdogPolicy()
        self._clock = clock
        self._kernel_sleep = kernel_sleep
        self._next_kernel_look: float | None = None
        self._run_began = run_began
        self._hide = hide
        self._run_ends: float | None = None
        self._run_over_told = False
        self._watch: AttemptWatch | None = None
        self._context: WorkerProcesses | None = None
        self._began_at = 0.0
        self._finding: Finding | None = None
        self._hung: tuple[int, ...] = ()
        self._collector: StackCollector | None = None
        self._collected_for: Finding | None = None
        self._reported: set[str] = set()
        self._collect_until = 0.0

    # One attempt after another

    def prepare(self, ranks: int) -> None:
        """Get ready for an attempt; the watch of the one before ends.

        Args:
            ranks: number of local ranks.

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
        self._watch = AttemptWatch(self._policy, ranks, self._timer_file, self._clock)

    def environment(self, rank: int) -> Mapping[str, str]:
        """Variables that a worker of the attempt needs to be watched."""
        return self._watch.environment(rank) if self._watch is not None else {}

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
            self._watch.begin(context.watched_pids, outputs, unseen, context.parent)

    def _end_attempt(self) -> None:
        self._end_collection()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._context = self._finding = self._next_kernel_look = None
        self._hung = ()
        self._reported.clear()

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
        """Seconds until `events` has something to tell though no file is readable, or None.

        Args:
            healthy: whether the group runs and nothing ends it.
        """
        now = self._clock()
        moments = [self._run_ends, self._next_kernel_look if healthy else None]
        waits = [None if moment is None else moment - now for moment in moments]
        if self._collector is not None:
            waits.append(self._collect_until - now)
        elif healthy and self._watch is not None and self._finding is None:
            waits.append(self._watch.next_in())
        known = [max(0.0, wait) for wait in waits if wait is not None]
        return min(known, default=None)

    def events(self, *, healthy: bool) -> list[object]:
        """What happened since the last call, without waiting.

        Args:
            healthy: whether the group runs and nothing ends it.

        Returns:
            Events, for the group's machine; requests for timers that were refused are none, but
            worth knowing.
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
            if is_of_all(finding) and not self._confirm(finding):
                continue
            name = limit_of(finding)
            if name in self._policy.report:
                if name not in self._reported:
                    self._reported.add(name)
                    found.append(WatchdogFired(finding, kind_of(finding), ends=False))
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

        Returns:
            None if nothing was found.
        """
        if self._finding is None or self._context is None:
            return None

        ranks = self._hung or suspects(self._finding) or range(self._context.nprocs)
        return {rank: f"worker {rank} {self._finding}" for rank in ranks}

    def interrupted(self, signum: int) -> Asked | None:
        """What to take the stacks of all ranks for when a signal ends the run; None to end it.

        They are worth the wait if nothing was written for some seconds: then perhaps it hangs.
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
        if silent < SILENT_SECONDS:
            return None

        # Of streams that go to the console nobody knows.
        return Asked(signum, None if "" in files else silent)

    # Carrying out

    def take_stacks(self, ranks: frozenset[int], finding: Finding) -> None:
        """Begin to write down where workers stand; `events` tells when that is done.

        Stacks that are still being taken for something else are given up.

        Args:
            ranks: local ranks.
            finding: what for.
        """
        from lllaunch.watchdog.stacks.collector import StackCollector  # noqa: PLC0415 - seldom

        assert self._context is not None
        self._end_collection()
        pids, errors = self._context.known_pids(), self._context.error_files
        places = {rank: _stacks_file(errors.get(rank, "")) for rank in ranks}
        chosen = {rank: pids[rank] for rank in sorted(ranks) if rank in pids}
        found = str(finding) if isinstance(finding, Asked) else f"the watchdog found: {finding}"
        heading = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {found}"
        parent = self._context.parent
        self._collector = StackCollector(chosen, places, heading, hide=self._hide, parent=parent)
        self._collected_for = finding
        # Who pressed Ctrl-C waits for it.
        seconds = ASKED_SECONDS if isinstance(finding, Asked) else STACKS_SECONDS
        self._collect_until = self._clock() + seconds
        self._collector.start()

    def _stacks_taken(self, collector: StackCollector) -> list[StacksTaken]:
        from lllaunch.watchdog.stacks.blame import blame  # noqa: PLC0415 - seldom

        if not wait_readable(collector, 0) and self._clock() < self._collect_until:
            return []
        stacks = collector.result()
        if collector.problem:
            logger.warning("not all stacks could be written: %s", collector.problem)
        finding = self._collected_for
        self._end_collection()
        assert finding is not None
        judged = blame(stacks, finding)
        if finding is self._finding:
            self._hung = judged.hung
        return [StacksTaken(stacks, judged, finding)]

    def signal(self, action: SignalProcess) -> None:
        """Send a process the signal that its timer asked for."""
        if self._watch is not None:
            self._watch.signal(action.pid, action.signum)


def _stacks_file(error_file: str) -> str:
    """Where a worker's stacks go: beside its error.json; nowhere if there is no directory."""
    if error_file in ("", os.devnull):
        return ""
    return os.path.join(os.path.dirname(error_file), _STACKS)
