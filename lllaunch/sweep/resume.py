"""Which jobs of a sweep that is resumed run, and under which numbers. Pure.

Jobs are matched by their overrides: first those whose overrides are the same, then those that
differ only in overrides that do not change a job's outcome (`lllaunch.sweep.fingerprint.NEUTRAL`).
Where several have the same overrides, each is matched once, in the order of their numbers. The
others are new, or were there before and never started, which the journal does not tell apart: each
gets the number of its place in the sweep if that is free.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lllaunch.documents import differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.sweep.fingerprint import job_key, overrides_key
from lllaunch.sweep.history import JobHistory
from lllaunch.text import spans
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    Configs: TypeAlias = Mapping[int, Mapping[str, Any] | None]
    Compose: TypeAlias = Callable[
        [Sequence[tuple[int, JobHistory]]], Generator[Mapping[str, Any], None, None]
    ]


_MOST_LINES = 8  # of a difference, which is one of several
_WIDEST = 60  # characters of a value in it

_ENOUGH = 50  # jobs that have changed; to compose many more, only to say the same, takes long


def match_jobs(
    old: Iterable[JobHistory],
    overrides: Sequence[Sequence[str]],
    first: int = 0,
    *,
    clusters: bool = False,
) -> list[JobHistory]:
    """Finds the old job of each new one. Needs no config.

    Returns each job, in the order of ``overrides``: one that was there before keeps its number and
    its directory. No number occurs twice. A job that is new gets the number of its place, or where
    that is not free one above all old jobs'.
    """
    free = {job.job: job for job in old}
    known = {*free}
    above = max(free, default=first - 1) + 1
    matched: dict[int, JobHistory] = {}
    # first by all overrides, then by those that change a job's outcome
    for neutral in (True, False):
        wanted: dict[str, list[int]] = {}
        for index, texts in enumerate(overrides):
            if index not in matched:
                key = overrides_key(texts, neutral, clusters=clusters)
                wanted.setdefault(key, []).append(index)
        alike: dict[str, list[JobHistory]] = {}
        for job in free.values():
            key = overrides_key(job.overrides, neutral, clusters=clusters)
            alike.setdefault(key, []).append(job)
        for key, indexes in wanted.items():
            # where there are more than needed, those that have finished
            best = sorted(alike.get(key, ()), key=lambda job: (not job.finished, job.job))
            chosen = sorted(best[: len(indexes)], key=lambda job: job.job)
            for index, job in zip(indexes, chosen, strict=False):
                matched[index] = free.pop(job.job)
    new = [index for index in range(len(overrides)) if index not in matched]
    given = {index: first + index for index in new if first + index not in known}
    known.update(given.values())
    more = (number for number in itertools.count(above) if number not in known)
    for index in new:
        matched[index] = JobHistory(given[index] if index in given else next(more))
    return [matched[index] for index in range(len(overrides))]


def plan_resume(
    old: Iterable[JobHistory],
    overrides: Sequence[Sequence[str]],
    compose: Compose,
    *,
    first: int = 0,
    configs_of: Callable[[Collection[int]], Configs] = lambda _: {},
    clusters: bool = False,
) -> list[JobHistory]:
    """Decides what becomes of each job of a sweep that is resumed.

    ``compose``: composes those that have finished, one after another, to the canonical config that
    they would have now; called with the place of each in ``overrides`` and the old job. Not all
    that it would compose need be wanted. ``configs_of``: the canonical configs of old jobs, as far
    as they were kept; asked for those whose fingerprint has changed.

    Raises:
        ConfigError: the config of a job that has finished is another one now; says in what.
    """
    matches = match_jobs(old, overrides, first, clusters=clusters)
    finished = [(index, job) for index, job in enumerate(matches) if job.finished]
    now: dict[int, Mapping[str, Any]] = {}  # of those that have changed; not of all
    looked_at = 0
    with contextlib.closing(compose(finished)) as composed:
        for (_, job), config in zip(finished, composed, strict=True):
            looked_at += 1
            if job.fingerprint != job_key(config):
                now[job.job] = config
                if len(now) >= _ENOUGH:
                    break
    if not now:
        return matches
    before = configs_of(now.keys())
    # for each difference the jobs that have it, by number
    changed: dict[tuple[str, ...], list[JobHistory]] = {}
    for job in sorted((job for _, job in finished if job.job in now), key=lambda job: job.job):
        kept = before.get(job.job)
        # the journal does not keep the order of keys
        change = () if kept is None else differences(kept, now[job.job], ordered=False)
        changed.setdefault(tuple(text_lines(change, _MOST_LINES, _WIDEST)), []).append(job)
    *most, last = [_problem(change, jobs) for change, jobs in changed.items()]
    if others := len(finished) - looked_at:
        text = f"({others} more of those that have finished were not compared)"
        last = replace(last, hint=f"{last.hint}\n    {text}")
    raise ConfigError((*most, last))


def _problem(change: Sequence[str], jobs: Sequence[JobHistory]) -> Diagnostic:
    what = [*change] or ["what has changed is not known: the old config was not kept"]
    numbers = [job.job for job in jobs]
    if len(jobs) == 1:
        overrides = " ".join(jobs[0].overrides)
        whose = f"job {numbers[0]} ({overrides})" if overrides else f"job {numbers[0]}"
        message = "has finished, and its config has changed since"
        delete = "delete its result.json to run it again"
    else:
        whose = f"jobs {spans(numbers)}"
        message = "have finished, and their configs have changed since"
        delete = "delete their result.json files to run them again"
    ways = f"put it back, begin another sweep, or {delete}"
    return Diagnostic("changed", RESUME, whose, message, "\n    ".join([f"{ways}:", *what]))
