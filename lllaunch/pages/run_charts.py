"""A run's timeline as charts: lanes of its ranks, and curves of what was measured. Pure.

Lanes of hundreds of ranks would be no picture: those of one attempt and node that look alike share
one, and who is to blame keeps its own. Of more curves than can be told apart the lowest, the
highest and the middle one are drawn, and again those who are to blame.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.lanes import MARKS, SPANS
from lllaunch.pages import charts
from lllaunch.pages.charts import Point
from lllaunch.text import duration, shorten, spans
from lllaunch.words import counted

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.results.history import AttemptTimeline, Lane, Mark, TimeSpan
    from lllaunch.results.timeline import RunTimeline, Series

_SECOND = 1e9


def marks_of(timeline: RunTimeline) -> Iterator[Mark]:
    """Yield what happened in a run: of each attempt what is about all, then what is about one."""
    for attempt in timeline.attempts:
        yield from attempt.marks
        for lane in attempt.lanes:
            yield from lane.marks


# Lanes

_MOST_LANES = 64
_MOST_PARTS = 40  # attempts, of each node
_FIRST_PARTS = 5
_TELLING = frozenset({"root_cause", "finding"})
_FATES = {
    "succeeded": "succeeded",
    "failed": "failed: the root cause, or hung",
    "victim": "failed after the root cause",
    "ended": "ended by the launcher",
    "lost": "nobody knows how it ended",
    "running": "running",
}
_SPANS = {kind: sign.meaning for kind, sign in SPANS.items() if kind != "run"} | {
    "waited": "waits, for one that hangs or in vain",
}


def lanes_of(timeline: RunTimeline) -> Markup:
    """Return the ranks of all attempts in time; there is an attempt at least."""
    start, end = timeline.start_ns, timeline.end_ns
    number = sum(len(attempt.lanes) for attempt in timeline.attempts)
    left_out = max(0, len(timeline.attempts) - _MOST_PARTS)
    rows: list[charts.ChartLane] = []
    for place, attempt in enumerate(timeline.attempts):
        if not _FIRST_PARTS <= place < _FIRST_PARTS + left_out:
            rows += _attempt(attempt, start, end, together=number > _MOST_LANES)
        elif place == _FIRST_PARTS:
            rows.append(charts.ChartLane("", title=f"{left_out} more, which the table has"))
    areas = {span.kind for row in rows for span in row.spans}
    marks = {mark.kind for row in rows for mark in row.marks}
    named = {f"run {kind}": text for kind, text in _FATES.items()} | _SPANS
    legend = [charts.Entry(f"span {kind}", "area", named[kind]) for kind in named if kind in areas]
    legend += [
        charts.Entry(kind, "mark", sign.meaning) for kind, sign in MARKS.items() if kind in marks
    ]
    seconds = (end - start) / _SECOND
    attempts = len({attempt.number for attempt in timeline.attempts})
    description = (
        f"{counted(number, 'worker')} of {counted(attempts, 'attempt')} over {duration(seconds)}. "
        "The table of all workers has the same facts."
    )
    axis = charts.Axis("time since the beginning", "duration", low=0.0, high=seconds)
    return charts.lanes(charts.Words("lanes", "Ranks in time", description), rows, axis, legend)


def _attempt(
    attempt: AttemptTimeline, start_ns: int, end_ns: int, *, together: bool
) -> Iterator[charts.ChartLane]:
    took = duration(max(0.0, ((attempt.end_ns or end_ns) - attempt.start_ns) / _SECOND))
    where = f" on {attempt.node}" if attempt.node else ""
    when = "for" if attempt.state == "running" else "after"
    yield charts.ChartLane(
        "", title=f"Attempt {attempt.number}{where}: {attempt.state} {when} {took}"
    )
    if attempt.spans or attempt.marks:
        shown = []
        for span in attempt.spans:
            said = ": ".join(filter(None, (_SPANS.get(span.kind, span.kind), span.text)))
            shown.append(_span([span], start_ns, span.kind, said))
        yield charts.ChartLane("all", shown, [_mark(mark, start_ns) for mark in attempt.marks])
    groups: dict[object, list[Lane]] = {}
    for lane in attempt.lanes:
        # who is to blame stays alone
        alone = not together or any(mark.kind in _TELLING for mark in lane.marks)
        kinds = tuple(span.kind for span in lane.spans)
        key = id(lane) if alone else (lane.fate, kinds, lane.exitcode)
        groups.setdefault(key, []).append(lane)
    for alike in groups.values():
        yield _lane(alike, start_ns)


def _mark(mark: Mark, start_ns: int) -> charts.ChartMark:
    return charts.ChartMark((mark.time_ns - start_ns) / _SECOND, mark.kind, mark.text)


def _span(same: Sequence[TimeSpan], start_ns: int, kind: str, said: str) -> charts.ChartSpan:
    begin = (min(each.start_ns for each in same) - start_ns) / _SECOND
    end = (max(each.end_ns for each in same) - start_ns) / _SECOND
    return charts.ChartSpan(begin, end, kind, f"{said}, {duration(max(0.0, end - begin))}")


def _lane(alike: Sequence[Lane], start_ns: int) -> charts.ChartLane:
    """Return a lane of ranks with spans of the same kinds: from the first to the last of them."""
    first, alone = alike[0], len(alike) == 1
    who = f"rank {first.rank}" if alone else f"{len(alike)} ranks"
    ranks = who if alone else f"ranks {shorten(spans(lane.rank for lane in alike), 80)}"
    shown = []
    for place, span in enumerate(first.spans):
        kind: str = span.kind
        name, said = _SPANS.get(kind, ""), span.text
        if kind == "run":
            kind = f"run {first.fate.replace('_', '-')}"
            name, said = _FATES.get(first.fate, first.fate), first.text
        elif kind == "hang" and first.fate in ("ended", "victim"):
            # who is ended by the launcher was not the one that hung
            kind, name = "waited", _SPANS["waited"]
        same = [lane.spans[place] for lane in alike]
        text = (alone and said) or name
        shown.append(_span(same, start_ns, kind, f"{ranks}: {text}"))
    marks = [_mark(mark, start_ns) for mark in first.marks]
    return charts.ChartLane(who, shown, marks, first.fate)


# Curves


class _Kind(NamedTuple):
    """Something that is measured, and how its chart is called."""

    name: str
    title: str
    unit: charts.Unit = "number"
    from_zero: bool = True


_PROGRESS = (_Kind("step", "Progress, steps"),)
_USE = (
    _Kind("cpu", "CPU, cores"),
    _Kind("rss", "Memory", "bytes"),
    _Kind("gpu_use", "GPU use", "share"),
    _Kind("gpu_memory", "GPU memory", "bytes"),
    _Kind("gpu_power", "GPU power, W"),
)
_TRAFFIC = (
    _Kind("read", "Read, per second", "bytes"),
    _Kind("written", "Written, per second", "bytes"),
    _Kind("output", "Output so far", "bytes"),
)
_MOST_METRICS = 12
_COLUMNS = 240
_MOST_EVENTS = 50


class Measured(NamedTuple):
    """What was measured in a run, and how many metrics have no chart; traffic is I/O."""

    panels: Sequence[Markup]
    more: int
    traffic: Sequence[Markup]


def curves_of(timeline: RunTimeline, blamed: Sequence[int] = ()) -> Measured:
    """Return what was measured in a run; curves of blamed ranks are always drawn."""
    known: dict[tuple[bool, str], list[Series]] = {}
    for series in timeline.series:
        if series.points:
            known.setdefault((series.metric, series.name), []).append(series)
    metrics = sorted(
        (name for metric, name in known if metric), key=lambda name: ("loss" not in name, name)
    )
    told = [_Kind(name, shorten(name, 60), from_zero=False) for name in metrics[:_MOST_METRICS]]

    # names may be anything
    numbers = {key: number for number, key in enumerate(known)}

    def drawn(kinds: Iterable[_Kind], *, metric: bool = False) -> list[Markup]:
        return [
            _panel(kind, f"curve-{numbers[metric, kind.name]}", found, timeline, blamed)
            for kind in kinds
            if (found := known.get((metric, kind.name)))
        ]

    panels = [*drawn(_PROGRESS), *drawn(told, metric=True), *drawn(_USE)]
    return Measured(panels, len(metrics) - len(told), drawn(_TRAFFIC))


def _panel(
    kind: _Kind, id_: str, given: Sequence[Series], timeline: RunTimeline, blamed: Sequence[int]
) -> Markup:
    by_name: dict[str, list[Series]] = {}
    for series in given:
        by_name.setdefault(series.of, []).append(series)
    lines = {name: _line(each, timeline.start_ns) for name, each in by_name.items()}
    seconds = (timeline.end_ns - timeline.start_ns) / _SECOND
    guilty = {f"rank {rank}" for rank in blamed}
    values = [(value, name) for name, points in lines.items() for _, value in points]
    known = [pair for pair in values if math.isfinite(pair[0])]
    show = functools.partial(charts.tick_text, unit=kind.unit)
    (low, lowest), (high, highest) = min(known), max(known)
    said = f"Of {len(lines)}: at most {show(high)} ({highest}), at least {show(low)} ({lowest})."
    return charts.line_chart(
        charts.Words(id_, kind.title, said),
        _curves(lines, guilty, seconds),
        charts.Axis(unit="duration", low=0.0, high=seconds),
        charts.Axis(unit=kind.unit, low=0.0 if kind.from_zero else None),
        events=[*_events(timeline)],
    )


def _line(given: Sequence[Series], start_ns: int) -> list[Point]:
    """Return the points of one rank or GPU; the line is broken between attempts."""
    points: list[Point] = []
    for series in sorted(given, key=lambda each: each.attempt):
        if points:
            points.append((points[-1][0], math.nan))
        points += [((at - start_ns) / _SECOND, value) for at, value in series.points]
    return points


def _curves(
    lines: Mapping[str, Sequence[Point]], guilty: set[str], seconds: float
) -> list[charts.Curve]:
    """Return what is drawn: each line, or of very many what they have in common."""
    if len(lines) <= charts.STYLES:
        return [charts.Curve(name, points) for name, points in lines.items()]
    columns: dict[int, list[float]] = {}
    wide = max(seconds, 1e-9) / _COLUMNS
    for points in lines.values():
        for at, value in points:
            if math.isfinite(value):
                columns.setdefault(int(at / wide), []).append(value)
    found = [((column + 0.5) * wide, values) for column, values in sorted(columns.items())]
    low = [(at, min(values)) for at, values in found]
    high = [(at, max(values)) for at, values in found]
    middle = [(at, statistics.median(values)) for at, values in found]
    curves = [
        charts.Curve("from the lowest to the highest", high, 0, low=low),
        charts.Curve(f"the middle of {len(lines)}", middle, 0),
    ]
    named = [name for name in lines if name in guilty][: charts.STYLES - 1]
    return curves + [charts.Curve(name, lines[name], at) for at, name in enumerate(named, start=1)]


def _events(timeline: RunTimeline) -> Iterator[charts.ChartMark]:
    """Yield restarts, and what the run failed for."""
    seen = set()
    for mark in marks_of(timeline):
        at = (mark.time_ns - timeline.start_ns) / _SECOND
        if mark.kind in ("root_cause", "restart") and (mark.kind, round(at, 3)) not in seen:
            seen.add((mark.kind, round(at, 3)))
            yield charts.ChartMark(at, mark.kind, mark.text)
        if len(seen) >= _MOST_EVENTS:
            return
