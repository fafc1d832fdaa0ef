"""What the machine of a worker group is told (facts) and what it decides. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lllaunch.agent.states import WorkerState

if TYPE_CHECKING:
    from lllaunch.watchdog.findings import Asked, Finding
    from lllaunch.watchdog.stacks.facts import Blame, RankStack

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
