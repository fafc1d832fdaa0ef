"""What a worker group does about a fact: the actions that `lllaunch.agent.machine` lists. Pure."""

from __future__ import annotations

import lllaunch.agent.vocabulary as v
from lllaunch.agent.chances import Chances
from lllaunch.agent.ladder import LADDER, Push, Rung, Step
from lllaunch.agent.states import WorkerState
from lllaunch.policies import RestartPolicy

# The number of the polite signal on every Linux; `signal` is not imported here.
SIGTERM = 15


class Group:
    """A worker group from its first attempt to its end.

    Args:
        max_restarts: how often a failed group is started again.
        spawner_retries: how often, on top, when the spawner died.
        policy: what it is started again for, and how soon.

    Attributes:
        state: state of the group.
        attempt: number of the present attempt.
    """

    def __init__(
        self,
        max_restarts: int,
        spawner_retries: int = 1,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.state = WorkerState.INIT
        self.attempt = 0
        self.chances = Chances(max_restarts, spawner_retries, policy or RestartPolicy())
        self.alive: frozenset[int] = frozenset()
        self.reason: v.Reason | None = None
        self.signum: int | None = None
        self.forward = True
        self.rung = Rung.NONE
        self.at_barrier = False
        # What the watchdog found first in this attempt, and whether the run's time is over.
        self.fired: v.WatchdogFired | None = None
        self.run_is_over = False
        # Whether a signal waits until it is written down where the workers stand.
        self.looking = False
        self.pausing = False
        self.finished = False

    @property
    def restart_count(self) -> int:
        """Restarts that counted, so far."""
        return self.chances.counted

    def begin(self, _: v.Fact) -> v.Decisions:
        """Start the first attempt."""
        return (v.StartWorkers(self.attempt, self.restart_count),)

    def run(self, fact: v.GroupStarted) -> v.Decisions:
        """The workers of an attempt have been ordered."""
        self.state = WorkerState.HEALTHY
        self.alive = fact.ranks
        self.reason = None
        self.rung = Rung.NONE
        self.fired = None
        self.looking = False
        return ()

    def ended(self, fact: v.WorkerEnded) -> v.Decisions:
        """A worker ended while all was well; if it failed, the group ends with it."""
        self.alive -= {fact.rank}
        if not fact.ok:
            # What the watchdog found before is why.
            return self._stop(self.fired.kind if self.fired else fact.fault)
        if self.alive:
            return ()
        self.state = WorkerState.SUCCEEDED
        return (v.SweepLeftovers(),)

    def ended_while_ending(self, fact: v.WorkerEnded) -> v.Decisions:
        """A worker ended as it should: with the last one the attempt is over."""
        self.alive -= {fact.rank}
        return () if self.alive else self._sweep()

    def stuck(self, _: v.Fact) -> v.Decisions:
        """Workers hang in the kernel: what they hold there would be missing next time, too."""
        self.chances.forfeit()
        return self._stop("hang")

    def fire(self, fact: v.WatchdogFired) -> v.Decisions:
        """The watchdog found something: first it is written down where everybody stands."""
        self.run_is_over = self.run_is_over or fact.whole_run
        if self.fired is not None:
            return ()
        if fact.ends:
            self.fired = fact
        return (v.TakeStacks(self.alive, fact.finding),)

    def look(self, fact: v.StacksAsked) -> v.Decisions:
        """The user wants to see where the workers stand."""
        # Stacks that something ends for are shown as well.
        busy = self.looking or self.fired is not None
        return () if busy or not self.alive else (v.TakeStacks(self.alive, fact.look),)

    def end_by_watchdog(self, fact: v.StacksTaken) -> v.Decisions:
        """The stacks are taken: end the group for what the watchdog found, if that ends it."""
        if self.fired is None or self.fired.finding != fact.finding:
            return ()
        asked = () if self.fired.asked is None else (self.fired.asked,)
        return (*asked, *self._stop(self.fired.kind))

    def note_fired(self, fact: v.WatchdogFired) -> v.Decisions:
        """The watchdog found something while the group was ending anyway."""
        self.run_is_over = self.run_is_over or fact.whole_run
        if self.run_is_over and self.pausing:
            self.reason = "timeout"
            return self._finish(WorkerState.FAILED)
        return ()

    def regroup(self, _: v.Fact) -> v.Decisions:
        """End the group, to form it anew."""
        return self._stop("membership")

    def end_by_signal(self, fact: v.SignalReceived) -> v.Decisions:
        """A signal came while workers live."""
        # Also when the group is being ended for something else: now it is not started again.
        self._note(fact)
        first = self.state is WorkerState.HEALTHY
        self.state = WorkerState.UNHEALTHY
        if first and fact.look is not None and self.fired is None:
            self.looking = True
            return (v.TakeStacks(self.alive, fact.look),)
        # Nobody waits for stacks who sends a second one.
        return (*self.stop_looking(None), *self._push(Push.SIGNAL))

    def stop_looking(self, _: v.Fact | None) -> v.Decisions:
        """The stacks that a signal had waited for are taken: now the workers get it."""
        looking, self.looking = self.looking, False
        return self._push(Push.SIGNAL) if looking else ()

    def signal_while_swept(self, fact: v.SignalReceived) -> v.Decisions:
        """A signal came while leftovers are ended, or a restart is waited for."""
        if self.reason == "signal":
            # The second one: the wait for the sweep ends too.
            return self._finish(WorkerState.FAILED)
        self._note(fact)
        return self._finish(WorkerState.FAILED) if self.pausing else ()

    def signal_after_success(self, fact: v.SignalReceived) -> v.Decisions:
        """A signal came after all workers succeeded."""
        self._note(fact)
        if self.at_barrier:
            return self._finish(WorkerState.FAILED)
        # What the workers left behind is still being ended.
        self.state = WorkerState.STOPPED
        return ()

    def finish_by_signal(self, fact: v.SignalReceived) -> v.Decisions:
        """A signal came before anything was started."""
        self._note(fact)
        return self._finish(WorkerState.FAILED)

    def grace_over(self, _: v.Fact) -> v.Decisions:
        """The grace period is over."""
        return self._push(Push.GRACE_OVER)

    def lose_all(self, _: v.Fact) -> v.Decisions:
        """The spawner died, and all workers with it."""
        self.alive = frozenset()
        if self.reason is None:
            self.reason = self.fired.kind if self.fired else "spawner"
        # It takes what was left behind along: there is nothing to sweep with.
        return self._next()

    def give_up(self, _: v.Fact) -> v.Decisions:
        """Nothing can ever be started."""
        self.alive = frozenset()
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def lose_track(self, _: v.Fact) -> v.Decisions:
        """The agent lost track of what runs."""
        self.reason = "failure"
        return (v.KillWorkers("lost"), *self._finish(WorkerState.UNKNOWN))

    def spawner_lost_while_stopped(self, fact: v.Fact) -> v.Decisions:
        """The spawner died when no worker lived."""
        # The next attempt gets another one.
        return () if self.pausing else self.lose_all(fact)

    def swept(self, _: v.Fact) -> v.Decisions:
        """Nothing is left: start again or finish."""
        return () if self.pausing else self._next()

    def not_swept(self, _: v.Fact) -> v.Decisions:
        """Something is left that cannot be ended."""
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def wait_for_others(self, _: v.Fact) -> v.Decisions:
        """This node is done."""
        if self.at_barrier:
            return ()
        self.at_barrier = True
        return (v.WaitForOthers(),)

    def succeed(self, _: v.Fact) -> v.Decisions:
        """All nodes are done."""
        self.finished = True
        return (v.Finish(WorkerState.SUCCEEDED),)

    def ignore(self, _: v.Fact) -> v.Decisions:
        """Nothing follows."""
        return ()

    def _note(self, fact: v.SignalReceived) -> None:
        """The first signal is the one that the run ends by."""
        if self.reason != "signal":
            self.reason, self.signum, self.forward = "signal", fact.signum, fact.forward

    def _stop(self, reason: v.Reason) -> v.Decisions:
        self.reason = reason
        if not self.alive:
            return self._sweep()
        self.state = WorkerState.UNHEALTHY
        return self._push(Push.CAUSE)

    def _push(self, push: Push) -> v.Decisions:
        """Go on with the ladder."""
        self.rung, steps = LADDER[self.rung, push]
        return tuple(decision for step in steps for decision in self._step(step, push))

    def _step(self, step: Step, push: Push) -> v.Decisions:
        assert self.reason is not None
        if step is Step.TERMINATE:
            return (v.SignalWorkers(SIGTERM, self.reason),)
        if step is Step.FORWARD:
            assert self.signum is not None
            return (v.SignalWorkers(self.signum, "signal"),) if self.forward else ()
        if step is Step.GRACE:
            return (v.StartGrace(),)
        if step is Step.KILL:
            return (v.KillWorkers("signal" if push is Push.SIGNAL else "grace"),)
        abandoned, self.alive = self.alive, frozenset()
        return (v.AbandonWorkers(abandoned), *self._finish(WorkerState.FAILED))

    def _sweep(self) -> v.Decisions:
        self.state = WorkerState.STOPPED
        return (v.SweepLeftovers(),)

    def _next(self) -> v.Decisions:
        """Nothing lives: start again, now or later, or finish."""
        if self.reason == "signal":
            return self._finish(WorkerState.FAILED)
        wait = self.chances.take(self.reason)
        if wait is None:
            return self._finish(WorkerState.FAILED)
        if self.run_is_over:
            self.reason = "timeout"
            return self._finish(WorkerState.FAILED)
        if wait > 0:
            self.state, self.pausing = WorkerState.STOPPED, True
            return (v.Pause(wait, self.chances.restart),)
        return self.start_again(None)

    def start_again(self, _: v.Fact | None) -> v.Decisions:
        """Begin the next attempt."""
        self.state, self.pausing = WorkerState.INIT, False
        self.attempt += 1
        restart = self.chances.restart
        return (v.StartWorkers(self.attempt, self.restart_count, self.reason, restart),)

    def _finish(self, state: WorkerState) -> v.Decisions:
        self.state = state
        self.finished = True
        return (v.Finish(state, self.reason, self.signum),)
