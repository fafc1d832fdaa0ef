"""What a page shows of a sweep, read from the files that it has left; bounded, and never raising.

A sweep may go on, it may have been killed or resumed, its jobs may be in a cluster's queue, its
files may be torn. What workers and people wrote passes through what takes secrets out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError, OutputError
from lllaunch.pages.swept import SweptParameter, swept_parameters
from lllaunch.results.cases import Tree
from lllaunch.results.report import common_overrides, sweep_report
from lllaunch.results.store import ListEntry
from lllaunch.results.tries import SweepTimeline
from lllaunch.results.view import SweepView, view_sweep
from lllaunch.run.result import known_result
from lllaunch.sweep.objective import Direction, Objective, Objectives, objective_of
from lllaunch.words import cause_line, objective_text, progress_text, short_overrides

if TYPE_CHECKING:
    from lllaunch.results.cases import Case
    from lllaunch.results.store import FoundDirectory
    from lllaunch.run.result import RunResult
    from lllaunch.sweep.history import JobHistory

_LONGEST_CAUSE = 300
# What differs between two failures of one cause: who, and numbers of any kind.
_RANK = re.compile(r"\branks? \d[\d, -]*: ")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_BAD = frozenset({"failed", "error", "signalled", "died"})


@dataclass(frozen=True)
class SweepJob:
    """What is known of a job.

    Attributes:
        objective: what it returned, if it succeeded and that is a number; else None.
        returned: what it returned, as text, if that is short; else empty.
        seconds: how long its last try took, or takes until now; None where that is not known.
        cause: the first failure in one line, why it was not run, or how far it is.
        directory: of the job, relative to the sweep's if it is in it; or empty.
        ended_ns: when it ended, nanoseconds since the epoch; 0 if it has not.
    """

    number: int
    state: str
    overrides: tuple[str, ...] = ()
    objective: float | None = None
    returned: str = ""
    seconds: float | None = None
    tries: int = 0
    exit_code: int | None = None
    cause: str = ""
    directory: str = ""
    ended_ns: int = 0

    @property
    def name(self) -> str:
        """Its own overrides in one line, with the last parts of their keys."""
        return short_overrides(self.overrides)

    @property
    def bad(self) -> bool:
        """Whether it went wrong."""
        return self.state in _BAD


@dataclass(frozen=True)
class FailureGroup:
    """Jobs that failed of the same, and what the report says of one of them, if anything."""

    cause: str
    jobs: tuple[int, ...]
    example: Case | None = None


@dataclass(frozen=True)
class SweepFacts:
    """All that a page shows of a sweep."""

    directory: str
    entry: ListEntry
    jobs: tuple[SweepJob, ...]
    parameters: tuple[SweptParameter, ...]
    common: tuple[str, ...]
    timeline: SweepTimeline
    direction: Direction | None = None
    failures: tuple[FailureGroup, ...] = ()
    command: tuple[str, ...] = ()
    version: str = ""
    resumes: int = 0
    result: RunResult | None = None
    problem: str = ""

    @cached_property
    def objectives(self) -> Objectives:
        """The best objective, or the lowest and the highest; of equal ones the first job's."""
        known = (
            Objective(job.objective, job.number, job.name)
            for job in self.jobs
            if job.objective is not None
        )
        return Objectives(self.direction, known)


def read_sweep_facts(
    found: FoundDirectory, roots: Iterable[str] = (), hide: Callable[[str], str] | None = None
) -> SweepFacts:
    """Read what there is of a sweep; never raises for what its files hold.

    `roots` are directories of the user's own source files, absolute.
    """
    sweep = view_sweep(found, hide)
    result = sweep.result
    histories = {} if result is None else {job.job: job for job in result.jobs}
    try:
        cases, problem = {case.job: case for case in sweep_report(sweep, Tree(roots)).cases}, ""
    except (ConfigError, OutputError) as error:
        cases, problem = {}, sweep.hide(str(error))
    written = [each.overrides for each in sweep.jobs]
    common = common_overrides(written)
    jobs = tuple(_job(each, histories.get(each.number or 0), common, sweep) for each in sweep.jobs)
    of_a_job = (
        known_result(os.path.join(found.path, job.directory))
        for job in jobs
        if job.ended_ns and job.directory
    )
    return SweepFacts(
        directory=found.path,
        entry=sweep.entry,
        jobs=jobs,
        parameters=swept_parameters(written),
        common=common,
        timeline=sweep.timeline,
        direction=None if result is None else result.direction,
        failures=tuple(failure_groups(jobs, cases)),
        command=() if result is None else result.command,
        version="" if result is None else result.lllaunch or "",
        resumes=0 if result is None else result.resumes,
        # that of each says what code ran
        result=next((each for each in of_a_job if each is not None), None),
        problem=problem,
    )


def _job(
    entry: ListEntry, history: JobHistory | None, common: Sequence[str], sweep: SweepView
) -> SweepJob:
    succeeded = entry.state == "succeeded"
    ended_ns = 0 if history is None else history.ended_ns
    if not ended_ns and entry.exit_code is not None and entry.started_ns:
        # of a batch job, whose end no journal tells
        ended_ns = entry.started_ns + int((entry.seconds or 0.0) * 1e9)
    cause = entry.root_cause if entry.progress is None else progress_text(entry.progress)
    return SweepJob(
        number=entry.number or 0,
        state=entry.state,
        overrides=tuple(each for each in entry.overrides if each not in common),
        objective=objective_of(entry.value) if succeeded else None,
        returned=sweep.hide(objective_text(entry.value)) if succeeded else "",
        seconds=entry.seconds,
        tries=entry.attempts or 0 if history is None else history.tries,
        exit_code=entry.exit_code,
        cause=sweep.hide(cause_line(cause, _LONGEST_CAUSE)),
        directory="" if entry.path == sweep.path else os.path.relpath(entry.path, sweep.path),
        ended_ns=ended_ns,
    )


# Failures


def failure_groups(
    jobs: Iterable[SweepJob], cases: Mapping[int | None, Case]
) -> Iterator[FailureGroup]:
    """Yield the jobs that failed, those of the same cause together, the most first. Pure.

    Two causes are the same if they differ in the rank and in numbers alone. `cases` has what the
    report says of each, by number.
    """
    groups: dict[str, list[SweepJob]] = {}
    for job in jobs:
        if job.bad:
            key = _NUMBERS.sub("#", _RANK.sub("", job.cause or job.state))
            groups.setdefault(key, []).append(job)
    for members in sorted(groups.values(), key=lambda group: -len(group)):
        known = [cases[job.number] for job in members if job.number in cases]
        telling = (case for case in known if case.traceback or case.logs)
        example = next(telling, known[0] if known else None)
        said = {job.number: job.cause for job in members}
        first = said.get(example.job or 0, "") if example is not None else ""
        cause = first or members[0].cause or _WITHOUT_CAUSE.get(members[0].state, "no result")
        if len({tuple(_RANK.findall(job.cause)) for job in members}) > 1:
            # the example's rank is not that of the others
            cause = _RANK.sub("", cause)
        yield FailureGroup(cause, tuple(job.number for job in members), example)


_WITHOUT_CAUSE = {
    "signalled": "ended by a signal",
    "died": "its launcher ended without a result",
    "error": "lllaunch could not do its part",
}
