"""What became of each job: what the journal tells, what its result.json tells, and sweep.json."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.errors import OutputError
from lllaunch.exit_codes import ExitCode
from lllaunch.run.events import isoformat
from lllaunch.run.files import write_atomic
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    plain_result,
)
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.schedule import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        started_ns: when it was started last, nanoseconds since the epoch, 0 if never.
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
    started_ns: int = 0
    ended_ns: int = 0
    result: Result | None = None
    reason: str = ""


class SweepHistory:
    """What is known of a sweep; give it the journal's entries, in order.

    Attributes:
        header: how the sweep was begun, or None.
        started_ns: when, nanoseconds since the epoch.
        resumes: how often it was resumed.
        exit_code: of the last launcher, None if that did not come to its end. Where it swept
            several batches: of the last one that did not end with 0, else 0.
        jobs: what is known of each job, by number.
    """

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        self.header: Header | None = None
        self.started_ns = 0
        self.resumes = 0
        self.exit_code: int | None = None
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
                self._bad = 0
            else:
                known = self.jobs.get(record.job) or JobHistory(record.job)
                self.jobs[record.job] = _with(known, record, time_ns)


def _with(
    known: JobHistory, record: ComposedRecord | StartedRecord | EndedRecord | Skipped, time_ns: int
) -> JobHistory:
    if isinstance(record, ComposedRecord):
        return JobHistory(
            known.job, record.overrides, record.directory, record.fingerprint, tries=known.tries
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


def summary_of(sweep: SweepHistory, ended_ns: int) -> dict[str, Any]:
    """Returns what sweep.json holds.

    Args:
        sweep: all that the journal tells.
        ended_ns: when the sweep ended, nanoseconds since the epoch.
    """
    header = sweep.header
    jobs = [sweep.jobs[number] for number in sorted(sweep.jobs)]
    return {
        "version": VERSION,
        "sweep": header.sweep if header else None,
        "lllaunch": header.lllaunch if header else None,
        "command": list(header.command) if header else [],
        "exit_code": sweep.exit_code,
        "started": isoformat(sweep.started_ns) if sweep.started_ns else None,
        "ended": isoformat(ended_ns),
        "seconds": (ended_ns - sweep.started_ns) / 1e9 if sweep.started_ns else None,
        "resumes": sweep.resumes,
        "counts": dict(sorted(Counter(job.state for job in jobs).items())),
        "jobs": [_job(job) for job in jobs],
    }


def with_others(
    document: Mapping[str, Any], numbers: Iterable[int], overrides: Callable[[int], Sequence[str]]
) -> dict[str, Any]:
    """Returns what sweep.json holds, with jobs that the sweep did not come to: they were not run.

    Args:
        document: as `summary_of` made it.
        numbers: of all jobs; what it has of some stays as it is.
        overrides: returns those of a job.
    """
    known = {job["job"] for job in document["jobs"]}
    never = JobHistory(0, state="skipped", reason=JobState.NOT_RUN.value)
    new = [
        _job(never._replace(job=number, overrides=tuple(overrides(number))))
        for number in numbers
        if number not in known
    ]
    jobs = sorted([*document["jobs"], *new], key=lambda job: job["job"])
    counts = dict(sorted(Counter(job["state"] for job in jobs).items()))
    return {**document, "counts": counts, "jobs": jobs}


def render_summary(document: Mapping[str, Any]) -> bytes:
    """Returns the text of sweep.json.

    Args:
        document: as `summary_of` made it.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def write_summary(path: str, document: Mapping[str, Any]) -> None:
    """Writes sweep.json.

    Args:
        path: the file.
        document: as `summary_of` made it.

    Raises:
        OutputError: it cannot be written; an older one is still there then.
    """
    write_atomic(path, render_summary(document))


def _job(job: JobHistory) -> dict[str, Any]:
    found = {"state": job.state} if job.result is None else plain_result(job.result)
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
        **found,
    }


# What result.json tells

RESULT = "result.json"

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


def read_result(directory: str) -> Result | None:
    """Reads what became of the run in a directory.

    Args:
        directory: where its result.json is.

    Returns:
        the result, None if there is none that can be understood: the run has not ended.

    Raises:
        OutputError: it is there and cannot be read.
    """
    return result_of(read_document(directory))


def read_document(directory: str) -> Any:
    """Reads what the result.json in a directory holds.

    Returns:
        it, None if there is none or it is not JSON.

    Raises:
        OutputError: it is there and cannot be read.
    """
    path = os.path.join(directory, RESULT)
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError):
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
    if not job.started_ns:
        return None  # whatever is there is somebody else's
    return read_result(os.path.join(sweep, job.directory))


def result_of(document: Any) -> Result | None:
    """Returns the short form of a result.json, None if that is not one; pure."""
    if not isinstance(document, Mapping):
        return None
    state, code, seconds = (document.get(key) for key in ("state", "exit_code", "seconds"))
    if not isinstance(state, str) or not isinstance(code, int):
        return None
    return Result(
        state=state,
        exit_code=code,
        root_cause=_one_line(_root_cause(document)),
        seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
        return_value=_returned(document),
    )


def _root_cause(document: Mapping[str, Any]) -> str:
    root = document.get("root_cause")
    cause = root.get("cause") if isinstance(root, Mapping) else None
    if isinstance(root, Mapping) and isinstance(cause, Mapping):
        rank = root.get("rank")
        text = str(cause.get("text", ""))
        return text if rank is None else f"rank {rank}: {text}"
    limit = document.get("limit")
    if isinstance(limit, Mapping):
        return str(limit.get("text", ""))
    if document.get("error"):
        return str(document["error"])
    return str(document.get("signal") or "")


def _one_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _returned(document: Mapping[str, Any]) -> str | None:
    """Returns what rank 0 returned as JSON text, None if that is nothing or too long."""
    values = document.get("return_values")
    first = values.get("0") if isinstance(values, Mapping) else None
    if not isinstance(first, Mapping) or "value" not in first:
        return None
    text = json.dumps(first["value"])
    return text if len(text) <= RETURN_LIMIT else None


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


def kind_of(document: Mapping[str, Any]) -> str:
    """Return what a result.json names as the ``type`` of its limit or root cause; pure."""
    root = document.get("root_cause")
    cause = root.get("cause") if isinstance(root, Mapping) else None
    for named in (document.get("limit"), cause):
        if isinstance(named, Mapping) and isinstance(named.get("type"), str):
            return str(named["type"])
    return ""
