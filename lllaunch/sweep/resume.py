"""Which jobs of a sweep that is resumed run, and under which numbers. Pure.

Jobs are matched by their overrides: first those whose overrides are the same, then those that
differ only in overrides that do not change a job's outcome (`lllaunch.sweep.fingerprint.NEUTRAL`).
Where several have the same overrides, each is matched once, in the order of their numbers.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.errors import ConfigError, Problem
from lllaunch.sweep.difference import Change, differences, lines
from lllaunch.sweep.fingerprint import overrides_key
from lllaunch.units import spans

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lllaunch.sweep.history import JobHistory
    from lllaunch.sweep.records import Result

_RESUME = "hydra.launcher.resume"


class OldJob(NamedTuple):
    """A job of the sweep that is resumed.

    Attributes:
        history: what the journal tells of it.
        result: what its result.json tells, None if that is not there.
    """

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
    """A job that the sweep shall have now.

    Attributes:
        overrides: its task overrides, redacted as the journal's are.
        fingerprint: of its config; only asked for where the old job is finished.
        config: what that was made from, canonical; to show a difference.
    """

    overrides: Sequence[str]
    fingerprint: str | None = None
    config: Mapping[str, Any] | None = None


class Match(NamedTuple):
    """The number that a job has in the resumed sweep.

    Attributes:
        number: an old job's, or one that no job ever had.
        old: the old job, None if it is new.
    """

    number: int
    old: OldJob | None = None

    @property
    def finished(self) -> bool:
        """Whether it may be skipped, if its config is what it was."""
        return self.old is not None and self.old.finished


class Skip(NamedTuple):
    """The job has finished.

    Attributes:
        number: its number.
        old: what is known of it; unless `OldJob.journalled`, its result belongs into the journal.
    """

    number: int
    old: OldJob


class RunAgain(NamedTuple):
    """The job runs under its old number and in its old directory."""

    number: int
    old: OldJob


class RunNew(NamedTuple):
    """The job runs under a number of its own."""

    number: int


class ResumePlan(NamedTuple):
    """What a resume does.

    Attributes:
        jobs: what becomes of each job, in the order of the new sweep.
        left: numbers of old jobs that the new sweep does not have; they stay as they are.
    """

    jobs: tuple[Skip | RunAgain | RunNew, ...]
    left: tuple[int, ...] = ()


def match_jobs(
    old: Iterable[OldJob],
    overrides: Sequence[Sequence[str]],
    taken: Collection[int] = (),
) -> tuple[Match, ...]:
    """Finds the old job of each new one. Needs no config.

    Args:
        old: the jobs of the sweep that is resumed.
        overrides: of each job of the new sweep, in its order.
        taken: more numbers that no job may get.

    Returns:
        the number of each job, in the order of ``overrides``. No number occurs twice; new ones are
        above those of all old jobs.
    """
    free = {job.number: job for job in old}
    numbers = _unused(max(free, default=-1) + 1, frozenset(taken))
    matched: dict[int, OldJob] = {}
    for neutral in (True, False):
        _pair(free, overrides, matched, neutral)
    return tuple(
        Match(job.number, job) if (job := matched.get(index)) else Match(next(numbers))
        for index in range(len(overrides))
    )


def _unused(first: int, taken: Collection[int]) -> Iterator[int]:
    return (number for number in itertools.count(first) if number not in taken)


def _pair(
    free: dict[int, OldJob],
    overrides: Sequence[Sequence[str]],
    matched: dict[int, OldJob],
    neutral: bool,
) -> None:
    """Matches jobs with equal keys: takes them from ``free``, adds them to ``matched``."""
    wanted: dict[str, list[int]] = {}
    for index, texts in enumerate(overrides):
        if index not in matched:
            wanted.setdefault(overrides_key(texts, neutral), []).append(index)
    known: dict[str, list[OldJob]] = {}
    for job in free.values():
        known.setdefault(overrides_key(job.history.overrides, neutral), []).append(job)
    for key, indexes in wanted.items():
        # where there are more than needed, those that have finished
        best = sorted(known.get(key, ()), key=lambda job: (not job.finished, job.number))
        chosen = sorted(best[: len(indexes)], key=lambda job: job.number)
        for index, job in zip(indexes, chosen, strict=False):
            matched[index] = free.pop(job.number)


def plan_resume(
    old: Iterable[OldJob],
    new: Sequence[NewJob],
    *,
    taken: Collection[int] = (),
    config_of: Callable[[int], Mapping[str, Any] | None] = lambda number: None,  # noqa: ARG005
) -> ResumePlan:
    """Decides what becomes of each job of a sweep that is resumed.

    Args:
        old: the jobs of the sweep, from its journal and its jobs' directories.
        new: the jobs that it shall have now. Those that `match_jobs` finds finished need their
            fingerprints.
        taken: more numbers that no job may get.
        config_of: the config of an old job, canonical, None if that was not kept; asked for those
            whose fingerprint has changed.

    Raises:
        ConfigError: the config of a job that has finished is another one now; says in what.
    """
    jobs = tuple(old)
    matches = match_jobs(jobs, [job.overrides for job in new], taken)
    changed = [
        (job, match.old)
        for job, match in zip(new, matches, strict=True)
        if match.old is not None and match.finished and _is_changed(match.old, job)
    ]
    if changed:
        raise ConfigError(_problems(changed, config_of))
    numbers = {match.number for match in matches}
    left = tuple(sorted(job.number for job in jobs if job.number not in numbers))
    return ResumePlan(tuple(map(_decide, matches)), left)


def _is_changed(old: OldJob, job: NewJob) -> bool:
    return job.fingerprint is None or job.fingerprint != old.history.fingerprint


def _decide(match: Match) -> Skip | RunAgain | RunNew:
    if match.old is None:
        return RunNew(match.number)
    decision = Skip if match.old.finished else RunAgain
    return decision(match.number, match.old)


def _problems(
    changed: Iterable[tuple[NewJob, OldJob]],
    config_of: Callable[[int], Mapping[str, Any] | None],
) -> tuple[Problem, ...]:
    """Returns a message for each difference, with all jobs that have it."""
    jobs: dict[tuple[Change, ...], list[OldJob]] = {}
    for job, old in sorted(changed, key=lambda pair: pair[1].number):
        before = config_of(old.number)
        change: tuple[Change, ...] = ()
        if before is not None and job.config is not None:
            change = differences(before, job.config)
        jobs.setdefault(change, []).append(old)
    return tuple(_problem(change, whose) for change, whose in jobs.items())


def _problem(changes: Sequence[Change], jobs: Sequence[OldJob]) -> Problem:
    what = lines(changes) or ["what has changed is not known: the old config was not kept"]
    numbers = [job.number for job in jobs]
    if len(jobs) == 1:
        overrides = " ".join(jobs[0].history.overrides)
        whose = f"job {numbers[0]} ({overrides})" if overrides else f"job {numbers[0]}"
        expected = "has finished, and its config has changed since"
        delete = "delete its result.json to run it again"
    else:
        whose = f"jobs {spans(numbers)}"
        expected = "have finished, and their configs have changed since"
        delete = "delete their result.json files to run them again"
    ways = f"put it back, begin another sweep, or {delete}"
    return Problem(_RESUME, whose, expected, "\n    ".join([f"{ways}:", *what]))
