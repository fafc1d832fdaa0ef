"""What the spawner tells the launcher: facts, in the order in which they happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lllaunch.moments import from_boot


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
    """A worker runs."""

    rank: int
    pid: int
    time_ns: int


@dataclass(frozen=True)
class StartFailed:
    """A worker could not be started: its program is missing, its log file cannot be opened, ...

    Attributes:
        rank: local rank.
        path: the program or file concerned, or an empty string.
        reason: what the system said.
        errno: the system's error number, 0 where there is none.
        time_ns: when, nanoseconds since the epoch.
    """

    rank: int
    path: str
    reason: str
    errno: int
    time_ns: int


@dataclass(frozen=True)
class Exited:
    """A worker ended.

    Attributes:
        rank: local rank.
        pid: its process id.
        exitcode: exit status, or the negative number of the signal that ended it.
        time_ns: when the spawner reaped it, nanoseconds since the epoch.
        max_rss: its peak resident memory, bytes (of itself, not of its children).
        cpu_seconds: user and system time of it and the children it waited for.
        core_dumped: whether the kernel wrote a core file.
    """

    rank: int
    pid: int
    exitcode: int
    time_ns: int
    max_rss: int = 0
    cpu_seconds: float = 0.0
    core_dumped: bool = False


@dataclass(frozen=True)
class Leftover:
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
class Swept:
    """Nothing that descends from the workers is left."""

    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True)
class Died:
    """The spawner itself is gone, and with it all of its workers.

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


Fact = Ready | PreloadBroken | Started | StartFailed | Exited | Swept | Died


def translate(header: dict[str, Any], rank: int = -1) -> Fact:
    """The fact that a message from the spawner tells.

    Args:
        header: the message's header.
        rank: local rank of the worker that it is about.
    """
    kind = header["fact"]
    at = from_boot(header.get("time_ns", 0))
    if kind == "ready":
        return Ready(header["seconds"], header["fork_safe"])
    if kind == "broken":
        return PreloadBroken(header["module"], header["reason"], header["traceback"])
    if kind == "swept":
        return Swept(tuple(Leftover(*leftover) for leftover in header["leftovers"]))
    if kind == "started":
        return Started(rank, header["pid"], at)
    if kind == "failed":
        return StartFailed(rank, header["path"], header["reason"], header["errno"], at)
    return Exited(
        rank=rank,
        pid=header["pid"],
        exitcode=header["exitcode"],
        time_ns=at,
        max_rss=header["max_rss"],
        cpu_seconds=header["cpu"],
        core_dumped=header["core"],
    )
