"""What was seen of a run, before anybody judges it: the input of `lllaunch.run.result`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lllaunch.linux.cgroup import UNKNOWN, Memory

if TYPE_CHECKING:
    from lllaunch.events import (
        Exited,
        Orphan,
        PreloadBroken,
        SpawnerGone,
        Started,
        StartFailed,
    )
    from lllaunch.supervisor.machine import GroupEnd, GroupStacks
    from lllaunch.watchdog.collectives import RankTrace
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.stacks.frames import Blame, RankStack


# A file system with less free than this is full, bytes: one traceback may take that.
_ROOM = 64 * 1024


class SentSignal(Struct, frozen=True):
    """A signal that the launcher sent to a worker, or to a process below it.

    Attributes:
        time_ns: when it was decided, nanoseconds since the epoch.
    """

    signum: int
    time_ns: int


class Disk(Struct, frozen=True):
    """The file system that a worker's logs are on, when the worker's failure became known.

    Attributes:
        total: its size, bytes.
        free: what is free of it, bytes.
    """

    directory: str
    total: int
    free: int

    @property
    def full(self) -> bool:
        """Whether there was no room for an error.json."""
        return self.free < _ROOM


class WorkerError(Struct, frozen=True):
    """What a worker wrote in its error.json.

    Attributes:
        message: ``ValueError: what was wrong``, possibly of several lines.
        time_ns: when it was raised, nanoseconds since the epoch, or None.
    """

    message: str
    traceback: str = ""
    time_ns: int | None = None


class ExitCall(Struct, frozen=True):
    """Where a worker's code raised SystemExit, from its exit.json.

    Attributes:
        code: what it exited with; text was written to standard error, the status is then 1.
        function: the function that it belongs to, ``<module>`` outside of any.
    """

    code: int | str
    file: str
    line: int
    function: str


class WorkerFiles(Struct, frozen=True):
    """Where one worker of one attempt writes; an empty string stands for 'nowhere of ours'."""

    directory: str = ""
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    stacks: str = ""


NOWHERE = WorkerFiles()


class PreflightRecord(Struct):
    """The preflight of one attempt, as far as it is known.

    Attributes:
        timeout: how long it may take, seconds.
        end: its end, or that it could not be started; None as long as it runs.
        timed_out: whether it took longer.
    """

    command: str
    timeout: float
    log: str
    end: Exited | StartFailed | None = None
    timed_out: bool = False
    sent: tuple[SentSignal, ...] = ()


class WorkerRecord(Struct):
    """One worker of one attempt, as far as it is known.

    Attributes:
        abandoned: whether the launcher gave up waiting for its end.
        exit_call: where its code exited, if it failed by that; or None.
        memory: the machine's memory when its end became known, where that was worth reading.
        disk: where its logs are, if it failed without an error.json; or None.
        trace: which collectives it had come to at last, or None if that is not known.
        misfit: bytes that gloo had received for a collective, and that its own call had room for,
            where it aborted the worker for that; or None.
        shown: whether its standard error is on the console already.
        progress: how far it was when it ended, as far as that is known; or None.
        progress_ns: when it got there, nanoseconds since the epoch.
    """

    local_rank: int
    rank: int
    files: WorkerFiles = NOWHERE
    started: Started | None = None
    start_failed: StartFailed | None = None
    exited: Exited | None = None
    sent: tuple[SentSignal, ...] = ()
    abandoned: bool = False
    error: WorkerError | None = None
    exit_call: ExitCall | None = None
    memory: Memory = UNKNOWN
    disk: Disk | None = None
    trace: RankTrace | None = None
    misfit: tuple[int, int] | None = None
    crash: str = ""
    shown: bool = False
    progress: Progress | None = None
    progress_ns: int = 0

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None


class AttemptRecord(Struct):
    """One attempt, as far as it is known.

    Attributes:
        started_ns: when it was begun, nanoseconds since the epoch.
        ended_ns: when the last of its workers was gone, 0 while it runs.
        workers: in order of local rank.
        stuck: whether workers were found to hang in the kernel.
        ending: whether it is being ended: what is found from now on is too late.
        finding: what the watchdog found first while the attempt ran, or None.
        fired_ns: when that was, nanoseconds since the epoch.
        stacks: where the workers stood then, as far as that could be found out.
        blame: who hung then and who waited, or None if nobody could look.
        group_end: of several nodes, what all have agreed that it ended for; or None.
        group_lost: of several nodes, one that was found to be gone when it ended; or None.
        group_stacks: of several nodes, who of all hung then; or None.
    """

    number: int
    restart_count: int
    path: str
    started_ns: int
    ended_ns: int = 0
    workers: tuple[WorkerRecord, ...] = ()
    memory: Memory = UNKNOWN
    died: SpawnerGone | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Orphan, ...] = ()
    stuck: bool = False
    ending: bool = False
    finding: Finding | None = None
    fired_ns: int = 0
    stacks: tuple[RankStack, ...] = ()
    blame: Blame | None = None
    master_port: str = ""
    group_end: GroupEnd | None = None
    group_lost: GroupEnd | None = None
    group_stacks: GroupStacks | None = None
    preflight: PreflightRecord | None = None

    @property
    def in_preflight(self) -> bool:
        """Whether the preflight has not ended; the workers have not been started then."""
        return self.preflight is not None and self.preflight.end is None

    @property
    def alive(self) -> int:
        """How many workers were ordered and are not known to have ended; a preflight is one."""
        if self.in_preflight:
            return 1
        return sum(worker.live for worker in self.workers)

    def worker(self, local_rank: int) -> WorkerRecord | None:
        """Return the worker of a local rank."""
        return next((each for each in self.workers if each.local_rank == local_rank), None)
