"""What becomes of workers, and of the spawner that starts them.

Each event is made once, where it is seen, and is the same for the state machine, in events.jsonl
and in the records that result.json is made of. A worker is (attempt, local rank). The spawner makes
some of them in the user's interpreter, so they need Python's library alone; named tuples are made
faster than dataclasses are, at every start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Ready(NamedTuple):
    """The preloads are done; workers start without delay."""

    seconds: float
    # False if a forked canary could not compute; forks are then replaced by fresh interpreters
    fork_safe: bool = True
    time_ns: int = 0  # when, nanoseconds since the epoch


class PreloadBroken(NamedTuple):
    """A preload failed; nothing can be started by this spawner."""

    module: str
    reason: str
    traceback: str


class Started(NamedTuple):
    """A worker runs."""

    local_rank: int
    pid: int
    time_ns: int  # when, nanoseconds since the epoch
    attempt: int = 0


class StartFailed(NamedTuple):
    """A worker could not be started: its program is missing, its log file cannot be opened, ..."""

    local_rank: int
    path: str  # the program or file concerned, or an empty string
    reason: str
    errno: int  # the system's error number, 0 where there is none
    time_ns: int  # when, nanoseconds since the epoch
    attempt: int = 0


class Exited(NamedTuple):
    """A worker ended."""

    local_rank: int
    pid: int
    exitcode: int  # exit status, or the negative number of the signal that ended it
    time_ns: int  # when the spawner reaped it, nanoseconds since the epoch
    max_rss: int = 0  # its peak resident memory, bytes (of itself, not of its children)
    cpu_seconds: float = 0.0  # user and system time of it and the children it waited for
    core_dumped: bool = False
    attempt: int = 0
    cpu_limit: float | None = None  # seconds after which the kernel kills it (ulimit -t)
    out_of_memory: bool = False  # whether the launcher found that memory had run out


@dataclass(frozen=True)
class Orphan:
    """A process that a worker left behind when it ended; it is ended too."""

    pid: int  # its process id
    command: str  # its command line, shortened
    killed: bool  # False if it ended by itself within the settling time


class OrphansGone(NamedTuple):
    """Nothing that descends from the workers is left."""

    orphans: tuple[Orphan, ...] = ()


class SpawnerGone(NamedTuple):
    """The spawner ended, and with it all of its workers."""

    pid: int
    status: int | None  # its exit status, negative for a signal; None where it is not known
    detail: str = ""  # what it wrote last, or an empty string
    sent: tuple[int, ...] = ()  # the signals that the launcher had sent it, in order

    @property
    def killed(self) -> bool:
        """Whether it ended by a signal of the launcher's: nobody waits for imports in the end."""
        return bool(self.sent) if self.status is None else -self.status in self.sent


SpawnerEvent = Ready | PreloadBroken | Started | StartFailed | Exited | OrphansGone | SpawnerGone
