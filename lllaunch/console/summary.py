"""What is shown when a sweep is over: a table, failures, the objective, one last line. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.table import Column, Row, rows_of
from lllaunch.text import duration
from lllaunch.words import (
    StyledText,
    counted,
    ending,
    extremes_text,
    job_state,
    jobs_text,
    named_jobs,
    objective_text,
    resume_override,
    short_overrides,
    shown_path,
    state_style,
    took,
)
from lllaunch.workers.terminal import cut

if TYPE_CHECKING:
    from collections.abc import Collection

    from lllaunch.sweep.history import JobHistory, SweepResult

_MOST_ROWS = 50
_MOST_FAILURES = 12
_MOST_LOGS = 3
_WIDEST = 60
_INDENT = "  "

_RANK = re.compile(r"\brank \d+: ")


class Setting(NamedTuple):
    """What a summary needs to know beside sweep.json."""

    directory: str
    cwd: str
    total: int = 0  # number of jobs
    common: Collection[str] = ()  # overrides that all jobs share
    cancelled: Collection[int] = ()  # numbers of the jobs that a signal to the launcher ended
    columns: int = 0  # of the terminal; 0 where there is none
    # how the app was called, where that and the directory are all that a resume needs; empty where
    # it needs the whole command line; None if there is no resuming
    resume: str | None = ""


def summary_rows(result: SweepResult, setting: Setting) -> list[Row]:
    """Return what is shown of a sweep that is over."""
    jobs = result.jobs
    states = {job.job: _state(job, setting) for job in jobs}
    failed = [job for job in jobs if states[job.job] == "failed"]
    ran = [job for job in jobs if states[job.job] != "not run"]
    counts = Counter(states.values())
    # some of them are known by now, and others were not even composed
    counts["not run"] += max(0, setting.total - len(jobs))
    chosen = ran if len(ran) <= _MOST_ROWS else failed[:_MOST_ROWS]
    rows: list[Row] = []
    if chosen:
        objective = any(objective_text(job.value) for job in jobs)
        rows += [(), *_table(chosen, states, setting, objective=objective)]
        more = len(failed) - len(chosen)
        if len(ran) > _MOST_ROWS and more > 0:
            rows.append((StyledText(f"  and {more} more failed, see sweep.json", "faint"),))
        if not_run := counts["not run"]:
            were = "was" if not_run == 1 else "were"
            text = f"  and {counted(not_run, 'job')} that {were} not run"
            rows.append((StyledText(text, "faint"),))
    if failed:
        rows += [(), *_failures(failed, setting)]
    objectives = extremes_text(result.objectives(setting.common))
    rows += [(), *([(StyledText(f"lllaunch: objective: {objectives}"),)] if objectives else [])]
    all_good = counts["succeeded"] == counts.total()
    path = shown_path(os.path.join(setting.directory, "sweep.json"), setting.cwd)
    style = "good" if all_good and not result.exit_code else "error"
    rows.append((StyledText(f"lllaunch: {verdict_text(result, counts)}; {path}", style),))
    if not all_good and setting.resume is not None:
        again = resume_override(shown_path(setting.directory, setting.cwd))
        how = f": {setting.resume}" if setting.resume else ", add to the same command:"
        rows.append((StyledText(f"lllaunch: to run the rest{how} {again}"),))
    return rows


def _state(job: JobHistory, setting: Setting) -> str:
    if job.job in setting.cancelled and job.state != "succeeded":
        return "cancelled"
    # one whose end is not known is no success
    return job_state(job.state).replace("unknown", "failed")


def _table(
    jobs: Sequence[JobHistory], states: dict[int, str], setting: Setting, *, objective: bool
) -> list[Row]:
    columns = [
        Column("job", lambda job: job.job),
        Column(
            "overrides",
            lambda job: short_overrides(job.overrides, setting.common),
            right=False,
            most=0 if setting.columns else _WIDEST,
            cut=cut,
        ),
        Column("state", lambda job: states[job.job], right=False),
        Column("tries", lambda job: job.tries),
        Column("time", lambda job: None if job.result is None else job.result.seconds, took),
    ]
    if objective:
        columns.append(Column("objective", lambda job: objective_text(job.value)))
    styles = [state_style(states[job.job]) for job in jobs]
    width = setting.columns and setting.columns - 1 - len(_INDENT)
    rows = rows_of(columns, jobs, styles, width, spare=())
    return [(StyledText(_INDENT), *row) for row in rows]


def _failures(failed: Sequence[JobHistory], setting: Setting) -> Iterator[Row]:
    """Report why jobs failed, those that failed for the same reason together."""
    groups: dict[str, list[JobHistory]] = {}
    for job in failed:
        # whichever rank came first
        groups.setdefault(_RANK.sub("", _why(job)), []).append(job)
    for jobs in list(groups.values())[:_MOST_FAILURES]:
        name = short_overrides(jobs[0].overrides, setting.common) if len(jobs) == 1 else ""
        who = named_jobs(job.job for job in jobs) + (f" ({name})" if name else "")
        yield (StyledText(f"  {who} failed: ", "bad"), StyledText(_why(jobs[0])))
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
    end = job.result
    return "its end is not known" if end is None else ending(end.exit_code, end.root_cause)


def verdict_text(result: SweepResult, counts: Mapping[str, int]) -> str:
    """Return ``1 of 3 jobs succeeded, 2 failed in 0.8 s (exit code 6)`` of jobs by state."""
    text = jobs_text(counts)
    text += "" if result.seconds is None else f" in {duration(result.seconds)}"
    return f"{text} (exit code {result.exit_code})" if result.exit_code else text
