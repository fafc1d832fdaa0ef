"""The page of a sweep: its verdict, failures, objectives, what ran when, and job by job.

`sweep_facts` reads what is known of the sweep, `sweep_page` is pure, and ``sweep.html.j2`` has the
page's layout. A page of a thousand jobs opens in a second: charts have a budget of shapes. Beyond
it jobs are chosen evenly (the lowest and the highest stay), and tooltips are omitted. The page says
how many jobs are drawn.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from lllaunch.errors import ConfigError, OutputError
from lllaunch.pages import charts, html
from lllaunch.results.report import sweep_report
from lllaunch.results.sweeps import JobTry, SweepTimeline, objectives_of, tracks_of
from lllaunch.run.result import known_result
from lllaunch.sweep.history import SweepResult
from lllaunch.sweep.objective import Direction, Objective, Objectives, improvements, objective_of
from lllaunch.text import as_ranges, duration, shorten, shorten_middle, spans
from lllaunch.words import (
    STATES,
    capitalised,
    cause_line,
    counted,
    ending,
    extremes_text,
    jobs_text,
    objective_text,
    progress_text,
    state_title,
)

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.results.report import Case
    from lllaunch.results.store import ListEntry
    from lllaunch.results.sweeps import SweepView
    from lllaunch.run.result import RunResult

_SECOND = 1e9
_MOST_ROWS = 1500
_MOST_COLUMNS = 20  # of swept parameters
_MOST_CHARTS = 8
_MOST_POINTS = 1000  # of a chart
_MOST_TOOLTIPS = 2500  # of all points together
_MOST_CATEGORIES = 12
_MOST_LANES = 128
_MOST_GROUPS = 20
_MOST_LINKS = 60
_LARGEST = 1e100  # objective: places of larger ones cannot be computed
_LONGEST_CAUSE = 300
_LONGEST_VALUE = 60
_LONGEST_NUMBER = 12
_LONGEST_NAME = 160
_REPORT_LINES = 80
_BETTER = {"minimize": "lower is better", "maximize": "higher is better"}
_TRACKS = {"gpu": "GPU", "cpu": "core", "job": "place"}
# What differs between two failures of one cause: who, and numbers of any kind.
_RANK = re.compile(r"\branks? \d[\d, -]*: ")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
# States of jobs that went wrong.
_BAD = frozenset({"failed", "error", "signalled", "died"})


# What is known


class FailureGroup(NamedTuple):
    """Jobs that failed of the same, and what the report says of one of them, if anything."""

    cause: str
    jobs: tuple[int, ...]
    example: Case | None


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
        direction = None if result is None else result.direction
        return objectives_of(self.sweep.jobs, direction, self.sweep.common)

    def cause(self, job: ListEntry) -> str:
        """Return the first failure in one line, why it was not run, or how far it is."""
        text = job.root_cause if job.progress is None else progress_text(job.progress)
        return self.sweep.hide(cause_line(text, _LONGEST_CAUSE))

    def returned(self, job: ListEntry) -> str:
        """Return what a job returned, as text, if that is short; else an empty string."""
        return self.sweep.hide(objective_text(job.value)) if job.state == "succeeded" else ""

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        """The jobs that failed, those of the same cause together, the most first.

        Two causes are the same if they differ in the rank and in numbers alone.
        """
        groups: dict[str, list[ListEntry]] = {}
        for job in self.sweep.jobs:
            if job.state in _BAD:
                key = _NUMBERS.sub("#", _RANK.sub("", self.cause(job) or job.state))
                groups.setdefault(key, []).append(job)
        found = []
        for members in sorted(groups.values(), key=lambda group: -len(group)):
            # the first one with a report
            reported = (job for job in members if job.number in self.cases)
            example = next(reported, members[0])
            cause = self.cause(example) or ending(example.exit_code, "")
            if len({tuple(_RANK.findall(self.cause(job))) for job in members}) > 1:
                # the example's rank is not that of the others
                cause = _RANK.sub("", cause)
            numbers = tuple(job.number or 0 for job in members)
            found.append(FailureGroup(cause, numbers, self.cases.get(example.number)))
        return tuple(found)


def sweep_facts(sweep: SweepView, roots: Sequence[str] = ()) -> SweepFacts:
    """Read what a page needs of a sweep; never raises for what its files hold.

    `roots` are directories of the user's own source files, absolute.
    """
    try:
        cases, problem = {case.job: case for case in sweep_report(sweep, roots).cases}, ""
    except (ConfigError, OutputError) as error:
        cases, problem = {}, sweep.hide(str(error))
    paths = (job.path for job in sweep.jobs if job.ended_ns and job.path != sweep.path)
    return SweepFacts(sweep, cases, next(filter(None, map(known_result, paths)), None), problem)


_QUOTED = re.compile(r"""(['"])((?:(?!\1)[^\\]|\\.)+)\1""", re.DOTALL)


class SweptParameter(NamedTuple):
    """A key whose value differs between jobs."""

    key: str  # whole, without ``+`` and ``~``
    name: str  # its last part, where that is enough to tell it from others
    # of each job, as it is shown; None where the job does not have it
    values: tuple[str | None, ...]
    # the same as numbers, None where there is none; empty if some value is no number
    numbers: tuple[float | None, ...] = ()


def spans_decades(numbers: Sequence[float | None]) -> bool:
    """Return whether the largest number is many times the smallest; None is ignored."""
    known = [number for number in numbers if number is not None]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= 50


def swept_parameters(overrides: Sequence[Sequence[str]]) -> tuple[SweptParameter, ...]:
    """Return what jobs differ in, by the overrides of each, in the order of their first use."""
    jobs = [_values_of(each) for each in overrides]
    keys = dict.fromkeys(key for job in jobs for key in job)
    found = {key: tuple(job.get(key) for job in jobs) for key in keys}
    swept = {key: values for key, values in found.items() if len({*values}) > 1}
    last = {key: re.split(r"[./]", key.partition("@")[0])[-1] or key for key in swept}
    often = Counter(last.values())
    return tuple(
        SweptParameter(
            key,
            last[key] if often[last[key]] == 1 else key,
            tuple(None if value is None else _unquoted(value) for value in values),
            _numbers(values),
        )
        for key, values in swept.items()
    )


def _values_of(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides as they stand there, by key; the last one of a key counts."""
    found: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if name := key.lstrip("+~"):
            found[name] = "(removed)" if key.startswith("~") else value
    return found


def _unquoted(value: str) -> str:
    """Return a value without quotes around all of it; ``''`` is written as it is."""
    match = _QUOTED.fullmatch(value)
    return value if match is None else match[2].replace(f"\\{match[1]}", match[1])


def _numbers(values: Sequence[str | None]) -> tuple[float | None, ...]:
    """Return values as numbers; nothing if there is one that is none, or that is quoted."""
    try:
        found = tuple(None if value is None else float(value) for value in values)
    except ValueError:
        return ()
    return found if all(value is None or math.isfinite(value) for value in found) else ()


# The page


def sweep_page(facts: SweepFacts, version: str, place: str = ".") -> str:
    """Return the page of a sweep; `place` is its directory as it is reached from the page."""
    sweep, entry, result = facts.sweep, facts.sweep.entry, facts.sweep.result
    own = [
        ("GPUs of the sweep", ", ".join(sweep.timeline.slots.gpus)),
        ("Begun by lllaunch", ("" if result is None else result.lllaunch) or ""),
    ]
    # jobs that are not composed yet count, too
    counts = Counter(entry.counts) or Counter(job.state for job in sweep.jobs)
    found = {at: value for at, value in enumerate(facts.values) if value is not None}
    objective = capitalised(extremes_text(facts.objectives))
    objective += f"{'; ' if objective else ''}{counted(len(found), 'job')} returned a number"
    too_large = any(abs(value) >= _LARGEST for value in found.values())
    is_drawn = len(found) > 1 and not too_large
    parameters = [each for each in facts.parameters if _can_be_drawn(each)][:_MOST_CHARTS]
    return html.render(
        "sweep.html.j2",
        kind="Sweep",
        directory=sweep.path,
        state=entry.state,
        # a signal to its launcher ends a sweep before its end
        word="Interrupted" if entry.state == "signalled" else state_title(entry.state),
        sentence=jobs_text(counts),
        more=html.joined(_more(facts), " · "),
        summary=[*_summary(facts)],
        version=version,
        causes_in_all=len(facts.failures),
        failed=sum(len(group.jobs) for group in facts.failures),
        failures=[(group, _links(group.jobs)) for group in facts.failures[:_MOST_GROUPS]],
        report_lines=_REPORT_LINES,
        objective=f"{objective}, some too large to be drawn" if too_large else objective,
        so_far=_so_far(facts, found) if is_drawn else "",
        against=[*_against_all(facts, parameters, found)] if is_drawn else [],
        left_out=shorten(
            ", ".join(each.key for each in facts.parameters if each not in parameters), 400
        ),
        objectives=len(found),
        most_points=_MOST_POINTS,
        tracks=_tracks(sweep.timeline),
        jobs=_jobs(facts, place),
        environment=html.environment_facts(facts.result, own),
    )


# Above all


def _more(facts: SweepFacts) -> Iterator[str]:
    for what, objective in facts.objectives.extremes:
        name = f" ({shorten(objective.name, _LONGEST_NAME)})" if objective.name else ""
        value = html.code(objective_text(objective.value))
        link = html.fill('<a href="#job-{0}">job {0}</a>', objective.job)
        yield html.fill("{} {} of {}{}", what, value, link, name)
    if facts.sweep.entry.exit_code is not None:
        yield f"exit code {facts.sweep.entry.exit_code}"


def _summary(facts: SweepFacts) -> Iterator[tuple[str, str]]:
    sweep, entry, result = facts.sweep, facts.sweep.entry, facts.sweep.result or SweepResult()
    slots = sweep.timeline.slots
    yield "Started", html.moment(entry.started_ns or sweep.timeline.start_ns)
    if entry.seconds is not None:
        ran = "Runs for" if entry.state == "running" else "Took"
        yield ran, html.took(round(entry.seconds, 3))
    yield "Jobs", str(max(len(sweep.jobs), sum(entry.counts.values())) or "")
    yield "Objective", _BETTER.get(result.direction or "", "")
    yield "GPUs", str(len(slots.gpus) or "")
    yield "Cores", str(len(slots.cpus) or "")
    yield "Resumed", counted(result.resumes, "time") if result.resumes else ""
    yield "In the queue", entry.queue
    yield "Commit", html.short_commit(facts.result)
    yield "Command line", html.long(" ".join(result.command), "code")
    yield "The same in all jobs", html.long(" ".join(facts.sweep.common), "code")
    yield "Note", facts.problem


# What failed


def _links(numbers: Sequence[int]) -> Markup:
    """Return ``job 3`` or ``jobs 0-2, 5``, each range a link to its first job."""
    ranges = as_ranges(numbers)
    link = '<a href="#job-{}">{}</a>'
    links = [html.fill(link, each.start, spans(each)) for each in ranges[:_MOST_LINKS]]
    word = "job" if len(numbers) == 1 else "jobs"
    more = f" and {len(ranges) - len(links)} more" if len(ranges) > len(links) else ""
    return html.fill("{} {}{}", word, html.joined(links, ", "), more)


# Objectives, each by the place of its job among all jobs


def _objective_axis(found: Mapping[int, float], *, failed: bool = False) -> charts.Axis:
    """Return the axis of objectives; with room at its low end for those that have none."""
    values = [*found.values()]
    log = spans_decades(values)
    if not failed:
        return charts.Axis("objective", log=log)
    low, high = min(values), max(values)
    below = low / (high / low) ** 0.1 if log else low - 0.1 * ((high - low) or abs(low) or 1.0)
    return charts.Axis("objective", log=log, low=below)


def _so_far(facts: SweepFacts, found: Mapping[int, float]) -> str:
    """Return how the best objective changed in time; empty where no times are known."""
    start = facts.sweep.timeline.start_ns or facts.sweep.entry.started_ns or 0
    jobs = [(facts.sweep.jobs[at], value) for at, value in found.items()]
    ends = [
        (max(0, job.ended_ns - start), Objective(value, job.number or 0))
        for job, value in jobs
        if job.ended_ns
    ]
    if not ends:
        return ""
    last = max(at for at, _ in ends) / _SECOND
    known = facts.objectives.direction
    wanted: list[tuple[str, Direction]] = (
        [("best so far", known)]
        if known
        else [("lowest so far", "minimize"), ("highest so far", "maximize")]
    )
    curves, told = [], []
    for name, direction in wanted:
        steps = [(at / _SECOND, each) for at, each in improvements(ends, direction)]
        at, end = steps[-1]
        points = [*((x, each.value) for x, each in steps), (last, end.value)]
        curves.append(charts.Curve(name, points, stepped=True))
        told.append(f"{name}: {objective_text(end.value)} of job {end.job} after {duration(at)}")
    title = "The best so far" if known else "The lowest and the highest so far"
    words = charts.Words("so-far", title, f"{'; '.join(told)}.")
    axis = charts.Axis("time since the sweep began", "duration", low=0.0)
    return charts.line_chart(words, curves, axis, _objective_axis(found))


def _can_be_drawn(parameter: SweptParameter) -> bool:
    return bool(parameter.numbers) or len({*parameter.values}) <= _MOST_CATEGORIES


def _against_all(
    facts: SweepFacts, parameters: Sequence[SweptParameter], found: Mapping[int, float]
) -> Iterator[Markup]:
    """Yield the objective against each parameter."""
    chosen = sorted(found, key=lambda place: found[place])
    if len(chosen) > _MOST_POINTS:
        # the first and the last stay
        step = (len(chosen) - 1) / (_MOST_POINTS - 1)
        chosen = [chosen[round(number * step)] for number in range(_MOST_POINTS)]
    jobs, best = facts.sweep.jobs, facts.objectives.best
    failed = [at for at, job in enumerate(jobs) if job.state in _BAD][:_MOST_POINTS]
    tooltips = (len(chosen) + len(failed)) * len(parameters) <= _MOST_TOOLTIPS
    up = _objective_axis(found, failed=bool(failed))
    legend = []
    if best is not None:
        legend.append(charts.Entry("best", "point", f"best: job {best.job}"))
        chosen.sort(key=lambda at: jobs[at].number == best.job)
    if failed:
        legend.append(charts.Entry("failed", "point", "failed, without an objective"))
    for parameter in parameters:
        axis, places = _placed(parameter)
        points = []
        for at in (*failed, *chosen):
            job, value, x = jobs[at], found.get(at, up.low), places[at]
            if value is None or x is None:
                continue
            is_best = best is not None and job.number == best.job
            kind = "best" if is_best else "" if at in found else "failed"
            told = f": {objective_text(value)}" if at in found else f" {job.state}"
            text = f"job {job.number}{told}, {parameter.name}={parameter.values[at]}"
            points.append(charts.Dot(x, value, text if tooltips or is_best else "", kind))
        said = f"The objective of {counted(len(chosen), 'job')} against {parameter.key}."
        words = charts.Words(f"against-{parameter.key}", parameter.name, said)
        yield charts.scatter(words, points, axis, up, legend)


def _placed(parameter: SweptParameter) -> tuple[charts.Axis, Sequence[float | None]]:
    """Return the axis of a parameter, and where the jobs lie on it; few values are steps of it."""
    if len({*parameter.values}) > _MOST_CATEGORIES:
        return charts.Axis(log=spans_decades(parameter.numbers)), parameter.numbers
    shown = ["not set" if value is None else value for value in parameter.values]
    names = [*dict.fromkeys(shown)]
    if parameter.numbers:
        known = dict(zip(shown, parameter.numbers, strict=True))
        names.sort(key=lambda name: known[name] or 0.0)
    # beside each other, so that all can be seen; by the golden ratio neighbours lie far apart
    return charts.Axis(categories=tuple(names)), [
        names.index(value) + 0.6 * (number * 0.618034 % 1.0 - 0.5)
        for number, value in enumerate(shown)
    ]


# In time


def _tracks(timeline: SweepTimeline) -> str:
    """Return what ran where, and when; empty if nothing did."""
    # tracks beside each other on which the same ran share a lane
    rows = [
        (kind, [each.name for each in same], tries)
        for (kind, tries, _), same in itertools.groupby(
            tracks_of(timeline),
            lambda each: (each.kind, each.tries, "" if each.tries else each.name),
        )
    ]
    if not any(tries for _, _, tries in rows):
        return ""
    shown = rows[:_MOST_LANES]
    whole = max(1, timeline.end_ns - timeline.start_ns)
    count = sum(len(tries) for _, _, tries in shown)
    told = count <= _MOST_TOOLTIPS
    lanes = []
    for kind, names, tries in shown:
        ends = "-".join(dict.fromkeys((names[0], names[-1])))
        label = shorten_middle(f"{_TRACKS[kind]} {ends}", 12)
        lanes.append(charts.ChartLane(label, [*_spans(tries, timeline.start_ns, whole, told=told)]))
    busy = sum(
        (each.end_ns - each.start_ns) * len(names) for _, names, tries in rows for each in tries
    )
    slots = sum(len(names) for _, names, _ in rows)
    kinds = {kind for kind, _, _ in rows}
    what = " and ".join(f"{word}s" for kind, word in _TRACKS.items() if kind in kinds)
    share = f"{100 * busy / (whole * slots):.0f} %"
    title = f"Which job ran where, and when: {what} were in use {share} of the time"
    if kinds == {"job"}:
        # jobs of a cluster are known to start when they go to its queue
        title = "Which job was there when"
    tries_in_all = "1 try" if len(timeline.tries) == 1 else f"{len(timeline.tries)} tries"
    over = duration(whole / _SECOND)
    text = f"{tries_in_all} of jobs on {slots} {what} over {over}; what is idle is empty."
    fates = dict.fromkeys(each.fate for _, _, tries in shown for each in tries)
    legend = [charts.Entry(f"span {_kind(fate)}", "area", fate.replace("_", " ")) for fate in fates]
    axis = charts.Axis("", "duration", low=0.0, high=whole / _SECOND)
    chart = charts.lanes(charts.Words("time", title, text), lanes, axis, legend)
    notes = [
        f"Resumed after {duration(max(0, at - timeline.start_ns) / _SECOND)}."
        for at in timeline.resumed_ns
    ]
    if len(rows) > len(shown):
        notes.append(f"And {len(rows) - len(shown)} more that are not drawn.")
    return html.joined([chart, *(html.fill("<p>{}</p>", note) for note in notes)])


def _kind(fate: str) -> str:
    return fate if fate in STATES else "unknown"


def _spans(
    tries: Sequence[JobTry], start_ns: int, whole: float, *, told: bool
) -> Iterator[charts.ChartSpan]:
    """Yield what ran on a track."""
    for each in tries:
        begin, end = (each.start_ns - start_ns) / _SECOND, (each.end_ns - start_ns) / _SECOND
        again = f", try {each.number + 1}" if each.number else ""
        text = f"job {each.job}{again}: {each.fate.replace('_', ' ')} after {duration(end - begin)}"
        if each.objective is not None:
            text += f", {objective_text(each.objective)}"
        label = str(each.job) if (each.end_ns - each.start_ns) / whole >= 0.025 else ""
        yield charts.ChartSpan(begin, end, _kind(each.fate), text if told else "", label)


# Jobs


def _jobs(facts: SweepFacts, place: str) -> html.PageTable:
    sweep = facts.sweep
    places = {job.number: at for at, job in enumerate(sweep.jobs)}

    def column(parameter: SweptParameter) -> html.PageColumn:
        def cell(job: ListEntry) -> html.Cell:
            at = places[job.number]
            number = parameter.numbers[at] if parameter.numbers else None
            value = parameter.values[at] or ""
            if number is not None and len(value) > _LONGEST_NUMBER:
                value = f"{number:.6g}"
            return html.Cell(shorten_middle(value, _LONGEST_VALUE), number)

        return html.PageColumn(parameter.name, cell, "numeric" if parameter.numbers else "")

    def link(job: ListEntry) -> html.Cell:
        """Return the number of a job, which leads to its directory."""
        directory = os.path.relpath(job.path, sweep.path) if job.path != sweep.path else ""
        if not directory or os.path.isabs(directory) or not directory.isprintable():
            return html.Cell(str(job.number), job.number)
        path = os.path.normpath(os.path.join(place, directory))
        # an absolute one would depend on where the page is opened, a colon would be a scheme
        return html.Cell(html.fill('<a href="./{}/">{}</a>', quote(path), job.number), job.number)

    failed = any(job.exit_code for job in sweep.jobs)
    columns = [
        html.PageColumn("Job", link, "numeric"),
        *map(column, facts.parameters[:_MOST_COLUMNS]),
        html.PageColumn("State", lambda job: html.badge(job.state, job.state.replace("_", " "))),
        html.PageColumn(
            "Objective",
            lambda job: html.Cell(facts.returned(job), facts.values[places[job.number]]),
            "numeric",
        ),
        html.numbers("Time", lambda job: job.seconds, duration),
        html.numbers("Tries", lambda job: job.attempts, minor=True),
        html.numbers("Exit", lambda job: job.exit_code if failed else None, minor=True),
        html.PageColumn("What happened", facts.cause, "wide"),
    ]
    jobs: Sequence[ListEntry] = sweep.jobs
    caption = counted(len(jobs), "job")
    if len(jobs) > _MOST_ROWS:
        # those that failed, the best, and the first
        pairs = sorted(zip(jobs, facts.values, strict=True), key=lambda pair: pair[1] or 0.0)
        some = _MOST_ROWS // 4
        bad = [job for job in jobs if job.state in _BAD][: 2 * some]
        telling = [job for job, _ in (*pairs[:some], *pairs[-some:])]
        kept = {job.number or 0: job for job in (*telling, *bad, *jobs)}
        jobs = [job for _, job in sorted([*kept.items()][:_MOST_ROWS])]
        caption = f"{len(jobs)} of {len(sweep.jobs)} jobs: those that went wrong, and the best"
    return html.table(
        caption,
        columns,
        jobs,
        kind=lambda job: job.state if job.state in _BAD else "",
        id_=lambda job: f"job-{job.number}",
    )
