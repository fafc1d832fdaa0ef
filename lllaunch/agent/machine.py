"""The life of a worker group: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Machine.handle` takes a fact and returns the
decisions that follow; the agent performs them and feeds back what happens. The tables at the end
say for every state and fact what is done, or that it cannot come.

An attempt ends by a ladder: a polite signal, the grace period, SIGKILL. A signal to the launcher is
forwarded as the first step; a second one goes to the last step at once. What SIGKILL does not end
within another grace period (uninterruptible sleep) is abandoned, and nothing is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lllaunch.agent.states import WorkerState
from lllaunch.agent.vocabulary import (
    AbandonWorkers,
    BarrierPassed,
    Begin,
    Decisions,
    Fact,
    Finish,
    GraceExpired,
    GroupStarted,
    KillWorkers,
    LeftoversGone,
    MembershipChanged,
    MonitorLost,
    PreloadLost,
    Reason,
    SignalReceived,
    SignalWorkers,
    SpawnerLost,
    StartGrace,
    StartWorkers,
    SweepLeftovers,
    WaitForOthers,
    WorkerEnded,
    WorkersStuck,
)

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
        self.reason: Reason | None = None
        self.signum: int | None = None
        self.killed = False
        self.finished = False

    def handle(self, fact: Fact) -> Decisions:
        """Take note of a fact; the decisions that follow, in order.

        Raises:
            ImpossibleFact: it cannot come in this state.
        """
        if self.finished:
            # Late news: a worker's end that was on its way, a second signal.
            return ()
        step = TRANSITIONS[self.state].get(type(fact))
        if step is None:
            raise ImpossibleFact(f"{fact} in state {self.state.value}")
        return step(self, fact)

    # Steps; the table below says where each is taken.

    def _begin(self, _: Fact) -> Decisions:
        return (StartWorkers(self.attempt, self.restart_count),)

    def _run(self, fact: GroupStarted) -> Decisions:
        self.state = WorkerState.HEALTHY
        self.alive = fact.ranks
        self.reason = None
        self.killed = False
        return ()

    def _ended(self, fact: WorkerEnded) -> Decisions:
        self.alive -= {fact.rank}
        if not fact.ok:
            self.reason = "failure"
            return self._stop(SIGTERM)
        if self.alive:
            return ()
        self.state = WorkerState.SUCCEEDED
        return (SweepLeftovers(),)

    def _ended_while_ending(self, fact: WorkerEnded) -> Decisions:
        self.alive -= {fact.rank}
        return () if self.alive else self._sweep()

    def _stuck(self, _: Fact) -> Decisions:
        self.reason, self.restarts_left = "failure", 0
        return self._stop(SIGTERM)

    def _regroup(self, _: Fact) -> Decisions:
        self.reason = "membership"
        return self._stop(SIGTERM)

    def _end_by_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return self._stop(fact.signum if fact.forward else None)

    def _signal_again(self, fact: SignalReceived) -> Decisions:
        if self.reason == "signal":
            return self._kill("signal")
        # The group is being ended because of something else: now it is not started again.
        self.reason, self.signum = "signal", fact.signum
        return (SignalWorkers(fact.signum, "signal"),) if fact.forward else ()

    def _note_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return ()

    def _finish_by_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return self._finish(WorkerState.FAILED)

    def _grace_over(self, _: Fact) -> Decisions:
        if not self.killed:
            return self._kill("grace")
        abandoned, self.alive = self.alive, frozenset()
        self.reason = self.reason or "failure"
        return (AbandonWorkers(abandoned), *self._finish(WorkerState.FAILED))

    def _lose_all(self, _: Fact) -> Decisions:
        self.alive = frozenset()
        if self.reason is None:
            self.reason = "spawner"
        # It takes what was left behind along: there is nothing to sweep with.
        return self._next()

    def _give_up(self, _: Fact) -> Decisions:
        self.alive = frozenset()
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def _lose_track(self, _: Fact) -> Decisions:
        self.reason = "failure"
        return (KillWorkers("lost"), *self._finish(WorkerState.UNKNOWN))

    def _swept(self, _: Fact) -> Decisions:
        return self._next()

    def _wait_for_others(self, _: Fact) -> Decisions:
        return (WaitForOthers(),)

    def _succeed(self, _: Fact) -> Decisions:
        self.finished = True
        return (Finish(WorkerState.SUCCEEDED),)

    def _ignore(self, _: Fact) -> Decisions:
        return ()

    def _stop(self, signum: int | None) -> Decisions:
        """Begin the ladder."""
        if not self.alive:
            return self._sweep()
        self.state = WorkerState.UNHEALTHY
        assert self.reason is not None
        signal = (SignalWorkers(signum, self.reason),) if signum is not None else ()
        return (*signal, StartGrace())

    def _kill(self, why: Literal["grace", "signal"]) -> Decisions:
        # The grace period begins anew: a bound on the wait for what cannot be killed.
        again = () if self.killed else (StartGrace(),)
        self.killed = True
        return (KillWorkers(why), *again)

    def _sweep(self) -> Decisions:
        self.state = WorkerState.STOPPED
        return (SweepLeftovers(),)

    def _next(self) -> Decisions:
        """Nothing lives: start again or finish."""
        if self.reason == "signal" or not self._may_restart():
            return self._finish(WorkerState.FAILED)
        self.state = WorkerState.INIT
        self.attempt += 1
        return (StartWorkers(self.attempt, self.restart_count, self.reason),)

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

    def _finish(self, state: WorkerState) -> Decisions:
        self.state = state
        self.finished = True
        return (Finish(state, self.reason, self.signum),)


# mypy cannot know that a step gets the fact it stands for in the table.
Step = Callable[[Machine, Any], Decisions]

# What is done for every fact in every state.
TRANSITIONS: dict[WorkerState, dict[type, Step]] = {
    WorkerState.INIT: {
        Begin: Machine._begin,
        GroupStarted: Machine._run,
        SignalReceived: Machine._finish_by_signal,
        GraceExpired: Machine._ignore,
    },
    WorkerState.HEALTHY: {
        WorkerEnded: Machine._ended,
        SpawnerLost: Machine._lose_all,
        PreloadLost: Machine._give_up,
        SignalReceived: Machine._end_by_signal,
        GraceExpired: Machine._ignore,
        MembershipChanged: Machine._regroup,
        WorkersStuck: Machine._stuck,
        MonitorLost: Machine._lose_track,
    },
    WorkerState.UNHEALTHY: {
        WorkerEnded: Machine._ended_while_ending,
        SpawnerLost: Machine._lose_all,
        PreloadLost: Machine._give_up,
        SignalReceived: Machine._signal_again,
        GraceExpired: Machine._grace_over,
        MembershipChanged: Machine._ignore,
        WorkersStuck: Machine._ignore,
        MonitorLost: Machine._lose_track,
    },
    WorkerState.STOPPED: {
        LeftoversGone: Machine._swept,
        SpawnerLost: Machine._lose_all,
        SignalReceived: Machine._note_signal,
        GraceExpired: Machine._ignore,
        MembershipChanged: Machine._ignore,
        WorkersStuck: Machine._ignore,
    },
    WorkerState.SUCCEEDED: {
        LeftoversGone: Machine._wait_for_others,
        SpawnerLost: Machine._wait_for_others,
        BarrierPassed: Machine._succeed,
        SignalReceived: Machine._finish_by_signal,
        GraceExpired: Machine._ignore,
        MembershipChanged: Machine._ignore,
        WorkersStuck: Machine._ignore,
    },
    # Terminal: after the decision to finish every fact is late news.
    WorkerState.FAILED: {},
    WorkerState.UNKNOWN: {},
}

# The rest, and why it cannot come.
IMPOSSIBLE: dict[WorkerState, frozenset[type]] = {
    # Nothing has been started that could end or be watched; nothing was asked for.
    WorkerState.INIT: frozenset(
        {
            WorkerEnded,
            SpawnerLost,
            PreloadLost,
            LeftoversGone,
            MembershipChanged,
            BarrierPassed,
            WorkersStuck,
            MonitorLost,
        }
    ),
    # Workers live: neither a start, nor a sweep, nor a barrier is under way.
    WorkerState.HEALTHY: frozenset({Begin, GroupStarted, LeftoversGone, BarrierPassed}),
    WorkerState.UNHEALTHY: frozenset({Begin, GroupStarted, LeftoversGone, BarrierPassed}),
    # All workers have ended, and whoever ends first cannot have failed to preload.
    WorkerState.STOPPED: frozenset(
        {Begin, GroupStarted, WorkerEnded, PreloadLost, BarrierPassed, MonitorLost}
    ),
    WorkerState.SUCCEEDED: frozenset({Begin, GroupStarted, WorkerEnded, PreloadLost, MonitorLost}),
    WorkerState.FAILED: frozenset(),
    WorkerState.UNKNOWN: frozenset(),
}
