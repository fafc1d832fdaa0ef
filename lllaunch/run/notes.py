"""What the `lllaunch.run.recorder.Recorder` keeps of an attempt while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lllaunch.linux.cgroup import UNKNOWN, Memory
from lllaunch.run.excerpts import read_crash, read_error, read_exit_call
from lllaunch.run.records import AttemptRecord, Disk, SentSignal, WorkerFiles, WorkerRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.run.records import ExitCall, WorkerError
    from lllaunch.spawner.protocol import (
        Died,
        Exited,
        Leftover,
        PreloadBroken,
        Started,
        StartFailed,
    )
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.stacks.facts import Blame, RankStack


@dataclass
class NotedWorker:
    """One worker of the current attempt, as far as it is known."""

    local_rank: int
    rank: int
    files: WorkerFiles
    started: Started | None = None
    start_failed: StartFailed | None = None
    exited: Exited | None = None
    sent: list[SentSignal] = field(default_factory=list)
    abandoned: bool = False
    memory: Memory = UNKNOWN
    left: tuple[WorkerError | None, ExitCall | None] | None = None
    disk: Disk | None = None
    shown: bool = False

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None

    def record(self, hide: Callable[[str], str]) -> WorkerRecord:
        """Returns what is known now; reads its error file if it failed."""
        error, exit_call = self._left(hide)
        return WorkerRecord(
            local_rank=self.local_rank,
            rank=self.rank,
            files=self.files,
            started=self.started,
            start_failed=self.start_failed,
            exited=self.exited,
            sent=tuple(self.sent),
            abandoned=self.abandoned,
            error=error,
            exit_call=exit_call,
            memory=self.memory,
            disk=self.disk,
            crash=self._crash(hide),
            shown=self.shown,
        )

    def _crash(self, hide: Callable[[str], str]) -> str:
        """Returns what Python wrote down when a fatal signal ended the worker."""
        if self.exited is None or self.exited.exitcode >= 0 or self.sent:
            return ""
        return read_crash(self.files.directory, self.files.stderr, hide)

    def _left(self, hide: Callable[[str], str]) -> tuple[WorkerError | None, ExitCall | None]:
        """Return what it wrote of its failure; read once, since it has ended."""
        if self.exited is None or self.exited.exitcode == 0 or not self.files.error:
            return None, None
        if self.left is None:
            path, exits = self.files.error, self.exited.exitcode > 0
            self.left = read_error(path, hide), read_exit_call(path, hide) if exits else None
        return self.left


@dataclass
class NotedAttempt:
    """One attempt, as far as it is known."""

    number: int
    restart_count: int
    path: str
    started_ns: int
    workers: dict[int, NotedWorker]
    memory: Memory
    ended_ns: int = 0
    died: Died | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Leftover, ...] = ()
    stuck: bool = False
    ending: bool = False
    finding: Finding | None = None
    fired_ns: int = 0
    stacks: tuple[RankStack, ...] = ()
    blame: Blame | None = None
    master_port: str = ""

    @property
    def alive(self) -> int:
        """How many workers were ordered and are not known to have ended."""
        return sum(1 for worker in self.workers.values() if worker.live)

    def record(self, hide: Callable[[str], str]) -> AttemptRecord:
        """Returns what is known now; reads the error files of workers that failed."""
        return AttemptRecord(
            number=self.number,
            restart_count=self.restart_count,
            path=self.path,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            workers=tuple(worker.record(hide) for worker in self.workers.values()),
            memory=self.memory,
            died=self.died,
            died_ns=self.died_ns,
            died_memory=self.died_memory,
            broken=self.broken,
            leftovers=self.leftovers,
            stuck=self.stuck,
            finding=self.finding,
            fired_ns=self.fired_ns,
            stacks=self.stacks,
            blame=self.blame,
            master_port=self.master_port,
        )
