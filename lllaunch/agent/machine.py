"""The life of a worker group: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Machine.handle` takes a fact and returns the
decisions that follow; the agent performs them and feeds back what happens. The tables at the end
say for every state and fact what is done, or that it cannot come.

How an attempt ends stands in a table of its own, `lllaunch.agent.ladder`. What SIGKILL does not end
within the grace period (uninterruptible sleep) is abandoned, and nothing is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lllaunch.agent.vocabulary as v
from lllaunch.agent.ladder import LADDER, Push, Rung, Step
from lllaunch.agent.states import WorkerState

# The number of the polite signal on every Linux; `signal` is not imported here.
SIGTERM = 15


class ImpossibleFact(Exception):
    """A fact came in a state in which it cannot come: an error in the agent."""


class Machine:
    """A worker group from its first attempt to its end.

    Args:
        max_restarts: how often a failed group is started again.
        spawner_retries: how often, on top, when the spawner died.

    Attributes:
        state: state of the group.
        attempt: number of the present attempt.
        restart_count: restarts that counted, so far.
    """

    def __init__(self, max_restarts: int, spawner_retries: int = 1) -> None:
        self.state = WorkerState.INIT
        self.attempt = 0
        self.restart_count = 0
        self.restarts_left = max_restarts
        self.spawner_retries_left = spawner_retries
        self.alive: frozenset[int] = frozenset()
        self.reason: v.Reason | None = None
        self.signum: int | None = None
        self.forward = True
        self.rung = Rung.NONE
        self.at_barrier = False
        self.finished = False

    def handle(self, fact: v.Fact) -> v.Decisions:
        """Take note of a fact; the decisions that follow, in order.

        Raises:
            ImpossibleFact: it cannot come in this state.
        """
        if self.finished:
            # Late news: a worker's end that was on its way, a second signal.
            return ()
        action = TRANSITIONS[self.state].get(type(fact))
        if action is None:
            raise ImpossibleFact(f"{fact} in state {self.state.value}")
        return action(self, fact)

    # Actions; the table below says where each is taken.

    def _begin(self, _: v.Fact) -> v.Decisions:
        return (v.StartWorkers(self.attempt, self.restart_count),)

    def _run(self, fact: v.GroupStarted) -> v.Decisions:
        self.state = WorkerState.HEALTHY
        self.alive = fact.ranks
        self.reason = None
        self.rung = Rung.NONE
        return ()

    def _ended(self, fact: v.WorkerEnded) -> v.Decisions:
        self.alive -= {fact.rank}
        if not fact.ok:
            return self._stop("failure")
        if self.alive:
            return ()
        self.state = WorkerState.SUCCEEDED
        return (v.SweepLeftovers(),)

    def _ended_while_ending(self, fact: v.WorkerEnded) -> v.Decisions:
        self.alive -= {fact.rank}
        return () if self.alive else self._sweep()

    def _stuck(self, _: v.Fact) -> v.Decisions:
        self.restarts_left = 0
        return self._stop("failure")

    def _regroup(self, _: v.Fact) -> v.Decisions:
        return self._stop("membership")

    def _end_by_signal(self, fact: v.SignalReceived) -> v.Decisions:
        # Also when the group is being ended for something else: now it is not started again.
        self._note(fact)
        self.state = WorkerState.UNHEALTHY
        return self._push(Push.SIGNAL)

    def _signal_while_swept(self, fact: v.SignalReceived) -> v.Decisions:
        if self.reason == "signal":
            # The second one: the wait for the sweep ends too.
            return self._finish(WorkerState.FAILED)
        self._note(fact)
        return ()

    def _signal_after_success(self, fact: v.SignalReceived) -> v.Decisions:
        self._note(fact)
        if self.at_barrier:
            return self._finish(WorkerState.FAILED)
        # What the workers left behind is still being ended.
        self.state = WorkerState.STOPPED
        return ()

    def _finish_by_signal(self, fact: v.SignalReceived) -> v.Decisions:
        self._note(fact)
        return self._finish(WorkerState.FAILED)

    def _grace_over(self, _: v.Fact) -> v.Decisions:
        return self._push(Push.GRACE_OVER)

    def _lose_all(self, _: v.Fact) -> v.Decisions:
        self.alive = frozenset()
        if self.reason is None:
            self.reason = "spawner"
        # It takes what was left behind along: there is nothing to sweep with.
        return self._next()

    def _give_up(self, _: v.Fact) -> v.Decisions:
        self.alive = frozenset()
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def _lose_track(self, _: v.Fact) -> v.Decisions:
        self.reason = "failure"
        return (v.KillWorkers("lost"), *self._finish(WorkerState.UNKNOWN))

    def _swept(self, _: v.Fact) -> v.Decisions:
        return self._next()

    def _not_swept(self, _: v.Fact) -> v.Decisions:
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def _wait_for_others(self, _: v.Fact) -> v.Decisions:
        if self.at_barrier:
            return ()
        self.at_barrier = True
        return (v.WaitForOthers(),)

    def _succeed(self, _: v.Fact) -> v.Decisions:
        self.finished = True
        return (v.Finish(WorkerState.SUCCEEDED),)

    def _ignore(self, _: v.Fact) -> v.Decisions:
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
        """Nothing lives: start again or finish."""
        if self.reason == "signal" or not self._may_restart():
            return self._finish(WorkerState.FAILED)
        self.state = WorkerState.INIT
        self.attempt += 1
        return (v.StartWorkers(self.attempt, self.restart_count, self.reason),)

    def _may_restart(self) -> bool:
        if self.reason == "membership":
            return True
        if self.reason == "spawner" and self.spawner_retries_left:
            self.spawner_retries_left -= 1
        elif self.restarts_left:
            self.restarts_left -= 1
        else:
            return False
        self.restart_count += 1
        return True

    def _finish(self, state: WorkerState) -> v.Decisions:
        self.state = state
        self.finished = True
        return (v.Finish(state, self.reason, self.signum),)


# mypy cannot know that an action gets the fact it stands for in the table.
Action = Callable[[Machine, Any], v.Decisions]

# What is done for every fact in every state.
TRANSITIONS: dict[WorkerState, dict[type, Action]] = {
    WorkerState.INIT: {
        v.Begin: Machine._begin,
        v.GroupStarted: Machine._run,
        v.SignalReceived: Machine._finish_by_signal,
        v.GraceExpired: Machine._ignore,
    },
    WorkerState.HEALTHY: {
        v.WorkerEnded: Machine._ended,
        v.SpawnerLost: Machine._lose_all,
        v.PreloadLost: Machine._give_up,
        v.SignalReceived: Machine._end_by_signal,
        v.GraceExpired: Machine._ignore,
        v.MembershipChanged: Machine._regroup,
        v.WorkersStuck: Machine._stuck,
        v.MonitorLost: Machine._lose_track,
    },
    WorkerState.UNHEALTHY: {
        v.WorkerEnded: Machine._ended_while_ending,
        v.SpawnerLost: Machine._lose_all,
        v.PreloadLost: Machine._give_up,
        v.SignalReceived: Machine._end_by_signal,
        v.GraceExpired: Machine._grace_over,
        v.MembershipChanged: Machine._ignore,
        v.WorkersStuck: Machine._ignore,
        v.MonitorLost: Machine._lose_track,
    },
    WorkerState.STOPPED: {
        v.LeftoversGone: Machine._swept,
        v.LeftoversStuck: Machine._not_swept,
        v.SpawnerLost: Machine._lose_all,
        v.SignalReceived: Machine._signal_while_swept,
        v.GraceExpired: Machine._ignore,
        v.MembershipChanged: Machine._ignore,
        v.WorkersStuck: Machine._ignore,
    },
    WorkerState.SUCCEEDED: {
        v.LeftoversGone: Machine._wait_for_others,
        v.LeftoversStuck: Machine._wait_for_others,
        v.SpawnerLost: Machine._wait_for_others,
        v.BarrierPassed: Machine._succeed,
        v.SignalReceived: Machine._signal_after_success,
        v.GraceExpired: Machine._ignore,
        v.MembershipChanged: Machine._ignore,
        v.WorkersStuck: Machine._ignore,
    },
    # Terminal: after the decision to finish every fact is late news.
    WorkerState.FAILED: {},
    WorkerState.UNKNOWN: {},
}

_OF_STARTS: frozenset[type] = frozenset({v.Begin, v.GroupStarted})
_OF_SWEEPS: frozenset[type] = frozenset({v.LeftoversGone, v.LeftoversStuck})
_OF_WORKERS: frozenset[type] = frozenset({v.WorkerEnded, v.PreloadLost, v.MonitorLost})

# The rest, and why it cannot come.
IMPOSSIBLE: dict[WorkerState, frozenset[type]] = {
    # Nothing has been started that could end or be watched; nothing was asked for.
    WorkerState.INIT: _OF_WORKERS
    | _OF_SWEEPS
    | {v.SpawnerLost, v.MembershipChanged, v.BarrierPassed, v.WorkersStuck},
    # Workers live: neither a start, nor a sweep, nor a barrier is under way.
    WorkerState.HEALTHY: _OF_STARTS | _OF_SWEEPS | {v.BarrierPassed},
    WorkerState.UNHEALTHY: _OF_STARTS | _OF_SWEEPS | {v.BarrierPassed},
    # All workers have ended, and whoever ends first cannot have failed to preload.
    WorkerState.STOPPED: _OF_STARTS | _OF_WORKERS | {v.BarrierPassed},
    WorkerState.SUCCEEDED: _OF_STARTS | _OF_WORKERS,
    WorkerState.FAILED: frozenset(),
    WorkerState.UNKNOWN: frozenset(),
}
