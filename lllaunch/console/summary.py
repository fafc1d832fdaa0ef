"""What is said when a sweep is over: a table, failures, the objective, one last line. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.table import (
    Row,
    Table,
    counts_text,
    extremes_text,
    objective_text,
    short_overrides,
)
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.sweep.policy import Summary
from lllaunch.text import duration, plain
from lllaunch.words import StyledText, counted, ending, named_jobs, shown_path

if TYPE_CHECKING:
    from collections.abc import Collection

    from lllaunch.sweep.history import JobHistory, SweepResult


def has_objective(jobs: Sequence[JobHistory]) -> bool:
    """Whether some job returned something short."""
    return any(objective_text(job.value) for job in jobs)


_MOST_ROWS = 50
_MOST_FAILURES = 12
_MOST_LOGS = 3
_WIDEST = 60
_INDENT = "  "
# What sweep.json calls the states, and what they are called here.
_STATES = {
    "error": "failed",
    "signalled": "failed",
    "composed": "not run",
    "skipped": "not run",
    "started": "unknown",
}
_STYLES = {"succeeded": "good", "failed": "bad", "unknown": "bad"}

_RANK = re.compile(r"\brank \d+: ")


class Setting(NamedTuple):
    """What a summary needs to know beside sweep.json.

    Attributes:
        directory: of the sweep, absolute.
        cwd: directory that paths below it are shown relative to.
        total: number of jobs.
        common: overrides that all jobs share.
        counts: what became of them, if the sweep said so.
        cancelled: numbers of the jobs that a signal to the launcher ended.
        columns: of the terminal; 0 where there is none.
        resume: how the app was called, where that and the directory are all that a resume needs;
            empty where it needs the whole command line; None if there is no resuming.
        seconds: how long the launcher took; None for as long as sweep.json says, which counts from
            the first launcher's start.
    """

    directory: str
    cwd: str
    total: int = 0
    common: Collection[str] = ()
    counts: Summary | None = None
    cancelled: Collection[int] = ()
    columns: int = 0
    resume: str | None = ""
    seconds: float | None = None


def summary_rows(result: SweepResult, setting: Setting) -> list[Row]:
    """Returns what is shown of a sweep that is over.

    Args:
        result: what became of it.
        setting: what else is to be known.
    """
    jobs = result.jobs
    failed = [job for job in jobs if _state(job, setting) in {"failed", "unknown"}]
    ran = [job for job in jobs if _state(job, setting) != "not run"]
    chosen = ran if len(ran) <= _MOST_ROWS else failed[:_MOST_ROWS]
    rows: list[Row] = []
    if chosen:
        rows += [(), *_table(chosen, setting, objective=has_objective(jobs))]
        more = len(failed) - len(chosen)
        if len(ran) > _MOST_ROWS and more > 0:
            rows.append((StyledText(f"  and {more} more failed, see sweep.json", "faint"),))
        # some of them are known by now, and others were not even composed
        never = (setting.counts or _counted(jobs, setting)).not_run
        if never:
            were = "was" if never == 1 else "were"
            rows.append(
                (StyledText(f"  and {counted(never, 'job')} that {were} not run", "faint"),)
            )
    if failed:
        rows += [(), *_failures(failed, setting)]
    rows += [(), *_objective(result, setting), *_verdict(result, setting)]
    return rows


def _state(job: JobHistory, setting: Setting) -> str:
    cancelled = job.job in setting.cancelled and job.state != "succeeded"
    return "cancelled" if cancelled else _STATES.get(job.state, job.state)


def _name(job: JobHistory, setting: Setting) -> str:
    return short_overrides(job.overrides, setting.common)


def _table(jobs: Sequence[JobHistory], setting: Setting, *, objective: bool) -> list[Row]:
    table = Table()
    table.add("job", [str(job.job) for job in jobs], right=True)
    table.add("state", [_state(job, setting) for job in jobs])
    table.add("tries", [str(job.tries) for job in jobs], right=True)
    table.add("time", [_seconds(job) for job in jobs], right=True)
    if objective:
        table.add("objective", [objective_text(job.value) for job in jobs], right=True)
    # the last column has no gap behind it, but all are indented as much
    room = setting.columns - 1 - table.width - len(_INDENT)
    widest = max(room, len("overrides")) if setting.columns else _WIDEST
    table.add("overrides", [_name(job, setting) for job in jobs], most=widest, at=1)
    return table.rows([_STYLES.get(_state(job, setting), "") for job in jobs], indent=_INDENT)


def _seconds(job: JobHistory) -> str:
    return "" if job.result is None or job.result.seconds is None else duration(job.result.seconds)


def _failures(failed: Sequence[JobHistory], setting: Setting) -> Iterator[Row]:
    """Tells why jobs failed, those that failed of the same together."""
    groups: dict[str, list[JobHistory]] = {}
    for job in failed:
        # whichever rank came first
        groups.setdefault(_RANK.sub("", _why(job)), []).append(job)
    for jobs in list(groups.values())[:_MOST_FAILURES]:
        why = _why(jobs[0])
        name = _name(jobs[0], setting) if len(jobs) == 1 else ""
        who = named_jobs(job.job for job in jobs) + (f" ({name})" if name else "")
        yield (StyledText(f"  {who} failed: ", "bad"), StyledText(why))
        tried = [job for job in jobs if job.tries]
        logs = [
            shown_path(os.path.join(setting.directory, job.directory), setting.cwd)
            for job in tried[:_MOST_LOGS]
        ]
        more = f" and {len(tried) - len(logs)} more" if len(tried) > len(logs) else ""
        if logs:
            yield (StyledText(f"    logs in {', '.join(logs)}{more}", "faint"),)
    rest = sum(len(jobs) for jobs in list(groups.values())[_MOST_FAILURES:])
    if rest:
        yield (StyledText(f"  and {counted(rest, 'more job')} for other reasons, see sweep.json"),)


def _why(job: JobHistory) -> str:
    if job.result is None:
        return "its end is not known"
    return ending(job.result.exit_code, job.result.root_cause)


def _objective(result: SweepResult, setting: Setting) -> Iterator[Row]:
    found = (
        Objective(job.objective, job.job, _name(job, setting))
        for job in result.jobs
        if job.objective is not None
    )
    text = extremes_text(Objectives(result.direction, found))
    if text:
        yield (StyledText(f"lllaunch: objective: {text}"),)


def _verdict(result: SweepResult, setting: Setting) -> Iterator[Row]:
    counts = setting.counts or _counted(result.jobs, setting)
    good, code = counts.succeeded + counts.skipped, result.exit_code
    rest = counts_text(
        (
            (counts.failed, "failed"),
            (counts.cancelled, "cancelled"),
            (counts.not_run, "not run"),
        )
    )
    text = f"{good} of {counted(sum(counts), 'job')} succeeded"
    text += f", {rest}" if rest else ""
    seconds = result.seconds if setting.seconds is None else setting.seconds
    if seconds is not None:
        text += f" in {duration(seconds)}"
    text += f" (exit code {code})" if code else ""
    path = shown_path(os.path.join(setting.directory, "sweep.json"), setting.cwd)
    whole = good == sum(counts)
    yield (StyledText(f"lllaunch: {text}; {path}", "good" if whole and not code else "error"),)
    if not whole and setting.resume is not None:
        again = resume_override(shown_path(setting.directory, setting.cwd))
        how = f": {setting.resume}" if setting.resume else ", add to the same command:"
        yield (StyledText(f"lllaunch: to run the rest{how} {again}"),)


def _counted(jobs: Sequence[JobHistory], setting: Setting) -> Summary:
    states = [_state(job, setting) for job in jobs]
    failed = states.count("failed") + states.count("unknown")
    return Summary(
        succeeded=states.count("succeeded"),
        failed=failed,
        cancelled=states.count("cancelled"),
        not_run=states.count("not run") + max(0, setting.total - len(jobs)),
    )


def resume_override(directory: str) -> str:
    """Returns the override that resumes a sweep, as a shell takes it."""
    if not re.fullmatch(r"[\w./:-]+", directory):
        directory = "'" + directory.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return shlex.quote(f"hydra.launcher.resume={plain(directory)}")
