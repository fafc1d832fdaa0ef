"""The life of a worker group: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Machine.handle` takes a fact and returns the
decisions that follow; the agent performs them and feeds back what happens. The table at the end says
for every state and fact what is done; facts that cannot come in a state are listed as such, and
raise if they do.

An attempt ends by a ladder: a polite signal, the grace period, SIGKILL. A signal to the launcher is
forwarded as the first step; a second one goes to the last step at once. What SIGKILL does not end
within another grace period (uninterruptible sleep) is abandoned, and nothing is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lllaunch.agent.states import WorkerState

Reason = Literal["failure", "signal", "spawner", "membership"]
# Numbers as on every Linux architecture that Python supports; `signal` is not imported here.
SIGKILL, SIGTERM = 9, 15


# Facts


@dataclass(frozen=True)
class Begin:
    """The agent was asked to run."""


@dataclass(frozen=True)
class GroupStarted:
    """All workers of an attempt have been ordered.

    Attributes:
        ranks: their local ranks.
    """

    ranks: frozenset[int]


@dataclass(frozen=True)
class WorkerEnded:
    """A worker ended, or could not be started.

    Attributes:
        rank: local rank.
        ok: whether it ended with exit status 0.
    """

    rank: int
    ok: bool


@dataclass(frozen=True)
class SpawnerLost:
    """The spawner died, and all of its workers with it."""


@dataclass(frozen=True)
class PreloadLost:
    """A preload failed: no worker of this configuration can ever be started."""


@dataclass(frozen=True)
class SignalReceived:
    """A signal to the launcher.

    Attributes:
        signum: its number.
        forward: False if the workers get it from elsewhere (a Slurm step).
    """

    signum: int
    forward: bool = True


@dataclass(frozen=True)
class GraceExpired:
    """The grace period is over."""


@dataclass(frozen=True)
class LeftoversGone:
    """Nothing that the workers left behind lives."""


@dataclass(frozen=True)
class MembershipChanged:
    """Other nodes wait to join, or some left: the group must be formed anew."""


@dataclass(frozen=True)
class BarrierPassed:
    """The agents of all nodes are done, or were waited for long enough."""


@dataclass(frozen=True)
class WorkersStuck:
    """Workers hang in the kernel. What they hold there would be missing in the next attempt too."""


@dataclass(frozen=True)
class MonitorLost:
    """What runs is no longer what was started."""


Fact = (
    Begin
    | GroupStarted
    | WorkerEnded
    | SpawnerLost
    | PreloadLost
    | SignalReceived
    | GraceExpired
    | LeftoversGone
    | MembershipChanged
    | BarrierPassed
    | WorkersStuck
    | MonitorLost
)


# Decisions


@dataclass(frozen=True)
class StartWorkers:
    """Rendezvous and start all workers.

    Attributes:
        attempt: number of the attempt, from 0; grows at every start.
        restart_count: what workers see as TORCHELASTIC_RESTART_COUNT; grows at restarts that count.
        reason: why they are started again; None at first.
    """

    attempt: int
    restart_count: int
    reason: Reason | None = None


@dataclass(frozen=True)
class SignalWorkers:
    """Send a signal to all live workers.

    Attributes:
        signum: its number.
        reason: why.
    """

    signum: int
    reason: Reason


@dataclass(frozen=True)
class StartGrace:
    """Let the grace period begin; `GraceExpired` follows if workers still live after it."""


@dataclass(frozen=True)
class KillWorkers:
    """SIGKILL all live workers and what descends from them.

    Attributes:
        why: ``grace`` if the grace period is over, ``signal`` after a second signal, ``lost`` if
            the agent lost track.
    """

    why: Literal["grace", "signal", "lost"]


@dataclass(frozen=True)
class AbandonWorkers:
    """Wait no longer for workers that SIGKILL does not end: they hang in the kernel."""

    ranks: frozenset[int]


@dataclass(frozen=True)
class SweepLeftovers:
    """End what the workers left behind; `LeftoversGone` follows."""


@dataclass(frozen=True)
class WaitForOthers:
    """Wait at the exit barrier for the agents of other nodes; `BarrierPassed` follows."""


@dataclass(frozen=True)
class Finish:
    """The run is over.

    Attributes:
        state: SUCCEEDED, FAILED or UNKNOWN.
        reason: why it did not succeed, else None.
        signum: the signal to the launcher that ended it, or None.
    """

    state: WorkerState
    reason: Reason | None = None
    signum: int | None = None


Decision = (
    StartWorkers
    | SignalWorkers
    | StartGrace
    | KillWorkers
    | AbandonWorkers
    | SweepLeftovers
    | WaitForOthers
    | Finish
)
Decisions = tuple[Decision, ...]


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

    # Steps; their names stand in the table.

    def begin(self, _: Fact) -> Decisions:
        return (StartWorkers(self.attempt, self.restart_count),)

    def run(self, fact: GroupStarted) -> Decisions:
        self.state = WorkerState.HEALTHY
        self.alive = fact.ranks
        self.reason = None
        self.killed = False
        return ()

    def ended(self, fact: WorkerEnded) -> Decisions:
        self.alive -= {fact.rank}
        if not fact.ok:
            self.reason = "failure"
            return self._stop(SIGTERM)
        if self.alive:
            return ()
        self.state = WorkerState.SUCCEEDED
        return (SweepLeftovers(),)

    def ended_while_ending(self, fact: WorkerEnded) -> Decisions:
        self.alive -= {fact.rank}
        return () if self.alive else self._sweep()

    def stuck(self, _: Fact) -> Decisions:
        self.reason, self.restarts_left = "failure", 0
        return self._stop(SIGTERM)

    def regroup(self, _: Fact) -> Decisions:
        self.reason = "membership"
        return self._stop(SIGTERM)

    def end_by_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return self._stop(fact.signum if fact.forward else None)

    def signal_again(self, fact: SignalReceived) -> Decisions:
        if self.reason == "signal":
            return self._kill("signal")
        # The group is being ended because of something else: now it is not started again.
        self.reason, self.signum = "signal", fact.signum
        return (SignalWorkers(fact.signum, "signal"),) if fact.forward else ()

    def note_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return ()

    def finish_by_signal(self, fact: SignalReceived) -> Decisions:
        self.reason, self.signum = "signal", fact.signum
        return self._finish(WorkerState.FAILED)

    def kill(self, _: Fact) -> Decisions:
        if not self.killed:
            return self._kill("grace")
        abandoned, self.alive = self.alive, frozenset()
        self.reason = self.reason or "failure"
        return (AbandonWorkers(abandoned), *self._finish(WorkerState.FAILED))

    def lose_all(self, _: Fact) -> Decisions:
        self.alive = frozenset()
        if self.reason is None:
            self.reason = "spawner"
        # It takes what was left behind along: there is nothing to sweep with.
        return self._next()

    def give_up(self, _: Fact) -> Decisions:
        self.alive = frozenset()
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def lose_track(self, _: Fact) -> Decisions:
        self.reason = "failure"
        return (KillWorkers("lost"), *self._finish(WorkerState.UNKNOWN))

    def swept(self, _: Fact) -> Decisions:
        return self._next()

    def wait_for_others(self, _: Fact) -> Decisions:
        return (WaitForOthers(),)

    def succeed(self, _: Fact) -> Decisions:
        self.finished = True
        return (Finish(WorkerState.SUCCEEDED),)

    def ignore(self, _: Fact) -> Decisions:
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

# What is done for every fact in every state; a fact that is not listed cannot come there.
TRANSITIONS: dict[WorkerState, dict[type, Step]] = {
    WorkerState.INIT: {
        Begin: Machine.begin,
        GroupStarted: Machine.run,
        SignalReceived: Machine.finish_by_signal,
        GraceExpired: Machine.ignore,
    },
    WorkerState.HEALTHY: {
        WorkerEnded: Machine.ended,
        SpawnerLost: Machine.lose_all,
        PreloadLost: Machine.give_up,
        SignalReceived: Machine.end_by_signal,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.regroup,
        WorkersStuck: Machine.stuck,
        MonitorLost: Machine.lose_track,
    },
    WorkerState.UNHEALTHY: {
        WorkerEnded: Machine.ended_while_ending,
        SpawnerLost: Machine.lose_all,
        PreloadLost: Machine.give_up,
        SignalReceived: Machine.signal_again,
        GraceExpired: Machine.kill,
        MembershipChanged: Machine.ignore,
        WorkersStuck: Machine.ignore,
        MonitorLost: Machine.lose_track,
    },
    WorkerState.STOPPED: {
        LeftoversGone: Machine.swept,
        SpawnerLost: Machine.lose_all,
        SignalReceived: Machine.note_signal,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.ignore,
    },
    WorkerState.SUCCEEDED: {
        LeftoversGone: Machine.wait_for_others,
        SpawnerLost: Machine.wait_for_others,
        BarrierPassed: Machine.succeed,
        SignalReceived: Machine.finish_by_signal,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.ignore,
    },
    # Terminal: after the decision to finish every fact is late news.
    WorkerState.FAILED: {},
    WorkerState.UNKNOWN: {},
}
