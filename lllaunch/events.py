"""What becomes of workers, and of the spawner that starts them.

Each event is made once, where it is seen, and is the same for the state machine, in events.jsonl
and in the records that result.json is made of. A worker is (attempt, local rank).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lllaunch.watchdog.findings import Finding


@dataclass(frozen=True)
class Ready:
    """The preloads are done; workers start without delay.

    Attributes:
        seconds: how long the preloads took.
        fork_safe: False if a forked canary could not compute; forks are then replaced by
            fresh interpreters.
    """

    seconds: float
    fork_safe: bool = True


@dataclass(frozen=True)
class PreloadBroken:
    """A preload failed; nothing can be started by this spawner."""

    module: str
    reason: str
    traceback: str


@dataclass(frozen=True)
class Started:
    """A worker runs.

    Attributes:
        local_rank: of the worker.
        pid: its process id.
        time_ns: when, nanoseconds since the epoch.
        attempt: of the worker.
    """

    local_rank: int
    pid: int
    time_ns: int
    attempt: int = 0


@dataclass(frozen=True)
class StartFailed:
    """A worker could not be started: its program is missing, its log file cannot be opened, ...

    Attributes:
        local_rank: of the worker.
        path: the program or file concerned, or an empty string.
        reason: what the system said.
        errno: the system's error number, 0 where there is none.
        time_ns: when, nanoseconds since the epoch.
        attempt: of the worker.
    """

    local_rank: int
    path: str
    reason: str
    errno: int
    time_ns: int
    attempt: int = 0


@dataclass(frozen=True)
class Exited:
    """A worker ended.

    Attributes:
        local_rank: of the worker.
        pid: its process id.
        exitcode: exit status, or the negative number of the signal that ended it.
        time_ns: when the spawner reaped it, nanoseconds since the epoch.
        max_rss: its peak resident memory, bytes (of itself, not of its children).
        cpu_seconds: user and system time of it and the children it waited for.
        core_dumped: whether the kernel wrote a core file.
        attempt: of the worker.
        out_of_memory: whether the launcher found that memory had run out.
    """

    local_rank: int
    pid: int
    exitcode: int
    time_ns: int
    max_rss: int = 0
    cpu_seconds: float = 0.0
    core_dumped: bool = False
    attempt: int = 0
    out_of_memory: bool = False


@dataclass(frozen=True)
class Orphan:
    """A process that a worker left behind when it ended; it is ended too.

    Attributes:
        pid: its process id.
        command: its command line, shortened.
        killed: False if it ended by itself within the settling time.
    """

    pid: int
    command: str
    killed: bool


@dataclass(frozen=True)
class OrphansGone:
    """Nothing that descends from the workers is left."""

    orphans: tuple[Orphan, ...] = ()


@dataclass(frozen=True)
class SpawnerGone:
    """The spawner ended, and with it all of its workers.

    Attributes:
        pid: its process id.
        status: its exit status, negative for a signal; None where it is not known.
        detail: what it wrote last, or an empty string.
        sent: the signals that the launcher had sent it, in order.
    """

    pid: int
    status: int | None
    detail: str = ""
    sent: tuple[int, ...] = ()

    @property
    def killed(self) -> bool:
        """Whether it ended by a signal of the launcher's: nobody waits for imports in the end."""
        return bool(self.sent) if self.status is None else -self.status in self.sent


@dataclass(frozen=True)
class GroupEnd:
    """Why an attempt of several nodes ended, in the words of the node that was first to say so.

    Attributes:
        how: ``failed``: a worker or the watchdog of that node; ``left``: a signal ended its
            launcher; ``lost``: it gave no sign of life; ``joined``: others wait to join.
        node: what it is called, such as ``node 1 (host1)``.
        group_rank: its rank among the nodes of the attempt, -1 if it is not known.
        text: what happened, as the predicate of a sentence about the worker or the node.
        rank: rank among all workers of the worker that it is about, or None.
        time_ns: when, nanoseconds since the epoch by this node's clock.
        here: whether it was this node itself.
        finding: what the watchdog of that node found, or None.
        cause: name of the type of the failure's cause, or an empty string.
    """

    how: Literal["failed", "left", "lost", "joined"]
    node: str
    group_rank: int
    text: str = ""
    rank: int | None = None
    time_ns: int = 0
    here: bool = False
    finding: Finding | None = None
    cause: str = ""


@dataclass(frozen=True)
class AttemptProgress:
    """How far an attempt has come, when its workers have ended.

    Attributes:
        step: the highest step that one of them has shown; None if none has.
        checkpoint_changed: whether the checkpoint was written meanwhile; None if that cannot be
            told.
        time_ns: when, nanoseconds since the epoch; of several nodes by node 0's clock.
        ran: whether any of its workers was started.
    """

    step: float | None
    checkpoint_changed: bool | None
    time_ns: int
    ran: bool = True


@dataclass(frozen=True)
class GpuMemoryHeld:
    """Before a restart, processes that have ended still hold memory on GPUs.

    Attributes:
        pids: their process ids; none if the driver does not answer.
        gpus: indices of the GPUs.
        seconds: for how long that has been waited for.
        given_up: whether it is not waited for any longer.
    """

    pids: tuple[int, ...]
    gpus: tuple[int, ...]
    seconds: float
    given_up: bool


@dataclass(frozen=True)
class NoProgress:
    """Attempts in a row, all of which failed, got no further.

    Attributes:
        attempts: how many.
        step: the highest that they, or one before, have shown; None if none has.
        same: whether each of them showed that step in the end.
    """

    attempts: int
    step: float | None = None
    same: bool = False

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


SpawnerEvent = Ready | PreloadBroken | Started | StartFailed | Exited | OrphansGone | SpawnerGone
