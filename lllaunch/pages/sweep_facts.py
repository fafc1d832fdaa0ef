"""What a page derives from the view of a sweep: parameters, objectives and groups of failures."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.errors import ConfigError, OutputError
from lllaunch.results.report import common_overrides, sweep_report
from lllaunch.run.result import known_result
from lllaunch.sweep.objective import Objective, Objectives, objective_of
from lllaunch.words import cause_line, objective_text, progress_text, short_overrides

if TYPE_CHECKING:
    from lllaunch.results.report import Case
    from lllaunch.results.store import ListEntry
    from lllaunch.results.view import SweepView
    from lllaunch.run.result import RunResult


_LONGEST_CAUSE = 300
# What differs between two failures of one cause: who, and numbers of any kind.
_RANK = re.compile(r"\branks? \d[\d, -]*: ")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WITHOUT_CAUSE = {
    "signalled": "ended by a signal",
    "died": "its launcher ended without a result",
    "error": "lllaunch could not do its part",
}
BAD = frozenset({"failed", "error", "signalled", "died"})
"""States of jobs that went wrong."""


class FailureGroup(NamedTuple):
    """Jobs that failed of the same, and what the report says of one of them, if anything."""

    cause: str
    jobs: tuple[int, ...]
    example: Case | None = None


@dataclass(frozen=True)
class SweepFacts:
    """All that a page shows of a sweep.

    `cases` has what the report says of each job, by number; `result` is that of some job, which
    tells what code ran.
    """

    sweep: SweepView
    cases: Mapping[int | None, Case] = field(default_factory=dict)
    result: RunResult | None = None
    problem: str = ""

    @cached_property
    def common(self) -> tuple[str, ...]:
        """The overrides that all jobs share."""
        return common_overrides([job.overrides for job in self.sweep.jobs])

    @cached_property
    def parameters(self) -> tuple[SweptParameter, ...]:
        """What the jobs differ in."""
        return swept_parameters([job.overrides for job in self.sweep.jobs])

    @cached_property
    def values(self) -> tuple[float | None, ...]:
        """The objective of each job that succeeded and returned a number."""
        return tuple(
            objective_of(job.value) if job.state == "succeeded" else None for job in self.sweep.jobs
        )

    @cached_property
    def objectives(self) -> Objectives:
        """The best objective, or the lowest and the highest; of equal ones the first job's."""
        result = self.sweep.result
        known = (
            Objective(value, job.number or 0, short_overrides(job.overrides, self.common))
            for job, value in zip(self.sweep.jobs, self.values, strict=True)
            if value is not None
        )
        return Objectives(None if result is None else result.direction, known)

    def cause(self, job: ListEntry) -> str:
        """Return the first failure in one line, why it was not run, or how far it is."""
        text = job.root_cause if job.progress is None else progress_text(job.progress)
        return self.sweep.hide(cause_line(text, _LONGEST_CAUSE))

    def returned(self, job: ListEntry) -> str:
        """Return what a job returned, as text, if that is short; else an empty string."""
        return self.sweep.hide(objective_text(job.value)) if job.state == "succeeded" else ""

    def place(self, job: ListEntry) -> str:
        """Return the directory of a job, relative to the sweep's; an empty string without one."""
        own = job.path != self.sweep.path
        return os.path.relpath(job.path, self.sweep.path) if own else ""

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        """The jobs that failed, those of the same cause together, the most first.

        Two causes are the same if they differ in the rank and in numbers alone.
        """
        groups: dict[str, list[ListEntry]] = {}
        for job in self.sweep.jobs:
            if job.state in BAD:
                key = _NUMBERS.sub("#", _RANK.sub("", self.cause(job) or job.state))
                groups.setdefault(key, []).append(job)
        return tuple(map(self._group, sorted(groups.values(), key=lambda group: -len(group))))

    def _group(self, members: list[ListEntry]) -> FailureGroup:
        known = [job for job in members if job.number in self.cases]
        telling = (job for job in known if self.cases[job.number].explanation)
        example = next(telling, known[0] if known else members[0])
        cause = self.cause(example) or _WITHOUT_CAUSE.get(example.state, "no result")
        if len({tuple(_RANK.findall(self.cause(job))) for job in members}) > 1:
            # the example's rank is not that of the others
            cause = _RANK.sub("", cause)
        numbers = tuple(job.number or 0 for job in members)
        return FailureGroup(cause, numbers, self.cases.get(example.number))


def sweep_facts(sweep: SweepView, roots: Sequence[str] = ()) -> SweepFacts:
    """Read what a page needs of a sweep; never raises for what its files hold.

    `roots` are directories of the user's own source files, absolute.
    """
    try:
        cases, problem = {case.job: case for case in sweep_report(sweep, roots).cases}, ""
    except (ConfigError, OutputError) as error:
        cases, problem = {}, sweep.hide(str(error))
    return SweepFacts(sweep, cases, next(_results(sweep), None), problem)


def _results(sweep: SweepView) -> Iterator[RunResult]:
    for job in sweep.jobs:
        found = known_result(job.path) if job.ended_ns and job.path != sweep.path else None
        if found is not None:
            yield found


# A number as YAML and Hydra have it; no NaN, no infinity.
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?", re.ASCII)
_QUOTED = re.compile(r"""(['"])((?:(?!\1)[^\\]|\\.)*)\1""", re.DOTALL)


@dataclass(frozen=True)
class SweptParameter:
    """A key whose value differs between jobs."""

    key: str  # whole, without ``+`` and ``~``
    name: str  # its last part, where that is enough to tell it from others
    # of each job, as it is shown; None where the job does not have it
    values: tuple[str | None, ...]
    # the same as numbers, None where there is none; empty if some value is no number
    numbers: tuple[float | None, ...] = ()


def spans_decades(numbers: Sequence[float | None], least: float = 50.0) -> bool:
    """Return whether the largest number is so many times the smallest; None is ignored."""
    known = [number for number in numbers if number is not None]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= least


def swept_parameters(overrides: Sequence[Sequence[str]]) -> tuple[SweptParameter, ...]:
    """Return what jobs differ in, by the overrides of each, in the order of their first use."""
    jobs = [_values_of(each) for each in overrides]
    keys = dict.fromkeys(key for job in jobs for key in job)
    found = {key: tuple(job.get(key) for job in jobs) for key in keys}
    swept = {key: values for key, values in found.items() if len({*values}) > 1}
    often = Counter(map(_last, swept))
    return tuple(
        SweptParameter(
            key,
            _last(key) if often[_last(key)] == 1 else key,
            tuple(None if value is None else _unquoted(value) for value in values),
            _numbers(values),
        )
        for key, values in swept.items()
    )


def _values_of(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides as they stand there, by key; the last one of a key counts."""
    found: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+~")
        if key.startswith("~") and name:
            found[name] = "(removed)"
        elif name:
            found[name] = value if equals else ""
    return found


def _last(key: str) -> str:
    return re.split(r"[./]", key.partition("@")[0])[-1] or key


def _unquoted(value: str) -> str:
    """Return a value without quotes around all of it; ``''`` is written as it is."""
    match = _QUOTED.fullmatch(value)
    if match is None or not match[2]:
        return value
    if match[1] == "'":
        return match[2].replace("\\'", "'")
    try:
        return str(json.loads(value))
    except ValueError:
        return match[2]


def _numbers(values: Sequence[str | None]) -> tuple[float | None, ...]:
    """Return values as numbers; nothing if there is one that is none, or that is quoted."""
    if not all(value is None or _NUMBER.fullmatch(value) for value in values):
        return ()
    try:
        found = tuple(None if value is None else float(value) for value in values)
    except ValueError:  # 1__0
        return ()
    return found if all(value is None or math.isfinite(value) for value in found) else ()
