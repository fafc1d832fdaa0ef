"""The page of a sweep: its verdict, failures, objectives, what ran when, and job by job. Pure.

`lllaunch.pages.sweep_facts` reads what is known of the sweep, ``sweep.html.j2`` has the page's
layout. A page of a thousand jobs opens in a second: charts have a budget of shapes. Beyond it jobs
are chosen evenly (the lowest and the highest stay), spans beside each other are drawn as one, and
tooltips are omitted. The page says how many jobs are drawn.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from lllaunch.pages import charts, html
from lllaunch.pages.sweep_facts import BAD, FailureGroup, SweepFacts, SweptParameter, spans_decades
from lllaunch.results.tries import JobTry, SweepTimeline, tracks_of
from lllaunch.sweep.history import SweepResult
from lllaunch.sweep.objective import Direction, Objective, improvements
from lllaunch.text import as_ranges, duration, shorten, shorten_middle, spans
from lllaunch.words import (
    STATES,
    capitalised,
    counted,
    extremes_text,
    jobs_text,
    named_jobs,
    objective_text,
    state_title,
)

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.results.store import ListEntry

_SECOND = 1e9
_MOST_ROWS = 1500
_MOST_COLUMNS = 10  # of swept parameters
_MOST_CHARTS = 8
_MOST_POINTS = 1000  # of a chart
_MOST_TOOLTIPS = 2500  # of all points together
_MOST_CATEGORIES = 12
_MOST_SPANS = 2500
_MOST_LANES = 128
_MOST_GROUPS = 20
_MOST_LINKS = 60
_LARGEST = 1e100  # objective: places of larger ones cannot be computed
_LONGEST_VALUE = 60
_LONGEST_NUMBER = 12
_LONGEST_NAME = 160
_REPORT_LINES = 80


def sweep_page(facts: SweepFacts, version: str, place: str = ".") -> str:
    """Return the page of a sweep; `place` is its directory as it is reached from the page."""
    sweep, entry, result = facts.sweep, facts.sweep.entry, facts.sweep.result
    found = _yields(facts)
    own = [
        ("GPUs of the sweep", ", ".join(sweep.timeline.slots.gpus)),
        ("Begun by lllaunch", ("" if result is None else result.lllaunch) or ""),
    ]
    # jobs that are not composed yet count, too
    counts = Counter(entry.counts) or Counter(job.state for job in sweep.jobs)
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
        failures=[(group, [*_failure(group)]) for group in facts.failures[:_MOST_GROUPS]],
        objective=[*_objective(facts, found)],
        so_far=_so_far(facts, found),
        against=[*_against_all(facts, found)],
        not_drawn=[*_not_drawn(facts, found)],
        tracks=_tracks(sweep.timeline),
        jobs=_jobs(facts, place),
        environment=html.environment_facts(facts.result, own),
    )


# Above all

_BETTER = {"minimize": "lower is better", "maximize": "higher is better"}


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
    yield "The same in all jobs", html.long(" ".join(facts.common), "code")
    yield "Note", facts.problem


# What failed


def _failure(group: FailureGroup) -> Iterator[str | html.Quote]:
    yield _links(group.jobs)
    case = group.example
    if case is None:
        return
    of = "" if case.job is None or len(group.jobs) == 1 else f" of job {case.job}"
    if case.place is not None:
        yield html.fill("At {}{}.", html.code(f"{case.place.file}:{case.place.line}"), of)
    if case.explanation:
        yield html.Quote(f"The report{of}", case.explanation[:_REPORT_LINES], heading=False)


def _links(numbers: Sequence[int]) -> Markup:
    """Return ``job 3`` or ``jobs 0-2, 5``, each range a link to its first job."""
    ranges = as_ranges(numbers)
    links = [
        html.fill('<a href="#job-{}">{}</a>', each.start, spans(each))
        for each in ranges[:_MOST_LINKS]
    ]
    word = "job" if len(numbers) == 1 else "jobs"
    more = f" and {len(ranges) - len(links)} more" if len(ranges) > len(links) else ""
    return html.fill("{} {}{}", word, html.joined(links, ", "), more)


# Objectives


class _Yield(NamedTuple):
    """A job that yielded an objective; `place` is its place among all jobs."""

    job: ListEntry
    value: float
    place: int


def _yields(facts: SweepFacts) -> list[_Yield]:
    """Return the objectives that can be drawn."""
    jobs = zip(facts.sweep.jobs, facts.values, strict=True)
    return [
        _Yield(job, value, place)
        for place, (job, value) in enumerate(jobs)
        if value is not None and abs(value) < _LARGEST
    ]


def _objective_axis(found: Sequence[_Yield], *, failed: bool = False) -> charts.Axis:
    """Return the axis of objectives; with room at its low end for those that have none."""
    values = [each.value for each in found]
    log = spans_decades(values)
    if not failed:
        return charts.Axis("objective", log=log)
    low, high = min(values), max(values)
    below = low / (high / low) ** 0.1 if log else low - 0.1 * ((high - low) or abs(low) or 1.0)
    return charts.Axis("objective", log=log, low=below)


def _numbers(facts: SweepFacts) -> int:
    return sum(value is not None for value in facts.values)


def _objective(facts: SweepFacts, found: Sequence[_Yield]) -> Iterator[str]:
    numbers = _numbers(facts)
    if not numbers:
        return
    extremes = extremes_text(facts.objectives)
    count = f"{counted(numbers, 'job')} returned a number"
    yield f"{capitalised(extremes)}; {count}." if extremes else f"{count}."
    if len(found) < numbers:
        text = f"{numbers - len(found)} of {_LARGEST:g} and more, or less than its negative"
        yield f"Not drawn: {text}."


def _so_far(facts: SweepFacts, found: Sequence[_Yield]) -> str:
    """Return how the best objective changed in time; empty where that cannot be drawn."""
    start = facts.sweep.timeline.start_ns or facts.sweep.entry.started_ns or 0
    ends = [
        (max(0, each.job.ended_ns - start), Objective(each.value, each.job.number or 0))
        for each in found
        if each.job.ended_ns
    ]
    if not ends or len(found) < 2 or len(found) < _numbers(facts):
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


# Parameters


def _drawn(facts: SweepFacts) -> list[SweptParameter]:
    """Return parameters that something can be seen of: not those with a text for each job."""
    return [
        each
        for each in facts.parameters
        if each.numbers or len({*each.values}) <= max(_MOST_CATEGORIES, len(each.values) // 2)
    ][:_MOST_CHARTS]


def _against_all(facts: SweepFacts, found: Sequence[_Yield]) -> Iterator[Markup]:
    """Yield the objective against each parameter."""
    parameters = _drawn(facts)
    chosen = sorted(found, key=lambda each: each.value)
    if len(chosen) > _MOST_POINTS:
        # the first and the last stay
        step = (len(chosen) - 1) / (_MOST_POINTS - 1)
        chosen = [chosen[round(number * step)] for number in range(_MOST_POINTS)]
    failed = [(place, job) for place, job in enumerate(facts.sweep.jobs) if job.state in BAD]
    failed = failed[:_MOST_POINTS]
    best = facts.objectives.best
    number = None if best is None or abs(best.value) >= _LARGEST else best.job
    tooltips = (len(chosen) + len(failed)) * len(parameters) <= _MOST_TOOLTIPS
    for parameter in parameters if len(found) > 1 else ():
        yield _against(parameter, chosen, failed, number, tooltips=tooltips)


def _not_drawn(facts: SweepFacts, found: Sequence[_Yield]) -> Iterator[str]:
    shown = _drawn(facts)
    if left := [parameter.key for parameter in facts.parameters if parameter not in shown]:
        yield f"Not drawn: {shorten(', '.join(left), 400)}."
    if len(found) > _MOST_POINTS:
        yield f"{_MOST_POINTS} of {len(found)} jobs are drawn, evenly chosen."


def _placed(parameter: SweptParameter) -> tuple[charts.Axis, Sequence[float | None]]:
    """Return the axis of a parameter, and where the jobs lie on it; None is nowhere."""
    if parameter.numbers and not _needs_steps(parameter):
        return charts.Axis(log=spans_decades(parameter.numbers)), parameter.numbers
    shown = ["not set" if value is None else value for value in parameter.values]
    often = Counter(shown)
    kept = [value for value, _ in often.most_common(_MOST_CATEGORIES)]
    names = [value for value in dict.fromkeys(shown) if value in kept]
    if parameter.numbers:
        known = dict(zip(shown, parameter.numbers, strict=True))
        names.sort(key=lambda name: known[name] or 0.0)
    index = {name: number for number, name in enumerate(names)}
    labels = [*names, "other"] if len(names) < len(often) else names
    # beside each other, so that all can be seen; by the golden ratio neighbours lie far apart
    return charts.Axis(categories=tuple(labels)), [
        index.get(value, len(names)) + 0.6 * (number * 0.618034 % 1.0 - 0.5)
        for number, value in enumerate(shown)
    ]


def _needs_steps(parameter: SweptParameter) -> bool:
    """Return whether few numbers are better shown as so many steps.

    Such are 0, 1e-4 and 1e-3, and whole numbers near each other.
    """
    numbers = {number for number in parameter.numbers if number is not None}
    if len({*parameter.values}) > _MOST_CATEGORIES:
        return False
    if all(number == int(number) for number in numbers):
        return max(numbers) - min(numbers) < _MOST_CATEGORIES
    positive = [number for number in numbers if number > 0]
    return len(positive) < len(numbers) and spans_decades(positive, 10.0)


def _against(
    parameter: SweptParameter,
    found: Sequence[_Yield],
    failed: Sequence[tuple[int, ListEntry]],
    best: int | None,
    *,
    tooltips: bool,
) -> Markup:
    """Return the objective against one parameter."""
    axis, places = _placed(parameter)
    up = _objective_axis(found, failed=bool(failed))
    points: list[charts.Dot] = []
    for place, job in failed:
        at = places[place]
        if at is not None and up.low is not None:
            text = f"job {job.number} {job.state}, {parameter.name}={parameter.values[place]}"
            points.append(charts.Dot(at, up.low, text if tooltips else "", "failed"))
    for each in sorted(found, key=lambda each: each.job.number == best):
        at = places[each.place]
        if at is not None:
            kind = "best" if each.job.number == best else ""
            value = f"{parameter.name}={parameter.values[each.place]}"
            text = f"job {each.job.number}: {objective_text(each.value)}, {value}"
            points.append(charts.Dot(at, each.value, text if tooltips or kind else "", kind))
    legend = []
    if best is not None:
        legend.append(charts.Entry("best", "point", f"best: job {best}"))
    if failed:
        legend.append(charts.Entry("failed", "point", "failed, without an objective"))
    said = f"The objective of {counted(len(found), 'job')} against {parameter.key}."
    words = charts.Words(f"against-{parameter.key}", parameter.name, said)
    return charts.scatter(words, points, axis, up, legend)


# In time

_TRACKS = {"gpu": "GPU", "cpu": "core", "job": "place"}


class _Row(NamedTuple):
    """Tracks beside each other on which the same ran."""

    kind: str
    names: list[str]
    tries: tuple[JobTry, ...]


def _tracks(timeline: SweepTimeline) -> str:
    """Return what ran where, and when; empty if nothing did."""
    grouped = itertools.groupby(
        tracks_of(timeline), lambda each: (each.kind, each.tries, "" if each.tries else each.name)
    )
    rows = [_Row(kind, [each.name for each in same], tries) for (kind, tries, _), same in grouped]
    if not any(row.tries for row in rows):
        return ""
    shown = rows[:_MOST_LANES]
    whole = max(1, timeline.end_ns - timeline.start_ns)
    count = sum(len(row.tries) for row in shown)
    # a span that is narrower than this is drawn as one with its neighbour
    least = whole / 2000 if count > _MOST_SPANS else 0.0
    drawn = []
    for row in shown:
        ends = "-".join(dict.fromkeys((row.names[0], row.names[-1])))
        label = shorten_middle(f"{_TRACKS[row.kind]} {ends}", 12)
        drawn.append(charts.ChartLane(label, [*_spans(row.tries, timeline.start_ns, whole, least)]))
    busy = sum((each.end_ns - each.start_ns) * len(row.names) for row in rows for each in row.tries)
    slots = sum(len(row.names) for row in rows)
    kinds = {row.kind for row in rows}
    what = " and ".join(f"{word}s" for kind, word in _TRACKS.items() if kind in kinds)
    share = f"{100 * busy / (whole * slots):.0f} %"
    title = f"Which job ran where, and when: {what} were in use {share} of the time"
    if kinds == {"job"}:
        # jobs of a cluster are known to start when they go to its queue
        title = "Which job was there when"
    tries = "1 try" if len(timeline.tries) == 1 else f"{len(timeline.tries)} tries"
    over = duration(whole / _SECOND)
    text = f"{tries} of jobs on {slots} {what} over {over}; what is idle is empty."
    fates = dict.fromkeys(each.fate for row in shown for each in row.tries)
    legend = [charts.Entry(f"span {_kind(fate)}", "area", fate.replace("_", " ")) for fate in fates]
    axis = charts.Axis("", "duration", low=0.0, high=whole / _SECOND)
    chart = charts.lanes(charts.Words("time", title, text), drawn, axis, legend)
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
    tries: Sequence[JobTry], start_ns: int, whole: float, least: float
) -> Iterator[charts.ChartSpan]:
    """Yield what ran on a track."""
    group: list[JobTry] = []
    for each in tries:
        if group and (each.end_ns - group[0].start_ns > least or each.fate != group[0].fate):
            yield _span(group, start_ns, whole)
            group = []
        group.append(each)
    if group:
        yield _span(group, start_ns, whole)


def _span(group: Sequence[JobTry], start_ns: int, whole: float) -> charts.ChartSpan:
    first, last = group[0], group[-1]
    begin, end = (first.start_ns - start_ns) / _SECOND, (last.end_ns - start_ns) / _SECOND
    text, label = named_jobs(each.job for each in group), ""
    if len(group) == 1:
        again = f", try {first.number + 1}" if first.number else ""
        fate = first.fate.replace("_", " ")
        text = f"job {first.job}{again}: {fate} after {duration(end - begin)}"
        if first.objective is not None:
            text += f", {objective_text(first.objective)}"
        label = str(first.job) if (last.end_ns - first.start_ns) / whole >= 0.025 else ""
    return charts.ChartSpan(begin, end, _kind(first.fate), text, label)


# Jobs


def _jobs(facts: SweepFacts, place: str) -> html.PageTable:
    sweep = facts.sweep
    parameters = facts.parameters[:_MOST_COLUMNS]
    rest = {parameter.key for parameter in facts.parameters[_MOST_COLUMNS:]}
    places = {job.number: at for at, job in enumerate(sweep.jobs)}
    tries = {job.job: job.tries for job in (() if sweep.result is None else sweep.result.jobs)}

    def column(parameter: SweptParameter) -> html.PageColumn:
        def cell(job: ListEntry) -> html.Cell:
            at = places[job.number]
            number = parameter.numbers[at] if parameter.numbers else None
            value = parameter.values[at] or ""
            if number is not None and len(value) > _LONGEST_NUMBER:
                value = f"{number:.6g}"
            return html.Cell(shorten_middle(value, _LONGEST_VALUE), number)

        return html.PageColumn(parameter.name, cell, "numeric" if parameter.numbers else "")

    def others(job: ListEntry) -> str:
        own = [text for text in job.overrides if text not in facts.common]
        keys = ((text, text.partition("=")[0].lstrip("+~")) for text in own)
        shown = [text for text, key in keys if key in rest or not parameters]
        return shorten(" ".join(shown), _LONGEST_NAME)

    failed = any(job.exit_code for job in sweep.jobs)
    columns = [
        html.PageColumn(
            "Job", lambda job: html.Cell(_link(job, facts.place(job), place), job.number), "numeric"
        ),
        *map(column, parameters),
        html.PageColumn("Others", others, "wide"),
        html.PageColumn("State", lambda job: html.badge(job.state, job.state.replace("_", " "))),
        html.PageColumn(
            "Objective",
            lambda job: html.Cell(facts.returned(job), facts.values[places[job.number]]),
            "numeric",
        ),
        html.numbers("Time", lambda job: job.seconds, duration),
        html.numbers("Tries", lambda job: tries.get(job.number), minor=True),
        html.numbers("Exit", lambda job: job.exit_code if failed else None, minor=True),
        html.PageColumn("What happened", facts.cause, "wide"),
    ]
    jobs = _chosen(facts)
    caption = counted(len(jobs), "job")
    if len(jobs) < len(sweep.jobs):
        caption = f"{len(jobs)} of {len(sweep.jobs)} jobs: those that went wrong, and the best"
    return html.table(
        caption,
        columns,
        jobs,
        kind=lambda job: job.state if job.state in BAD else "",
        id_=lambda job: f"job-{job.number}",
    )


def _chosen(facts: SweepFacts) -> Sequence[ListEntry]:
    """Return the jobs of the table; of too many those that failed, the best, and the first."""
    jobs = facts.sweep.jobs
    if len(jobs) <= _MOST_ROWS:
        return jobs
    pairs = zip(jobs, facts.values, strict=True)
    ordered = [job for job, _ in sorted(pairs, key=lambda pair: pair[1] or 0.0)]
    some = _MOST_ROWS // 4
    bad = [job for job in jobs if job.state in BAD]
    telling = [*ordered[:some], *ordered[-some:], *bad[: 2 * some], *jobs]
    kept = {job.number or 0: job for job in telling}
    return [job for _, job in sorted([*kept.items()][:_MOST_ROWS])]


def _link(job: ListEntry, directory: str, place: str) -> str:
    """Return a job's number, which leads to its directory."""
    if not directory or os.path.isabs(directory) or not directory.isprintable():
        return str(job.number)
    path = os.path.normpath(os.path.join(place, directory))
    # an absolute one would depend on where the page is opened, a colon would be a scheme
    return html.fill('<a href="./{}/">{}</a>', quote(path), job.number)
