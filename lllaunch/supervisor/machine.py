"""The state machine of a worker group: events in, actions out. Pure.

Nothing here starts, waits or asks for the time. `Machine.handle` takes an event and returns the
actions that follow; the supervisor performs them and feeds back what happens. `TABLE` is the
machine: for a state and an event, in one of its cases, the next state and what is done. What is not
in it cannot come.

An attempt ends by steps: a polite signal, the grace period, SIGKILL, and once more the grace period
as a bound on the wait for what cannot be killed (uninterruptible sleep). That is abandoned, and
nothing is started again. A user's signal is the polite one, or follows it; the next one skips what
is left of the grace period.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from lllaunch.documents import Record, Said
from lllaunch.events import Exited, OrphansGone, PreloadBroken, SpawnerGone, StartFailed
from lllaunch.spec import RestartPolicy
from lllaunch.watchdog.evidence import Blame, RankStack
from lllaunch.watchdog.findings import Asked, Finding

if TYPE_CHECKING:
    Moments: TypeAlias = tuple[int, ...]
else:
    # what is written says how many there are
    Moments = Any


class GroupState(Enum):
    """State of a worker group."""

    INIT = "no worker runs; an attempt is about to begin"
    RUNNING = "workers run, and all is well"
    TAKING_STACKS = "the watchdog found something; the group ends for it when stacks are taken"
    LOOKING = "a signal came to a silent run; the workers get it when stacks are taken"
    TERMINATING = "workers were asked to end, because of something in the group"
    INTERRUPTED = "workers got a user's signal"
    KILLING = "workers were killed"
    CLEANING_UP = "no worker runs; what they left behind is being ended"
    AGREEING = "no worker runs; it is not known yet why the attempt ended, and which nodes are left"
    PAUSED = "a restart is waited for"
    BARRIER = "this node succeeded, and waits for the others"
    DONE = "the run is over"


# torch's names for the state of a worker group
WorkerState = Literal["INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"]

# Why a group ends. `died`: a signal ended a worker; `signal`: one came to the launcher; `node`: a
# node was lost, or left; `membership`: others wait to join; `preflight`: the program that is run
# before the workers failed; `no_progress`: too many attempts got no further.
Reason = Literal[
    "failure",
    "died",
    "oom",
    "hang",
    "timeout",
    "signal",
    "spawner",
    "membership",
    "node",
    "preflight",
    "no_progress",
]
Fault = Literal["failure", "died", "oom"]


class Logged(Record, frozen=True, tag=True):
    """An event or an action; both are written to events.jsonl."""


class OwnEvent(Logged, frozen=True):
    """An event that the spawner does not tell: beside those of `lllaunch.events`."""


class Begin(OwnEvent, frozen=True):
    """The agent was asked to run."""


PREFLIGHT_RANK = -1
"""The local rank of a preflight, in all events about it: it is no worker."""


class RestartHistory(Logged, frozen=True):
    """What became of earlier attempts, as far as it decides about further ones."""

    # when the restarts were that count against ``max_restarts``, nanoseconds since the epoch, in
    # order
    times_ns: Moments = ()
    step: float | None = None  # the highest that any attempt has shown; None if none has
    # the steps at which the last attempts ended, in a row, that failed and got no further; None for
    # each that showed none
    ended_at: tuple[float | None, ...] = ()


class GroupEnd(Logged, frozen=True):
    """Why an attempt of several nodes ended, in the words of the node that was first to say so."""

    # ``failed``: a worker or the watchdog of that node; ``left``: a signal ended its launcher;
    # ``lost``: it gave no sign of life; ``joined``: others wait to join
    how: Literal["failed", "left", "lost", "joined"]
    node: str  # what it is called, such as ``node 1 (host1)``
    group_rank: int  # its rank among the nodes of the attempt, -1 if it is not known
    text: str = ""  # what happened, as the predicate of a sentence about the worker or the node
    rank: int | None = None  # rank among all workers of the worker that it is about, or None
    time_ns: int = 0  # when, nanoseconds since the epoch by this node's clock
    here: bool = False
    finding: Finding | None = None  # what the watchdog of that node found, or None
    cause: str = ""  # name of the type of the failure's cause, or an empty string


class AttemptProgress(OwnEvent, frozen=True):
    """How far an attempt has come, when its workers have ended."""

    step: float | None  # the highest step that one of them has shown; None if none has
    # whether the checkpoint was written meanwhile; None if that cannot be told
    checkpoint_changed: bool | None
    time_ns: int  # when, nanoseconds since the epoch; of several nodes by node 0's clock
    ran: bool = True


class NoProgress(Said, frozen=True):
    """Attempts in a row, all of which failed, got no further."""

    attempts: int  # how many
    step: float | None = None  # the highest that they, or one before, have shown; None if none has
    same: bool = False  # whether each of them showed that step in the end

    def __str__(self) -> str:
        text = f"no progress in {self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        if self.step is not None:
            step = f"step {self.step:,.12g}"
            if self.attempts == 1:
                text += f", which ended at {step}" if self.same else f" beyond {step}"
            elif self.same:
                text += f", which all ended at {step}"
            else:
                text += f", none of which got further than {step}"
        return f"{text}: trying again is no use"


class GpuMemoryHeld(Logged, frozen=True):
    """Before a restart, processes that have ended still hold memory on GPUs."""

    pids: tuple[int, ...]  # their process ids; none if the driver does not answer
    gpus: tuple[int, ...]
    seconds: float
    given_up: bool


class GroupStarted(OwnEvent, frozen=True):
    """All workers of an attempt have been ordered, or its preflight."""

    ranks: frozenset[int]
    # how many restarts have counted so far, as the nodes have agreed; None where this node is the
    # only one
    restarts: int | None = None
    base_rank: int = 0  # rank of the first of them among the workers of all nodes
    # whether it is the preflight, the workers of which follow when it has succeeded
    preflight: bool = False
    attempt: int | None = None  # its number; None where nobody says


class SignalReceived(OwnEvent, frozen=True):
    """A signal to the launcher."""

    signum: int
    # what to take the workers' stacks for before they get it; None to let them have it at once
    look: Asked | None = None
    # the signal that it stands for, if that announced the end of a batch job; else None
    announced: int | None = None


class StacksAsked(OwnEvent, frozen=True):
    """The user wants to see where the workers stand; nothing ends for it."""

    look: Asked


class GraceExpired(OwnEvent, frozen=True):
    """The grace period is over."""


class PreflightTimedOut(OwnEvent, frozen=True):
    """The preflight has taken longer than it may."""


class OrphansStuck(OwnEvent, frozen=True):
    """Some of what the workers left behind does not end, long after it was killed."""


class MembershipChanged(OwnEvent, frozen=True):
    """Other nodes wait to join, or some left: the group must be formed anew."""


class BarrierPassed(OwnEvent, frozen=True):
    """The agents of all nodes are done, or were waited for long enough."""


class NodesAgreed(OwnEvent, frozen=True):
    """It was said why the attempt ends on all nodes; the first of them to say so is believed."""

    reason: Reason
    # what the node said that was first, or what was found out about one that is gone
    ended: GroupEnd
    final: bool = False
    gone: tuple[int, ...] = ()  # group ranks of nodes that do not take part any more

    @property
    def hangs(self) -> bool:
        """Whether it was the watchdog of a node: stacks are taken on all before anything ends."""
        return self.ended.finding is not None


class NodesCounted(OwnEvent, frozen=True):
    """All nodes have confirmed that the attempt ends, or are gone."""

    # what became of the first of those that are, None if all are there
    gone: GroupEnd | None = None
    again: bool = True
    # how far the attempt came on all of them; None if that does not matter, or if not all have said
    # it
    progress: AttemptProgress | None = None
    missing: tuple[int, ...] = ()  # group ranks of nodes that have not confirmed it


class GroupStacks(OwnEvent, frozen=True):
    """Where the workers of all nodes stand is known, or was waited for long enough.

    All ranks are ranks among all workers.
    """

    blame: Blame | None = None  # who hangs and who waits; None if nobody could tell
    # of those who hang, and of some of the others, from all nodes
    stacks: tuple[RankStack, ...] = ()
    nodes: tuple[tuple[int, str], ...] = ()


class WorkersStuck(OwnEvent, frozen=True):
    """Workers hang in the kernel. What they hold there would be missing in the next attempt too."""


class WatchdogFired(OwnEvent, frozen=True):
    """The watchdog found something."""

    finding: Finding
    kind: Literal["hang", "timeout", "oom"]
    whole_run: bool = False  # whether nothing may be started again, whatever the policy says
    asked: SignalProcess | None = None  # the signal that an expired timer asks for, or None
    ends: bool = True  # whether the group, or the run, must end for it; else it is only reported


class StacksTaken(OwnEvent, frozen=True):
    """Where all workers stand has been written down, as far as it could be found out in time."""

    stacks: tuple[RankStack, ...]  # by local rank, in order
    blame: Blame  # who hangs and who waits, as far as that can be told
    finding: Finding


class PauseOver(OwnEvent, frozen=True):
    """The wait before a restart is over."""


Event = OwnEvent | Exited | StartFailed | SpawnerGone | PreloadBroken | OrphansGone


class Action(Logged, frozen=True):
    """What is to be done."""


class StartWorkers(Action, frozen=True):
    """Rendezvous and start all workers; their preflight first, if they have one."""

    attempt: int  # number of the attempt, as its directory has it; grows at every start
    # what workers see as TORCHELASTIC_RESTART_COUNT; grows at restarts that count
    restart_count: int
    reason: Reason | None = None  # why they are started again; None at first
    # which of the restarts that ``max_restarts`` allows this is, from 1; None if it is none of them
    restart: int | None = None
    history: RestartHistory | None = None  # of the attempts before; None if it does not matter


class StartAfterPreflight(Action, frozen=True):
    """Start the workers of the attempt whose preflight has succeeded."""


class SignalWorkers(Action, frozen=True):
    """Send a signal to all live workers."""

    signum: int
    reason: Reason


class StartGrace(Action, frozen=True):
    """Let the grace period begin; `GraceExpired` follows if workers still live after it."""


class KillWorkers(Action, frozen=True):
    """SIGKILL all live workers and what descends from them."""

    # ``grace`` if the grace period is over, ``signal`` after a second signal
    why: Literal["grace", "signal"]


class TakeStacks(Action, frozen=True):
    """Write down where the live workers stand; `StacksTaken` follows, within seconds."""

    ranks: frozenset[int]
    finding: Finding


class SignalProcess(Action, frozen=True):
    """Send the signal that an expired timer asks for to the process that had set it."""

    rank: int  # local rank of the worker that the process is or descends from
    pid: int
    signum: int


class Pause(Action, frozen=True):
    """Wait before the next attempt; `PauseOver` follows."""

    seconds: float
    restart: int | None = None


class AbandonWorkers(Action, frozen=True):
    """Wait no longer for workers that SIGKILL does not end: they hang in the kernel."""

    ranks: frozenset[int]


class CleanUp(Action, frozen=True):
    """End what the workers left behind; `OrphansGone` or `OrphansStuck` follows."""


class WaitForOthers(Action, frozen=True):
    """Wait at the exit barrier for the agents of other nodes; `BarrierPassed` follows."""


class TellNodes(Action, frozen=True):
    """Tell the other nodes why the attempt ends here; `NodesAgreed` follows."""

    reason: Reason
    signum: int | None = None  # the signal to the launcher that it ends for, or None
    finding: Finding | None = None  # what the watchdog found, or None
    final: bool = False  # whether nothing may be started again: the run's time is over


class TellProgress(Action, frozen=True):
    """Tell the other nodes how far the attempt came here; `NodesCounted` has that of all."""

    progress: AttemptProgress


class TellStacks(Action, frozen=True):
    """Tell the other nodes where this node's workers stand; `GroupStacks` follows."""

    stacks: tuple[RankStack, ...]  # by local rank, in order
    finding: Finding


class Finish(Action, frozen=True):
    """The run is over."""

    state: WorkerState
    reason: Reason | None = None  # why it did not succeed, else None
    signum: int | None = None  # the signal to the launcher that ended it, or None
    # the attempts that got no further, if it ended for those; else None
    no_progress: NoProgress | None = None
    history: RestartHistory | None = None  # of all attempts; None if it does not matter


Actions = tuple[Action, ...]


class RestartBudget:
    """The restarts that are left.

    ``history``: what became of attempts before the first one here; None if there were none.
    """

    def __init__(
        self,
        max_restarts: int,
        spawner_retries: int,
        policy: RestartPolicy,
        history: RestartHistory | None = None,
    ) -> None:
        self.counted = 0
        # which of ``max_restarts`` was taken last, from 1; None if that was none of them
        self.restart: int | None = None
        # the attempts in a row that got no further, once there are too many; else None
        self.no_progress: NoProgress | None = None
        self._max = max_restarts
        self._exhausted = False
        self._spawner_left = spawner_retries
        self._policy = policy
        self._past = history or RestartHistory()
        # A batch job that fails may be tried again by the queue, whatever restarts it has itself.
        self._continues = history is not None
        # of the present attempt: how far it has come, and whether that is further than any before
        self._came: AttemptProgress | None = None
        self._further = False

    @property
    def history(self) -> RestartHistory | None:
        """What became of the attempts so far; None if it does not matter to the policy."""
        return self._past if self._policy.looks_back else None

    def note(self, progress: AttemptProgress) -> None:
        """Take note of how far the attempt has come; also of more that becomes known of it."""
        past, step, self._came = self._past, progress.step, progress
        higher = step is not None and (past.step is None or step > past.step)
        if higher or progress.checkpoint_changed:
            self._further = True
            times = () if self._policy.reset_on == "progress" else past.times_ns
            self._past = RestartHistory(times, step if higher else past.step)

    def take(self, reason: Reason | None) -> float | None:
        """Take a restart.

        Returns seconds to wait before it is started again; None if it is not.
        """
        self.restart = None
        came, further = self._came, self._further
        self._came, self._further = None, False
        if reason == "membership":
            return 0.0
        if reason == "spawner" and self._spawner_left:
            self._spawner_left -= 1
            self.counted += 1
            return 0.0
        if reason is None or self._exhausted:
            return None
        policy, past = self._policy, self._past
        now = max(0 if came is None else came.time_ns, *past.times_ns, 0)
        times, ended_at, most = past.times_ns, past.ended_at, policy.max_without_progress
        # one without workers, or with a checkpoint too large to look at, says nothing
        tells = came is None or (came.ran and came.checkpoint_changed is not None)
        in_vain = False
        if most is not None and tells and not further and reason != "preflight":
            ended_at = (*ended_at, None if came is None else came.step)
            in_vain = len(ended_at) >= most
        if policy.window is not None:
            times = tuple(each for each in times if now - each < policy.window * 1e9)
        # a policy's ``signal`` is one that ended a worker, not one to the launcher
        cause = {"died": "signal", "signal": None}.get(reason, reason)
        allowed = len(times) < self._max and (reason == "spawner" or cause in policy.on)
        if in_vain and (allowed or self._continues):
            self.no_progress = NoProgress(len(ended_at), past.step, {*ended_at} == {past.step})
        if allowed and not in_vain:
            times = (*times, now)
            self.counted += 1
            self.restart = len(times)
        self._past = RestartHistory(times, past.step, ended_at)
        return None if self.restart is None else policy.wait(self.restart)

    def exhaust(self) -> None:
        """Leave no restart."""
        self._exhausted, self._spawner_left = True, 0

    def catch_up(self, counted: int) -> None:
        """Take note of restarts that other nodes have seen, before this one came."""
        missed = max(0, counted - self.counted)
        self.counted += missed
        times = self._past.times_ns
        self._past = replace(self._past, times_ns=times + (max(times, default=0),) * missed)


# What an event means, where it may mean several things: `TABLE` says what follows.
# fmt: off
Case = Literal[
    "",
    # the end of a worker, and of all
    "succeeded", "failed", "last", "success", "passed", "again", "again later", "over",
    "to be agreed", "hangs",  # with other nodes; a finding of theirs, stacks first
    "look first", "second",  # a signal
    "ends", "ends at once", "reported",  # a finding
    # stacks: the group's end waits for them; they are told to others; none, since it is a
    # preflight, or those of a finding follow or are there
    "awaited", "shared", "none",
]
# fmt: on

S = GroupState
_WELL = (S.RUNNING, S.TAKING_STACKS)
_ENDING = (S.LOOKING, S.TERMINATING, S.INTERRUPTED, S.KILLING)
_LIVE = _WELL + _ENDING
_IDLE = (S.CLEANING_UP, S.AGREEING, S.PAUSED, S.BARRIER)
_CLEANING = (S.CLEANING_UP,)
# Unless there is a reason for the end, or it was the preflight.
_SUCCEEDED = (*_CLEANING, S.BARRIER)
# Without a signal to the launcher, after which nothing is started again.
_NOT_INTERRUPTED = (*_WELL, S.TERMINATING, S.KILLING, S.CLEANING_UP)
# No worker lives, and nothing of them.
_NOBODY = (OrphansGone, OrphansStuck, SpawnerGone)
_TERMINATE = (SignalWorkers, StartGrace)
_KILL = (KillWorkers, StartGrace)

_Steps = tuple[type[Action], ...]
_Row = tuple["tuple[GroupState, ...]", tuple[type, ...], Case, "GroupState | None", _Steps]
# In which states, at which events, in which case of them; the next state (None: the same), and what
# is done.
# fmt: off
_ROWS: tuple[_Row, ...] = (
    # An attempt begins.
    ((S.INIT,), (Begin,), "", None, (StartWorkers,)),
    ((S.INIT,), (GroupStarted,), "", S.RUNNING, ()),
    ((S.PAUSED,), (PauseOver,), "", S.INIT, (StartWorkers,)),
    (_CLEANING, (OrphansGone,), "passed", S.INIT, (StartAfterPreflight,)),
    ((S.RUNNING,), (PreflightTimedOut,), "", S.TERMINATING, _TERMINATE),
    (_ENDING + _IDLE, (PreflightTimedOut,), "", None, ()),
    # Workers end: the group fails with the first that fails, and is over with the last.
    (_LIVE, (Exited,), "succeeded", None, ()),
    (_WELL, (Exited, StartFailed), "failed", S.TERMINATING, _TERMINATE),
    (_ENDING, (Exited, StartFailed), "failed", None, ()),
    (_LIVE, (Exited, StartFailed), "last", S.CLEANING_UP, (CleanUp,)),
    # What they left behind is gone; or the spawner is, which takes workers and all along.
    (_CLEANING, _NOBODY, "success", S.BARRIER, (WaitForOthers,)),
    ((*_LIVE, *_IDLE), (AttemptProgress,), "", None, ()),
    ((*_LIVE, *_CLEANING), (AttemptProgress,), "shared", None, (TellProgress,)),
    (_CLEANING, (OrphansGone,), "again", S.INIT, (StartWorkers,)),
    (_CLEANING, (OrphansGone,), "again later", S.PAUSED, (Pause,)),
    (_CLEANING, (OrphansGone, OrphansStuck), "over", S.DONE, (Finish,)),
    (_NOT_INTERRUPTED, (SpawnerGone,), "again", S.INIT, (StartWorkers,)),
    (_NOT_INTERRUPTED, (SpawnerGone,), "again later", S.PAUSED, (Pause,)),
    ((*_LIVE, *_CLEANING), (SpawnerGone,), "over", S.DONE, (Finish,)),
    ((S.AGREEING, S.PAUSED, S.BARRIER), _NOBODY, "", None, ()),
    ((S.BARRIER,), (BarrierPassed,), "", S.DONE, (Finish,)),
    # Of several nodes each ends for the reason that all have agreed on, and goes on as they do when
    # it is known which are left: workers often fail before it is known that a node is lost.
    (_CLEANING, (OrphansGone, OrphansStuck), "to be agreed", S.AGREEING, ()),
    (_NOT_INTERRUPTED, (SpawnerGone,), "to be agreed", S.AGREEING, ()),
    ((S.RUNNING,), (NodesAgreed,), "hangs", S.TAKING_STACKS, (TakeStacks,)),
    (_WELL, (NodesAgreed,), "", S.TERMINATING, _TERMINATE),
    ((S.TAKING_STACKS,), (NodesAgreed,), "hangs", None, ()),
    (_ENDING + _CLEANING + (S.AGREEING, S.PAUSED), (NodesAgreed,), "", None, ()),
    ((S.BARRIER,), (NodesAgreed,), "", S.AGREEING, ()),
    ((S.AGREEING,), (NodesCounted,), "again", S.INIT, (StartWorkers,)),
    ((S.AGREEING,), (NodesCounted,), "again later", S.PAUSED, (Pause,)),
    ((S.AGREEING,), (NodesCounted,), "over", S.DONE, (Finish,)),
    ((S.TAKING_STACKS, *_ENDING, *_CLEANING), (NodesCounted,), "", None, ()),
    # Nothing can be started.
    (_LIVE, (PreloadBroken,), "", S.DONE, (Finish,)),
    # The group must be formed anew, or cannot be: what hangs in the kernel would be missing.
    (_WELL, (MembershipChanged, WorkersStuck), "", S.TERMINATING, _TERMINATE),
    (_ENDING + _IDLE, (MembershipChanged, WorkersStuck), "", None, ()),
    # The first signal is passed on, the second kills; where no worker lives it ends the run.
    ((S.RUNNING,), (SignalReceived,), "look first", S.LOOKING, (TakeStacks,)),
    (_WELL, (SignalReceived,), "", S.INTERRUPTED, _TERMINATE),
    ((S.LOOKING,), (SignalReceived,), "", S.KILLING, (SignalWorkers, *_KILL)),
    # It does not prolong a grace period that has begun for something else.
    ((S.TERMINATING,), (SignalReceived,), "", S.INTERRUPTED, (SignalWorkers,)),
    ((S.INTERRUPTED,), (SignalReceived,), "", S.KILLING, _KILL),
    # Again, in case the first SIGKILL met a spawner that could not pass it on.
    ((S.KILLING,), (SignalReceived,), "", None, (KillWorkers,)),
    (_CLEANING, (SignalReceived,), "", None, ()),
    (_CLEANING, (SignalReceived,), "second", S.DONE, (Finish,)),
    ((S.INIT, S.AGREEING, S.PAUSED, S.BARRIER), (SignalReceived,), "", S.DONE, (Finish,)),
    # The grace period is over.
    ((S.TERMINATING, S.INTERRUPTED), (GraceExpired,), "", S.KILLING, _KILL),
    ((S.KILLING,), (GraceExpired,), "", S.DONE, (AbandonWorkers, Finish)),
    ((S.INIT, *_WELL, S.LOOKING, *_IDLE), (GraceExpired,), "", None, ()),
    # The watchdog finds something, or the user asks: stacks first.
    ((S.RUNNING,), (WatchdogFired,), "ends", S.TAKING_STACKS, (TakeStacks,)),
    ((S.RUNNING,), (WatchdogFired,), "ends at once", S.TERMINATING, _TERMINATE),
    ((S.RUNNING,), (WatchdogFired,), "reported", None, (TakeStacks,)),
    ((S.TAKING_STACKS, *_ENDING, *_IDLE), (WatchdogFired,), "", None, ()),
    ((S.RUNNING,), (WatchdogFired,), "none", None, ()),
    ((S.PAUSED,), (WatchdogFired,), "over", S.DONE, (Finish,)),
    ((S.RUNNING, *_ENDING[1:]), (StacksAsked,), "", None, (TakeStacks,)),
    ((S.RUNNING, *_ENDING[1:]), (StacksAsked,), "none", None, ()),
    ((S.INIT, S.TAKING_STACKS, S.LOOKING, *_IDLE), (StacksAsked,), "", None, ()),
    ((S.TAKING_STACKS,), (StacksTaken, GroupStacks), "awaited", S.TERMINATING,
     (SignalProcess, *_TERMINATE)),
    ((S.TAKING_STACKS,), (StacksTaken,), "shared", None, (TellStacks,)),
    ((S.INIT, S.RUNNING, *_ENDING, *_IDLE), (GroupStacks,), "", None, ()),
    ((S.LOOKING,), (StacksTaken,), "", S.INTERRUPTED, _TERMINATE),
    ((*_WELL, *_ENDING[1:], *_IDLE), (StacksTaken,), "", None, ()),
)
# fmt: on

# The machine: state, event and case; the next state and what is done.
TABLE: dict[tuple[GroupState, type, Case], tuple[GroupState, _Steps]] = {
    (state, event, case): (after or state, steps)
    for states, events, case, after, steps in _ROWS
    for state in states
    for event in events
}

# The number of the polite signal on every Linux; `signal` is not imported here.
SIGTERM = 15


class ImpossibleEvent(Exception):
    """An event came in a state in which it cannot come: an error in the supervisor."""


class Known(Record, frozen=True):
    """What a machine knows beside its state, of the present attempt and of the run."""

    # local ranks of the attempt but for those whose start has failed
    startable: frozenset[int] = frozenset()
    preflight: bool = False  # whether its preflight runs, or is about to
    reason: Reason | None = None  # why the attempt, or the run, ends: the first reason, or a signal
    fired: WatchdogFired | None = None  # what the watchdog found first in the attempt
    # whether the other nodes were told why the attempt ends, and what all say
    told: bool = False
    agreed: NodesAgreed | None = None
    counted: NodesCounted | None = None
    progress: AttemptProgress | None = None
    stuck_orphans: bool = False
    wait: float = 0.0  # seconds before the next attempt
    # of the run
    signal: SignalReceived | None = None
    run_is_over: bool = False  # whether its time is


class Machine:
    """A worker group from its first attempt to its end.

    ``alone``: whether this is the only node. ``first``: the number of its first attempt; of the
    attempts before it ``earlier`` were restarts that counted, and ``history`` says what became of
    them, None if it does not matter. ``pauses``: whether memory of GPUs is waited for between two.
    """

    def __init__(
        self,
        max_restarts: int,
        spawner_retries: int = 1,
        policy: RestartPolicy | None = None,
        *,
        alone: bool = True,
        first: int = 0,
        earlier: int = 0,
        history: RestartHistory | None = None,
        pauses: bool = False,
    ) -> None:
        self.state = GroupState.INIT
        self.attempt = first
        self.alive: frozenset[int] = frozenset()  # local ranks of the workers that have not ended
        self._budget = RestartBudget(
            max_restarts, spawner_retries, policy or RestartPolicy(), history
        )
        self._budget.counted = earlier
        self._pauses = pauses
        self._alone = alone
        self._known = Known()

    @property
    def restart_count(self) -> int:
        """Restarts that counted, so far."""
        return self._budget.counted

    @property
    def healthy(self) -> bool:
        """Whether workers run and nothing ends them yet."""
        return self.state in _WELL

    @property
    def fails(self) -> bool:
        """Whether the attempt, or the run, ends for something that is no success."""
        return self._known.reason is not None

    @property
    def in_preflight(self) -> bool:
        """Whether the preflight of the attempt runs, or what it left behind is being ended."""
        return self._known.preflight and self.state in (*_LIVE, *_CLEANING)

    @property
    def ran(self) -> bool:
        """Whether a worker of the present attempt was started, as far as is known."""
        return bool(self._known.startable) and not self._known.preflight

    @property
    def cleaning_up(self) -> bool:
        """Whether what workers left behind is waited for, or may be."""
        return self.state in _IDLE

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self.state is GroupState.DONE

    @property
    def worker_state(self) -> WorkerState:
        """What torch calls the state."""
        if self.finished:
            return "FAILED" if self.fails else "SUCCEEDED"
        if self.state is GroupState.INIT:
            return "INIT"
        if self.state in _IDLE:
            return "STOPPED" if self._known.reason else "SUCCEEDED"
        return "HEALTHY" if self.healthy else "UNHEALTHY"

    def _learn(self, **facts: Any) -> None:
        self._known = replace(self._known, **facts)

    def handle(self, event: Event) -> Actions:
        """Take note of an event; the actions that follow, in order.

        Raises:
            ImpossibleEvent: it cannot come in this state.
        """
        if self.finished:
            # Late news: a worker's end that was on its way, a second signal.
            return ()
        case = self._note(event)
        transition = TABLE.get((self.state, type(event), case))
        if transition is None:
            raise ImpossibleEvent(f"{event} in state {self.state.name}")
        self.state, steps = transition
        if self._is_news():
            # Before anything ends here, so that what fails elsewhere because of it is later.
            steps = (TellNodes, *steps)
        made = (_MADE[step](self, event) if step in _MADE else step() for step in steps)
        return tuple(action for action in made if action is not None)

    def _is_news(self) -> bool:
        """Whether the other nodes are to be told now why the attempt ends."""
        if self._alone or self._known.told or self._known.agreed is not None:
            return False
        self._learn(told=self._known.reason is not None or self._known.fired is not None)
        return self._known.told

    # What an event changes beside the state, and which case of it this is

    def _note(self, event: Event) -> Case:
        reason = _REASONS.get(type(event))
        if reason is not None and self.healthy:
            self._end_for(reason)
            if isinstance(event, WorkersStuck):
                self._budget.exhaust()
        note = _NOTES.get(type(event))
        return "" if note is None else note(self, event)

    def _begun(self, event: GroupStarted) -> Case:
        self.alive = event.ranks
        before = self._known
        if before.preflight:
            # of the same attempt
            self._learn(startable=event.ranks, preflight=event.preflight)
            return ""
        if event.attempt is not None:
            # other nodes may have come further in their directories
            self.attempt = event.attempt
        self._known = Known(
            startable=event.ranks,
            preflight=event.preflight,
            signal=before.signal,
            run_is_over=before.run_is_over,
        )
        if event.restarts is not None:
            self._budget.catch_up(event.restarts)
        return ""

    def _came(self, event: AttemptProgress) -> Case:
        if self.state in (GroupState.AGREEING, GroupState.PAUSED, GroupState.BARRIER):
            return ""
        self._learn(progress=event)
        if not self._alone:
            return "shared"
        self._budget.note(event)
        return ""

    def _stacks_asked(self, _: StacksAsked) -> Case:
        # those that something ends for are shown as well
        none = self._known.preflight or self._known.fired is not None
        return "none" if none and self.state in (GroupState.RUNNING, *_ENDING[1:]) else ""

    def _end_for(self, reason: Reason) -> None:
        """The first reason is the one that the attempt ends for."""
        self._learn(reason=self._known.reason or reason)

    def _ended(self, event: Exited | StartFailed) -> Case:
        self.alive -= {event.local_rank}
        if isinstance(event, StartFailed):
            self._learn(startable=self._known.startable - {event.local_rank})
        fault = fault_of(event)
        if fault is None:
            return "succeeded" if self.alive else "last"
        if self.healthy:
            # What the watchdog found before is why.
            reason: Reason = "preflight" if self._known.preflight else fault
            self._end_for(self._known.fired.kind if self._known.fired else reason)
        return "failed" if self.alive else "last"

    def _all_ended(self, event: OrphansGone | OrphansStuck | SpawnerGone) -> Case:
        if self.state in (GroupState.AGREEING, GroupState.PAUSED, GroupState.BARRIER):
            return ""
        if self.state is GroupState.CLEANING_UP and self._known.reason is None:
            if not self._known.preflight:
                return "success"
            if isinstance(event, OrphansGone):
                return "passed"
            self._end_for("spawner" if isinstance(event, SpawnerGone) else "preflight")
        if isinstance(event, SpawnerGone):
            self.alive = frozenset()
            self._end_for(self._known.fired.kind if self._known.fired else "spawner")
        self._learn(stuck_orphans=isinstance(event, OrphansStuck))
        if not self._alone and self._known.counted is None and self._known.reason != "signal":
            return "to be agreed"
        return self._whether_again()

    def _whether_again(self) -> Case:
        reason = self._known.reason
        if reason == "node" and self._known.counted is not None and self._known.counted.again:
            # Enough nodes are left: that is no failure.
            reason = "membership"
        if not self._alone:
            # what all nodes have agreed on, if they have
            agreed = None if self._known.counted is None else self._known.counted.progress
            progress = agreed or self._known.progress
            if progress is not None:
                self._budget.note(progress)
        if reason == "signal" or self._known.stuck_orphans:
            return "over"
        wait = self._budget.take(reason)
        if self._budget.no_progress is not None:
            self._learn(reason="timeout" if self._known.run_is_over else "no_progress")
        if wait is None:
            return "over"
        if self._known.run_is_over:
            self._learn(reason="timeout")
            return "over"
        self._learn(wait=wait)
        return "again later" if wait or self._pauses else "again"

    def _nodes_agreed(self, event: NodesAgreed) -> Case:
        if self._known.agreed is not None:
            # The first word holds; what comes after it is about its consequences.
            return "hangs" if self.state is GroupState.TAKING_STACKS and event.hangs else ""
        self._learn(agreed=event, run_is_over=self._known.run_is_over or event.final)
        if self._known.reason != "signal":
            self._learn(reason=event.reason)
        return "hangs" if event.hangs and self.state in _WELL and not self._known.preflight else ""

    def _nodes_counted(self, event: NodesCounted) -> Case:
        self._learn(counted=event)
        if event.gone is not None and self._known.reason != "signal":
            self._learn(reason="node")
        return self._whether_again() if self.state is GroupState.AGREEING else ""

    def _signalled(self, event: SignalReceived) -> Case:
        first = self._known.signal is None
        if first:
            self._learn(signal=event)
            # Also when the group ends for something else: now it is not started again. What has
            # succeeded stays so, if it need not wait for other nodes.
            known, succeeds = self._known, self._alone and self.state in _SUCCEEDED
            if known.reason or known.preflight or not succeeds:
                self._learn(reason="signal")
        if self.state is GroupState.CLEANING_UP:
            return "" if first and self._known.reason else "second"
        looks = self.state is GroupState.RUNNING and not self._known.preflight
        return "look first" if looks and event.look is not None else ""

    def _watchdog_fired(self, event: WatchdogFired) -> Case:
        self._learn(run_is_over=self._known.run_is_over or event.whole_run)
        if self.state is GroupState.PAUSED and self._known.run_is_over:
            self._learn(reason="timeout")
            return "over"
        if self.state is not GroupState.RUNNING:
            return ""
        if not event.ends:
            return "none" if self._known.preflight else "reported"
        self._learn(fired=event)
        if self._known.preflight:
            self._end_for(event.kind)
            return "ends at once"
        return "ends"

    def _stacks_taken(self, event: StacksTaken) -> Case:
        if self.state is not GroupState.TAKING_STACKS:
            return ""
        agreed, fired = self._known.agreed, self._known.fired
        if fired is not None and fired.finding == event.finding:
            self._end_for(fired.kind)
        elif agreed is None or agreed.ended.finding != event.finding:
            return ""
        return "awaited" if self._alone else "shared"

    # What is done, in detail

    def _tell(self, _: Event) -> TellNodes:
        fired = self._known.fired
        reason = self._known.reason or (fired.kind if fired is not None else "failure")
        signum = self._known.signal.signum if self._known.signal is not None else None
        finding = None if fired is None else fired.finding
        return TellNodes(reason, signum, finding, final=self._known.run_is_over)

    def _abandon(self, _: Event) -> AbandonWorkers:
        abandoned, self.alive = self.alive, frozenset()
        return AbandonWorkers(abandoned)

    def _signal_workers(self, _: Event) -> SignalWorkers:
        known = self._known
        assert known.reason is not None
        received = known.signal if known.reason == "signal" else None
        return SignalWorkers(SIGTERM if received is None else received.signum, known.reason)

    def _start(self, event: Event) -> StartWorkers:
        history = self._budget.history
        if isinstance(event, Begin):
            return StartWorkers(self.attempt, self.restart_count, history=history)
        self.attempt += 1
        # that of the attempt which follows
        self._learn(preflight=False)
        count, restart = self.restart_count, self._budget.restart
        return StartWorkers(self.attempt, count, self._known.reason, restart, history)

    def _finish(self, _: Event) -> Finish:
        known, reason = self._known, self._known.reason
        signum = known.signal.signum if known.signal and reason == "signal" else None
        no_progress = self._budget.no_progress if reason == "no_progress" else None
        return Finish(self.worker_state, reason, signum, no_progress, self._budget.history)


_NOTES: dict[type, Callable[[Machine, Any], Case]] = {
    GroupStarted: Machine._begun,
    Exited: Machine._ended,
    StartFailed: Machine._ended,
    OrphansGone: Machine._all_ended,
    OrphansStuck: Machine._all_ended,
    SpawnerGone: Machine._all_ended,
    SignalReceived: Machine._signalled,
    WatchdogFired: Machine._watchdog_fired,
    StacksTaken: Machine._stacks_taken,
    StacksAsked: Machine._stacks_asked,
    NodesAgreed: Machine._nodes_agreed,
    NodesCounted: Machine._nodes_counted,
    GroupStacks: lambda machine, _: "awaited" if machine.state is S.TAKING_STACKS else "",
    AttemptProgress: Machine._came,
}

# What ends a group that is well so far.
_REASONS: dict[type, Reason] = {
    PreflightTimedOut: "preflight",
    PreloadBroken: "failure",
    MembershipChanged: "membership",
    WorkersStuck: "hang",
}


def fault_of(event: Exited | StartFailed) -> Fault | None:
    """Return in what way a worker failed, None if it succeeded."""
    if isinstance(event, StartFailed):
        return "failure"
    if event.exitcode == 0:
        return None
    if event.out_of_memory:
        return "oom"
    return "died" if event.exitcode < 0 else "failure"


# The actions that have something to say; the event is the one that led to them.
_MADE: dict[type[Action], Callable[[Machine, Any], Action | None]] = {
    StartWorkers: Machine._start,
    SignalWorkers: Machine._signal_workers,
    AbandonWorkers: Machine._abandon,
    TellNodes: Machine._tell,
    Finish: Machine._finish,
    Pause: lambda machine, _: Pause(machine._known.wait, machine._budget.restart),
    TakeStacks: lambda machine, event: TakeStacks(machine.alive, _finding(event)),
    TellStacks: lambda _, event: TellStacks(event.stacks, event.finding),
    TellProgress: lambda _, event: TellProgress(event),
    KillWorkers: lambda _, event: KillWorkers(
        "signal" if isinstance(event, SignalReceived) else "grace"
    ),
    SignalProcess: lambda machine, _: machine._known.fired.asked if machine._known.fired else None,
}


def _finding(event: Event) -> Finding:
    """Return what stacks are taken for."""
    if isinstance(event, WatchdogFired):
        return event.finding
    if isinstance(event, NodesAgreed):
        assert event.ended.finding is not None
        return event.ended.finding
    assert isinstance(event, (StacksAsked, SignalReceived))
    assert event.look is not None
    return event.look
