"""The agent's state machine: facts in, decisions out. Pure.

Nothing here starts, waits or asks for the time. `Machine.handle` takes a fact and returns the
decisions that follow; the agent performs them and feeds back what happens. The tables at the end
say for every state and fact what is done, or that it cannot come.

What the watchdog finds ends a group as a failure does, after its stacks were taken; while that goes
on the group still runs. A wait before a restart belongs to the state STOPPED.

How an attempt ends stands in a table of its own: a polite signal, the grace period, SIGKILL, and
once more the grace period as a bound on the wait for what cannot be killed (uninterruptible sleep).
That is abandoned, and nothing is started again. A user's signal is the polite one, or follows it;
the next one skips what is left of the grace period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lllaunch.policies import RestartCause, RestartPolicy

if TYPE_CHECKING:
    from lllaunch.watchdog.findings import Asked, Finding
    from lllaunch.watchdog.stacks.frames import Blame, RankStack


class WorkerState(str, Enum):
    """State of a worker group; its workers change state as one.

    Attributes:
        UNKNOWN: the agent lost track of its workers; terminal.
        INIT: being started, for the first time or again.
        HEALTHY: workers run.
        UNHEALTHY: workers run and are being ended.
        STOPPED: no worker runs; what they left behind is being ended.
        SUCCEEDED: all workers ended with exit status 0.
        FAILED: workers failed and are not started again; terminal.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether workers exist in this state, healthy or not."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


# Why a group ends. `died`: a signal ended a worker; `signal`: one came to the launcher.
Reason = Literal["failure", "died", "oom", "hang", "timeout", "signal", "spawner", "membership"]
Fault = Literal["failure", "died", "oom"]


class _Plain:
    """Nothing but its type. A dataclass would do the same, and make every start slower."""

    __slots__ = ()
    # To `dataclasses` it is one of its own, without fields.
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


# Facts


class Begin(_Plain):
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
        fault: if not, in what way it failed.
    """

    rank: int
    ok: bool
    fault: Fault = "failure"


class SpawnerLost(_Plain):
    """The spawner died, and all of its workers with it."""


class PreloadLost(_Plain):
    """A preload failed: no worker of this configuration can ever be started."""


@dataclass(frozen=True)
class SignalReceived:
    """A signal to the launcher.

    Attributes:
        signum: its number.
        forward: False if the workers get it from elsewhere (a Slurm step).
        look: what to take the workers' stacks for before they get it; None to let them have it at
            once.
    """

    signum: int
    forward: bool = True
    look: Asked | None = None


@dataclass(frozen=True)
class StacksAsked:
    """The user wants to see where the workers stand; nothing ends for it.

    Attributes:
        look: the signal that says so.
    """

    look: Asked


class GraceExpired(_Plain):
    """The grace period is over."""


class LeftoversGone(_Plain):
    """Nothing that the workers left behind lives."""


class LeftoversStuck(_Plain):
    """Some of what the workers left behind does not end, long after it was killed."""


class MembershipChanged(_Plain):
    """Other nodes wait to join, or some left: the group must be formed anew."""


class BarrierPassed(_Plain):
    """The agents of all nodes are done, or were waited for long enough."""


class WorkersStuck(_Plain):
    """Workers hang in the kernel. What they hold there would be missing in the next attempt too."""


@dataclass(frozen=True)
class WatchdogFired:
    """The watchdog found something.

    Attributes:
        finding: what.
        kind: what that is to the restart policy.
        whole_run: whether nothing may be started again, whatever the policy says.
        asked: the signal that an expired timer asks for, or None.
        ends: whether the group, or the run, must end for it; else it is only reported.
    """

    finding: Finding
    kind: Literal["hang", "timeout", "oom"]
    whole_run: bool = False
    asked: SignalProcess | None = None
    ends: bool = True


@dataclass(frozen=True)
class StacksTaken:
    """Where all workers stand has been written down, as far as it could be found out in time.

    Attributes:
        stacks: by local rank, in order.
        blame: who hangs and who waits, as far as that can be told.
        finding: what they were taken for.
    """

    stacks: tuple[RankStack, ...]
    blame: Blame
    finding: Finding


class PauseOver(_Plain):
    """The wait before a restart is over."""


class MonitorLost(_Plain):
    """What runs is no longer what was started."""


Fact = (
    Begin
    | GroupStarted
    | WorkerEnded
    | SpawnerLost
    | PreloadLost
    | SignalReceived
    | StacksAsked
    | GraceExpired
    | LeftoversGone
    | LeftoversStuck
    | MembershipChanged
    | BarrierPassed
    | WorkersStuck
    | WatchdogFired
    | StacksTaken
    | PauseOver
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
        restart: which of the restarts that ``max_restarts`` allows this is, from 1; None if it is
            none of them.
    """

    attempt: int
    restart_count: int
    reason: Reason | None = None
    restart: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SignalWorkers:
    """Send a signal to all live workers.

    Attributes:
        signum: its number.
        reason: why.
    """

    signum: int
    reason: Reason


class StartGrace(_Plain):
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
class TakeStacks:
    """Write down where the live workers stand; `StacksTaken` follows, within seconds.

    Attributes:
        ranks: their local ranks.
        finding: what for.
    """

    ranks: frozenset[int]
    finding: Finding


@dataclass(frozen=True)
class SignalProcess:
    """Send the signal that an expired timer asks for to the process that had set it.

    Attributes:
        rank: local rank of the worker that the process is or descends from.
        pid: the process.
        signum: the signal.
    """

    rank: int
    pid: int
    signum: int


@dataclass(frozen=True)
class Pause:
    """Wait before the next attempt; `PauseOver` follows.

    Attributes:
        seconds: how long.
        restart: as `StartWorkers` has it.
    """

    seconds: float
    restart: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class AbandonWorkers:
    """Wait no longer for workers that SIGKILL does not end: they hang in the kernel."""

    ranks: frozenset[int]


class SweepLeftovers(_Plain):
    """End what the workers left behind; `LeftoversGone` or `LeftoversStuck` follows."""


class WaitForOthers(_Plain):
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
    | TakeStacks
    | SignalProcess
    | Pause
    | AbandonWorkers
    | SweepLeftovers
    | WaitForOthers
    | Finish
)
Decisions = tuple[Decision, ...]


# What a reason is called in a restart policy. The others are no fault of the workers'.
_CAUSES: dict[Reason, RestartCause] = {
    "failure": "failure",
    "died": "signal",
    "oom": "oom",
    "hang": "hang",
    "timeout": "timeout",
}


class Chances:
    """The restarts that are left.

    Args:
        max_restarts: how often a failed group is started again.
        spawner_retries: how often, on top, when the spawner died.
        policy: what it is started again for, and how soon.

    Attributes:
        counted: restarts that were taken and counted.
        restart: which of ``max_restarts`` was taken last, from 1; None if that was none of them.
    """

    def __init__(self, max_restarts: int, spawner_retries: int, policy: RestartPolicy) -> None:
        self.counted = 0
        self.restart: int | None = None
        self._max = max_restarts
        self._left = max_restarts
        self._spawner_left = spawner_retries
        self._policy = policy
        self._delayed = 0

    def take(self, reason: Reason | None) -> float | None:
        """Take a chance.

        Args:
            reason: why the group ended.

        Returns:
            Seconds to wait before it is started again; None if it is not.
        """
        self.restart = None
        if reason == "membership":
            return 0.0
        if reason == "spawner" and self._spawner_left:
            self._spawner_left -= 1
            self.counted += 1
            return 0.0
        if reason is None or not self._left or not self._worth(reason):
            return None
        self._left -= 1
        self.counted += 1
        self.restart = self._max - self._left
        self._delayed += 1
        return self._policy.wait(self._delayed)

    def _worth(self, reason: Reason) -> bool:
        return reason == "spawner" or _CAUSES.get(reason) in self._policy.on

    def forfeit(self) -> None:
        """Leave no chance."""
        self._left = self._spawner_left = 0


class Rung(Enum):
    """How far the ending of an attempt has gone."""

    NONE = "nobody asked the workers to end"
    ASKED = "they were asked to end, because of something in the group"
    TOLD = "they were told to end by a user's signal"
    KILLED = "they were killed, and no user's signal came"
    KILLED_TOLD = "they were killed, and a user's signal came"


class Push(Enum):
    """What makes the ending go on."""

    CAUSE = "something in the group: a failure, a change of membership"
    SIGNAL = "a signal to the launcher"
    GRACE_OVER = "the grace period is over"


class Step(Enum):
    """What is done on the way."""

    TERMINATE = "SIGTERM to the workers"
    FORWARD = "the user's signal to the workers"
    GRACE = "the grace period begins, or begins anew"
    KILL = "SIGKILL to the workers and all below them"
    ABANDON = "the wait for them ends"


# From a rung, pushed: the next rung, and the steps that lead there.
LADDER: dict[tuple[Rung, Push], tuple[Rung, tuple[Step, ...]]] = {
    (Rung.NONE, Push.CAUSE): (Rung.ASKED, (Step.TERMINATE, Step.GRACE)),
    (Rung.NONE, Push.SIGNAL): (Rung.TOLD, (Step.FORWARD, Step.GRACE)),
    (Rung.NONE, Push.GRACE_OVER): (Rung.NONE, ()),
    (Rung.ASKED, Push.CAUSE): (Rung.ASKED, ()),
    # The first signal shortens nothing: the grace period goes on.
    (Rung.ASKED, Push.SIGNAL): (Rung.TOLD, (Step.FORWARD,)),
    (Rung.ASKED, Push.GRACE_OVER): (Rung.KILLED, (Step.KILL, Step.GRACE)),
    (Rung.TOLD, Push.CAUSE): (Rung.TOLD, ()),
    (Rung.TOLD, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.KILL, Step.GRACE)),
    (Rung.TOLD, Push.GRACE_OVER): (Rung.KILLED_TOLD, (Step.KILL, Step.GRACE)),
    (Rung.KILLED, Push.CAUSE): (Rung.KILLED, ()),
    (Rung.KILLED, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.FORWARD,)),
    (Rung.KILLED, Push.GRACE_OVER): (Rung.KILLED, (Step.ABANDON,)),
    (Rung.KILLED_TOLD, Push.CAUSE): (Rung.KILLED_TOLD, ()),
    # Again, in case the first SIGKILL met a spawner that could not pass it on.
    (Rung.KILLED_TOLD, Push.SIGNAL): (Rung.KILLED_TOLD, (Step.KILL,)),
    (Rung.KILLED_TOLD, Push.GRACE_OVER): (Rung.KILLED_TOLD, (Step.ABANDON,)),
}


# The number of the polite signal on every Linux; `signal` is not imported here.
SIGTERM = 15


class ImpossibleFact(Exception):
    """A fact came in a state in which it cannot come: an error in the agent."""


class Machine:
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
        self.reason: Reason | None = None
        self.signum: int | None = None
        self.forward = True
        self.rung = Rung.NONE
        self.at_barrier = False
        # What the watchdog found first in this attempt, and whether the run's time is over.
        self.fired: WatchdogFired | None = None
        self.run_is_over = False
        # Whether a signal waits until it is written down where the workers stand.
        self.looking = False
        self.pausing = False
        self.finished = False

    @property
    def restart_count(self) -> int:
        """Restarts that counted, so far."""
        return self.chances.counted

    def handle(self, fact: Fact) -> Decisions:
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

    def begin(self, _: Fact) -> Decisions:
        """Start the first attempt."""
        return (StartWorkers(self.attempt, self.restart_count),)

    def run(self, fact: GroupStarted) -> Decisions:
        """The workers of an attempt have been ordered."""
        self.state = WorkerState.HEALTHY
        self.alive = fact.ranks
        self.reason = None
        self.rung = Rung.NONE
        self.fired = None
        self.looking = False
        return ()

    def ended(self, fact: WorkerEnded) -> Decisions:
        """A worker ended while all was well; if it failed, the group ends with it."""
        self.alive -= {fact.rank}
        if not fact.ok:
            # What the watchdog found before is why.
            return self._stop(self.fired.kind if self.fired else fact.fault)
        if self.alive:
            return ()
        self.state = WorkerState.SUCCEEDED
        return (SweepLeftovers(),)

    def ended_while_ending(self, fact: WorkerEnded) -> Decisions:
        """A worker ended as it should: with the last one the attempt is over."""
        self.alive -= {fact.rank}
        return () if self.alive else self._sweep()

    def stuck(self, _: Fact) -> Decisions:
        """Workers hang in the kernel: what they hold there would be missing next time, too."""
        self.chances.forfeit()
        return self._stop("hang")

    def fire(self, fact: WatchdogFired) -> Decisions:
        """The watchdog found something: first it is written down where everybody stands."""
        self.run_is_over = self.run_is_over or fact.whole_run
        if self.fired is not None:
            return ()
        if fact.ends:
            self.fired = fact
        return (TakeStacks(self.alive, fact.finding),)

    def look(self, fact: StacksAsked) -> Decisions:
        """The user wants to see where the workers stand."""
        # Stacks that something ends for are shown as well.
        busy = self.looking or self.fired is not None
        return () if busy or not self.alive else (TakeStacks(self.alive, fact.look),)

    def end_by_watchdog(self, fact: StacksTaken) -> Decisions:
        """The stacks are taken: end the group for what the watchdog found, if that ends it."""
        if self.fired is None or self.fired.finding != fact.finding:
            return ()
        asked = () if self.fired.asked is None else (self.fired.asked,)
        return (*asked, *self._stop(self.fired.kind))

    def note_fired(self, fact: WatchdogFired) -> Decisions:
        """The watchdog found something while the group was ending anyway."""
        self.run_is_over = self.run_is_over or fact.whole_run
        if self.run_is_over and self.pausing:
            self.reason = "timeout"
            return self._finish(WorkerState.FAILED)
        return ()

    def regroup(self, _: Fact) -> Decisions:
        """End the group, to form it anew."""
        return self._stop("membership")

    def end_by_signal(self, fact: SignalReceived) -> Decisions:
        """A signal came while workers live."""
        # Also when the group is being ended for something else: now it is not started again.
        self._note(fact)
        first = self.state is WorkerState.HEALTHY
        self.state = WorkerState.UNHEALTHY
        if first and fact.look is not None and self.fired is None:
            self.looking = True
            return (TakeStacks(self.alive, fact.look),)
        # Nobody waits for stacks who sends a second one.
        return (*self.stop_looking(None), *self._push(Push.SIGNAL))

    def stop_looking(self, _: Fact | None) -> Decisions:
        """The stacks that a signal had waited for are taken: now the workers get it."""
        looking, self.looking = self.looking, False
        return self._push(Push.SIGNAL) if looking else ()

    def signal_while_swept(self, fact: SignalReceived) -> Decisions:
        """A signal came while leftovers are ended, or a restart is waited for."""
        if self.reason == "signal":
            # The second one: the wait for the sweep ends too.
            return self._finish(WorkerState.FAILED)
        self._note(fact)
        return self._finish(WorkerState.FAILED) if self.pausing else ()

    def signal_after_success(self, fact: SignalReceived) -> Decisions:
        """A signal came after all workers succeeded."""
        self._note(fact)
        if self.at_barrier:
            return self._finish(WorkerState.FAILED)
        # What the workers left behind is still being ended.
        self.state = WorkerState.STOPPED
        return ()

    def finish_by_signal(self, fact: SignalReceived) -> Decisions:
        """A signal came before anything was started."""
        self._note(fact)
        return self._finish(WorkerState.FAILED)

    def grace_over(self, _: Fact) -> Decisions:
        """The grace period is over."""
        return self._push(Push.GRACE_OVER)

    def lose_all(self, _: Fact) -> Decisions:
        """The spawner died, and all workers with it."""
        self.alive = frozenset()
        if self.reason is None:
            self.reason = self.fired.kind if self.fired else "spawner"
        # It takes what was left behind along: there is nothing to sweep with.
        return self._next()

    def give_up(self, _: Fact) -> Decisions:
        """Nothing can ever be started."""
        self.alive = frozenset()
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def lose_track(self, _: Fact) -> Decisions:
        """The agent lost track of what runs."""
        self.reason = "failure"
        return (KillWorkers("lost"), *self._finish(WorkerState.UNKNOWN))

    def spawner_lost_while_stopped(self, fact: Fact) -> Decisions:
        """The spawner died when no worker lived."""
        # The next attempt gets another one.
        return () if self.pausing else self.lose_all(fact)

    def swept(self, _: Fact) -> Decisions:
        """Nothing is left: start again or finish."""
        return () if self.pausing else self._next()

    def not_swept(self, _: Fact) -> Decisions:
        """Something is left that cannot be ended."""
        self.reason = self.reason or "failure"
        return self._finish(WorkerState.FAILED)

    def wait_for_others(self, _: Fact) -> Decisions:
        """This node is done."""
        if self.at_barrier:
            return ()
        self.at_barrier = True
        return (WaitForOthers(),)

    def succeed(self, _: Fact) -> Decisions:
        """All nodes are done."""
        self.finished = True
        return (Finish(WorkerState.SUCCEEDED),)

    def ignore(self, _: Fact) -> Decisions:
        """Nothing follows."""
        return ()

    def _note(self, fact: SignalReceived) -> None:
        """The first signal is the one that the run ends by."""
        if self.reason != "signal":
            self.reason, self.signum, self.forward = "signal", fact.signum, fact.forward

    def _stop(self, reason: Reason) -> Decisions:
        self.reason = reason
        if not self.alive:
            return self._sweep()
        self.state = WorkerState.UNHEALTHY
        return self._push(Push.CAUSE)

    def _push(self, push: Push) -> Decisions:
        """Go on with the ladder."""
        self.rung, steps = LADDER[self.rung, push]
        return tuple(decision for step in steps for decision in self._step(step, push))

    def _step(self, step: Step, push: Push) -> Decisions:
        assert self.reason is not None
        if step is Step.TERMINATE:
            return (SignalWorkers(SIGTERM, self.reason),)
        if step is Step.FORWARD:
            assert self.signum is not None
            return (SignalWorkers(self.signum, "signal"),) if self.forward else ()
        if step is Step.GRACE:
            return (StartGrace(),)
        if step is Step.KILL:
            return (KillWorkers("signal" if push is Push.SIGNAL else "grace"),)
        abandoned, self.alive = self.alive, frozenset()
        return (AbandonWorkers(abandoned), *self._finish(WorkerState.FAILED))

    def _sweep(self) -> Decisions:
        self.state = WorkerState.STOPPED
        return (SweepLeftovers(),)

    def _next(self) -> Decisions:
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
            return (Pause(wait, self.chances.restart),)
        return self.start_again(None)

    def start_again(self, _: Fact | None) -> Decisions:
        """Begin the next attempt."""
        self.state, self.pausing = WorkerState.INIT, False
        self.attempt += 1
        restart = self.chances.restart
        return (StartWorkers(self.attempt, self.restart_count, self.reason, restart),)

    def _finish(self, state: WorkerState) -> Decisions:
        self.state = state
        self.finished = True
        return (Finish(state, self.reason, self.signum),)


# mypy cannot know that an action gets the fact it stands for in the table.
Action = Callable[[Any, Any], Decisions]

# What is done for every fact in every state.
TRANSITIONS: dict[WorkerState, dict[type, Action]] = {
    WorkerState.INIT: {
        Begin: Machine.begin,
        GroupStarted: Machine.run,
        SignalReceived: Machine.finish_by_signal,
        StacksAsked: Machine.ignore,
        GraceExpired: Machine.ignore,
    },
    WorkerState.HEALTHY: {
        WorkerEnded: Machine.ended,
        SpawnerLost: Machine.lose_all,
        PreloadLost: Machine.give_up,
        SignalReceived: Machine.end_by_signal,
        StacksAsked: Machine.look,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.regroup,
        WorkersStuck: Machine.stuck,
        WatchdogFired: Machine.fire,
        StacksTaken: Machine.end_by_watchdog,
        MonitorLost: Machine.lose_track,
    },
    WorkerState.UNHEALTHY: {
        WorkerEnded: Machine.ended_while_ending,
        SpawnerLost: Machine.lose_all,
        PreloadLost: Machine.give_up,
        SignalReceived: Machine.end_by_signal,
        StacksAsked: Machine.look,
        GraceExpired: Machine.grace_over,
        MembershipChanged: Machine.ignore,
        WorkersStuck: Machine.ignore,
        WatchdogFired: Machine.note_fired,
        StacksTaken: Machine.stop_looking,
        MonitorLost: Machine.lose_track,
    },
    WorkerState.STOPPED: {
        LeftoversGone: Machine.swept,
        LeftoversStuck: Machine.not_swept,
        SpawnerLost: Machine.spawner_lost_while_stopped,
        SignalReceived: Machine.signal_while_swept,
        StacksAsked: Machine.ignore,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.ignore,
        WorkersStuck: Machine.ignore,
        WatchdogFired: Machine.note_fired,
        StacksTaken: Machine.ignore,
        PauseOver: Machine.start_again,
    },
    WorkerState.SUCCEEDED: {
        LeftoversGone: Machine.wait_for_others,
        LeftoversStuck: Machine.wait_for_others,
        SpawnerLost: Machine.wait_for_others,
        BarrierPassed: Machine.succeed,
        SignalReceived: Machine.signal_after_success,
        StacksAsked: Machine.ignore,
        GraceExpired: Machine.ignore,
        MembershipChanged: Machine.ignore,
        WorkersStuck: Machine.ignore,
        WatchdogFired: Machine.ignore,
        StacksTaken: Machine.ignore,
    },
    # Terminal: after the decision to finish every fact is late news.
    WorkerState.FAILED: {},
    WorkerState.UNKNOWN: {},
}

_OF_STARTS: frozenset[type] = frozenset({Begin, GroupStarted})
_OF_SWEEPS: frozenset[type] = frozenset({LeftoversGone, LeftoversStuck})
_OF_WORKERS: frozenset[type] = frozenset({WorkerEnded, PreloadLost, MonitorLost})

# The rest, and why it cannot come.
IMPOSSIBLE: dict[WorkerState, frozenset[type]] = {
    # Nothing has been started that could end or be watched; nothing was asked for.
    WorkerState.INIT: _OF_WORKERS
    | _OF_SWEEPS
    | {SpawnerLost, MembershipChanged, BarrierPassed, WorkersStuck}
    | {WatchdogFired, StacksTaken, PauseOver},
    # Workers live: neither a start, nor a sweep, nor a barrier, nor a wait is under way.
    WorkerState.HEALTHY: _OF_STARTS | _OF_SWEEPS | {BarrierPassed, PauseOver},
    WorkerState.UNHEALTHY: _OF_STARTS | _OF_SWEEPS | {BarrierPassed, PauseOver},
    # All workers have ended, and whoever ends first cannot have failed to preload.
    WorkerState.STOPPED: _OF_STARTS | _OF_WORKERS | {BarrierPassed},
    # Nothing is started after a success.
    WorkerState.SUCCEEDED: _OF_STARTS | _OF_WORKERS | {PauseOver},
    WorkerState.FAILED: frozenset(),
    WorkerState.UNKNOWN: frozenset(),
}
