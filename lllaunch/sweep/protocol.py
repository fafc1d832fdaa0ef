"""What the process of a job and its launcher say to each other: the answer, the lease, the lines.

A job says first what composing it yielded (`Prepared`, `Broken`), and is sent its lease when it may
begin. What it prints is read line by line, so that the output of parallel jobs never mixes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lllaunch.errors import Diagnostic
from lllaunch.spawner.interpreter import acts_at_import
from lllaunch.sweep.journal import ComposedRecord
from lllaunch.sweep.machine import VISIBLE
from lllaunch.sweep.pool import Lease, Need


class SpawnerKey(NamedTuple):
    """What the workers of a job have in common, so that jobs can share a warm spawner.

    Attributes:
        preload: modules that the spawner imports.
        cwd: working directory of that.
        changes: variables of the spawner that differ from the launcher's own, by name; None for
            one that is not set. Never CUDA_VISIBLE_DEVICES.
    """

    preload: tuple[str, ...]
    cwd: str
    changes: tuple[tuple[str, str | None], ...] = ()

    @classmethod
    def of(
        cls, preload: Sequence[str], cwd: str, environ: Mapping[str, str], outer: Mapping[str, str]
    ) -> SpawnerKey:
        """Returns the key of a spawner.

        Args:
            preload: modules that it imports.
            cwd: working directory of that.
            environ: its whole environment (`lllaunch.run.group.spawner_environment`).
            outer: the launcher's own.
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
        return self._replace(changes=tuple(changes))

    def environ(self, outer: Mapping[str, str]) -> dict[str, str]:
        """Returns the spawner's environment; of CUDA_VISIBLE_DEVICES it has the launcher's."""
        changed = {**outer, **dict(self.changes)}
        return {name: text for name, text in changed.items() if text is not None}


class Prepared(NamedTuple):
    """A job that is composed, and what its launcher has to know of it.

    Attributes:
        need: what it needs to run.
        overrides: its task overrides, redacted.
        directory: where its result.json will be; relative to the sweep's directory or absolute.
        fingerprint: `lllaunch.sweep.fingerprint.job_key`, or None.
        config: what that was made from, plain data for the journal, or None if it is not kept.
        payload: whatever the job needs to run; it stays in the job's process.
        warm: which warm spawner it gets a branch of; None for none.
        patience: how long it waits for the preloads of that, seconds, before it does without; None
            for as long as they take.
    """

    need: Need = Need()
    overrides: tuple[str, ...] = ()
    directory: str = ""
    fingerprint: str | None = None
    config: Mapping[str, Any] | None = None
    payload: object = None
    warm: SpawnerKey | None = None
    patience: float | None = None


class Broken(NamedTuple):
    """A job that cannot run.

    Attributes:
        exit_code: what a run of this config alone would end with: 1 or 2.
        why: for people.
        overrides: its task overrides, redacted.
        directory: as in `Prepared`.
        problems: what of that is known to stand in a file; it stays in the job's process.
    """

    exit_code: int
    why: str
    overrides: tuple[str, ...] = ()
    directory: str = ""
    problems: tuple[Diagnostic, ...] = ()


Answer = Prepared | Broken
"""What ``prepare`` returns."""


class JobAnswered(NamedTuple):
    """A job has been composed, or could not be. Told to the observer only, before the fact.

    Attributes:
        number: of the job.
        answer: what that yielded; the payload is None.
    """

    number: int
    answer: Answer


def encode(answer: Answer) -> dict[str, Any]:
    """Returns an answer as JSON, without what stays in the job's process."""
    fields = answer._asdict()
    if isinstance(answer, Broken):
        del fields["problems"]
        return {"answer": "broken", **fields}
    del fields["payload"]
    return {"answer": "prepared", **fields}


def decode(message: Mapping[str, Any]) -> Answer:
    """Returns the answer of a message that `encode` made."""
    fields = dict(message)
    kind = fields.pop("answer")
    fields["overrides"] = tuple(fields["overrides"])
    if kind == "broken":
        return Broken(**fields)
    warm = fields.pop("warm")
    return Prepared(
        **{**fields, "need": Need(*fields["need"])},
        warm=None if warm is None else _warm_key(*warm),
    )


def _warm_key(preload: list[str], cwd: str, changes: list[list[str]]) -> SpawnerKey:
    return SpawnerKey(tuple(preload), cwd, tuple((name, text) for name, text in changes))


def record_of(number: int, answer: Answer, directory: str) -> ComposedRecord:
    """Returns what the journal says of a composed job.

    Args:
        number: of the job.
        answer: what composing it yielded.
        directory: as the journal has it.
    """
    if isinstance(answer, Broken):
        return ComposedRecord(number, answer.overrides, directory, None)
    return ComposedRecord(number, answer.overrides, directory, answer.fingerprint, answer.config)


def encode_lease(lease: Lease) -> dict[str, Any]:
    """Returns the message that lets a job begin; the descriptors of its locks go with it."""
    return {"start": [list(lease.gpus), list(lease.cpus)]}


def is_lease(message: Mapping[str, Any]) -> bool:
    """Whether `encode_lease` made a message."""
    return "start" in message


def decode_lease(message: Mapping[str, Any]) -> Lease:
    """Returns the lease of a message that `encode_lease` made."""
    gpus, cpus = message["start"]
    return Lease(tuple(gpus), tuple(cpus))


# What it prints

_BLOCK = 1 << 16
# A longer line is told in parts: the launcher's memory stays bounded.
LONGEST = 16 << 20


class JobPrinted(NamedTuple):
    """A job wrote a line. Told to the observer only.

    Attributes:
        number: of the job.
        stream: 1 for standard output, 2 for standard error.
        line: without its newline.
    """

    number: int
    stream: int
    line: bytes


class JobProgressed(NamedTuple):
    """A job got further. Told to the observer only.

    Attributes:
        number: of the job.
        step: how many steps its workers have done.
        total: how many there are, None if that is not known.
        eta: seconds that the rest will take about, or None.
    """

    number: int
    step: float
    total: float | None = None
    eta: float | None = None


class Stopping(NamedTuple):
    """The launcher is about to be stopped (Ctrl-Z): until it goes on, the terminal is a shell's.

    Told to the observer only.
    """


class Tick(NamedTuple):
    """All that has happened by now was told; after as long as ``ticks`` says at the latest.

    Told to the observer only.
    """


class OutputPipe:
    """A pipe that a job writes to, at the launcher's end.

    Args:
        number: of the job.
        stream: 1 for standard output, 2 for standard error.
    """

    def __init__(self, number: int, stream: int) -> None:
        self.number, self.stream = number, stream
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._line = bytearray()

    def fileno(self) -> int:
        """The descriptor to read from; -1 when nobody writes any more."""
        return self._read

    def close_write_end(self) -> None:
        """Closes the job's end, in the launcher; idempotent."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def read(self, tell: Callable[[JobPrinted], None]) -> bool:
        """Tells the lines that are there; whether something was."""
        if self._read < 0:
            return False
        try:
            block = os.read(self._read, _BLOCK)
        except BlockingIOError:
            return False
        if not block:
            self.close()
            return False
        *lines, rest = block.split(b"\n")
        for line in lines:
            tell(JobPrinted(self.number, self.stream, bytes(self._line + line)))
            self._line.clear()
        self._line += rest
        if len(self._line) >= LONGEST:
            self._tell_rest(tell)
        return True

    def finish(self, tell: Callable[[JobPrinted], None], *, cut: bool = False) -> None:
        """Tells all that is there, with a last line that has no newline, and closes.

        What still has the pipe open, a process that the job left behind, is not waited for.

        Args:
            tell: gets the lines.
            cut: who wrote was killed, so that the last line may be half of one: it is not told
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
        self.close_write_end()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1
