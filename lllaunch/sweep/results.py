"""What became of a job, as the result.json of its run tells."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lllaunch.errors import OutputError
from lllaunch.sweep.journal import Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lllaunch.sweep.history import JobHistory

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
