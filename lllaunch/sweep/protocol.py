"""What the process of a job and its launcher say to each other: the answer, the lease, the lines.

A job says first what composing it yielded (`Answer`), and is sent its lease when it may begin. What
it prints is read line by line, so that the output of parallel jobs never mixes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from lllaunch.documents import Number, Record
from lllaunch.spawner.interpreter import acts_at_import
from lllaunch.sweep.machine import VISIBLE
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.schedule import JobBroken, JobComposed


class SpawnerKey(Record, frozen=True):
    """What the workers of a job have in common, so that jobs can share a warm spawner."""

    preload: tuple[str, ...]
    cwd: str
    # variables of the spawner that differ from the launcher's own, by name; None for one that is
    # not set. Never CUDA_VISIBLE_DEVICES
    changes: tuple[tuple[str, str | None], ...] = ()

    @classmethod
    def of(
        cls, preload: Sequence[str], cwd: str, environ: Mapping[str, str], outer: Mapping[str, str]
    ) -> SpawnerKey:
        """Returns the key of a spawner.

        ``environ``: its whole environment (`lllaunch.run.execute.spawner_environment`).
        """
        names = sorted((environ.keys() | outer.keys()) - {VISIBLE})
        changes = ((name, environ.get(name)) for name in names)
        changed = tuple(change for change in changes if change[1] != outer.get(change[0]))
        return cls(tuple(preload), cwd, changed)

    def shared(self) -> SpawnerKey:
        """Returns what it has in common with those of jobs that it serves, too.

        Values of variables may differ that only what was preloaded may have read, by now: the
        spawner knows, and gives workers that need others fresh interpreters.
        """
        changes = (
            (name, text if acts_at_import(name) else text and "") for name, text in self.changes
        )
        return replace(self, changes=tuple(changes))

    def environ(self, outer: Mapping[str, str]) -> dict[str, str]:
        """Returns the spawner's environment; of CUDA_VISIBLE_DEVICES it has the launcher's."""
        changed = {**outer, **dict(self.changes)}
        return {name: text for name, text in changed.items() if text is not None}


class Prepared(JobComposed, frozen=True, tag="prepared"):
    """A job that is composed, and what its launcher has to know of it."""

    BESIDE = frozenset({"payload"})

    fingerprint: str | None = None  # `lllaunch.sweep.fingerprint.job_key`, or None
    # what that was made from, plain data for the journal, or None if it is not kept
    config: Mapping[str, Any] | None = None
    payload: Any = None  # whatever the job needs to run; it stays in the job's process
    warm: SpawnerKey | None = None
    # how long it waits for the preloads of that, seconds, before it does without; None for as long
    # as they take
    patience: float | None = None


Answer = Prepared | JobBroken
"""What ``prepare`` returns."""


class Apart(Record, frozen=True, tag="apart"):
    """The job has closed what it was forked with that is the launcher's."""


class JobNotRun(Record, frozen=True, tag="not_run"):
    """The job could not be run, and why; there may be no result.json that says so."""

    why: str


class Adopted(Record, frozen=True, tag="adopted"):
    """The job has a branch of a warm spawner: its lease is kept until that has ended, too."""

    pid: int


class JobProgressed(Record, frozen=True, tag="progress"):
    """A job got further. Told to the observer, too."""

    number: int
    step: Number
    total: Number | None = None  # how many steps there are, None if that is not known
    eta: Number | None = None  # seconds that the rest will take about, or None


JobMessage = Prepared | JobBroken | Apart | JobNotRun | Adopted | JobProgressed
"""What a job says to its launcher."""


class BeginJob(Record, frozen=True):
    """The job may begin. With it go its branch of a warm spawner, if any, and its locks."""

    lease: Lease
    mark: str = ""  # of what the branch starts; empty if there is none
    soon: bool = False  # whether it is being forked; else the spawner's preloads are waited for


# What it prints

_BLOCK = 1 << 16
# A longer line is told in parts: the launcher's memory stays bounded.
LONGEST = 16 << 20


class JobPrinted(NamedTuple):
    """A job wrote a line. Told to the observer only."""

    number: int
    stream: int  # 1 for standard output, 2 for standard error
    line: bytes


class Stopping(NamedTuple):
    """The launcher is about to be stopped (Ctrl-Z): until it goes on, the terminal is a shell's.

    Told to the observer only.
    """


class Tick(NamedTuple):
    """All that has happened by now was told; after as long as ``ticks`` says at the latest.

    Told to the observer only.
    """


class OutputPipe:
    """A pipe that a job writes to; both ends, as long as they are open."""

    def __init__(self, number: int, stream: int) -> None:
        self.number, self.stream = number, stream
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.reader = io.FileIO(read, "r")
        self.writer = io.FileIO(write, "w")
        self._line = bytearray()

    def fileno(self) -> int:
        """The descriptor to read from; -1 when nobody writes any more."""
        return -1 if self.reader.closed else self.reader.fileno()

    def read(self, tell: Callable[[JobPrinted], None]) -> bool:
        """Tells the lines that are there; whether something was."""
        block = None if self.reader.closed else self.reader.read(_BLOCK)
        if not block:
            if block is not None:
                self.close()
            return False
        self._line += block
        if b"\n" in block:
            *lines, self._line = self._line.split(b"\n")
            for line in lines:
                tell(JobPrinted(self.number, self.stream, bytes(line)))
        if len(self._line) >= LONGEST:
            self._tell_rest(tell)
        return True

    def finish(self, tell: Callable[[JobPrinted], None], *, cut: bool = False) -> None:
        """Tells all that is there, with a last line that has no newline, and closes.

        What still has the pipe open, a process that the job left behind, is not waited for.

        ``cut``: who wrote was killed, so that the last line may be half of one: it is not told
        (whole it is in the worker's file).
        """
        # As much as a pipe holds: somebody may write for ever.
        for _ in range(LONGEST // _BLOCK):
            if not self.read(tell):
                break
        if self._line and not cut:
            self._tell_rest(tell)
        self.close()

    def _tell_rest(self, tell: Callable[[JobPrinted], None]) -> None:
        tell(JobPrinted(self.number, self.stream, bytes(self._line)))
        self._line.clear()

    def close(self) -> None:
        """Closes both ends; idempotent."""
        self.writer.close()
        self.reader.close()
