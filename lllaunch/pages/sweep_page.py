"""The page of a sweep: its verdict, failures, objectives, what ran when, and job by job. Pure.

A page of a thousand jobs is to open in a second. So charts have a budget of shapes: beyond it jobs
are chosen evenly (the lowest and the highest stay), spans beside each other are drawn as one, and
texts that appear where somebody points are left out. How many jobs are drawn is said.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from lllaunch.console.table import counts_text, extremes_text, objective_text
from lllaunch.console.wording import capitalised, counted, named_jobs
from lllaunch.pages.charts import (
    ChartAxis,
    ChartCurve,
    ChartLane,
    ChartPoint,
    ChartPolyline,
    ChartSpan,
    ChartText,
    LegendEntry,
    lanes,
    line_chart,
    parallel,
    scatter,
)
from lllaunch.pages.html import (
    SIGNS,
    Markup,
    PageLink,
    TableCell,
    TableColumn,
    TableRow,
    badge,
    definitions,
    disclosure,
    document,
    element,
    joined,
    preformatted,
    section,
    table,
)
from lllaunch.pages.parts import (
    STATE_WORDS,
    UNKNOWN_STATE,
    code_facts,
    host_facts,
    moment,
    own_line,
    page_footer,
    page_heading,
    short_commit,
)
from lllaunch.pages.sweep_facts import FailureGroup, SweepFacts, SweepJob
from lllaunch.pages.swept import SweptParameter, spans_decades
from lllaunch.results.tries import JobTry, SlotTrack, tracks_of
from lllaunch.sweep.objective import Direction, Objective, improvements
from lllaunch.text import as_ranges, duration, shorten, shorten_middle, spans

_SECOND = 1e9
_MOST_ROWS = 1500
_MOST_COLUMNS = 10  # of swept parameters
_MOST_CHARTS = 8
_MOST_POINTS = 1000  # of a chart
_MOST_TEXTS = 2500  # of all points together, that are shown where somebody points
_MOST_LINES = 300  # across parallel axes
_MOST_AXES = 8
_MOST_CATEGORIES = 12
_MOST_SPANS = 2500
_MOST_LANES = 128
_MOST_GROUPS = 20
_LARGEST = 1e100  # objective: beyond it there is no calculating where a point lies
_LONGEST_VALUE = 60
_LONGEST_NUMBER = 12
_LONGEST_NAME = 160
_LOG_LINES = 30

T = TypeVar("T")


def sweep_page(facts: SweepFacts, version: str, place: str = ".") -> str:
    """Return the page of a sweep.

    Args:
        facts: what is known of it.
        version: lllaunch's.
        place: the sweep's directory as it is reached from the page; links to jobs begin with it.
    """
    sections = [
        ("failures", "What failed", _failures(facts)),
        ("objective", "Objective", _objective(facts)),
        ("parameters", "Objective and parameters", _parameters(facts)),
        ("time", "In time", _time(facts)),
        ("jobs", "Jobs", _jobs(facts, place)),
        ("environment", "Environment", _environment(facts)),
    ]
    there = [(id_, title, content) for id_, title, content in sections if content]
    # a signal to its launcher ends a sweep before its end
    words = {**STATE_WORDS, "signalled": "Interrupted"}
    word = words.get(facts.entry.state, UNKNOWN_STATE)
    return document(
        f"{word}: {os.path.basename(os.path.abspath(facts.directory))}",
        _heading(facts, word),
        joined(section(id_, title, content) for id_, title, content in there),
        links=[PageLink(id_, title) for id_, title, _ in there],
        footer=page_footer(facts.directory, version),
    )


# Above all

_STATES = (
    *("failed", "error", "signalled", "died", "running", "queued", "waiting"),
    *("not_run", "unknown"),
)
_STATE_WORDS = {
    "error": "ended with an error",
    "signalled": "ended by a signal",
    "queued": "in the queue",
    "not_run": "not run",
}


def _heading(facts: SweepFacts, word: str) -> Markup:
    more = joined(_more(facts), " · ")
    state, sentence = facts.entry.state, _verdict(facts)
    return page_heading("Sweep", facts.directory, state, word, sentence, more, _summary(facts))


def _verdict(facts: SweepFacts) -> str:
    # also of those that are not composed yet
    counts = Counter(facts.entry.counts) or Counter(job.state for job in facts.jobs)
    good = f"{counts['succeeded']} of {counted(counts.total(), 'job')} succeeded"
    rest = counts_text((counts[state], _STATE_WORDS.get(state, state)) for state in _STATES)
    return f"{good}, {rest}" if rest else good


def _more(facts: SweepFacts) -> Iterator[str]:
    for what, objective in facts.objectives.extremes:
        job = element("a", f"job {objective.job}", href=f"#job-{objective.job}")
        name = f" ({shorten(objective.name, _LONGEST_NAME)})" if objective.name else ""
        value = element("code", objective_text(objective.value))
        yield joined((f"{what} ", value, " of ", job, name))
    if facts.entry.exit_code is not None:
        yield f"exit code {facts.entry.exit_code}"


def _summary(facts: SweepFacts) -> Iterator[tuple[str, str]]:
    entry, timeline = facts.entry, facts.timeline
    yield "Started", moment(entry.started_ns or timeline.start_ns)
    if entry.seconds is not None:
        took = "Runs for" if entry.state == "running" else "Took"
        yield took, element("span", duration(entry.seconds), title=f"{entry.seconds:.3f} s")
    yield "Jobs", str(max(len(facts.jobs), sum(facts.entry.counts.values())) or "")
    yield (
        "Objective",
        {"minimize": "lower is better", "maximize": "higher is better"}.get(
            facts.direction or "", ""
        ),
    )
    slots = timeline.slots
    yield "GPUs", str(len(slots.gpus)) if slots.gpus else ""
    yield "Cores", str(len(slots.cpus)) if slots.cpus else ""
    yield "Resumed", counted(facts.resumes, "time") if facts.resumes else ""
    yield "In the queue", entry.queue
    yield "Commit", short_commit(facts.build)
    if facts.command:
        yield "Command line", own_line(" ".join(facts.command), "code")
    if facts.common:
        yield "The same in all jobs", own_line(" ".join(facts.common), "code")
    yield "Note", facts.problem


# What failed


def _failures(facts: SweepFacts) -> Markup:
    if not facts.failures:
        return Markup()
    count = sum(len(group.jobs) for group in facts.failures)
    groups = facts.failures[:_MOST_GROUPS]
    parts = [element("p", f"{counted(count, 'job')}, {counted(len(facts.failures), 'cause')}.")]
    parts += [_failure(group, number == 0) for number, group in enumerate(groups)]
    more = len(facts.failures) - len(groups)
    if more:
        parts.append(element("p", f"And {counted(more, 'more cause')}: see the jobs."))
    return joined(parts)


def _failure(group: FailureGroup, is_open: bool) -> Markup:
    case = group.example
    parts: list[str] = [element("p", *_links(group.jobs))]
    if case is not None:
        parts += [element("p", line) for line in case.explanation[:8]]
        of = "" if case.job is None or len(group.jobs) == 1 else f" of job {case.job}"
        if case.place is not None:
            code = element("code", f"{case.place.file}:{case.place.line}")
            parts.append(element("p", "At ", code, of, "."))
        if case.traceback:
            parts.append(preformatted(case.traceback[-_LOG_LINES:], f"Traceback{of}"))
        logs = [log for log in case.logs if log.lines]
        telling = next((log for log in logs if log.stream == "stderr"), logs[0] if logs else None)
        if telling is not None and not case.traceback:
            title = f"The end of {telling.path}"
            parts += [element("h3", title), preformatted(telling.lines[-_LOG_LINES:], title)]
    summary = joined((element("strong", counted(len(group.jobs), "job")), ": ", group.cause))
    return disclosure(summary, *parts, is_open=is_open)


_MOST_LINKS = 60


def _links(numbers: Sequence[int]) -> Iterator[str]:
    """Yield ``job 3`` or ``jobs 0-2, 5``, each range a link to its first job."""
    yield "job " if len(numbers) == 1 else "jobs "
    ranges = as_ranges(numbers)
    for place, each in enumerate(ranges[:_MOST_LINKS]):
        yield ", " if place else ""
        yield element("a", spans(each), href=f"#job-{each.start}")
    if len(ranges) > _MOST_LINKS:
        yield f" and {len(ranges) - _MOST_LINKS} more"


# Objectives


class _Yield(NamedTuple):
    """A job that yielded an objective."""

    job: SweepJob
    value: float
    place: int  # among all jobs


def _yields(facts: SweepFacts) -> list[_Yield]:
    """Return the objectives that can be drawn."""
    return [
        _Yield(job, job.objective, place)
        for place, job in enumerate(facts.jobs)
        if job.objective is not None and abs(job.objective) < _LARGEST
    ]


def _objective_axis(values: Sequence[float], *, failed: bool = False) -> ChartAxis:
    """Return the axis of objectives; with room at its low end for those that have none."""
    log = spans_decades(values)
    if not failed:
        return ChartAxis("objective", log=log)
    low, high = min(values), max(values)
    below = low / (high / low) ** 0.1 if log else low - 0.1 * ((high - low) or abs(low) or 1.0)
    return ChartAxis("objective", log=log, low=below)


def _objective(facts: SweepFacts) -> Markup:
    found = _yields(facts)
    if not facts.objectives.extremes:
        return Markup()
    told = extremes_text(facts.objectives)
    values = [each.value for each in found]
    numbers = sum(job.objective is not None for job in facts.jobs)
    count = f"{counted(numbers, 'job')} returned a number"
    parts = [element("p", f"{capitalised(told)}; {count}." if told else f"{count}.")]
    if len(found) < numbers:
        text = f"{numbers - len(found)} of {_LARGEST:g} and more, or less than its negative"
        parts.append(element("p", f"Not drawn: {text}."))
    elif len(found) > 1:
        parts.append(_so_far(facts, found, values))
    return joined(parts)


def _so_far(facts: SweepFacts, found: Sequence[_Yield], values: Sequence[float]) -> Markup:
    """Return how the best objective changed in time."""
    start = facts.timeline.start_ns or facts.entry.started_ns or 0
    ends = [
        (max(0, each.job.ended_ns - start), Objective(each.value, each.job.number))
        for each in found
        if each.job.ended_ns
    ]
    if not ends:
        return Markup()
    last = max(at for at, _ in ends) / _SECOND
    wanted: list[tuple[str, Direction]] = (
        [("best so far", facts.direction)]
        if facts.direction
        else [("lowest so far", "minimize"), ("highest so far", "maximize")]
    )
    curves = []
    for name, direction in wanted:
        steps = [(at / _SECOND, each.value) for at, each in improvements(ends, direction)]
        curves.append(ChartCurve(name, [*steps, (last, steps[-1][1])], stepped=True))
    title = "The best so far" if facts.direction else "The lowest and the highest so far"
    last_job = [list(improvements(ends, direction))[-1] for _, direction in wanted]
    description = "; ".join(
        f"{name}: {objective_text(each.value)} of job {each.job} after {duration(at / _SECOND)}"
        for (name, _), (at, each) in zip(wanted, last_job, strict=True)
    )
    axis = ChartAxis("time since the sweep began", "duration", low=0.0)
    return line_chart(
        ChartText("so-far", title, f"{description}."), curves, axis, _objective_axis(values)
    )


# Parameters


def _parameters(facts: SweepFacts) -> Markup:
    found = _yields(facts)
    parameters = _chartable(facts.parameters)
    if len(found) < 2 or not parameters:
        return Markup()
    shown = parameters[:_MOST_CHARTS]
    chosen = _thinned(sorted(found, key=lambda each: each.value), _MOST_POINTS)
    failed = [
        (place, job) for place, job in enumerate(facts.jobs) if job.bad and job.objective is None
    ]
    with_texts = (len(chosen) + min(len(failed), _MOST_POINTS)) * len(shown) <= _MOST_TEXTS
    charts = [
        _against(facts, parameter, chosen, failed[:_MOST_POINTS], with_texts=with_texts)
        for parameter in shown
    ]
    parts = [element("div", *charts, class_="pair")]
    if len(parameters) > 1:
        parts.append(_parallel(facts, parameters[: _MOST_AXES - 1], found))
    left = [parameter.key for parameter in facts.parameters if parameter not in shown]
    if left:
        parts.append(element("p", f"Not drawn: {shorten(', '.join(left), 400)}."))
    if len(chosen) < len(found):
        parts.append(element("p", f"{len(chosen)} of {len(found)} jobs are drawn, evenly chosen."))
    return joined(parts)


def _chartable(parameters: Sequence[SweptParameter]) -> list[SweptParameter]:
    """Return those that something can be seen of: each job may have a text of its own."""
    return [
        each
        for each in parameters
        if each.numbers or len({*each.values}) <= max(_MOST_CATEGORIES, len(each.values) // 2)
    ]


def _thinned(found: Sequence[T], most: int) -> Sequence[T]:
    """Return so many of what is ordered, evenly chosen; the first and the last stay."""
    if len(found) <= most:
        return found
    step = (len(found) - 1) / (most - 1)
    return [found[round(number * step)] for number in range(most)]


class _Placed(NamedTuple):
    """Values of a parameter on an axis; None is nowhere."""

    axis: ChartAxis
    at: tuple[float | None, ...]


def _placed(parameter: SweptParameter, *, spread: bool) -> _Placed:
    """Return where the jobs lie on a parameter's axis.

    Args:
        parameter: which.
        spread: whether those with one category lie beside each other, where all could be seen.
    """
    if parameter.numbers and not _needs_steps(parameter):
        return _Placed(ChartAxis(parameter.name, log=parameter.log), parameter.numbers)
    shown = ["not set" if value is None else value for value in parameter.values]
    often = Counter(shown)
    kept = [value for value, _ in often.most_common(_MOST_CATEGORIES)]
    names = [value for value in dict.fromkeys(shown) if value in kept]
    if parameter.numbers:
        known = dict(zip(shown, parameter.numbers, strict=True))
        names.sort(key=lambda name: known[name] or 0.0)
    others = len(names) < len(often)
    index = {name: number for number, name in enumerate(names)}
    labels = [*names, "other"] if others else names
    at = [float(index.get(value, len(names))) for value in shown]
    if spread:
        # by the golden ratio neighbours lie far from each other
        at = [each + 0.6 * (number * 0.618034 % 1.0 - 0.5) for number, each in enumerate(at)]
    return _Placed(ChartAxis(parameter.name, categories=tuple(labels)), tuple(at))


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


def _best_jobs(facts: SweepFacts) -> set[int]:
    """Return the best job, if there is one that can be drawn."""
    best = facts.objectives.best
    return set() if best is None or abs(best.value) >= _LARGEST else {best.job}


def _against(
    facts: SweepFacts,
    parameter: SweptParameter,
    found: Sequence[_Yield],
    failed: Sequence[tuple[int, SweepJob]],
    *,
    with_texts: bool,
) -> Markup:
    """Return the objective against one parameter."""
    placed = _placed(parameter, spread=True)
    best = _best_jobs(facts)
    up = _objective_axis([each.value for each in found], failed=bool(failed))
    points: list[ChartPoint] = []
    for place, job in failed:
        at = placed.at[place]
        if at is not None and up.low is not None:
            text = f"job {job.number} {job.state}, {parameter.name}={parameter.values[place]}"
            points.append(ChartPoint(at, up.low, text if with_texts else "", "failed"))
    for each in sorted(found, key=lambda each: each.job.number in best):
        at = placed.at[each.place]
        if at is None:
            continue
        number = each.job.number
        value = parameter.values[each.place]
        text = f"job {number}: {objective_text(each.value)}, {parameter.name}={value}"
        kind = "best" if number in best else ""
        points.append(ChartPoint(at, each.value, text if with_texts or kind else "", kind))
    legend = []
    if best:
        legend.append(LegendEntry("best", "point", f"best: job {min(best)}"))
    if failed:
        legend.append(LegendEntry("failed", "point", "failed, without an objective"))
    words = ChartText(f"against-{parameter.key}", parameter.name, _against_text(parameter, found))
    # its title stands above the chart
    return scatter(words, points, replace(placed.axis, title=""), up, legend=legend)


def _against_text(parameter: SweptParameter, found: Sequence[_Yield]) -> str:
    """Return what a chart shows of a parameter, in a sentence."""
    groups: dict[str, list[float]] = {}
    for each in found:
        value = parameter.values[each.place]
        groups.setdefault("not set" if value is None else value, []).append(each.value)
    if len(groups) > _MOST_CATEGORIES:
        return f"The objective of {counted(len(found), 'job')} against {parameter.key}."
    told = ", ".join(
        f"{shorten(value, 30)}: {objective_text(min(values))} to {objective_text(max(values))}"
        for value, values in groups.items()
    )
    return f"The objective by {parameter.key}: {told}."


_QUARTERS = ("q0", "q1", "q2", "q3", "q4")


def _parallel(
    facts: SweepFacts, parameters: Sequence[SweptParameter], found: Sequence[_Yield]
) -> Markup:
    """Return a line for each job across all parameters to its objective."""
    values = [each.value for each in found]
    placed = [_placed(parameter, spread=False) for parameter in parameters]
    ranked = _thinned(sorted(found, key=lambda each: each.value), _MOST_LINES)
    best = _best_jobs(facts)
    lines = []
    for rank, each in enumerate(ranked):
        kind = _QUARTERS[rank * len(_QUARTERS) // len(ranked)]
        across = [float("nan") if (at := one.at[each.place]) is None else at for one in placed]
        text = f"job {each.job.number}: {objective_text(each.value)}"
        kind = "best" if each.job.number in best else kind
        lines.append(ChartPolyline([*across, each.value], text, kind))
    if facts.direction == "minimize":
        lines.reverse()
    lines.sort(key=lambda line: line.kind == "best")
    axes = [*(one.axis for one in placed), _objective_axis(values)]
    names = ", ".join(parameter.name for parameter in parameters)
    words = ChartText(
        "parallel",
        "All parameters together",
        f"Each line is a job: its {names} and its objective, "
        f"from {objective_text(min(values))} to {objective_text(max(values))}.",
    )
    legend = [
        LegendEntry("q0", "line", "lowest objectives"),
        LegendEntry("q2", "line", "in the middle"),
        LegendEntry("q4", "line", "highest objectives"),
    ]
    if best:
        legend.append(LegendEntry("best", "line", "the best"))
    return parallel(words, axes, lines, legend=legend)


# In time

_TRACKS = {"gpu": "GPU", "cpu": "core", "job": "place"}


class _Row(NamedTuple):
    """Tracks on which the same ran, and what."""

    kind: str
    names: list[str]
    tries: tuple[JobTry, ...]


def _time(facts: SweepFacts) -> Markup:
    timeline = facts.timeline
    rows = list(_rows(tracks_of(timeline)))
    if not any(row.tries for row in rows):
        return Markup()
    shown = rows[:_MOST_LANES]
    whole = max(1, timeline.end_ns - timeline.start_ns)
    count = sum(len(row.tries) for row in shown)
    # what is narrower than this is drawn as one with its neighbour
    least = whole / 2000 if count > _MOST_SPANS else 0.0
    drawn = [
        ChartLane(_label(row), list(_spans(row.tries, timeline.start_ns, whole, least)))
        for row in shown
    ]
    busy = sum((each.end_ns - each.start_ns) * len(row.names) for row in rows for each in row.tries)
    slots = sum(len(row.names) for row in rows)
    kinds = {row.kind for row in rows}
    what = " and ".join(f"{_TRACKS[kind]}s" for kind in ("gpu", "cpu", "job") if kind in kinds)
    share = busy / (whole * slots)
    title = f"Which job ran where, and when: {what} were in use {100 * share:.0f} % of the time"
    if kinds == {"job"}:
        # those of a cluster are told to have started when they went to its queue
        title = "Which job was there when"
    described = f"{counted(len(facts.timeline.tries), 'try')} of jobs".replace("trys", "tries")
    words = ChartText(
        "time",
        title,
        f"{described} on {slots} {what} over {duration(whole / _SECOND)}; what is idle is empty.",
    )
    fates = dict.fromkeys(each.fate for row in shown for each in row.tries)
    legend = [LegendEntry(f"span {_kind(fate)}", "area", fate.replace("_", " ")) for fate in fates]
    axis = ChartAxis("", "duration", low=0.0, high=whole / _SECOND)
    parts = [lanes(words, drawn, axis, legend=legend)]
    for at in timeline.resumed_ns:
        after = duration(max(0, at - timeline.start_ns) / _SECOND)
        parts.append(element("p", f"Resumed after {after}."))
    if len(rows) > len(shown):
        parts.append(element("p", f"And {len(rows) - len(shown)} more that are not drawn."))
    return joined(parts)


def _kind(fate: str) -> str:
    return fate if fate in SIGNS else "unknown"


def _rows(tracks: Sequence[SlotTrack]) -> Iterator[_Row]:
    """Yield tracks, those beside each other on which the same ran as one."""
    row: _Row | None = None
    for track in tracks:
        if row is not None and (row.kind, row.tries) == (track.kind, track.tries) and row.tries:
            row.names.append(track.name)
            continue
        if row is not None:
            yield row
        row = _Row(track.kind, [track.name], track.tries)
    if row is not None:
        yield row


def _label(row: _Row) -> str:
    if len(row.names) == 1:
        return shorten_middle(f"{_TRACKS[row.kind]} {row.names[0]}", 12)
    return shorten_middle(f"{_TRACKS[row.kind]} {row.names[0]}-{row.names[-1]}", 12)


def _spans(
    tries: Sequence[JobTry], start_ns: int, whole: float, least: float
) -> Iterator[ChartSpan]:
    """Yield what ran on a track."""
    group: list[JobTry] = []
    for each in tries:
        if group and (each.end_ns - group[0].start_ns > least or each.fate != group[0].fate):
            yield _span(group, start_ns, whole)
            group = []
        group.append(each)
    if group:
        yield _span(group, start_ns, whole)


def _span(group: Sequence[JobTry], start_ns: int, whole: float) -> ChartSpan:
    first, last = group[0], group[-1]
    seconds = (last.end_ns - first.start_ns) / _SECOND
    if len(group) == 1:
        again = f", try {first.number + 1}" if first.number else ""
        text = f"job {first.job}{again}: {first.fate.replace('_', ' ')} after {duration(seconds)}"
        if first.objective is not None:
            text += f", {objective_text(first.objective)}"
    else:
        text = named_jobs(each.job for each in group)
    wide = (last.end_ns - first.start_ns) / whole >= 0.025
    return ChartSpan(
        (first.start_ns - start_ns) / _SECOND,
        (last.end_ns - start_ns) / _SECOND,
        _kind(first.fate),
        text,
        str(first.job) if wide and len(group) == 1 else "",
    )


# Jobs


def _jobs(facts: SweepFacts, place: str) -> Markup:
    if not facts.jobs:
        return Markup()
    jobs = list(_chosen(facts.jobs, _MOST_ROWS))
    parameters = [
        (parameter, f"{parameter.name}") for parameter in facts.parameters[:_MOST_COLUMNS]
    ]
    rest = {parameter.key for parameter in facts.parameters[_MOST_COLUMNS:]}
    has = {
        "objective": any(job.objective is not None or job.returned for _, job in jobs),
        "exit": any(job.exit_code for _, job in jobs),
        "cause": any(job.cause for _, job in jobs),
        "time": any(job.seconds is not None for _, job in jobs),
    }
    columns = [
        TableColumn("Job", numeric=True),
        *(TableColumn(title, numeric=bool(each.numbers)) for each, title in parameters),
        *([TableColumn("Others", wide=True)] if rest or not parameters else []),
        TableColumn("State"),
        *([TableColumn("Objective", numeric=True)] if has["objective"] else []),
        *([TableColumn("Time", numeric=True)] if has["time"] else []),
        TableColumn("Tries", numeric=True, minor=True),
        *([TableColumn("Exit", numeric=True, minor=True)] if has["exit"] else []),
        *([TableColumn("What happened", wide=True)] if has["cause"] else []),
    ]
    rows = []
    for index, job in jobs:
        cells: list[str | TableCell] = [TableCell(_job_link(job, place), job.number)]
        cells += [_value(parameter, index) for parameter, _ in parameters]
        if rest or not parameters:
            others = [each for each in job.overrides if _key(each) in rest or not parameters]
            cells.append(shorten(" ".join(others), _LONGEST_NAME))
        cells.append(badge(job.state, _STATE_WORDS.get(job.state, job.state)))
        if has["objective"]:
            cells.append(TableCell(job.returned, job.objective))
        if has["time"]:
            cells.append(
                TableCell("" if job.seconds is None else duration(job.seconds), job.seconds)
            )
        cells.append(TableCell(str(job.tries), job.tries))
        if has["exit"]:
            cells.append(
                TableCell("" if job.exit_code is None else str(job.exit_code), job.exit_code)
            )
        if has["cause"]:
            cells.append(job.cause)
        rows.append(TableRow(cells, f"job-{job.number}", job.state if job.bad else ""))
    caption = f"{counted(len(rows), 'job')}"
    if len(rows) < len(facts.jobs):
        caption = f"{len(rows)} of {len(facts.jobs)} jobs: those that went wrong, and the best"
    return table(caption, columns, rows)


def _chosen(jobs: Sequence[SweepJob], most: int) -> Iterator[tuple[int, SweepJob]]:
    """Yield jobs with their places; of too many those that tell most: what failed, what is best."""
    if len(jobs) <= most:
        yield from enumerate(jobs)
        return
    ordered = sorted(
        range(len(jobs)),
        key=lambda place: jobs[place].objective or 0.0,
    )
    half = most // 4
    kept = {*ordered[:half], *ordered[-half:]}
    kept.update([place for place, job in enumerate(jobs) if job.bad][: most // 2])
    for place in range(len(jobs)):
        if len(kept) >= most:
            break
        kept.add(place)
    yield from ((place, jobs[place]) for place in sorted(kept))


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _job_link(job: SweepJob, place: str) -> Markup:
    """Return a job's number, which leads to its directory."""
    directory = job.directory
    if not directory or os.path.isabs(directory) or not directory.isprintable():
        return joined((str(job.number),))
    path = os.path.normpath(os.path.join(place, directory))
    # an absolute one would depend on where the page is opened, a colon would be a scheme
    return element("a", str(job.number), href=f"./{quote(path)}/")


def _value(parameter: SweptParameter, place: int) -> TableCell:
    value = parameter.values[place]
    number = parameter.numbers[place] if parameter.numbers else None
    if number is not None and len(value or "") > _LONGEST_NUMBER:
        value = f"{number:.6g}"
    return TableCell("" if value is None else shorten_middle(value, _LONGEST_VALUE), number)


# Environment


def _environment(facts: SweepFacts) -> Markup:
    own = [
        ("GPUs of the sweep", ", ".join(facts.timeline.slots.gpus)),
        ("Begun by lllaunch", facts.version),
    ]
    return definitions([*host_facts(facts.host), *own, *code_facts(facts.build)])
