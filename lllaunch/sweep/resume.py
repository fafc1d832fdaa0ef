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
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.difference import Change, differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.sweep.fingerprint import job_key, overrides_key
from lllaunch.text import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from lllaunch.sweep.history import JobHistory
    from lllaunch.sweep.journal import Result

_RESUME = "hydra.launcher.resume"
_MOST_LINES = 8  # of a difference, which is one of several
_WIDEST = 60  # characters of a value in it

_ENOUGH = 50  # jobs that have changed; to compose many more, only to say the same, takes long


class OldJob(NamedTuple):
    """A job of the sweep that is resumed."""

    history: JobHistory
    result: Result | None = None

    @property
    def number(self) -> int:
        """Its number."""
        return self.history.job

    @property
    def finished(self) -> bool:
        """Whether it need not run again: its result says so, whatever the journal knows."""
        return self.result is not None and self.result.succeeded

    @property
    def journalled(self) -> bool:
        """Whether the journal knows of that result."""
        return self.history.result is not None and self.history.result.succeeded


class NewJob(NamedTuple):
    """The config that a finished job would have now."""

    fingerprint: str | None = None
    config: Mapping[str, Any] | None = None
    former: str | None = None


class Match(NamedTuple):
    """What becomes of a job of a resumed sweep.

    One that was there before keeps its number and its directory, and does not run if it has
    finished. A new one has a number that no job in the journal has.
    """

    number: int
    old: OldJob | None = None

    @property
    def finished(self) -> bool:
        """Whether it may be skipped, if its config is what it was."""
        return self.old is not None and self.old.finished


def match_jobs(
    old: Iterable[OldJob],
    overrides: Sequence[Sequence[str]],
    taken: Collection[int] = (),
    first: int = 0,
    *,
    clusters: bool = False,
) -> tuple[Match, ...]:
    """Finds the old job of each new one. Needs no config.

    Returns the number of each job, in the order of ``overrides``. No number occurs twice. A job
    that is new gets the number of its place, or where that is not free one above all old jobs'.
    """
    free = {job.number: job for job in old}
    known = {*free, *taken}
    above = max(free, default=first - 1) + 1
    matched: dict[int, OldJob] = {}
    for neutral in (True, False):
        _pair(free, overrides, matched, neutral, clusters)
    new = [index for index in range(len(overrides)) if index not in matched]
    given = {index: first + index for index in new if first + index not in known}
    known.update(given.values())
    more = (number for number in itertools.count(above) if number not in known)
    given.update((index, next(more)) for index in new if index not in given)
    return tuple(
        Match(job.number, job) if (job := matched.get(index)) else Match(given[index])
        for index in range(len(overrides))
    )


def _pair(
    free: dict[int, OldJob],
    overrides: Sequence[Sequence[str]],
    matched: dict[int, OldJob],
    neutral: bool,
    clusters: bool,
) -> None:
    """Matches jobs with equal keys: takes them from ``free``, adds them to ``matched``."""
    wanted: dict[str, list[int]] = {}
    for index, texts in enumerate(overrides):
        if index not in matched:
            key = overrides_key(texts, neutral, clusters=clusters)
            wanted.setdefault(key, []).append(index)
    known: dict[str, list[OldJob]] = {}
    for job in free.values():
        key = overrides_key(job.history.overrides, neutral, clusters=clusters)
        known.setdefault(key, []).append(job)
    for key, indexes in wanted.items():
        # where there are more than needed, those that have finished
        best = sorted(known.get(key, ()), key=lambda job: (not job.finished, job.number))
        chosen = sorted(best[: len(indexes)], key=lambda job: job.number)
        for index, job in zip(indexes, chosen, strict=False):
            matched[index] = free.pop(job.number)


def plan_resume(
    old: Iterable[OldJob],
    overrides: Sequence[Sequence[str]],
    compose: Callable[[Sequence[tuple[int, OldJob]]], Generator[NewJob, None, None]],
    *,
    taken: Collection[int] = (),
    first: int = 0,
    config_of: Callable[[int], Mapping[str, Any] | None] = lambda number: None,  # noqa: ARG005
    clusters: bool = False,
) -> tuple[Match, ...]:
    """Decides what becomes of each job of a sweep that is resumed.

    ``compose``: composes those that have finished, one after another; called with the place of each
    in ``overrides`` and the old job. Not all that it would compose need be wanted. ``config_of``:
    the config of an old job, canonical, None if that was not kept; asked for those whose
    fingerprint has changed.

    Raises:
        ConfigError: the config of a job that has finished is another one now; says in what.
    """
    matches = match_jobs(old, overrides, taken, first, clusters=clusters)
    finished = [
        (index, match.old)
        for index, match in enumerate(matches)
        if match.old is not None and match.finished
    ]
    with contextlib.closing(compose(finished)) as composed:
        _refuse_changes(finished, composed, config_of)
    return matches


def _refuse_changes(
    finished: Sequence[tuple[int, OldJob]],
    composed: Iterable[NewJob],
    config_of: Callable[[int], Mapping[str, Any] | None],
) -> None:
    """Raises if the config of a finished job has changed; holds one config at a time."""
    # for each difference the jobs that have it
    changed: dict[tuple[str, ...], list[OldJob]] = {}
    count = looked_at = 0
    for (_, job), new in zip(finished, composed, strict=True):
        looked_at += 1
        known = job.history.fingerprint in {new.fingerprint, new.former}
        if new.fingerprint is None or not known:
            before = config_of(job.number)
            if before is not None and job_key(before) == new.fingerprint:
                continue  # damage to the journal's fingerprint; its config tells more
            change: tuple[Change, ...] = ()  # not known, if one of them is not
            if before is not None and new.config is not None:
                # the journal does not keep the order of keys
                change = differences(before, new.config, ordered=False)
            lines = text_lines(change, _MOST_LINES, _WIDEST)
            changed.setdefault(tuple(lines), []).append(job)
            count += 1
            if count >= _ENOUGH:
                break
    if changed:
        raise ConfigError(_problems(changed, len(finished) - looked_at))


def _problems(
    changed: Mapping[tuple[str, ...], Iterable[OldJob]], others: int
) -> tuple[Diagnostic, ...]:
    """Returns a message for each difference, with all jobs that have it."""
    jobs = [
        (change, sorted(whose, key=lambda job: job.number)) for change, whose in changed.items()
    ]
    jobs.sort(key=lambda pair: pair[1][0].number)
    *most, last = [(change, whose, 0) for change, whose in jobs]
    return tuple(_problem(*one) for one in (*most, (*last[:2], others)))


def _problem(change: Sequence[str], jobs: Sequence[OldJob], others: int) -> Diagnostic:
    what = [*change] or ["what has changed is not known: the old config was not kept"]
    if others:
        what.append(f"({others} more of those that have finished were not compared)")
    numbers = [job.number for job in jobs]
    if len(jobs) == 1:
        overrides = " ".join(jobs[0].history.overrides)
        whose = f"job {numbers[0]} ({overrides})" if overrides else f"job {numbers[0]}"
        message = "has finished, and its config has changed since"
        delete = "delete its result.json to run it again"
    else:
        whose = f"jobs {spans(numbers)}"
        message = "have finished, and their configs have changed since"
        delete = "delete their result.json files to run them again"
    ways = f"put it back, begin another sweep, or {delete}"
    return Diagnostic("changed", _RESUME, whose, message, "\n    ".join([f"{ways}:", *what]))
