"""sweep.json: what became of a sweep and of its jobs, for programs. Pure but for writing."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from lllaunch.run.events import isoformat
from lllaunch.run.files import write_atomic
from lllaunch.sweep.history import JobHistory
from lllaunch.sweep.records import plain_result
from lllaunch.sweep.vocabulary import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lllaunch.sweep.history import SweepHistory

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
    document: Mapping[str, Any], asked: Iterable[int], overrides: Callable[[int], Sequence[str]]
) -> dict[str, Any]:
    """Returns what sweep.json holds, with jobs that the sweep did not come to: they were not run.

    Args:
        document: as `summary_of` made it.
        asked: numbers of all jobs; what it has of some stays as it is.
        overrides: returns those of a job.
    """
    known = {job["job"] for job in document["jobs"]}
    never = JobHistory(0, state="skipped", reason=JobState.NOT_RUN.value)
    new = [
        _job(never._replace(job=number, overrides=tuple(overrides(number))))
        for number in asked
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
