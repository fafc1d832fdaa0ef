"""What the watchdog finds: one type for each kind, each with its one-line explanation. Pure.

A finding reads as the predicate of a sentence about the workers it names. Ranks are local.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from lllaunch.documents import Said
from lllaunch.spec import StallScope
from lllaunch.text import count, duration, printable, size

# Of a number, characters: workers choose it.
_NAME = 40

Kind = Literal["hang", "timeout", "oom"]


class TimerExpired(Said, frozen=True):
    """A timer that a worker, or a process below it, had set for itself ran out."""

    rank: int  # local rank of the worker
    pid: int  # the process that had set it
    scope: str  # what it was called
    after: float  # how long it ran, seconds
    signum: int  # the signal that it asks for, 0 or less for none

    def __str__(self) -> str:
        return f"hung: its timer {self.scope!r} ran out after {duration(self.after)}"


class Stalled(Said, frozen=True):
    """Workers did nothing that can be seen from outside."""

    ranks: tuple[int, ...]  # local ranks of those that did nothing
    seconds: float  # for how long, at least
    scope: StallScope = "group"  # ``group`` if all had to be idle, ``rank`` if one was enough
    asleep: tuple[int, ...] = ()  # those of them in uninterruptible sleep
    stopped: tuple[int, ...] = ()  # those of them that a signal stopped (SIGSTOP)

    def __str__(self) -> str:
        return f"stalled: no output, no CPU use and no heartbeat for {duration(self.seconds)}"


class Silent(Said, frozen=True):
    """No worker has written anything for too long, whatever else they did."""

    seconds: float  # since when

    def __str__(self) -> str:
        return f"hung: no output for {duration(self.seconds)}"


class Spinning(Said, frozen=True):
    """All workers got nowhere, however busy they were."""

    ranks: tuple[int, ...]  # local ranks of those that lived
    seconds: float  # since when there was no output, no heartbeat and less than 1 KiB/s of I/O
    # how often they were looked at in the second half of that, each time at the same lines of
    # Python
    looks: int

    def __str__(self) -> str:
        idle = "no output, no heartbeat and less than 1 KiB/s of I/O"
        still = f"{idle} for {duration(self.seconds)}"
        return f"got nowhere: {still}, at the same line of Python in each of {self.looks} looks"


class HeartbeatLost(Said, frozen=True):
    """Workers that had sent heartbeats sent none for too long."""

    ranks: tuple[int, ...]  # their local ranks
    seconds: float  # since when, of the one that is late the longest

    def __str__(self) -> str:
        return f"hung: no heartbeat for {duration(self.seconds)}"


class ProgressMissing(Said, frozen=True):
    """No worker has said, or printed, that it gets any further."""

    seconds: float  # since when, at least
    step: float | None = None  # how far the one that is the furthest was; None if nobody knows
    first: bool = False  # whether there was no progress at all since the attempt began

    def __str__(self) -> str:
        if self.first:
            return f"hung: no progress in the first {duration(self.seconds)}"
        at = "" if self.step is None else f", at step {count(self.step)}"
        return f"hung: no progress for {duration(self.seconds)}{at}"


class Unchanged(Said, frozen=True):
    """Workers say how far they are, and it is the same each time."""

    name: str  # of the number: ``step``
    value: float  # the number
    seconds: float  # since when it is the same

    def __str__(self) -> str:
        name = printable(self.name, _NAME)
        return f"got nowhere: {name} has been {count(self.value)} for {duration(self.seconds)}"


class NotFinite(Said, frozen=True):
    """A number that a worker tells is none any more."""

    rank: int  # local rank of the worker
    name: str  # of the number
    value: str  # what it is: ``nan``, ``inf`` or ``-inf``
    step: float | None = None  # at which step that was seen first; None if the step is not known
    exact: bool = False  # whether it began at that step; else it may have been so before
    # whether the user's code told it: by `lllaunch.progress`, or to the user's pattern. What a
    # library prints beside its bar is now and then infinite without harm.
    chosen: bool = True

    def __str__(self) -> str:
        when = "since" if self.exact else "at"
        where = "" if self.step is None else f" {when} step {count(self.step)}"
        return f"says that {printable(self.name, _NAME)} is {self.value}{where}"


class TimedOut(Said, frozen=True):
    """An attempt, or the run, took longer than it may."""

    limit: float  # seconds allowed
    what: Literal["attempt", "run"] = "attempt"  # ``attempt`` or ``run``

    def __str__(self) -> str:
        return f"took too long: the {self.what} is limited to {duration(self.limit)}"


class OverMemory(Said, frozen=True):
    """A worker and what it started used more memory than they may."""

    rank: int  # its local rank
    used: int  # anonymous and shared memory, bytes
    limit: int  # what is allowed, bytes
    # seconds since it was last seen below the limit, None if it never was
    within: float | None = None

    def __str__(self) -> str:
        when = f", passed in the last {duration(self.within)}" if self.within else ""
        return f"used too much memory: {size(self.used)}, the limit is {size(self.limit)}{when}"


class Asked(Said, frozen=True):
    """A signal to the launcher asks where the workers stand: nothing is wrong for sure."""

    signum: int  # the signal
    # seconds since the last output of any worker, None where that is not known
    silent: float | None = None

    def __str__(self) -> str:
        since = f" after {duration(self.silent)} without output" if self.silent else ""
        return f"where the workers stood when {signal.Signals(self.signum).name} came{since}"


class GaveUp(Said, frozen=True):
    """Others waited for the worker in a collective operation until they gave up."""

    seconds: float = 0.0  # for how long they were to wait; 0 if they did not say

    def __str__(self) -> str:
        after = f" after {duration(self.seconds)}" if self.seconds else ""
        return f"kept others waiting in a collective operation, which timed out{after}"


class Straggler(Said, frozen=True):
    """The others wait for one rank in nearly all collective operations; they get on."""

    rank: int  # its local rank
    last: int  # how often it came last
    of: int  # of so many operations
    behind: float  # how long after the one before it, seconds; the median

    def __str__(self) -> str:
        often = f"to {self.last} of {self.of} collective operations"
        return f"is slow: it came last {often}, {duration(self.behind)} after the others"


# What gloo, its monitored barrier and NCCL's watchdog say; milliseconds.
_GAVE_UP = re.compile(
    r"Timed out waiting (\d+)ms for|failed to pass monitoredBarrier in (\d+) ms"
    r"|successfully reached monitoredBarrier, but"
    r"|Watchdog caught collective operation timeout(?:.*?Timeout\(ms\)=(\d+))?"
)


def gave_up(said: str) -> GaveUp | None:
    """What a worker found that says that its process group's own time was over; else None."""
    found = _GAVE_UP.search(said)
    return found and GaveUp(sum(int(each) for each in found.groups() if each) / 1e3)


class FoundElsewhere(Said, frozen=True):
    """The watchdog of another node found something."""

    node: str  # what the node is called
    found: str  # what it found, as its finding reads
    kind: Kind = "hang"  # what that is to the restart policy

    def __str__(self) -> str:
        return f"{self.found}, as {self.node} has noticed"


class KernelSleep(NamedTuple):
    """Workers are in uninterruptible sleep for too long: nothing that they hold comes free."""

    seconds: Mapping[int, float]  # by process id


Finding: TypeAlias = (
    TimerExpired
    | Stalled
    | Silent
    | Spinning
    | HeartbeatLost
    | ProgressMissing
    | Unchanged
    | NotFinite
    | TimedOut
    | OverMemory
    | Asked
    | GaveUp
    | Straggler
    | FoundElsewhere
)


# The settings of the watchdog's policy that findings are of.
_LIMITS: dict[type, str] = {
    Stalled: "stall",
    Silent: "silence",
    Spinning: "spin",
    HeartbeatLost: "heartbeat",
    ProgressMissing: "progress",
    Unchanged: "progress",
    NotFinite: "progress",
    OverMemory: "memory",
    TimerExpired: "timers",
    Straggler: "straggler",
}


def kind_of(finding: Finding) -> Kind:
    """What a finding is to the restart policy."""
    if isinstance(finding, FoundElsewhere):
        return finding.kind
    kinds: dict[type, Kind] = {TimedOut: "timeout", OverMemory: "oom"}
    return kinds.get(type(finding), "hang")


def limit_of(finding: Finding) -> str:
    """The setting of the watchdog's policy that a finding is of; empty if it is of none."""
    if isinstance(finding, TimedOut):
        return "timeout" if finding.what == "attempt" else "run_timeout"
    return _LIMITS.get(type(finding), "")


def is_of_all(finding: Finding) -> bool:
    """Whether it says that all workers get nowhere, so that one that works would refute it."""
    if isinstance(finding, ProgressMissing):
        # one that has shown some is a measure by itself; most nodes never show any
        return finding.first
    return isinstance(finding, (Silent, Spinning)) or (
        isinstance(finding, Stalled) and finding.scope == "group"
    )


def lasted(finding: Finding) -> float | None:
    """For how long it had been so, seconds; None where the finding does not tell."""
    seconds: float | None = getattr(finding, "seconds", getattr(finding, "after", None))
    return seconds


def suspects(finding: Finding) -> tuple[int, ...]:
    """Local ranks that a finding names; none if it is about all."""
    ranks: tuple[int, ...] = getattr(finding, "ranks", ())
    return (finding.rank,) if hasattr(finding, "rank") else ranks
