"""The line that a change of a sweep is worth. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lllaunch.console.fates import first_line
from lllaunch.console.places import printable
from lllaunch.console.sweep import board as c
from lllaunch.console.sweep.table import lease_text, running_jobs
from lllaunch.console.wording import Line, counted, shown_path
from lllaunch.run.causes import signal_name
from lllaunch.sweep.schedule import JobState as J
from lllaunch.units import duration

if TYPE_CHECKING:
    from lllaunch.policies import RestartCause

_LONGEST_CAUSE = 300
_SIGNALS = 128

_FAILED: dict[RestartCause, str] = {
    "failure": "failed",
    "oom": "ran out of memory",
    "hang": "hung",
    "signal": "was ended by a signal",
    "timeout": "took too long",
}


def change_lines(change: c.Change, directory: str, cwd: str) -> list[Line]:
    """Returns what is said of a change, the first line without ``lllaunch:``.

    Args:
        change: what changed.
        directory: the sweep's, absolute.
        cwd: directory that paths below it are shown relative to.
    """
    if isinstance(change, c.JobOver):
        return _over(change, directory, cwd)
    if isinstance(change, c.Began):
        return [Line(_began(change))]
    if isinstance(change, c.Held):
        slots = lease_text(change.slots)
        return [Line(f"job {change.number} waits for {slots}: held by another launcher")]
    if isinstance(change, c.StartsUnblocked):
        return [Line("what failed works again: jobs are started", "good")]
    return [Line(_cause(change), "cause")]


def _cause(change: c.JobRetried | c.Signalled | c.Draining | c.StartsBlocked) -> str:
    if isinstance(change, c.JobRetried):
        return _again(change)
    if isinstance(change, c.Signalled):
        return _signalled(change)
    return _draining(change) if isinstance(change, c.Draining) else _blocked(change)


def _began(change: c.Began) -> str:
    text = f"job {change.number} started"
    if change.overrides:
        text += f" ({change.overrides})"
    slots = lease_text(change.lease)
    if slots:
        text += f" on {slots}"
    return f"{text}, attempt {change.attempt}" if change.attempt else text


def _over(change: c.JobOver, directory: str, cwd: str) -> list[Line]:
    job, after = f"job {change.number}", duration(change.seconds)
    if change.state is J.SUCCEEDED:
        return [Line(f"{job} succeeded in {after}", "good")]
    if change.state is J.CANCELLED:
        return [Line(f"{job} was cancelled after {after}")]
    if not change.attempts:
        return _unable(change)
    where = shown_path(os.path.join(directory, change.directory), cwd)
    text = f"{job} failed after {after}"
    if change.attempts > 1:
        text += f" in attempt {change.attempts - 1}"
    return [Line(f"{text}: {ending(change.exit_code, change.why)}; logs in {where}", "title")]


def _unable(change: c.JobOver) -> list[Line]:
    """A job that was never started: why, perhaps in several lines."""
    job = f"job {change.number}"
    if change.overrides:
        job += f" ({change.overrides})"
    first, *rest = change.why.strip().splitlines() or [""]
    code = f" (exit code {change.exit_code})" if change.exit_code is not None else ""
    head = Line(f"{job} cannot run{code}: {printable(first, _LONGEST_CAUSE)}", "title")
    return [head, *(Line(f"  {printable(text, _LONGEST_CAUSE)}") for text in rest)]


def ending(exit_code: int | None, why: str) -> str:
    """Returns ``exit code 3: rank 1: ValueError: no`` or ``SIGKILL (exit code 137)``.

    Args:
        exit_code: of a job, or None.
        why: the first failure in one line, or an empty string.
    """
    text = "" if exit_code is None else f"exit code {exit_code}"
    if exit_code is not None and exit_code > _SIGNALS:
        text = f"{signal_name(exit_code - _SIGNALS)} ({text})"
    why = printable(first_line(why, _LONGEST_CAUSE), _LONGEST_CAUSE)
    return ": ".join(filter(None, (text, why))) or "no result"


def _again(change: c.JobRetried) -> str:
    failed = f"{_FAILED[change.cause]} after {duration(change.seconds)}"
    text = f"job {change.number}: attempt {change.attempt} {failed}"
    when = f" in {duration(change.wait)}" if change.wait else ""
    count = f" ({change.retry}" + (")" if change.of is None else f" of {change.of})")
    return f"{text}: {ending(change.exit_code, change.why)}; trying again{when}{count}"


def _signalled(change: c.Signalled) -> str:
    name, jobs = signal_name(change.signum), running_jobs(change.running)
    if change.again:
        return f"{name} received again: {jobs} killed"
    text = f"{name} received: no new jobs start"
    if not change.running:
        return text
    whom = f"forwarded to {jobs}" if change.forward else f"{jobs} got it too"
    return f"{text}; {whom}; SIGKILL follows after the grace period, or now on a second signal"


def _blocked(change: c.StartsBlocked) -> str:
    why = printable(change.why, _LONGEST_CAUSE)
    return f"{why}; no job is started until that works again, those that run go on"


def _draining(change: c.Draining) -> str:
    have = "has" if change.failed == 1 else "have"
    text = f"{counted(change.failed, 'job')} {have} failed: no more are started"
    if not change.running:
        return text
    goes = "goes" if change.running == 1 else "go"
    return f"{text}; {running_jobs(change.running)} {goes} on"
