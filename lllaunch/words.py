"""The words for people: states, causes, steps, times, ranks, jobs and paths. Pure.

Whatever shows a run or a sweep takes its words from here, so that the same thing reads the same on
the console, in tables, reports and pages.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.documents import signal_name
from lllaunch.files import relative_path
from lllaunch.text import count, duration, first_line, plain, printable, spans
from lllaunch.workers.terminal import cells

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lllaunch.run.repository import Build
    from lllaunch.run.result import Reached
    from lllaunch.spec import RestartCause
    from lllaunch.sweep.objective import Objectives
    from lllaunch.watchdog.progress import Progress


class StyledText(NamedTuple):
    """A line, or a part of one."""

    text: str  # what it says, without a newline
    # how it looks on a terminal: ``title``, ``error``, ``good``, ``bad``, ``busy``, ``cause``,
    # ``quote``, ``faint``, or nothing special
    style: str = ""


class State(NamedTuple):
    """How a state of a run, a sweep, a job or a worker looks."""

    style: str = ""  # as in `StyledText`
    sign: str = "?"  # one character that stands for it
    order: int = 4  # place in a list of jobs: what needs attention comes first


STATES: Mapping[str, State] = {
    "running": State("busy", "▸", 0),
    "starting": State("busy", "▸"),
    "queued": State("busy", "·", 1),
    "failed": State("bad", "✕", 2),
    "error": State("bad", "✕", 2),
    "died": State("bad", "✕", 2),
    "not_submitted": State("bad", "✕"),
    "victim": State("bad", "▽"),
    "lost": State("bad", "?"),
    "unknown": State("bad", "?"),
    "signalled": State("bad", "■", 3),
    "cancelled": State("bad", "■"),
    "stopped": State("", "■"),
    "paused": State("", "·"),
    "waiting": State("", "·", 5),
    "succeeded": State("good", "✓", 6),
    "ended": State("good", "■"),
    "not_run": State("", "·", 7),
    "not_started": State("", "·"),
    "skipped": State("", "·"),
}
"""All states that anything has."""


MEANINGS = {
    "succeeded": "all workers succeeded; for a sweep: all jobs",
    "failed": "workers failed; for a sweep: not all jobs succeeded",
    "signalled": "a signal to the launcher ended it",
    "error": "lllaunch itself failed",
    "running": "its launcher is alive",
    "died": "its launcher ended without a result: killed, or the machine went down",
    "not_submitted": "its cluster refused it, or its submission was broken off",
    "cancelled": "a job that was cancelled before it started",
    "queued": "waiting in the queue of a cluster",
    "waiting": "a job of a running sweep that has not started",
    "not_run": "a job that its sweep never started",
    "unknown": "its files cannot be read or are incomplete",
}
"""What the states of runs, sweeps and jobs mean."""


UNFINISHED = {
    "running": "still running",
    "queued": "still waiting in the queue of its cluster",
    "died": "no result.json: its launcher was killed, or the machine went down",
}
"""What is to be said of a run that is not over, by the state of its directory."""


def state_style(state: str) -> str:
    """Return the style of a state, known or not."""
    return STATES.get(state, State()).style


def state_text(state: str) -> str:
    """Return a state as tables and options show it: ``not-run``."""
    return state.replace("_", "-")


_TITLES = {
    "signalled": "Ended by a signal",
    "running": "Still running",
    "queued": "Waiting in the queue",
    "unknown": "Not known to be over",
}


def state_title(state: str) -> str:
    """Return a state as the title of a page has it: ``Not submitted``."""
    return _TITLES.get(state, capitalised(state.replace("_", " ")))


# What the journal calls the states of jobs, and what people are told.
_OF_JOBS = {
    "error": "failed",
    "signalled": "failed",
    "died": "failed",
    "composed": "not run",
    "skipped": "not run",
    "not_run": "not run",
    "started": "unknown",
}


def job_state(state: str) -> str:
    """Return what a job of a sweep is said to be: `failed`, whatever ended it."""
    return _OF_JOBS.get(state, state)


FAILED: Mapping[RestartCause, str] = {
    "failure": "failed",
    "oom": "ran out of memory",
    "hang": "hung",
    "signal": "was ended by a signal",
    "timeout": "took too long",
    "node": "lost a node",
}
"""What an attempt did, by the cause of its retry."""


BEGAN = {
    "failure": "a worker failed",
    "died": "a signal ended a worker",
    "oom": "memory had run out",
    "hang": "workers hung",
    "timeout": "an attempt took too long",
    "spawner": "the process that forks workers was lost",
    "membership": "other nodes came or left",
    "node": "a node was lost",
    "preflight": "the preflight failed",
}
"""Why an attempt began, by the reason of its restart."""


PUT_BACK = {
    "preempted": "preempted",
    "timeout": "time limit",
    "node_failure": "a node was lost",
    "failed": "tried again after a failure",
}
"""Why a batch job went back into the queue."""


def exit_text(code: int | None) -> str:
    """Return how a worker ended as the predicate of a sentence."""
    if code is None:
        return "ended, nobody knows how"
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    return "succeeded" if code == 0 else f"ended with exit status {code}"


_WIDTH = 76
_SIGNALS = 128  # an exit code beyond this is that of a signal
_LONGEST_CAUSE = 300
# Where in its own source a C++ library checked, of which the user has no copy: gloo, NCCL, torch.
_CHECKED_AT = re.compile(r"\[(?:enforce fail at )?/?[\w./+-]+\.(?:cc|cpp|cu|h|hpp):\d+\] ?(?:\. )?")


def cause_line(text: str, most: int = 200) -> str:
    """Return the first line of a cause without where a C++ library checked, shortened.

    The end of a message is advice; what happened stands at the beginning.
    """
    return first_line(_CHECKED_AT.sub("", text.strip().partition("\n")[0], count=1), most)


def ranks(numbers: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 5``."""
    return _numbered("rank", numbers)


def whose(numbers: Iterable[int], nodes: Mapping[int, str] | None = None) -> str:
    """Return ``rank 1``, ``ranks 0-2 on node 1``, or for none ``all workers``.

    A node is named if ``nodes`` says that all are on it.
    """
    numbers = tuple(numbers)
    if not numbers:
        return "all workers"
    names = {(nodes or {}).get(rank, "") for rank in numbers}
    node = f" on {names.pop()}" if len(names) == 1 and names != {""} else ""
    return f"{ranks(numbers)}{node}"


def named_jobs(numbers: Iterable[int]) -> str:
    """Return ``job 3`` or ``jobs 0-2, 5``."""
    return _numbered("job", numbers)


def _numbered(noun: str, numbers: Iterable[int]) -> str:
    known = set(numbers)
    return f"{noun if len(known) == 1 else f'{noun}s'} {spans(known)}"


def counted(number: int, noun: str) -> str:
    """Return ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def capitalised(text: str) -> str:
    """Return a text as it stands at the beginning of a sentence; names keep their capitals."""
    return f"{text[:1].upper()}{text[1:]}"


def shown_path(path: str, cwd: str) -> str:
    """Return a path as the user would type it: relative where it lies below ``cwd``.

    A path that holds what a terminal cannot show in one line comes quoted.
    """
    shown = relative_path(path, cwd)
    return shown if shown.isprintable() else repr(shown)


def wrapped(parts: Iterable[str | StyledText]) -> Iterator[StyledText]:
    """Yield the lines of a report; a text becomes indented lines of bounded width."""
    for part in parts:
        if isinstance(part, StyledText):
            yield part
            continue
        for line in textwrap.wrap(part, _WIDTH, break_long_words=False, break_on_hyphens=False):
            yield StyledText(f"    {line}")


_MOST_METRICS = 3
# With the words around it that is a line of the report.
_LONGEST_PROGRESS = 64
_LONGEST_METRIC_NAME = 24


def step_text(step: float, total: float | None) -> str:
    """Return ``step 1200 of 5000 (24 %)``, or ``step 1200`` if the total is unknown."""
    if not total:
        return f"step {count(step)}"
    # 599 of 600 are 99 %
    return f"step {count(step)} of {count(total)} ({100 * step // total:.0f} %)"


def short_step(step: float, total: float | None) -> str:
    """Return ``1200/5000``, or ``1200``: the same for a table."""
    return count(step) if not total else f"{count(step)}/{count(total)}"


def progress_text(progress: Progress | Reached) -> str:
    """Return the step, and some of the numbers beside it: ``step 1200 of 5000 (24 %), loss 0.3``.

    Losses come first. Long names are shortened, and what has no room is left out.
    """
    text = step_text(progress.step, progress.total)
    metrics = sorted(progress.metrics.items(), key=lambda pair: "loss" not in pair[0])
    for name, value in metrics[:_MOST_METRICS]:
        longer = f"{text}, {printable(name, _LONGEST_METRIC_NAME)} {count(value)}"
        if len(longer) <= _LONGEST_PROGRESS:
            text = longer
    return text


def ending(exit_code: int | None, why: str) -> str:
    """Return how a job ended: ``exit code 3: rank 1: ValueError: no``, ``SIGKILL (exit code 137)``.

    ``why``: its first failure, or an empty string.
    """
    text = "" if exit_code is None else f"exit code {exit_code}"
    why = printable(cause_line(why, _LONGEST_CAUSE), _LONGEST_CAUSE)
    if exit_code is not None and exit_code > _SIGNALS:
        name = signal_name(exit_code - _SIGNALS)
        text, why = f"{name} ({text})", "" if why == name else why
    return ": ".join(filter(None, (text, why))) or "no result"


# Times


def passed(seconds: float | None) -> str:
    """Return how long it has been, in whole seconds: ``3 min 20 s``; empty for None."""
    if seconds is None:
        return ""
    whole = int(max(0.0, seconds))
    return duration(float(whole)) if whole >= 10 else f"{whole} s"


def took(seconds: float | None) -> str:
    """Return how long something took: ``0.3 s``; empty for None."""
    return "" if seconds is None else duration(seconds)


def time_left(seconds: float) -> str:
    """Return ``about 41 min left``: no more exactly than anybody can know."""
    if seconds < 60:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min left"
    return f"about {duration(minutes * 60.0)} left"


def rate_text(rate: float) -> str:
    """Return ``12.3/s``, or ``8.1 s a step``."""
    if rate >= 1:
        return f"{rate:.3g}/s" if rate < 1000 else f"{count(round(rate))}/s"
    return f"{duration(1 / rate)} a step"


# Jobs of sweeps

_LONGEST_OVERRIDES = 200
_LONGEST_NUMBER = 12
_LONGEST_VALUE = 24  # columns


def short_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Return ``lr=0.1 nproc=2`` of ``params.lr=0.1 launch.nproc=2 +exp=resnet``.

    ``overrides``: of the job. ``common``: those that all jobs have, and that are left out.
    """
    own = [each for each in overrides if each not in common]
    pairs = [each.partition("=") for each in own]
    keys = [re.split(r"[./]", key.lstrip("+"))[-1] for key, _, _ in pairs]
    often = Counter(keys)
    # a key whose short name another one has, too, is shown as it is
    texts = [
        f"{key}={_short(value)}" if equals and often[key] == 1 else each
        for each, key, (_, equals, value) in zip(own, keys, pairs, strict=True)
    ]
    return printable(" ".join(texts), _LONGEST_OVERRIDES)


def _short(value: str) -> str:
    """Return a value; a number with more digits than anybody compares is rounded."""
    with contextlib.suppress(ValueError):
        return f"{float(value):.6g}" if len(value) > _LONGEST_NUMBER else value
    return value


def objective_text(value: Any) -> str:
    """Return what a job returned; an empty string if that is nothing, or long."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if cells(text) <= _LONGEST_VALUE else ""


def extremes_text(objectives: Objectives) -> str:
    """Return ``best 0.01 of job 4 (lr=0.1)``, or the lowest and the highest without a direction.

    An empty string if there is nothing to compare.
    """
    found = objectives.extremes
    if objectives.direction is None and len({objective.value for _, objective in found}) < 2:
        return ""
    return ", ".join(
        f"{what} {objective_text(best.value)} of job {best.job}"
        + (f" ({best.name})" if best.name else "")
        for what, best in found
    )


def short_extremes(objectives: Objectives) -> str:
    """Return ``best 0.01 (job 4)``: the same in short, also if there is only one."""
    return ", ".join(
        f"{what} {objective_text(objective.value)} (job {objective.job})"
        for what, objective in objectives.extremes
    )


def counts_text(counts: Iterable[tuple[int | None, str]]) -> str:
    """Return ``3 failed, 2 running``, without zeros."""
    return ", ".join(f"{number} {what}" for number, what in counts if number)


def done_text(counts: Mapping[str, int]) -> str:
    """Return ``12/200 done, 3 failed, 8 running, 177 waiting`` of a sweep's jobs by state."""
    return _jobs(counts, f"{counts.get('succeeded', 0)}/{sum(counts.values())} done")


def jobs_text(counts: Mapping[str, int]) -> str:
    """Return ``3 of 5 jobs succeeded, 1 failed, 1 not run`` of a sweep's jobs by state."""
    jobs = counted(sum(counts.values()), "job")
    return _jobs(counts, f"{counts.get('succeeded', 0)} of {jobs} succeeded")


def verdict_text(counts: Mapping[str, int], seconds: float | None, exit_code: int | None) -> str:
    """Return ``1 of 3 jobs succeeded, 2 failed in 0.8 s (exit code 6)`` of jobs by state."""
    text = jobs_text(counts) + ("" if seconds is None else f" in {duration(seconds)}")
    return f"{text} (exit code {exit_code})" if exit_code else text


def _jobs(counts: Mapping[str, int], good: str) -> str:
    told: Counter[str] = Counter()
    for state in dict.fromkeys((*MEANINGS, *counts)):
        if state != "succeeded":
            told[job_state(state).replace("_", " ")] += counts.get(state, 0)
    return ", ".join(filter(None, (good, counts_text((n, state) for state, n in told.items()))))


RESUME = "hydra.launcher.resume"
"""The setting that names a sweep to go on with."""


def resume_override(directory: str) -> str:
    """Return the override that resumes a sweep, as a shell takes it."""
    if not re.fullmatch(r"[\w./:-]+", directory):
        directory = "'" + directory.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return shlex.quote(f"{RESUME}={plain(directory)}")


# Builds


def commit_text(build: Build | None) -> str:
    """Return the commit that a run was built from, and whether the tree was changed."""
    if build is None:
        return ""
    problem = build.git_problem
    if not build.commit:
        return f"not known: {problem}" if problem else ""
    text = build.commit + (f" ({build.branch})" if build.branch else "")
    if build.dirty:
        told = counts_text(((build.changed, "changed"), (build.untracked, "untracked")))
        text += f", with changes ({told})" if told else ", with changes"
    return f"{text}; {problem}" if problem else text


def versions_text(build: Build | None) -> str:
    """Return the versions of packages and of Python that a run was built from."""
    if build is None:
        return ""
    packages = (f"{name} {version}" for name, version in build.versions.items())
    python = f"{build.implementation} {build.python}".strip()
    return ", ".join(filter(None, (*packages, python)))
