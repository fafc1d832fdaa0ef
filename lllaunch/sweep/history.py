"""What became of each job: what the journal tells, what its result.json tells, and sweep.json."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.documents import Fields, isoformat
from lllaunch.errors import OutputError
from lllaunch.exit_codes import ExitCode
from lllaunch.run.directory import RESULT
from lllaunch.run.files import write_atomic
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    PlannedRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    plain_result,
)
from lllaunch.sweep.objective import Direction, as_direction
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.schedule import JobState
from lllaunch.text import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lllaunch.run.result import RunResult
    from lllaunch.sweep.journal import JournalEntry


class JobHistory(NamedTuple):
    """What is known of a job; its config is left out, which may be long.

    Attributes:
        job: its number.
        overrides: its task overrides.
        directory: where its result.json is; relative to the sweep's if it is in it.
        fingerprint: of its config, None if that could not be composed.
        state: ``composed``, ``started``, ``skipped``, or how it ended (`Result.state`).
        retry: that of its last start.
        tries: how often it was started.
        lease: what it held last.
        composed_ns: when it was composed last, nanoseconds since the epoch, 0 if that is not known.
        started_ns: when it was started last, 0 if never.
        ended_ns: when it ended, 0 if it has not since.
        result: what became of it, None if it has not ended since.
        reason: why it was skipped, or not tried again, or an empty string.
    """

    job: int
    overrides: tuple[str, ...] = ()
    directory: str = ""
    fingerprint: str | None = None
    state: str = "composed"
    retry: int = 0
    tries: int = 0
    lease: Lease = Lease()
    composed_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    result: Result | None = None
    reason: str = ""

    @property
    def value(self) -> Any:
        """What rank 0 returned; None if that is nothing, or long."""
        text = None if self.result is None else self.result.return_value
        return None if text is None else json.loads(text)

    @property
    def objective(self) -> float | None:
        """What it returned, if it succeeded and that is a number."""
        return None if self.result is None else self.result.objective


class SweepHistory:
    """What is known of a sweep; give it the journal's entries, in order.

    Attributes:
        header: how the sweep was begun, or None.
        started_ns: when, nanoseconds since the epoch.
        resumes: how often it was resumed.
        exit_code: of the last launcher, None if that did not come to its end. Where it swept
            several batches: of the last one that did not end with 0, else 0.
        direction: which of two objectives is better, as the last launcher that knew it said; None
            if none did.
        slots: all that jobs could lease, of any launcher.
        planned: how many jobs the last launcher was going to run, or had done, as far as it knows;
            0 if it has not said so.
        jobs: what is known of each job, by number.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        self.header: Header | None = None
        self.started_ns = 0
        self.resumes = 0
        self.exit_code: int | None = None
        self.direction: Direction | None = None
        self.slots = Lease()
        self.planned = 0
        self._bad = 0  # exit code of an earlier batch of the same launcher
        self.jobs: dict[int, JobHistory] = {}
        for entry in entries:
            self.add(entry.time_ns, entry.record)

    def add(self, time_ns: int, record: Record) -> None:
        """Takes note of a record.

        Args:
            time_ns: when it was made, nanoseconds since the epoch.
            record: the record.
        """
        if isinstance(record, (Header, Resumed)):
            self.direction = record.direction or self.direction
            self.slots = _joined(self.slots, record.slots or Lease())
        if isinstance(record, Header):
            self.header, self.started_ns = record, time_ns
        elif isinstance(record, OverRecord):
            self._bad = record.exit_code or self._bad
            self.exit_code = self._bad
        else:
            # something goes on: another batch, or the sweep after a resume
            self.exit_code = None
            if isinstance(record, Resumed):
                self.resumes += 1
                self._bad = self.planned = 0
            elif isinstance(record, PlannedRecord):
                self.planned += record.jobs
            else:
                known = self.jobs.get(record.job) or JobHistory(record.job)
                self.jobs[record.job] = _with(known, record, time_ns)


def _joined(slots: Lease, others: Lease) -> Lease:
    gpus = tuple(dict.fromkeys((*slots.gpus, *others.gpus)))
    return Lease(gpus, tuple(sorted({*slots.cpus, *others.cpus})))


def _with(
    known: JobHistory, record: ComposedRecord | StartedRecord | EndedRecord | Skipped, time_ns: int
) -> JobHistory:
    if isinstance(record, ComposedRecord):
        return JobHistory(
            known.job,
            record.overrides,
            record.directory,
            record.fingerprint,
            tries=known.tries,
            composed_ns=time_ns,
        )
    if isinstance(record, StartedRecord):
        return known._replace(
            state="started",
            retry=record.retry,
            tries=known.tries + 1,
            lease=record.lease,
            started_ns=time_ns,
            ended_ns=0,
            result=None,
            reason="",
        )
    if isinstance(record, EndedRecord):
        result = record.result
        return known._replace(
            state=result.state, retry=record.retry, ended_ns=time_ns, result=result, reason=""
        )
    if known.result is not None:  # it has failed and is not tried again
        return known._replace(reason=record.reason)
    return known._replace(state="skipped", reason=record.reason)


VERSION = 1
"""Version of sweep.json's schema; grows when a field changes its meaning."""


@dataclass(frozen=True)
class SweepResult:
    """What sweep.json says: what is known of a sweep, and of each of its jobs.

    Attributes:
        jobs: by number.
        sweep: identifies the sweep, None if that is not known.
        lllaunch: the version that began it, or None.
        command: its command line.
        exit_code: of the last launcher, None if that has not come to its end.
        started_ns: when the sweep began, nanoseconds since the epoch, 0 if that is not known.
        ended_ns: when it was over, or this was written.
        seconds: how long it took, or None.
        resumes: how often it was resumed.
        direction: which of two objectives is better, None if that is not known.
        planned: as in `SweepHistory`; 0 where sweep.json tells of all jobs.
        slots: as in `SweepHistory`; None where sweep.json tells.
    """

    jobs: tuple[JobHistory, ...] = ()
    sweep: str | None = None
    lllaunch: str | None = None
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    started_ns: int = 0
    ended_ns: int = 0
    seconds: float | None = None
    resumes: int = 0
    direction: Direction | None = None
    planned: int = 0
    slots: Lease | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(sorted(Counter(job.state for job in self.jobs).items()))

    def with_others(
        self, numbers: Iterable[int], overrides: Callable[[int], Sequence[str]]
    ) -> SweepResult:
        """Return the same with jobs that the sweep did not come to: they were not run.

        Args:
            numbers: of all jobs; what is known of some stays as it is.
            overrides: returns those of a job.
        """
        known = {job.job for job in self.jobs}
        never = JobHistory(0, state="skipped", reason=JobState.NOT_RUN.value)
        new = [
            never._replace(job=number, overrides=tuple(overrides(number)))
            for number in numbers
            if number not in known
        ]
        return replace(self, jobs=tuple(sorted([*self.jobs, *new], key=lambda job: job.job)))

    def to_json(self) -> dict[str, Any]:
        """Return what sweep.json holds."""
        return {
            "version": VERSION,
            "sweep": self.sweep,
            "lllaunch": self.lllaunch,
            "command": list(self.command),
            "exit_code": self.exit_code,
            "started": isoformat(self.started_ns) if self.started_ns else None,
            "ended": isoformat(self.ended_ns),
            "seconds": self.seconds,
            "resumes": self.resumes,
            "direction": self.direction,
            "counts": self.counts,
            "jobs": [_job(job) for job in self.jobs],
        }

    @classmethod
    def from_json(cls, document: object) -> SweepResult:
        """Return what a sweep.json says, of whatever make it is; a job without a number is none."""
        fields = Fields(document)
        jobs = (_read_job(each) for each in fields.objects("jobs"))
        return cls(
            jobs=tuple(job for job in jobs if job is not None),
            sweep=fields.text("sweep") or None,
            lllaunch=fields.text("lllaunch") or None,
            command=fields.texts("command"),
            exit_code=fields.integer("exit_code"),
            started_ns=fields.time_ns("started") or 0,
            ended_ns=fields.time_ns("ended") or 0,
            seconds=fields.seconds("seconds"),
            resumes=fields.integer("resumes") or 0,
            direction=as_direction(fields.value("direction")),
        )


def summary_of(sweep: SweepHistory, ended_ns: int) -> SweepResult:
    """Return what sweep.json says.

    Args:
        sweep: all that the journal tells.
        ended_ns: when the sweep ended, nanoseconds since the epoch.
    """
    header, began = sweep.header, sweep.started_ns
    return SweepResult(
        jobs=tuple(sweep.jobs[number] for number in sorted(sweep.jobs)),
        sweep=header.sweep if header else None,
        lllaunch=header.lllaunch if header else None,
        command=header.command if header else (),
        exit_code=sweep.exit_code,
        started_ns=began,
        ended_ns=ended_ns,
        seconds=(ended_ns - began) / 1e9 if began else None,
        resumes=sweep.resumes,
        direction=sweep.direction,
        planned=sweep.planned,
        slots=sweep.slots,
    )


def render_summary(result: SweepResult) -> bytes:
    """Return the text of sweep.json."""
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def write_summary(path: str, result: SweepResult) -> None:
    """Write sweep.json.

    Raises:
        OutputError: it cannot be written; an older one is still there then.
    """
    write_atomic(path, render_summary(result))


def _job(job: JobHistory) -> dict[str, Any]:
    ended = {"state": job.state} if job.result is None else plain_result(job.result)
    return {
        "job": job.job,
        "overrides": list(job.overrides),
        "directory": job.directory,
        "fingerprint": job.fingerprint,
        "tries": job.tries,
        "started": isoformat(job.started_ns) if job.started_ns else None,
        "ended": isoformat(job.ended_ns) if job.ended_ns else None,
        "exit_code": None,
        "root_cause": "",
        "seconds": None,
        "reason": job.reason or None,
        **ended,
    }


def _read_job(fields: Fields) -> JobHistory | None:
    number, state = fields.integer("job"), fields.text("state") or "unknown"
    if number is None:
        return None
    result = Result(
        state,
        fields.integer("exit_code"),
        fields.text("root_cause"),
        fields.seconds("seconds"),
        json.dumps(fields.value("return_value")) if "return_value" in fields else None,
    )
    return JobHistory(
        number,
        overrides=fields.texts("overrides"),
        directory=fields.text("directory"),
        fingerprint=fields.text("fingerprint") or None,
        state=state,
        tries=fields.integer("tries") or 0,
        started_ns=fields.time_ns("started") or 0,
        ended_ns=fields.time_ns("ended") or 0,
        result=None if state in _NOT_ENDED else result,
        reason=fields.text("reason"),
    )


_NOT_ENDED = {"composed", "started", "skipped"}


# What result.json says

RETURN_LIMIT = 4096
"""Longest return value that goes into the journal, characters of JSON; result.json has it all."""

_LONGEST = 300  # characters of a root cause


def forget_result(directory: str) -> None:
    """Take away the result.json of an earlier run in a directory, before a job starts there.

    So what is there afterwards is the job's, whatever the clocks say.

    Raises:
        OutputError: it cannot be taken away.
    """
    path = os.path.join(directory, RESULT)
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def read_result(directory: str) -> RunResult | None:
    """Return what the result.json in a directory says, None if there is none that makes sense.

    Raises:
        OutputError: it is there and cannot be read.
    """
    # a sweep that begins has none to read
    from lllaunch.run import result  # noqa: PLC0415

    path = os.path.join(directory, RESULT)
    try:
        return result.read_result(path, directory)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except ValueError:
        return None


def read_results(sweep: str, jobs: Iterable[JobHistory]) -> dict[int, Result]:
    """Reads what became of jobs, journalled or not.

    Args:
        sweep: the sweep's directory, absolute.
        jobs: what the journal tells of them.

    Returns:
        by number, the results that are there: what result.json says. Where there is none of its
        own, what the journal says: the job has no directory, or a job that was started later has
        the same.

    Raises:
        OutputError: one cannot be read.
    """
    known = sorted(jobs, key=lambda job: (job.started_ns, job.job))
    last = {job.directory: job.job for job in known if job.directory}
    found = {
        job.job: _own_result(sweep, job) if last.get(job.directory) == job.job else job.result
        for job in known
    }
    return {number: result for number, result in found.items() if result is not None}


def _own_result(sweep: str, job: JobHistory) -> Result | None:
    run = read_result(os.path.join(sweep, job.directory))
    if run is None or not (job.started_ns or _began_after(run, job.composed_ns)):
        return None  # whatever is there is somebody else's
    return result_of(run)


def _began_after(run: RunResult, composed_ns: int) -> bool:
    """Whether a run is that of a job whose start the journal has lost.

    Only a journal that was damaged, or whose end never came to the disk, has lost it, so this goes
    by the clock: results of earlier runs are still there until a job starts.
    """
    return 0 < composed_ns <= run.started_ns


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


def believed(exit_code: int, result: Result | None) -> int:
    """Return what a job ended with, by its process and by its result.json, as a resume sees it."""
    if result is None:
        return exit_code or int(ExitCode.ERROR)
    if result.succeeded:
        # all was done and said
        return 0
    if exit_code == 0:
        return result.exit_code or int(ExitCode.ERROR)
    return exit_code
