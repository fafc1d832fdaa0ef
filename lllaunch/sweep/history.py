"""What became of each job: what the journal tells, what its result.json tells, and sweep.json."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import asdict, replace

from lllaunch.documents import JsonText, Plain, Record, Text, Time, as_record, load_json
from lllaunch.files import naming, write_atomic
from lllaunch.run.directory import RESULT
from lllaunch.sweep.journal import (
    ComposedRecord,
    Count,
    EndedRecord,
    Header,
    OverRecord,
    PlannedRecord,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
)
from lllaunch.sweep.objective import Direction
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.schedule import JobState
from lllaunch.text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lllaunch.run.result import RunResult
    from lllaunch.sweep import journal
    from lllaunch.sweep.journal import JournalEntry


JobWord: TypeAlias = Literal[
    "composed", "started", "skipped", "succeeded", "failed", "signalled", "error"
]


class JobHistory(Record, frozen=True):
    """What is known of a job, as sweep.json has it. Its config is left out, which may be long."""

    BESIDE = frozenset({"retry", "lease", "composed_ns"})

    job: Count  # its number
    overrides: tuple[str, ...] = ()
    directory: str = ""  # where its result.json is; relative to the sweep's if it is within it
    fingerprint: str | None = None  # of its config; null if that could not be composed
    # that of its result.json, or composed (not started), started (its end is not known), skipped
    state: JobWord = "composed"
    tries: Count = 0  # how often it was started
    started_ns: Time = field(default=0, name="started")  # the last time
    ended_ns: Time = field(default=0, name="ended")
    exit_code: int | None = None
    root_cause: str = ""  # the first failure in one line, or empty
    seconds: float | None = None
    reason: Text = ""  # why it was skipped, or not tried again
    return_value: JsonText = None  # rank 0's, if it is JSON of at most 4 KiB
    retry: int = 0  # that of its last start
    lease: Lease = Lease()  # what it held last
    # when it was composed last, nanoseconds since the epoch, 0 if that is not known
    composed_ns: int = 0

    @property
    def result(self) -> Result | None:
        """What became of it, None if it has not ended since it was started last."""
        if self.exit_code is None and self.state not in _ENDED:
            return None
        return Result(self.state, self.exit_code, self.root_cause, self.seconds, self.return_value)

    @property
    def finished(self) -> bool:
        """Whether it need not run again."""
        return self.state == "succeeded"

    @property
    def value(self) -> Any:
        """What rank 0 returned; None if that is nothing, or long."""
        return None if self.return_value is None else json.loads(self.return_value)

    @property
    def objective(self) -> float | None:
        """What it returned, if it succeeded and that is a number."""
        return None if self.result is None else self.result.objective


_ENDED = frozenset({"succeeded", "failed", "signalled", "error"})


VERSION = 1
"""Version of sweep.json's schema; grows when a field changes its meaning."""


class SweepResult(Record, frozen=True):
    """What became of a sweep of lllaunch and of its jobs."""

    DERIVED = ("counts",)
    BESIDE = frozenset({"planned", "slots"})

    jobs: tuple[JobHistory, ...] = ()  # by number
    sweep: str | None = None  # the sweep's id
    lllaunch: str | None = None  # version of the launcher that began it
    command: tuple[str, ...] = ()  # overrides of the command line
    # the last launcher's, docs/reference/exit-codes.md; of its batches of jobs, that of the last
    # that did not end with 0; null where it is not known
    exit_code: int | None = None
    started_ns: Time = field(default=0, name="started")
    ended_ns: Time = field(default=0, name="ended")  # when it was over, or this was written
    seconds: float | None = None
    resumes: Count = 0  # how often it was resumed
    # which of two objectives is better; null where that is not known
    direction: Direction | None = None
    version: int = VERSION
    # how many jobs the last launcher was going to run, or had done, as far as it knows; 0 if it has
    # not said so, or where sweep.json tells of all jobs
    planned: int = 0
    slots: Lease | None = None  # None where sweep.json tells

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(sorted(Counter(job.state for job in self.jobs).items()))

    def with_others(
        self, numbers: Iterable[int], overrides: Callable[[int], Sequence[str]]
    ) -> SweepResult:
        """Return the same with jobs that the sweep did not come to: they were not run.

        ``numbers``: of all jobs; what is known of some stays as it is.
        """
        known = {job.job for job in self.jobs}
        reason = JobState.NOT_RUN.value
        new = [
            JobHistory(number, tuple(overrides(number)), state="skipped", reason=reason)
            for number in numbers
            if number not in known
        ]
        return replace(self, jobs=tuple(sorted([*self.jobs, *new], key=lambda job: job.job)))


class SweepHistory:
    """What is known of a sweep; give it the journal's entries, in order.

    ``known``: all but its jobs.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        self.known = SweepResult(slots=Lease())
        self.jobs: dict[int, JobHistory] = {}
        self._bad = 0  # exit code of an earlier batch of the same launcher
        for entry in entries:
            self.add(*entry)

    def add(self, time_ns: int, record: journal.Record) -> None:
        """Takes note of a record."""
        known = self.known
        if isinstance(record, (Header, Resumed)):
            ours, theirs = known.slots or Lease(), record.slots or Lease()
            gpus = tuple(dict.fromkeys((*ours.gpus, *theirs.gpus)))
            slots = Lease(gpus, tuple(sorted({*ours.cpus, *theirs.cpus})))
            known = replace(known, direction=record.direction or known.direction, slots=slots)
        if isinstance(record, OverRecord):
            self._bad = record.exit_code or self._bad
            self.known = replace(known, exit_code=self._bad)
            return
        # something goes on: another batch, or the sweep after a resume
        known = replace(known, exit_code=None)
        if isinstance(record, Header):
            known = replace(
                known,
                sweep=record.sweep,
                lllaunch=record.lllaunch,
                command=record.command,
                started_ns=time_ns,
            )
        elif isinstance(record, Resumed):
            self._bad = 0
            known = replace(known, resumes=known.resumes + 1, planned=0)
        elif isinstance(record, PlannedRecord):
            known = replace(known, planned=known.planned + record.jobs)
        else:
            job = self.jobs.get(record.job) or JobHistory(record.job)
            self.jobs[record.job] = _with(job, record, time_ns)
        self.known = known


def _with(
    known: JobHistory, record: ComposedRecord | StartedRecord | EndedRecord | Skipped, time_ns: int
) -> JobHistory:
    if isinstance(record, ComposedRecord):
        return JobHistory(
            *(known.job, record.overrides, record.directory, record.fingerprint),
            tries=known.tries,
            composed_ns=time_ns,
        )
    if isinstance(record, StartedRecord):
        return JobHistory(
            *(known.job, known.overrides, known.directory, known.fingerprint, "started"),
            tries=known.tries + 1,
            started_ns=time_ns,
            retry=record.retry,
            lease=record.lease,
            composed_ns=known.composed_ns,
        )
    if isinstance(record, EndedRecord):
        became = asdict(record.result)
        return replace(known, retry=record.retry, ended_ns=time_ns, reason="", **became)
    # of what has failed: it is not tried again
    state = "skipped" if known.result is None else known.state
    return replace(known, state=state, reason=record.reason)


def summary_of(sweep: SweepHistory, ended_ns: int) -> SweepResult:
    """Return what sweep.json says of all that the journal tells."""
    began = sweep.known.started_ns
    return replace(
        sweep.known,
        jobs=tuple(sweep.jobs[number] for number in sorted(sweep.jobs)),
        ended_ns=ended_ns,
        seconds=(ended_ns - began) / 1e9 if began else None,
    )


def write_summary(path: str, result: SweepResult) -> None:
    """Write sweep.json.

    Raises:
        OutputError: it cannot be written; an older one is still there then.
    """
    text = json.dumps(Plain()(result), indent=2, ensure_ascii=False)
    write_atomic(path, text.encode("utf-8", errors="backslashreplace") + b"\n")


def read_summary(path: str) -> SweepResult | None:
    """Return what a sweep.json says, None if there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON object, of another version, or something in it is wrong; says
            what.
    """
    document = load_json(path)
    if document is None:
        return None
    version = document.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"is of version {version!r}; this lllaunch reads version {VERSION}")
    result: SweepResult = as_record(document, SweepResult)
    return result


# What result.json says

RETURN_LIMIT = 4096
"""Longest return value that goes into the journal, characters of JSON; result.json has it all."""

_LONGEST = 300  # characters of a root cause


def read_result(directory: str) -> RunResult | None:
    """Return what the result.json in a directory says, None if there is none that makes sense.

    Raises:
        OutputError: it is there and cannot be read.
    """
    # a sweep that begins has none to read
    from lllaunch.run import result  # noqa: PLC0415

    path = os.path.join(directory, RESULT)
    with naming(path), contextlib.suppress(ValueError):
        return result.read_result(path, directory)
    return None


def read_results(sweep: str, jobs: Iterable[JobHistory]) -> dict[int, JobHistory]:
    """Reads what became of jobs, journalled or not.

    Returns by number what is known with what result.json says. A job that has none of its own has
    not ended, whatever the journal says; but for one that has no directory, or whose directory is
    that of a job that was started later.

    Raises:
        OutputError: one cannot be read.
    """
    known = sorted(jobs, key=lambda job: (job.started_ns, job.job))
    last = {job.directory: job.job for job in known if job.directory}
    found = {}
    for job in known:
        found[job.job] = job
        if last.get(job.directory) == job.job:
            run = read_result(os.path.join(sweep, job.directory))
            # Only a journal that was damaged, or whose end never came to the disk, has lost a
            # start, so that goes by the clock: results of earlier runs are still there until a job
            # starts.
            if run is not None and not (job.started_ns or 0 < job.composed_ns <= run.started_ns):
                run = None  # whatever is there is somebody else's
            found[job.job] = replace(job, **asdict(result_of(run) or Result("started")))
    return found


def result_of(run: RunResult | None) -> Result | None:
    """Return what a journal keeps of a result.json."""
    if run is None:
        return None
    value = run.return_values.get(0)
    text = None if value is None else value.json
    return Result(
        state=run.state,
        exit_code=run.exit_code,
        root_cause=first_line(run.failure, _LONGEST),
        seconds=run.seconds if run.started_ns else None,
        return_value=text if text is None or len(text) <= RETURN_LIMIT else None,
    )
