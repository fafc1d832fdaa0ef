"""Charts as SVG in a page: curves, lanes, points, parallel axes, bars. Pure geometry and text.

A chart is as wide as the page lets it be, from a phone to a wall, and its letters keep their size:
what lies along x is told in percent, lines lie in a box of their own that is stretched
(``preserveAspectRatio="none"``) and whose strokes are not. So nothing measures a window, no script
draws, and a chart is the same on paper. Colours are classes in page.css; each has a dash, a
pattern, a sign or a word beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lllaunch.pages.html import SIGNS, Markup, element, joined, slug
from lllaunch.text import count, duration, shorten

Unit = Literal["number", "duration", "bytes", "share"]
Point = tuple[float, float]

STYLES = 8
"""How many styles of lines there are."""

_WIDE = 1000.0  # of the box that lines lie in
_LONGEST_LABEL = 28
# What is beyond counts as infinite, and its inverse as nothing: there is room to calculate.
_LARGEST = 1e150

# Ticks


_STEPS_OF_TIME = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400),
)


def ticks(low: float, high: float, unit: Unit = "number", most: int = 6) -> list[float]:
    """Return round numbers between two bounds, in order; at most so many, and at least one.

    Args:
        low: the lower bound, finite.
        high: the upper bound, finite.
        unit: what is round: seconds are so in minutes and hours, bytes in powers of two.
        most: how many there may be.
    """
    if not high - low > 1 / _LARGEST:
        return [low]
    step = _step((high - low) / max(1, most - 1), unit)
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while (at := first * step) <= high + step * 1e-9 and len(found) < most:
        found.append(at)
        first += 1
    return found or [low]


def _step(least: float, unit: Unit) -> float:
    """Return the smallest round step that is not smaller than a number."""
    if unit == "duration" and least > 0.5:
        return next((float(step) for step in _STEPS_OF_TIME if step >= least), 2.0**40)
    if unit == "bytes" and least > 1:
        return 2.0 ** math.ceil(math.log2(least) - 1e-9)
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))


def tick_text(value: float, unit: Unit = "number") -> str:
    """Return what stands at a tick: ``1 min 30 s``, ``1.25 GiB``, ``50 %``, ``0.01``."""
    if unit == "share":
        return f"{count(100 * value)} %"
    if unit == "number" or value == 0:
        return count(value)
    if unit == "bytes":
        return _bytes(value)
    # those of several decimals are not to read alike
    exact = f"{count(abs(value))} s" if abs(value) < 60 else duration(abs(value))
    return f"-{exact}" if value < 0 else exact


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{count(value)} {unit}"
        value /= 1024
    return f"{count(value)} TiB"


# Downsampling


def thinned(points: Sequence[Point], budget: int = 300) -> list[Point]:
    """Return the points that make the same line at some width: the ends and extremes of columns.

    Args:
        points: in order of x.
        budget: of so many columns up to four points each stay.
    """
    if len(points) <= 4 * budget or budget < 1:
        return list(points)
    low, high = points[0][0], points[-1][0]
    wide = (high - low) / budget or 1.0
    kept: list[Point] = []
    column: list[Point] = []
    number = 0
    for point in points:
        at = min(budget - 1, int((point[0] - low) / wide))
        if at != number and column:
            kept += _extremes(column)
            column = []
        number = at
        column.append(point)
    return kept + _extremes(column)


def _extremes(column: Sequence[Point]) -> list[Point]:
    """Return the first, the lowest, the highest and the last of some points, in their order."""
    numbers = range(len(column))
    finite = [at for at in numbers if math.isfinite(column[at][1])] or [0]
    lowest = min(finite, key=lambda at: column[at][1])
    highest = max(finite, key=lambda at: column[at][1])
    return [column[at] for at in sorted({0, lowest, highest, len(column) - 1})]


# Axes


@dataclass(frozen=True)
class ChartAxis:
    """What is told along a direction.

    Attributes:
        title: what it is, with its unit where ticks do not have it.
        unit: how numbers are written.
        log: whether steps are factors; what is not above zero is left out.
        categories: texts that values are indices of, if it is not of numbers.
        low: where it begins; None for the lowest value.
        high: where it ends; None for the highest value.
    """

    title: str = ""
    unit: Unit = "number"
    log: bool = False
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


class ChartScale:
    """Where the values of an axis lie, from 0 to 1.

    Args:
        axis: the axis.
        values: all that lie on it; what is not finite, or as good as that, is passed over.
        room: what share of it stays free beyond the lowest and the highest value, where the axis
            does not say where it begins or ends.
    """

    def __init__(self, axis: ChartAxis, values: Iterable[float], room: float = 0.0) -> None:
        self._axis = axis
        known = [value for value in values if self._fits(value)]
        if axis.categories:
            self.low, self.high = -0.5, len(axis.categories) - 0.5
            return
        low = axis.low if axis.low is not None else min(known, default=0.0)
        high = axis.high if axis.high is not None else max(known, default=1.0)
        self.low, self.high = self._apart(low, max(low, high))
        if not axis.log:
            free = room * (self.high - self.low)
            self.low -= free if axis.low is None else 0.0
            self.high += free if axis.high is None else 0.0

    def _fits(self, value: float) -> bool:
        least = 1 / _LARGEST if self._axis.log else -_LARGEST
        return least < value < _LARGEST

    def _apart(self, low: float, high: float) -> tuple[float, float]:
        if self._axis.log:
            low, high = max(low, 1 / _LARGEST), max(high, 1 / _LARGEST)
            return (low, high) if high > low else (low / 2, high * 2)
        if high - low > max(abs(low), abs(high), 1 / _LARGEST) * 1e-9:
            return low, high
        # all the same: it lies in the middle, or at the bottom where that is known
        room = abs(low) / 2 if abs(low) > 1e-9 else 1.0
        return (low if self._axis.low is not None else low - room), high + room

    def at(self, value: float) -> float | None:
        """Return where a value lies, from 0 to 1; None if it is nowhere."""
        if not self._fits(value):
            return None
        low, high = self.low, self.high
        if self._axis.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return where ticks are, from 0 to 1, and what stands there."""
        axis = self._axis
        values: Iterable[float]
        if axis.categories:
            values = range(len(axis.categories))
        elif axis.log:
            values = self._powers(most)
        else:
            values = ticks(self.low, self.high, axis.unit, most)
        found = ((self.at(value), self.text(value)) for value in values)
        return [(at, text) for at, text in found if at is not None]

    def text(self, value: float) -> str:
        """Return a value as it is written at the axis."""
        names = self._axis.categories
        if names:
            index = round(value) if math.isfinite(value) else -1
            name = names[index] if 0 <= index < len(names) else ""
            return shorten(name, _LONGEST_LABEL)
        return tick_text(value, self._axis.unit)

    def _powers(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        step = max(1, math.ceil((last - first + 1) / most))
        within = (1, 2, 5) if last - first <= 2 else (1,)
        found = [10.0**power * of for power in range(first, last + 1, step) for of in within]
        inside = [value for value in found if self.low <= value <= self.high]
        return inside if len(inside) > 1 else [self.low, self.high]


# The frame of a chart


class ChartText(NamedTuple):
    """What is said of a chart in words.

    Attributes:
        name: what ids of its parts begin with, unique in the page.
        title: what it shows.
        description: the same facts for those who do not see it, in a sentence or two.
    """

    name: str
    title: str
    description: str = ""


class LegendEntry(NamedTuple):
    """What something in a chart means.

    Attributes:
        kind: classes of what is shown of it.
        shape: how it is drawn.
        text: what it means.
    """

    kind: str
    shape: Literal["line", "area", "point", "mark"]
    text: str


def _figure(
    words: ChartText,
    content: Markup,
    height: float,
    kind: str,
    legend: Sequence[LegendEntry] = (),
    *,
    titled: bool = False,
) -> Markup:
    name = slug(words.name)
    known = f"{name}-t {name}-d" if words.description else f"{name}-t"
    picture = element(
        "svg",
        element("title", words.title, id=f"{name}-t"),
        element("desc", words.description, id=f"{name}-d") if words.description else Markup(),
        content,
        role="img",
        aria_labelledby=known,
        class_=f"chart {kind} titled" if titled else f"chart {kind}",
        height=_px(height),
    )
    shown = (element("figcaption", words.title), picture, _legend(legend))
    # the axes of one of these need room: where that is not there it is scrolled
    reached = 0 if kind == "parallel" else None
    return element("figure", *shown, class_=f"of-{kind.partition(' ')[0]}", tabindex=reached)


def _legend(entries: Sequence[LegendEntry]) -> Markup:
    if not entries:
        return Markup()
    items = (element("li", _swatch(entry), Markup(" "), entry.text) for entry in entries)
    return element("ul", *items, class_="legend")


def _swatch(entry: LegendEntry) -> Markup:
    if entry.shape == "line":
        drawn = element("path", d="M0 6h24", class_=f"curve {entry.kind}")
    elif entry.shape == "area":
        drawn = element("rect", y=1, width=24, height=10, class_=entry.kind)
    elif entry.shape == "point":
        drawn = element("circle", cx=12, cy=6, r=4, class_=f"point {entry.kind}")
    else:
        drawn = _mark(entry.kind, "12", 6)
    return element("svg", drawn, width=24, height=12, class_="swatch", aria_hidden="true")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _px(value: float) -> float:
    return round(value, 1)


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _title(text: str) -> Markup:
    return element("title", text) if text else Markup()


def _x_axis(scale: ChartScale, axis: ChartAxis, height: float) -> Iterator[Markup]:
    """Yield the lines and texts of the axis below a chart; every second one only where it fits."""
    for number, (at, text) in enumerate(scale.ticks(9)):
        kind = "fine" if number % 2 else ""
        x = _percent(at)
        yield element("line", x1=x, x2=x, y1=0, y2=height, class_=f"grid {kind}".strip())
        anchor = f"tick x {kind}".strip()
        yield element("text", text, x=x, y=height + 15, class_=anchor)
    if axis.title:
        yield element("text", axis.title, x="100%", y=height + 30, class_="tick end")


def _y_axis(scale: ChartScale, height: float, most: int = 5) -> Iterator[Markup]:
    for at, text in scale.ticks(most):
        y = height * (1 - at)
        yield element("line", x1=0, x2="100%", y1=_px(y), y2=_px(y), class_="grid")
        yield element("text", text, x=-6, y=_px(y + 4), class_="tick end")


def _stretched(content: Markup, height: float) -> Markup:
    """Return what is drawn in a box that is as wide as the chart."""
    return element(
        "svg",
        content,
        viewBox=f"0 0 {_WIDE:.0f} {_number(height)}",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        class_="stretched",
    )


# Curves


class ChartCurve(NamedTuple):
    """A line through points.

    Attributes:
        name: what it is of.
        points: x and y, in order of x; where y is not finite the line is broken.
        style: how it looks, from 0 to `STYLES`; None for the next one that is free.
        stepped: whether a value holds until the next.
    """

    name: str
    points: Sequence[Point]
    style: int | None = None
    stepped: bool = False


class ChartBand(NamedTuple):
    """The area between two lines, such as the lowest and the highest of many.

    Attributes:
        name: what it is of.
        low: points of the lower line, in order of x.
        high: points of the upper line.
        style: as of a `ChartCurve`.
    """

    name: str
    low: Sequence[Point]
    high: Sequence[Point]
    style: int = 0


class ChartEvent(NamedTuple):
    """Something that happened at one place of the x axis.

    Attributes:
        at: where.
        kind: class of its line: ``root-cause``, ``restart``, ...
        text: what it was.
    """

    at: float
    kind: str
    text: str


def line_chart(
    words: ChartText,
    curves: Sequence[ChartCurve],
    x: ChartAxis,
    y: ChartAxis,
    *,
    bands: Sequence[ChartBand] = (),
    events: Sequence[ChartEvent] = (),
    height: float = 140,
    budget: int = 300,
) -> Markup:
    """Return lines over one x axis.

    Args:
        words: what is said of it.
        curves: the lines; of more than `STYLES` some look alike.
        x: the axis below.
        y: the axis at the left.
        bands: areas behind the lines.
        events: upright lines behind them.
        height: of the area that lines are in, px.
        budget: as for `thinned`.
    """
    lines = [curve.points for curve in curves]
    lines += [line for band in bands for line in (band.low, band.high)]
    across = ChartScale(x, (px for line in lines for px, _ in line))
    up = ChartScale(y, (py for line in lines for _, py in line), room=0.05)

    def place(points: Sequence[Point]) -> Iterator[Point | None]:
        for px, py in thinned(points, budget):
            left, share = across.at(px), up.at(py)
            known = left is not None and share is not None
            yield (left * _WIDE, height * (1 - share)) if known else None  # type: ignore[operator]

    drawn: list[Markup] = []
    legend: list[LegendEntry] = []
    for band in bands:
        kind = f"s{band.style % STYLES}"
        path = _area(list(place(band.low)), list(place(band.high)))
        drawn.append(element("path", _title(band.name), d=path, class_=f"band {kind}"))
        legend.append(LegendEntry(f"band {kind}", "area", band.name))
    dots: list[Markup] = []
    for number, curve in enumerate(curves):
        kind = f"s{(number if curve.style is None else curve.style) % STYLES}"
        placed = list(place(curve.points))
        path = _path(placed, stepped=curve.stepped)
        drawn.append(element("path", _title(curve.name), d=path, class_=f"curve {kind}"))
        dots += _alone(placed, kind)
        legend.append(LegendEntry(kind, "line", curve.name))
    content = joined(
        (
            *_x_axis(across, x, height),
            *_y_axis(up, height),
            *_events(events, across, height),
            _stretched(joined(drawn), height),
            *dots,
        )
    )
    kinds = {event.kind: event.text for event in events}
    legend += [
        LegendEntry(f"event {slug(kind)}", "line", _EVENTS.get(kind, kind)) for kind in kinds
    ]
    return _figure(words, content, height, "curves", legend, titled=bool(x.title))


_EVENTS = {"root_cause": "root cause", "restart": "restart", "best": "best"}


def _events(events: Iterable[ChartEvent], across: ChartScale, height: float) -> Iterator[Markup]:
    for event in events:
        at = across.at(event.at)
        if at is None:
            continue
        x = _percent(at)
        kind = f"event {slug(event.kind)}"
        yield element("line", _title(event.text), x1=x, x2=x, y1=0, y2=height, class_=kind)


def _path(points: Iterable[Point | None], *, stepped: bool = False) -> str:
    parts: list[str] = []
    is_open = False
    for point in points:
        if point is None:
            is_open = False
            continue
        x, y = map(_number, point)
        if not is_open:
            parts.append(f"M{x} {y}")
        else:
            parts.append(f"H{x}V{y}" if stepped else f"L{x} {y}")
        is_open = True
    return "".join(parts) or "M0 0"


def _area(low: Iterable[Point | None], high: Iterable[Point | None]) -> str:
    there = [point for point in high if point is not None]
    back = [point for point in low if point is not None][::-1]
    return f"{_path([*there, *back])}Z"


def _alone(points: Sequence[Point | None], kind: str) -> Iterator[Markup]:
    """Yield a dot for each point that no line leads to: a path through it would not be seen."""
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if point is not None and before is None and after is None:
            x = _percent(point[0] / _WIDE)
            yield element("circle", cx=x, cy=_px(point[1]), r=2.5, class_=f"point {kind}")


# Lanes


class ChartSpan(NamedTuple):
    """Something that lasted.

    Attributes:
        start: where it begins on the x axis.
        end: where it ends.
        kind: classes of its area.
        text: what it was; shown where somebody points at it.
        label: what is written into it where there is room.
    """

    start: float
    end: float
    kind: str
    text: str = ""
    label: str = ""


class ChartMark(NamedTuple):
    """Something that happened in a lane.

    Attributes:
        at: where on the x axis.
        kind: one of `MARKS`.
        text: what it was; shown where somebody points at it.
    """

    at: float
    kind: str
    text: str = ""


class ChartLane(NamedTuple):
    """A row of spans.

    Attributes:
        label: stands at its left.
        spans: what lasted, those behind others first.
        marks: what happened.
        state: a fate or a state, whose sign and word stand at its right; or empty.
        title: where that is not empty, the lane is a heading: nothing is at its left.
        word: what is written beside the sign; the state if it is empty.
    """

    label: str
    spans: Sequence[ChartSpan] = ()
    marks: Sequence[ChartMark] = ()
    state: str = ""
    title: str = ""
    word: str = ""


MARKS = {
    "root_cause": "M-5 -5L5 5M-5 5L5 -5",
    "finding": "M0 -6L6 5H-6Z",
    "signal": "M0 -6V6M-4 2L0 6L4 2",
    "restart": "M-3 -5L5 0L-3 5Z",
    "stacks": "M-5 -4H5M-3 0H5M-1 4H5",
}
"""How marks are drawn, around their middle."""

_LANE = 20.0
_HEADING = 24.0


def lanes(
    words: ChartText,
    rows: Sequence[ChartLane],
    x: ChartAxis,
    *,
    legend: Sequence[LegendEntry] = (),
    kind: str = "",
) -> Markup:
    """Return rows of spans over one x axis.

    Args:
        words: what is said of it.
        rows: from top to bottom.
        x: the axis below.
        legend: what the classes of spans and marks mean.
        kind: further classes of the chart: ``long`` where labels are.
    """
    ends = [at for row in rows for span in row.spans for at in (span.start, span.end)]
    ends += [mark.at for row in rows for mark in row.marks]
    across = ChartScale(x, ends)
    height = sum(_HEADING if row.title else _LANE for row in rows)
    drawn: list[Markup] = [*_x_axis(across, x, height)]
    top = 0.0
    for row in rows:
        drawn.append(_heading(row, top) if row.title else _lane(row, across, top))
        top += _HEADING if row.title else _LANE
    return _figure(
        words, joined(drawn), height, f"lanes {kind}".strip(), legend, titled=bool(x.title)
    )


def _heading(row: ChartLane, top: float) -> Markup:
    return element("text", row.title, x=0, y=top + _HEADING - 8, class_="heading")


def _lane(row: ChartLane, across: ChartScale, top: float) -> Markup:
    middle = top + _LANE / 2
    parts = [element("text", row.label, x=-6, y=middle + 4, class_="label end")]
    parts += [_span(span, across, top + 3, _LANE - 6) for span in row.spans]
    for mark in row.marks:
        at = across.at(mark.at)
        if at is not None:
            parts.append(_mark(mark.kind, _percent(at), middle, mark.text))
    if row.state:
        sign = element("tspan", SIGNS.get(row.state, "·"), class_="sign")
        word = element("tspan", f" {row.word or row.state.replace('_', ' ')}", class_="word")
        kind = f"fate {slug(row.state)}"
        parts.append(element("text", sign, word, x="100%", dx=6, y=middle + 4, class_=kind))
    return element("g", *parts, class_="lane")


def _span(span: ChartSpan, across: ChartScale, top: float, height: float) -> Markup:
    start, end = across.at(span.start), across.at(max(span.start, span.end))
    if start is None or end is None:
        return Markup()
    x, width = _percent(start), _percent(end - start)
    kind = f"span {span.kind}"
    if not span.label:
        title = _title(span.text)
        return element("rect", title, x=x, y=top, width=width, height=height, class_=kind)
    inner = element("rect", _title(span.text), width="100%", height=height, class_=kind)
    label = element("text", span.label, x=4, y=height - 4, class_="inside")
    return element("svg", inner, label, x=x, y=top, width=width, height=height)


def _mark(kind: str, x: str, y: float, text: str = "") -> Markup:
    shape = element("path", _title(text), d=MARKS.get(kind, "M0 -6V6"), class_=f"mark {slug(kind)}")
    return element("svg", shape, x=x, y=y, class_="at")


# Points


class ChartPoint(NamedTuple):
    """A point.

    Attributes:
        x: its place on the axis below.
        y: its place on the axis at the left.
        text: what it is; shown where somebody points at it.
        kind: classes: ``best``, ``failed``, ``q0`` (low) to ``q4`` (high), or none.
    """

    x: float
    y: float
    text: str = ""
    kind: str = ""


def scatter(
    words: ChartText,
    points: Sequence[ChartPoint],
    x: ChartAxis,
    y: ChartAxis,
    *,
    legend: Sequence[LegendEntry] = (),
    height: float = 160,
) -> Markup:
    """Return points over two axes; what lies nowhere on them is left out.

    Args:
        words: what is said of it.
        points: those behind others first.
        x: the axis below.
        y: the axis at the left.
        legend: what the classes of points mean.
        height: of the area that points are in, px.
    """
    across = ChartScale(x, (point.x for point in points))
    up = ChartScale(y, (point.y for point in points), room=0.05)
    drawn = [*_x_axis(across, x, height), *_y_axis(up, height)]
    for point in points:
        left, share = across.at(point.x), up.at(point.y)
        if left is not None and share is not None:
            x_, y_ = _percent(left), _px(height * (1 - share))
            kind = f"point {point.kind}".strip()
            drawn.append(element("circle", _title(point.text), cx=x_, cy=y_, r=4, class_=kind))
    return _figure(words, joined(drawn), height, "scatter", legend, titled=bool(x.title))


class ChartPolyline(NamedTuple):
    """A line across parallel axes.

    Attributes:
        values: one for each axis; what is not finite breaks the line.
        text: what it is; shown where somebody points at it.
        kind: classes, as of a `ChartPoint`.
    """

    values: Sequence[float]
    text: str = ""
    kind: str = ""


def parallel(
    words: ChartText,
    axes: Sequence[ChartAxis],
    lines: Sequence[ChartPolyline],
    *,
    legend: Sequence[LegendEntry] = (),
    height: float = 200,
) -> Markup:
    """Return lines across parallel axes, one for each job or the like.

    Args:
        words: what is said of it.
        axes: from left to right, two at least.
        lines: those behind others first.
        legend: what the classes of lines mean.
        height: of the axes, px.
    """
    scales = [
        ChartScale(axis, (line.values[number] for line in lines))
        for number, axis in enumerate(axes)
    ]
    places = [number / max(1, len(axes) - 1) for number in range(len(axes))]
    drawn: list[Markup] = []
    for line in lines:
        points: list[Point | None] = []
        for place, scale, value in zip(places, scales, line.values, strict=True):
            share = scale.at(value)
            points.append(None if share is None else (place * _WIDE, height * (1 - share)))
        kind = f"curve {line.kind}".strip()
        drawn.append(element("path", _title(line.text), d=_path(points), class_=kind))
    around = [_upright(*each, height) for each in zip(places, axes, scales, strict=True)]
    content = joined((_stretched(joined(drawn), height), *around))
    return _figure(words, content, height, "parallel", legend)


def _upright(place: float, axis: ChartAxis, scale: ChartScale, height: float) -> Markup:
    x = _percent(place)
    side = "first" if place == 0 else "last" if place == 1 else "middle"
    parts = [element("line", x1=x, x2=x, y1=0, y2=height, class_="axis")]
    name = shorten(axis.title, _LONGEST_LABEL)
    parts.append(element("text", _title(axis.title), name, x=x, y=-10, class_=f"name {side}"))
    for share, text in scale.ticks(5):
        y = height * (1 - share)
        parts.append(element("text", text, x=x, dx=5, y=_px(y + 4), class_="tick halo"))
    return element("g", *parts)
