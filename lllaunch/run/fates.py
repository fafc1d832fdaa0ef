"""What became of one worker of one attempt: six kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from lllaunch.run.causes import Cause
    from lllaunch.run.postmortem import Explanation


@dataclass(frozen=True)
class Succeeded:
    """The worker ended with status 0, and by itself."""


@dataclass(frozen=True)
class Failed:
    """The worker failed: it is the root cause of its attempt, or failed at the same moment.

    One that hung until the launcher ended it failed, too, with what the watchdog found as cause.

    Attributes:
        cause: why.
        time_ns: when, nanoseconds since the epoch.
        explanation: what can be said beyond that, or None.
    """

    cause: Cause
    time_ns: int
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Victim:
    """The worker failed after the root cause, so probably because of it.

    Attributes:
        cause: how it failed itself.
        time_ns: when, nanoseconds since the epoch.
        after_ns: how long after the root cause, nanoseconds.
        explanation: what can be said beyond that, or None.
    """

    cause: Cause
    time_ns: int
    after_ns: int
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Ended:
    """The launcher ended the worker.

    Attributes:
        signum: the signal that did it.
        exitcode: exit status, or the negative number of the signal.
        sent: all signals that the launcher had sent it, in order.
        waited_for: ranks that hung while this worker only waited for them; empty if it did not.
    """

    signum: int
    exitcode: int
    sent: tuple[int, ...] = ()
    waited_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lost:
    """How the worker ended is not known.

    Attributes:
        why: ``spawner``: it went with the spawner; ``kernel``: it hangs in the kernel and SIGKILL
            does not end it; ``error``: the run ended by an error of lllaunch's own; ``unknown``:
            another version wrote so, in words that this one does not know.
    """

    why: Literal["spawner", "kernel", "error", "unknown"] = "spawner"


@dataclass(frozen=True)
class NotStarted:
    """The worker was never started."""


Fate: TypeAlias = Succeeded | Failed | Victim | Ended | Lost | NotStarted
