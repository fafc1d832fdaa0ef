"""What became of a job, as the result.json of its run tells."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from lllaunch.documents import Fields, load_json
from lllaunch.errors import OutputError
from lllaunch.run.directory import RESULT
from lllaunch.sweep.journal import Result
from lllaunch.text import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lllaunch.run.result import ResultFile
    from lllaunch.sweep.history import JobHistory

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


def read_result(directory: str) -> ResultFile | None:
    """Return what the result.json in a directory says, None if there is none.

    Raises:
        OutputError: it is there and cannot be read.
    """
    path = os.path.join(directory, RESULT)
    try:
        document = load_json(path)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except ValueError:
        return None
    if document is None:
        return None
    # a sweep that begins has none to read
    from lllaunch.run.result import ResultFile  # noqa: PLC0415

    return ResultFile(Fields(document), directory)


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
    return result_of(read_result(os.path.join(sweep, job.directory)))


def result_of(run: ResultFile | None) -> Result | None:
    """Return what a journal keeps of a result.json, None if that does not say how the run ended."""
    if run is None or not run.state or run.exit_code is None:
        return None
    return Result(
        state=run.state,
        exit_code=run.exit_code,
        root_cause=first_line(run.root_cause, _LONGEST),
        seconds=run.seconds,
        return_value=_returned(run.value()),
    )


def _returned(value: Fields) -> str | None:
    """Return a worker's value as JSON text, None if that is nothing or too long."""
    text = json.dumps(value.value("value")) if "value" in value else None
    return text if text is None or len(text) <= RETURN_LIMIT else None
