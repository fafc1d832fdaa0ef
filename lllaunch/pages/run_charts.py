"""A run's timeline as charts: lanes of its ranks, and curves of what was measured. Pure.

Lanes of hundreds of ranks would be no picture: those of one attempt and node that look alike share
one, and who is to blame keeps its own. Of more curves than can be told apart the lowest, the
highest and the middle one are drawn, and again those who are to blame.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.wording import counted
from lllaunch.pages.charts import (
    STYLES,
    ChartAxis,
    ChartBand,
    ChartCurve,
    ChartEvent,
    ChartLane,
    ChartMark,
    ChartSpan,
    ChartText,
    LegendEntry,
    Point,
    Unit,
    lanes,
    line_chart,
    tick_text,
)
from lllaunch.pages.html import (
    Markup,
    TableCell,
    TableColumn,
    TableRow,
    disclosure,
    element,
    joined,
    table,
)
from lllaunch.text import duration, shorten, spans

if TYPE_CHECKING:
    from lllaunch.results.timeline import AttemptTimeline, Lane, RunTimeline, Series, TimeSpan

_SECOND = 1e9

# Lanes


_MOST_LANES = 64
_MOST_PARTS = 40
_TELLING = frozenset({"root_cause", "finding"})
_FATES = {
    "succeeded": "succeeded",
    "failed": "failed: the root cause, or hung",
    "victim": "failed after the root cause",
    "ended": "ended by the launcher",
    "lost": "nobody knows how it ended",
    "running": "running",
}
_SPANS = {
    "spawn": "being started",
    "hang": "hung",
    "waited": "waited, for one that hung or in vain",
    "grace": "asked to end",
    "preload": "modules are imported",
    "rendezvous": "nodes meet",
    "preflight": "preflight",
    "pause": "pause before a restart",
}
_MARKS = {
    "root_cause": "root cause",
    "finding": "finding of the watchdog",
    "signal": "signal",
    "restart": "restart",
    "stacks": "stacks taken",
}


def lanes_of(timeline: RunTimeline) -> Markup:
    """Return the ranks of all attempts in time.

    Args:
        timeline: of the run; with an attempt at least.
    """
    number = sum(len(attempt.lanes) for attempt in timeline.attempts)
    rows: list[ChartLane] = []
    parts = list(timeline.attempts)
    left_out = len(parts) - _MOST_PARTS
    for place, attempt in enumerate(parts):
        if left_out > 0 and 5 <= place < 5 + left_out:
            if place == 5:
                title = f"{left_out} more, which the table has"
                rows.append(ChartLane("", title=title))
            continue
        rows += _attempt(attempt, timeline, together=number > _MOST_LANES)
    kinds = {kind for row in rows for span in row.spans for kind in span.kind.split()}
    marks = {mark.kind for row in rows for mark in row.marks}
    seconds = (timeline.end_ns - timeline.start_ns) / _SECOND
    attempts = {attempt.number for attempt in timeline.attempts}
    description = (
        f"{counted(number, 'worker')} of {counted(len(attempts), 'attempt')} over "
        f"{duration(seconds)}. "
        "The table of all workers has the same facts."
    )
    return lanes(
        ChartText("lanes", "Ranks in time", description),
        rows,
        ChartAxis("time since the beginning", "duration", low=0.0, high=seconds),
        legend=[*_legend(kinds, marks)],
    )


def _legend(kinds: Iterable[str], marks: Iterable[str]) -> Iterator[LegendEntry]:
    for kind, text in _FATES.items():
        if kind in kinds:
            yield LegendEntry(f"span run {kind}", "area", text)
    for kind, text in _SPANS.items():
        if kind in kinds:
            yield LegendEntry(f"span {kind}", "area", text)
    for kind, text in _MARKS.items():
        if kind in marks:
            yield LegendEntry(kind, "mark", text)


def _attempt(
    attempt: AttemptTimeline, timeline: RunTimeline, *, together: bool
) -> Iterator[ChartLane]:
    seconds = ((attempt.end_ns or timeline.end_ns) - attempt.start_ns) / _SECOND
    where = f" on {attempt.node}" if attempt.node else ""
    state = f"{attempt.state} after {duration(max(0.0, seconds))}"
    if attempt.state == "running":
        state = f"running for {duration(max(0.0, seconds))}"
    yield ChartLane("", title=f"Attempt {attempt.number}{where}: {state}")
    start = timeline.start_ns
    if attempt.spans or attempt.marks:
        shown = tuple(_span(span, start, span.kind) for span in attempt.spans)
        marks = tuple(
            ChartMark((mark.time_ns - start) / _SECOND, mark.kind, mark.text)
            for mark in attempt.marks
        )
        yield ChartLane("all", shown, marks)
    for alike in _alike(attempt.lanes) if together else [[lane] for lane in attempt.lanes]:
        yield _lane(alike, start)


def _span(span: TimeSpan, start_ns: int, kind: str) -> ChartSpan:
    begin, end = (span.start_ns - start_ns) / _SECOND, (span.end_ns - start_ns) / _SECOND
    text = f"{_SPANS.get(span.kind, span.kind)}, {duration(max(0.0, end - begin))}"
    return ChartSpan(begin, end, kind, f"{text}: {span.text}" if span.text else text)


def _alike(given: Sequence[Lane]) -> list[list[Lane]]:
    """Return lanes that look alike together; who is to blame stays alone."""
    groups: dict[object, list[Lane]] = {}
    for lane in given:
        kinds = tuple(span.kind for span in lane.spans)
        alone = any(mark.kind in _TELLING for mark in lane.marks)
        key = lane.rank if alone else (lane.fate, kinds, lane.exitcode)
        groups.setdefault(key, []).append(lane)
    return list(groups.values())


def _lane(alike: Sequence[Lane], start_ns: int) -> ChartLane:
    """Return a lane of ranks with spans of the same kinds: from the first to the last of them."""
    first = alike[0]
    shown = []
    for place, span in enumerate(first.spans):
        same = [lane.spans[place] for lane in alike]
        kind = _kind(span, first)
        begin = (min(each.start_ns for each in same) - start_ns) / _SECOND
        end = (max(each.end_ns for each in same) - start_ns) / _SECOND
        said = span.text if len(alike) == 1 else ""
        what = first.text if span.kind == "run" and len(alike) == 1 else said
        name = _FATES.get(first.fate, first.fate) if span.kind == "run" else _SPANS.get(kind, "")
        text = f"{_who(alike)}: {what or name}, {duration(max(0.0, end - begin))}"
        shown.append(ChartSpan(begin, end, kind, text))
    marks = [
        ChartMark((mark.time_ns - start_ns) / _SECOND, mark.kind, mark.text)
        for lane in alike[:1]
        for mark in lane.marks
    ]
    label = f"rank {first.rank}" if len(alike) == 1 else f"{len(alike)} ranks"
    word = first.fate.replace("_", " ")
    return ChartLane(label, tuple(shown), tuple(marks), first.fate, word=word)


def _kind(span: TimeSpan, lane: Lane) -> str:
    """Return the classes of a span of a lane."""
    if span.kind == "run":
        return f"run {lane.fate.replace('_', '-')}"
    # who is ended by the launcher was not the one that hung
    waited = span.kind == "hang" and lane.fate in ("ended", "victim")
    return "waited" if waited else span.kind


def _who(alike: Sequence[Lane]) -> str:
    if len(alike) == 1:
        return f"rank {alike[0].rank}"
    return f"ranks {shorten(spans(lane.rank for lane in alike), 80)}"


# Curves


class _Panel(NamedTuple):
    """A chart of one thing that was measured."""

    name: str
    title: str
    unit: Unit = "number"
    from_zero: bool = True


_PROGRESS = (_Panel("step", "Progress, steps"),)
_USE = (
    _Panel("cpu", "CPU, cores"),
    _Panel("rss", "Memory", "bytes"),
    _Panel("gpu_use", "GPU use", "share"),
    _Panel("gpu_memory", "GPU memory", "bytes"),
    _Panel("gpu_power", "GPU power, W"),
)
_TRAFFIC = (
    _Panel("read", "Read, per second", "bytes"),
    _Panel("written", "Written, per second", "bytes"),
    _Panel("output", "Output so far", "bytes"),
)
_MOST_METRICS = 12
_COLUMNS = 240
_MOST_EVENTS = 50
_MOST_ROWS = 24


def curves_of(timeline: RunTimeline, blamed: Sequence[int] = ()) -> Markup:
    """Return what was measured in a run; an empty text if that is nothing.

    Args:
        timeline: of the run.
        blamed: ranks that it failed because of.
    """
    known: dict[tuple[bool, str], list[Series]] = {}
    for series in timeline.series:
        if series.points:
            known.setdefault((series.metric, series.name), []).append(series)
    metrics = sorted(
        (name for metric, name in known if metric), key=lambda name: ("loss" not in name, name)
    )
    told = [_Panel(name, shorten(name, 60), from_zero=False) for name in metrics[:_MOST_METRICS]]

    # names may be anything
    numbers = {key: number for number, key in enumerate(known)}

    def drawn(panels: Iterable[_Panel], *, metric: bool = False) -> list[Markup]:
        return [
            _panel(panel, f"curve-{numbers[metric, panel.name]}", found, timeline, blamed)
            for panel in panels
            if (found := known.get((metric, panel.name)))
        ]

    first = [*drawn(_PROGRESS), *drawn(told, metric=True), *drawn(_USE)]
    traffic = drawn(_TRAFFIC)
    more = len(metrics) - len(told)
    parts = [element("div", *first, class_="pair")] if first else []
    if more > 0:
        parts.append(element("p", f"{more} more metrics are in samples.jsonl."))
    if traffic:
        parts.append(disclosure("Input and output", element("div", *traffic, class_="pair")))
    return joined(parts)


def _panel(
    panel: _Panel,
    id_: str,
    given: Sequence[Series],
    timeline: RunTimeline,
    blamed: Sequence[int],
) -> Markup:
    by_name: dict[str, list[Series]] = {}
    for series in given:
        by_name.setdefault(series.of, []).append(series)
    what = "GPU" if panel.name.startswith("gpu_") else "rank"
    lines = {f"{what} {of}": _line(each, timeline.start_ns) for of, each in by_name.items()}
    seconds = (timeline.end_ns - timeline.start_ns) / _SECOND
    guilty = {f"rank {rank}" for rank in blamed}
    curves, bands = _curves(lines, guilty, seconds)
    extremes = {name: _extremes(points) for name, points in lines.items()}
    words = ChartText(id_, panel.title, _description(panel, extremes))
    chart = line_chart(
        words,
        curves,
        ChartAxis(unit="duration", low=0.0, high=seconds),
        ChartAxis(unit=panel.unit, low=0.0 if panel.from_zero else None),
        bands=bands,
        events=[*_events(timeline)],
        height=130,
        budget=_COLUMNS,
    )
    return element("div", chart, disclosure("Numbers", _numbers(panel, extremes, guilty)))


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
) -> tuple[list[ChartCurve], list[ChartBand]]:
    """Return what is drawn: each line, or of very many what they have in common."""
    if len(lines) <= STYLES:
        return [ChartCurve(name, points) for name, points in lines.items()], []
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
    curves = [ChartCurve(f"the middle of {len(lines)}", middle, 0)]
    named = [name for name in lines if name in guilty][: STYLES - 1]
    curves += [ChartCurve(name, lines[name], at) for at, name in enumerate(named, start=1)]
    return curves, [ChartBand("from the lowest to the highest", low, high, 0)]


class _Extremes(NamedTuple):
    lowest: float
    highest: float
    last: float


def _extremes(points: Sequence[Point]) -> _Extremes:
    values = [value for _, value in points if math.isfinite(value)]
    return _Extremes(min(values), max(values), values[-1])


def _description(panel: _Panel, extremes: Mapping[str, _Extremes]) -> str:
    top = max(extremes, key=lambda name: extremes[name].highest)
    low = min(extremes, key=lambda name: extremes[name].lowest)
    highest = tick_text(extremes[top].highest, panel.unit)
    lowest = tick_text(extremes[low].lowest, panel.unit)
    return f"Of {len(extremes)}: at most {highest} ({top}), at least {lowest} ({low})."


def _numbers(panel: _Panel, extremes: Mapping[str, _Extremes], guilty: set[str]) -> Markup:
    columns = [
        TableColumn("Of"),
        TableColumn("Lowest", numeric=True),
        TableColumn("Highest", numeric=True),
        TableColumn("Last", numeric=True),
    ]
    order, caption = list(extremes), panel.title
    if len(order) > _MOST_ROWS:
        caption = f"{panel.title}: of {len(order)} those with the highest values"
        order.sort(key=lambda name: (name not in guilty, -extremes[name].highest))
    rows = [
        TableRow(
            (name, *(TableCell(tick_text(value, panel.unit), value) for value in extremes[name]))
        )
        for name in order[:_MOST_ROWS]
    ]
    return table(caption, columns, rows, hidden_caption=len(order) <= _MOST_ROWS)


def _events(timeline: RunTimeline) -> Iterator[ChartEvent]:
    """Yield restarts, and what the run failed for."""
    found = [mark for attempt in timeline.attempts for mark in attempt.marks]
    found += [
        mark for attempt in timeline.attempts for lane in attempt.lanes for mark in lane.marks
    ]
    seen = set()
    for mark in found:
        at = (mark.time_ns - timeline.start_ns) / _SECOND
        if mark.kind in ("root_cause", "restart") and (mark.kind, round(at, 3)) not in seen:
            seen.add((mark.kind, round(at, 3)))
            yield ChartEvent(at, mark.kind, mark.text)
        if len(seen) >= _MOST_EVENTS:
            return
