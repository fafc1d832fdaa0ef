"""Takes one worker group through its attempts: waits for events and performs what follows."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lllaunch.clock import Deadlines, RunClock
from lllaunch.events import Exited, OrphansGone, SpawnerGone
from lllaunch.linux import proc
from lllaunch.linux.process import wait
from lllaunch.signal_source import STACKS_ON, SignalException, SignalSource
from lllaunch.spawner.orphans import SETTLE_SECONDS
from lllaunch.supervisor.machine import (
    PREFLIGHT_RANK,
    AbandonWorkers,
    Action,
    AttemptProgress,
    BarrierPassed,
    Begin,
    CleanUp,
    Event,
    Finish,
    GpuMemoryHeld,
    GraceExpired,
    GroupStarted,
    KillWorkers,
    Machine,
    OrphansStuck,
    Pause,
    PauseOver,
    PreflightTimedOut,
    SignalProcess,
    SignalReceived,
    SignalWorkers,
    StacksAsked,
    StartAfterPreflight,
    StartGrace,
    StartWorkers,
    TakeStacks,
    TellNodes,
    TellProgress,
    TellStacks,
    WaitForOthers,
    WatchdogFired,
)
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.watchdog.findings import Asked
from lllaunch.workers.group import UNKILLABLE_SECONDS, WorkerProcesses

if TYPE_CHECKING:
    from lllaunch.linux.gpus import GpuMemoryWait
    from lllaunch.supervisor.control import RunControl, RunMoment

logger = logging.getLogger(__name__)

# Until a run answers who asks about it.
_CONTROL_SECONDS = 1.0

# Sees an event or action before it is acted upon, and returns it, with what it can add to it.
Observe = Callable[[Any], Any]


def _outlasts_an_attempt(event: Event) -> bool:
    if isinstance(event, WatchdogFired):
        return event.whole_run
    return isinstance(event, SignalReceived)


class SignalPassedOn(NamedTuple):
    """A signal to the launcher that is no reason to end went to the workers."""

    signum: int
    ranks: tuple[int, ...]


class OtherNodes(Protocol):
    """The supervisors of other nodes."""

    @property
    def restarts(self) -> int | None:
        """How many restarts have counted, as the nodes have agreed; None if they do not."""

    @property
    def base_rank(self) -> int:
        """Rank of this node's first worker among those of all nodes."""

    def files(self) -> Sequence[Any]:
        """Return descriptors that are readable when `events` has something to tell."""

    def next_in(self) -> float | None:
        """Return the seconds until `events` has something to tell though no file is readable."""

    def events(self) -> list[Event]:
        """Return what happened since the last call, without waiting."""

    def perform(self, action: Action) -> list[Event]:
        """Carry out an action that is for them; return the events that it brings about at once."""


class Display(Protocol):
    """What shows how far a run is while it goes on."""

    def next_in(self) -> float | None:
        """Seconds until `tick` has something to show; None if there is nothing."""

    def tick(self) -> None:
        """Show what is due; waits for nothing."""

    def give_way(self) -> None:
        """Draw nothing any more on the terminal, as long as nobody calls `tick`."""


class GroupOptions(NamedTuple):
    """What a worker group is like."""

    nprocs: int
    grace_period: float = 30.0  # seconds between the polite signal and SIGKILL
    # seconds that what workers leave behind has to end, when all have succeeded
    leftovers: float = SETTLE_SECONDS
    # seconds that the preflight of an attempt may take, which is started in place of the workers;
    # None if there is none
    preflight: float | None = None


class GroupHooks(NamedTuple):
    """What a supervisor asks of who runs a group, and lets it see."""

    # starts the workers of an attempt, or their preflight; those of the one before were closed
    start: Callable[[StartWorkers], WorkerProcesses]
    observe: Observe = lambda item: item
    start_after_preflight: Callable[[], WorkerProcesses] | None = None
    # makes what answers other processes that ask about the run, a second after the first workers
    # were ordered: short runs do without. It may come to None
    control: Callable[[], RunControl | None] | None = None
    # tells how far the present attempt has come, when its workers have ended; None if that does not
    # matter
    progress: Callable[[bool], AttemptProgress] | None = None
    # waits until processes hold no memory on GPUs, before a restart; None if that is not waited for
    gpu_wait: Callable[[frozenset[int]], GpuMemoryWait | None] | None = None
    display: Display | None = None  # shows how far the run is; None if nothing does


class Supervisor:
    """Runs a worker group: one wait for its spawner, signals, the watchdog and deadlines.

    ``nodes``: the other nodes; None if there are none.
    """

    def __init__(
        self,
        machine: Machine,
        options: GroupOptions,
        hooks: GroupHooks,
        *,
        signals: SignalSource,
        watchdog: WatchdogDriver,
        clock: RunClock,
        nodes: OtherNodes | None = None,
    ) -> None:
        self.machine = machine
        self.watchdog = watchdog
        # those of the present attempt; None before the first
        self.workers: WorkerProcesses | None = None
        self._options = options
        self._hooks = hooks
        self._signals = signals
        self._clock = clock
        self._nodes = nodes
        self._control: RunControl | None = None
        self._make_control = hooks.control  # None once it was called
        self._deadlines = Deadlines(clock)
        # Of the present attempt: processes that its workers have left behind.
        self._orphans: frozenset[int] = frozenset()
        # Before a restart: what is waited for beside the time.
        self._waits_for: GpuMemoryWait | None = None

    def run(self) -> Finish:
        """Run all attempts, and show what is left of the output; all is observed.

        To be called where ``signals`` is entered; `close` is to follow, whatever happens. What
        happens and the machine does not know is only observed.

        Raises:
            SignalException: a signal came while nothing could be done but wait.
        """
        observe = self._hooks.observe
        events: deque[Event] = deque([observe(Begin())])
        while True:
            while not events:
                events.extend(
                    each for each in map(observe, self._wait()) if isinstance(each, Event)
                )
            for action in self.machine.handle(events.popleft()):
                observe(action)
                if isinstance(action, Finish):
                    if self.workers is not None:
                        # A console that takes nothing (a full pipe) may keep this waiting.
                        with self._signals.raising():
                            self.workers.release()
                    return action
                if isinstance(action, StartWorkers):
                    # What else came is about the attempt that is over, if not about the run.
                    events = deque(filter(_outlasts_an_attempt, events))
                events.extendleft(reversed([observe(event) for event in self._perform(action)]))

    def close(self, death_sig: signal.Signals = signal.SIGTERM) -> None:
        """End what runs; idempotent."""
        self.watchdog.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        self._end_wait()
        if self.workers is None:
            return
        if self.workers.alive and not self.machine.finished:
            # not by an action of the machine: an error, or an exception of a signal's
            with contextlib.suppress(Exception):
                self._hooks.observe(SignalWorkers(int(death_sig), "signal"))
            self.workers.observer = self._hooks.observe
        # another signal kills what is left
        with contextlib.suppress(SignalException), self._signals.raising():
            self.workers.close(death_sig, self._options.grace_period)

    # Events

    def _wait(self) -> list[object]:
        machine = self.machine
        # A preflight is not watched: it has a time limit of its own.
        healthy = machine.healthy and not machine.in_preflight
        files: list[Any] = [self._signals, *self.watchdog.files()]
        if self._waits_for is not None:
            files.append(self._waits_for)
        if self.workers is not None and (machine.alive or machine.cleaning_up):
            files += self.workers.files()
        if self._nodes is not None:
            files += self._nodes.files()
        if self._control is not None:
            files += self._control.files()
        wait(files, seconds=self._next_in(healthy=healthy))
        signals = self._signals.received()
        if self._signals.stopping:
            self._stop_until_continued()
        if self._hooks.display is not None:
            self._hooks.display.tick()
        found: list[object] = [self._signalled(signum) for signum in signals]
        found += self._of_workers(healthy=healthy)
        if self._nodes is not None:
            found += self._nodes.events()
        if self._waits_for is not None:
            found += self._freed(self._waits_for)
        # What they lead to may set or take back a deadline: look at those afterwards.
        found = found or [*self._timed(), *self.watchdog.events(healthy=healthy)]
        return [*found, *self._answers()]

    def _next_in(self, *, healthy: bool) -> float | None:
        """Seconds until there is something to do though no file is readable, or None."""
        others = (self._waits_for, self._nodes, self._hooks.display)
        waits = [each.next_in() for each in others if each is not None]
        waits += [self._deadlines.next_in(), self.watchdog.next_in(healthy=healthy)]
        return min((each for each in waits if each is not None), default=None)

    def _answers(self) -> list[object]:
        """Let those know who ask about the run; what is worth writing down of it."""
        if self._control is not None:
            try:
                return self._control.turn(self._view)
            except Exception:
                # who only wants to know must not end a run
                logger.exception("nobody can ask about this run any more")
                self._control.close()
                self._control = None
        return []

    def _view(self) -> RunMoment:
        from lllaunch.supervisor.control import RunMoment  # noqa: PLC0415 - imported by now

        workers = self.workers
        assert workers is not None
        # the workers of a preflight are about to start
        waits = self.machine.in_preflight
        return RunMoment(
            state=self.machine.state,
            attempt=workers.attempt,
            nproc=self._options.nprocs,
            base_rank=self._base_rank,
            alive=frozenset(range(self._options.nprocs)) if waits else self.machine.alive,
            pids={} if waits else workers.known_pids(),
            parent=workers.parent,
            busy=self.watchdog.taking_stacks,
            recorders={} if waits else self.watchdog.recorders(workers.known_pids()),
        )

    def _of_workers(self, *, healthy: bool) -> list[object]:
        """Return what became of the workers."""
        found: list[object] = []
        events = () if self.workers is None else self.workers.dispatch()
        if healthy:
            ended = [event for event in events if isinstance(event, Exited)]
            found += self.watchdog.last_look(ended, self._base_rank) if ended else []
        for event in events:
            if isinstance(event, OrphansGone):
                self._orphans |= {orphan.pid for orphan in event.orphans}
            elif isinstance(event, SpawnerGone) and (
                self.machine.alive or self.machine.cleaning_up
            ):
                # nothing is cleaned up after it
                found += self._came()
            found.append(event)
        return found

    def _stop_until_continued(self) -> None:
        """Stop the workers and this process (Ctrl-Z); until SIGCONT no time passes for the run.

        Workers have sessions of their own, where SIGTSTP would do nothing.
        """
        if self.workers is not None:
            self.workers.signal(signal.SIGSTOP)
        if self._hooks.display is not None:
            self._hooks.display.give_way()
        self._clock.leave_out(self._signals.stop_until_continued())
        if self.workers is not None:
            self.workers.signal(signal.SIGCONT)

    def _signalled(self, signum: int) -> object:
        if signum in self._signals.quiet:
            if signum == STACKS_ON:
                return StacksAsked(Asked(signum))
            # a preflight is no worker
            workers = None if self.machine.in_preflight else self.workers
            return SignalPassedOn(signum, () if workers is None else workers.pass_on(signum))
        announced = self._signals.announced
        # who announces an end asks for nothing, and there is little time
        watched = self.machine.healthy and not self.machine.in_preflight
        look = self.watchdog.interrupted(signum) if announced is None and watched else None
        return SignalReceived(signum, look, announced)

    def _timed(self) -> list[Event]:
        found: list[Event] = []
        for name in self._deadlines.passed():
            if name == "grace":
                found.append(GraceExpired())
            elif name == "preflight":
                found.append(PreflightTimedOut())
            elif name == "pause" and self._waits_for is None:
                found.append(PauseOver())
            elif name == "cleanup":
                logger.error("SIGKILL does not end all that the workers left behind")
                found.append(OrphansStuck())
            elif name == "control" and self._make_control is not None:
                self._control, self._make_control = self._make_control(), None
        return found

    def _came(self) -> list[Event]:
        """Return how far the attempt has come, if that matters."""
        return [] if self._hooks.progress is None else [self._hooks.progress(self.machine.ran)]

    def _freed(self, wait: GpuMemoryWait) -> list[object]:
        """Return what is to be said of GPUs that are waited for, and that the wait is over."""
        found: list[object] = [GpuMemoryHeld(*held) for held in wait.events()]
        if wait.over:
            self._end_wait()
            if not self._deadlines.is_set("pause"):
                found.append(PauseOver())
        return found

    def _end_wait(self) -> None:
        if self._waits_for is not None:
            self._waits_for.close()
            self._waits_for = None

    # Actions

    def _perform(self, action: Action) -> list[Event]:
        if isinstance(action, (StartWorkers, StartAfterPreflight)):
            return [self._start_attempt(action)]
        if isinstance(action, (WaitForOthers, TellNodes, TellProgress, TellStacks)):
            return [BarrierPassed()] if self._nodes is None else self._nodes.perform(action)
        if isinstance(action, Pause):
            self._clear_deadlines()
            self._deadlines.restart("pause", action.seconds)
            if self._hooks.gpu_wait is not None and self.workers is not None:
                pids = self._orphans.union(self.workers.known_pids().values())
                self._waits_for = self._hooks.gpu_wait(pids)
            return []
        assert self.workers is not None
        self._carry_out(action, self.workers)
        # a preflight that has succeeded is no attempt's end; workers that have end the run
        # unless another node says otherwise
        alone, preflight = self._nodes is None, self.machine.in_preflight
        ends = self.machine.fails or not (alone or preflight)
        return self._came() if isinstance(action, CleanUp) and ends else []

    def _clear_deadlines(self) -> None:
        self._deadlines.clear()
        if self._make_control is not None:
            self._deadlines.start("control", _CONTROL_SECONDS)

    def _start_attempt(self, action: StartWorkers | StartAfterPreflight) -> GroupStarted:
        """Start the workers of an attempt, or first their preflight."""
        self._clear_deadlines()
        self._end_wait()
        self._orphans = frozenset()
        if self._hooks.display is not None and self._nodes is not None:
            # nobody waits here while the nodes meet
            self._hooks.display.give_way()
        if self.workers is not None:
            # They have ended; a console that takes nothing may keep this waiting.
            with self._signals.raising():
                self.workers.close(signal.SIGTERM, self._options.grace_period)
        limit = None
        if isinstance(action, StartWorkers):
            self.watchdog.prepare(self._options.nprocs)
            self.workers = self._hooks.start(action)
            limit = self._options.preflight
        else:
            assert self._hooks.start_after_preflight is not None
            self.workers = self._hooks.start_after_preflight()
        preflight = limit is not None
        if limit is None:
            ranks = frozenset(range(self._options.nprocs))
            self.watchdog.begin(self.workers)
        else:
            ranks = frozenset({PREFLIGHT_RANK})
            self._deadlines.start("preflight", limit)
        nodes, attempt = self._nodes, self.workers.attempt
        if nodes is None:
            return GroupStarted(ranks, preflight=preflight, attempt=attempt)
        return GroupStarted(ranks, nodes.restarts, nodes.base_rank, preflight, attempt)

    @property
    def _base_rank(self) -> int:
        return 0 if self._nodes is None else self._nodes.base_rank

    def _carry_out(self, action: Action, workers: WorkerProcesses) -> None:
        """Carry out an action on the workers; waits for nothing."""
        if isinstance(action, SignalWorkers):
            workers.signal(action.signum)
            found = map(proc.facts, workers.known_pids().values())
            if any(facts is not None and facts.state == "T" for facts in found):
                # One that is stopped would take notice of nothing but SIGKILL.
                workers.signal(signal.SIGCONT)
        elif isinstance(action, StartGrace):
            self._deadlines.start("grace", self._options.grace_period)
        elif isinstance(action, KillWorkers):
            workers.kill()
            # The bound on the wait for what cannot be killed; `StartGrace` follows and leaves it.
            self._deadlines.restart("grace", max(self._options.grace_period, UNKILLABLE_SECONDS))
        elif isinstance(action, TakeStacks):
            if self._control is not None:
                self._control.give_way()
            self.watchdog.take_stacks(action.ranks, action.finding, self._base_rank)
        elif isinstance(action, SignalProcess):
            self.watchdog.signal(action)
        elif isinstance(action, AbandonWorkers):
            pids = [workers.known_pids().get(rank) for rank in sorted(action.ranks)]
            logger.error("SIGKILL does not end the processes %s; they are abandoned", pids)
        elif isinstance(action, CleanUp):
            waits = not (self.machine.fails or self.machine.in_preflight)
            settle = self._options.leftovers if waits else SETTLE_SECONDS
            workers.clean_up(settle)
            # Then they get SIGKILL, so this is for what hangs in the kernel.
            patience = settle + max(self._options.grace_period, UNKILLABLE_SECONDS)
            self._deadlines.restart("cleanup", patience)
