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
    from lllaunch.run.causes import CalledExit, DiskFull
    from lllaunch.supervisor.machine import GroupEnd, GroupStacks
    from lllaunch.watchdog.collectives import RankTrace
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.stacks.frames import Blame, RankStack


class SentSignal(Struct, frozen=True):
    """A signal that the launcher sent to a worker or below it, and when that was decided."""

    signum: int
    time_ns: int


class WorkerError(Struct, frozen=True):
    """What a worker wrote in its error.json, and when it says that it raised; or None."""

    message: str
    traceback: str = ""
    time_ns: int | None = None


class WorkerFiles(Struct, frozen=True):
    """Where one worker of one attempt writes; an empty string stands for 'nowhere of ours'."""

    directory: str = ""
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    stacks: str = ""


class PreflightRecord(Struct):
    """The preflight of one attempt, as far as it is known; it has no end as long as it runs."""

    command: str
    timeout: float
    log: str
    end: Exited | StartFailed | None = None
    timed_out: bool = False
    sent: tuple[SentSignal, ...] = ()


class WorkerRecord(Struct):
    """One worker of one attempt, as far as it is known."""

    local_rank: int
    rank: int
    files: WorkerFiles = WorkerFiles()
    started: Started | None = None
    start_failed: StartFailed | None = None
    exited: Exited | None = None
    sent: tuple[SentSignal, ...] = ()
    abandoned: bool = False  # whether the launcher gave up waiting for its end
    error: WorkerError | None = None
    # where its code called ``sys.exit``, if that gave its exit status
    exit_call: CalledExit | None = None
    # the machine's when its end became known, where that was worth reading
    memory: Memory = UNKNOWN
    # set if it failed without an error.json, and there was no room for one
    disk: DiskFull | None = None
    trace: RankTrace | None = None  # which collectives it had come to at last
    # bytes that gloo had received for a collective, and that its own call had room for, where it
    # aborted the worker for that
    misfit: tuple[int, int] | None = None
    crash: str = ""
    shown: bool = False  # whether its standard error is on the console already
    # whether what it wrote of its failure was read; it writes nothing more then
    was_read: bool = False
    # how far it was when it ended, and ``progress_ns`` when it got there
    progress: Progress | None = None
    progress_ns: int = 0

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None

    @property
    def was_asked(self) -> bool:
        """Whether it ended after the launcher had sent it a signal.

        It may have ended before, and be reaped after.
        """
        exited = self.exited
        return bool(exited and self.sent and exited.time_ns >= self.sent[0].time_ns)

    @property
    def succeeded(self) -> bool:
        """Whether it ended with status 0, and by itself."""
        return self.exited is not None and self.exited.exitcode == 0 and not self.was_asked


class AttemptRecord(Struct):
    """One attempt, as far as it is known; times are nanoseconds since the epoch, 0 for none."""

    number: int
    restart_count: int
    path: str
    started_ns: int
    ended_ns: int = 0
    workers: tuple[WorkerRecord, ...] = ()  # in order of local rank
    memory: Memory = UNKNOWN
    cpu_limit: float | None = None  # seconds after which the kernel kills a process (ulimit -t)
    died: SpawnerGone | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Orphan, ...] = ()
    stuck: bool = False  # whether workers were found to hang in the kernel
    ending: bool = False  # whether it is being ended: what is found from now on is too late
    # what the watchdog found first while the attempt ran, at ``fired_ns``
    finding: Finding | None = None
    fired_ns: int = 0
    # where the workers stood then, as far as that could be found out
    stacks: tuple[RankStack, ...] = ()
    blame: Blame | None = None  # who hung then and who waited, or None if nobody could look
    master_port: str = ""
    group_end: GroupEnd | None = None  # of several nodes, what all have agreed that it ended for
    # of several nodes, one that was found to be gone when it ended
    group_lost: GroupEnd | None = None
    group_stacks: GroupStacks | None = None  # of several nodes, who of all hung then
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

    def ran_seconds(self, worker: WorkerRecord) -> float:
        """Return how long a worker ran that has ended."""
        assert worker.exited is not None
        started = worker.started
        began = started.time_ns if started is not None else self.started_ns
        return max(0, worker.exited.time_ns - began) / 1e9
