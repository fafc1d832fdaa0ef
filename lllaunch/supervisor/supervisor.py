"""Takes one worker group through its attempts: waits for events and performs what follows."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from lllaunch.clock import Deadlines, RunClock
from lllaunch.linux import proc
from lllaunch.linux.process import wait
from lllaunch.signal_source import SignalSource, forwards
from lllaunch.supervisor.machine import (
    AbandonWorkers,
    Action,
    BarrierPassed,
    Begin,
    CleanUp,
    Event,
    Finish,
    GraceExpired,
    GroupStarted,
    KillWorkers,
    Machine,
    OrphansStuck,
    Pause,
    PauseOver,
    SignalProcess,
    SignalReceived,
    SignalWorkers,
    StacksAsked,
    StartGrace,
    StartWorkers,
    TakeStacks,
    TellNodes,
    TellStacks,
    WaitForOthers,
    WatchdogFired,
)
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.watchdog.findings import Asked
from lllaunch.workers.group import UNKILLABLE_SECONDS, WorkerProcesses

logger = logging.getLogger(__name__)

# Sees an event or action before it is acted upon, and returns it, with what it can add to it.
Observe = Callable[[Any], Any]


def drive(
    machine: Machine,
    wait: Callable[[], Iterable[object]],
    perform: Callable[[Action], Iterable[Event]],
    observe: Observe,
) -> Finish:
    """Feed events to a machine and perform its actions, until it finishes.

    Args:
        machine: decides.
        wait: waits until something happens; what it returns and the machine does not know is only
            observed.
        perform: performs an action, and returns the events that it brings about at once.
        observe: sees all of it, in order.
    """
    events: deque[Event] = deque([observe(Begin())])
    while True:
        while not events:
            events.extend(each for each in map(observe, wait()) if isinstance(each, Event))
        for action in machine.handle(events.popleft()):
            observe(action)
            if isinstance(action, Finish):
                return action
            if isinstance(action, StartWorkers):
                # What else came is about the attempt that is over, if not about the run.
                events = deque(filter(_outlasts_an_attempt, events))
            events.extendleft(reversed([observe(event) for event in perform(action)]))


def _outlasts_an_attempt(event: Event) -> bool:
    if isinstance(event, WatchdogFired):
        return event.whole_run
    return isinstance(event, SignalReceived)


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


class Supervisor:
    """Runs a worker group: one wait for its spawner, signals, the watchdog and deadlines.

    Args:
        nprocs: number of workers.
        machine: decides.
        start: starts the workers of an attempt. Those of the one before have been closed.
        signals: takes note of signals to this process, while it is entered.
        watchdog: watches the workers.
        clock: the one of deadlines and of the watchdog; time for which all is stopped is left out.
        grace_period: seconds between the polite signal and SIGKILL.
        observe: sees every event and action, as `drive` says.
        nodes: the other nodes; None if there are none.

    Attributes:
        workers: those of the present attempt; None before the first.
    """

    def __init__(
        self,
        nprocs: int,
        machine: Machine,
        start: Callable[[StartWorkers], WorkerProcesses],
        *,
        signals: SignalSource,
        watchdog: WatchdogDriver,
        clock: RunClock,
        grace_period: float = 30.0,
        observe: Observe = lambda item: item,
        nodes: OtherNodes | None = None,
    ) -> None:
        self.machine = machine
        self.watchdog = watchdog
        self.workers: WorkerProcesses | None = None
        self._nprocs = nprocs
        self._start = start
        self._signals = signals
        self._clock = clock
        self._grace_period = grace_period
        self._observe = observe
        self._nodes = nodes
        self._deadlines = Deadlines(clock)

    def run(self) -> Finish:
        """Run all attempts, and show what is left of the output.

        To be called where ``signals`` is entered; `close` is to follow, whatever happens.

        Raises:
            SignalException: a signal came while nothing could be done but wait.
        """
        end = drive(self.machine, self._wait, self._perform, self._observe)
        if self.workers is not None:
            # A console that takes nothing (a full pipe) may keep this waiting.
            with self._signals.raising():
                self.workers.release()
        return end

    def close(self, death_sig: signal.Signals = signal.SIGTERM) -> None:
        """End what runs; idempotent.

        Args:
            death_sig: the polite signal; SIGKILL follows after the grace period.
        """
        self.watchdog.close()
        if self.workers is None:
            return
        if self.workers.alive and not self.machine.finished:
            # not by an action of the machine: an error, or an exception of a signal's
            with contextlib.suppress(Exception):
                self._observe(SignalWorkers(int(death_sig), "signal"))
            self.workers.observer = self._observe
        self.workers.close(death_sig, self._grace_period)

    # Events

    def _wait(self) -> list[object]:
        machine = self.machine
        healthy = machine.healthy
        files: list[Any] = [self._signals, *self.watchdog.files()]
        if self.workers is not None and (machine.alive or machine.cleaning_up):
            files.append(self.workers)
        waits = [self._deadlines.next_in(), self.watchdog.next_in(healthy=healthy)]
        if self._nodes is not None:
            files += self._nodes.files()
            waits.append(self._nodes.next_in())
        wait(files, seconds=min((each for each in waits if each is not None), default=None))
        signals = self._signals.received()
        if self._signals.stopping:
            self._stop_until_continued()
        found: list[object] = [self._signalled(signum) for signum in signals]
        if self.workers is not None:
            found += self.workers.dispatch()
        if self._nodes is not None:
            found += self._nodes.events()
        # What they lead to may set or take back a deadline: look at those afterwards.
        return found or [*self._timed(), *self.watchdog.events(healthy=healthy)]

    def _stop_until_continued(self) -> None:
        """Stop the workers and this process (Ctrl-Z); until SIGCONT no time passes for the run.

        Workers have sessions of their own, where SIGTSTP would do nothing.
        """
        if self.workers is not None:
            self.workers.stop_or_continue(signal.SIGSTOP)
        self._clock.leave_out(self._signals.stop_until_continued())
        if self.workers is not None:
            self.workers.stop_or_continue(signal.SIGCONT)

    def _signalled(self, signum: int) -> Event:
        if signum == self._signals.quiet:
            return StacksAsked(Asked(signum))
        # what another signal stands for nobody else sends
        announced = self._signals.announced
        forward = forwards() or announced not in {None, signum}
        # who announces an end asks for nothing, and there is little time
        asks = announced is None and forward and self.machine.healthy
        look = self.watchdog.interrupted(signum) if asks else None
        return SignalReceived(signum, forward, look, announced)

    def _timed(self) -> list[Event]:
        found: list[Event] = []
        for name in self._deadlines.passed():
            if name == "grace":
                found.append(GraceExpired())
            elif name == "pause":
                found.append(PauseOver())
            elif name == "cleanup":
                logger.error("SIGKILL does not end all that the workers left behind")
                found.append(OrphansStuck())
        return found

    # Actions

    def _perform(self, action: Action) -> list[Event]:
        if isinstance(action, StartWorkers):
            self._start_attempt(action)
            ranks = frozenset(range(self._nprocs))
            if self._nodes is None:
                return [GroupStarted(ranks)]
            return [GroupStarted(ranks, self._nodes.restarts, self._nodes.base_rank)]
        if isinstance(action, (WaitForOthers, TellNodes, TellStacks)):
            return [BarrierPassed()] if self._nodes is None else self._nodes.perform(action)
        if isinstance(action, Pause):
            self._deadlines.clear()
            self._deadlines.restart("pause", action.seconds)
            return []
        assert self.workers is not None
        self._carry_out(action, self.workers)
        return []

    def _start_attempt(self, action: StartWorkers) -> None:
        self._deadlines.clear()
        if self.workers is not None:
            # They have ended; a console that takes nothing may keep this waiting.
            with self._signals.raising():
                self.workers.close(signal.SIGTERM, self._grace_period)
        self.watchdog.prepare(self._nprocs)
        self.workers = self._start(action)
        self.watchdog.begin(self.workers)

    def _carry_out(self, action: Action, workers: WorkerProcesses) -> None:
        """Carry out an action on the workers; waits for nothing."""
        if isinstance(action, SignalWorkers):
            workers.signal(action.signum)
            if any(_is_stopped(pid) for pid in workers.known_pids().values()):
                # One that is stopped would take notice of nothing but SIGKILL.
                workers.signal(signal.SIGCONT)
        elif isinstance(action, StartGrace):
            self._deadlines.start("grace", self._grace_period)
        elif isinstance(action, KillWorkers):
            workers.kill()
            # The bound on the wait for what cannot be killed; `StartGrace` follows and leaves it.
            self._deadlines.restart("grace", max(self._grace_period, UNKILLABLE_SECONDS))
        elif isinstance(action, TakeStacks):
            self.watchdog.take_stacks(action.ranks, action.finding)
        elif isinstance(action, SignalProcess):
            self.watchdog.signal(action)
        elif isinstance(action, AbandonWorkers):
            pids = [workers.known_pids().get(rank) for rank in sorted(action.ranks)]
            logger.error("SIGKILL does not end the processes %s; they are abandoned", pids)
        elif isinstance(action, CleanUp):
            workers.clean_up()
            # They get SIGKILL at once, so this is for what hangs in the kernel.
            self._deadlines.restart("cleanup", max(self._grace_period, UNKILLABLE_SECONDS))


def _is_stopped(pid: int) -> bool:
    facts = proc.facts(pid)
    return facts is not None and facts.state == "T"
