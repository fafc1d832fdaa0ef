"""Charts as SVG in a page: curves, lanes, points. Pure geometry and text.

A chart is as wide as the page lets it be, from a phone to a wall, and its letters keep their size:
places along x are in percent, lines lie in a box of their own that is stretched
(``preserveAspectRatio="none"``) and whose strokes are not. So nothing measures a window, no script
draws, and a chart is the same on paper. Colours are classes in page.css; each has a dash, a
pattern, a sign or a word beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from markupsafe import Markup

from lllaunch.pages.html import fill, joined, sign_of, slug
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
    """Return round numbers between two finite bounds, in order; at most so many, and at least one.

    Seconds are round in minutes and hours, bytes in powers of two.
    """
    if not high - low > 1 / _LARGEST:
        return [low]
    step = _step((high - low) / max(1, most - 1), unit)
    first = math.ceil(low / step - 1e-9)
    room = step * 1e-9
    found = [(first + number) * step for number in range(most)]
    return [at for at in found if low - room <= at <= high + room] or [low]


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
        names = ("B", "KiB", "MiB", "GiB", "TiB")
        power = next((at for at in range(4) if abs(value) < 1024 ** (at + 1)), 4)
        return f"{count(value / 1024**power)} {names[power]}"
    # ticks of several decimals are not to read alike
    exact = f"{count(abs(value))} s" if abs(value) < 60 else duration(abs(value))
    return f"-{exact}" if value < 0 else exact


# Downsampling


def thinned(points: Sequence[Point], budget: int = 300) -> list[Point]:
    """Return the points that make the same line: the ends and extremes of `budget` columns."""
    if len(points) <= 4 * budget:
        return list(points)
    low, high = points[0][0], points[-1][0]
    wide = (high - low) / budget or 1.0
    kept: list[Point] = []
    for _, group in groupby(points, lambda point: min(budget - 1, int((point[0] - low) / wide))):
        column = list(group)
        finite = [point for point in column if math.isfinite(point[1])] or column
        ends = column[0], column[-1]
        kept += sorted({*ends, *(extreme(finite, key=itemgetter(1)) for extreme in (min, max))})
    return kept


# Axes


class Axis(NamedTuple):
    """What a direction shows."""

    title: str = ""
    unit: Unit = "number"
    log: bool = False  # whether steps are factors; numbers that are not above zero are omitted
    categories: tuple[str, ...] = ()  # texts that values are indices of, if it is not of numbers
    # where it begins; None for the lowest value. The same holds for `high`
    low: float | None = None
    high: float | None = None


class Scale:
    """Where the values of an axis lie, from 0 to 1; those that are not finite lie nowhere.

    `room` is the share that stays free at the ends, where the axis does not say where they are.
    """

    def __init__(self, axis: Axis, values: Iterable[float], room: float = 0.0) -> None:
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
        """Return where ticks are, from 0 to 1, and their texts."""
        axis = self._axis
        named: Iterable[tuple[float, str]]
        if axis.categories:
            named = enumerate(shorten(name, _LONGEST_LABEL) for name in axis.categories)
        else:
            log = axis.log
            values = self._powers(most) if log else ticks(self.low, self.high, axis.unit, most)
            named = ((value, tick_text(value, axis.unit)) for value in values)
        return [(at, text) for value, text in named if (at := self.at(value)) is not None]

    def _powers(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        step = max(1, math.ceil((last - first + 1) / most))
        within = (1, 2, 5) if last - first <= 2 else (1,)
        found = [10.0**power * of for power in range(first, last + 1, step) for of in within]
        inside = [value for value in found if self.low <= value <= self.high]
        return inside if len(inside) > 1 else [self.low, self.high]


# The frame of a chart


class Words(NamedTuple):
    """A chart in words; ids begin with its name, a description is for those who cannot see."""

    name: str
    title: str
    description: str


class Entry(NamedTuple):
    """What something in a chart means: its classes, how it is drawn, and a text."""

    kind: str
    shape: Literal["line", "area", "point", "mark"]
    text: str


_FIGURE = (
    '<figure class="of-{0}"><figcaption>{3}</figcaption>'
    '<svg role="img" aria-labelledby="{2}-t {2}-d" class="chart {0}{1}" height="{5}">'
    '<title id="{2}-t">{3}</title><desc id="{2}-d">{4}</desc>{6}</svg>{7}</figure>'
)
_SWATCH = '<li><svg width="24" height="12" class="swatch" aria-hidden="true">{}</svg> {}</li>'
_SHAPES = {
    "line": '<path d="M0 6h24" class="curve {}"/>',
    "area": '<rect y="1" width="24" height="10" class="{}"/>',
    "point": '<circle cx="12" cy="6" r="4" class="point {}"/>',
}


def _figure(
    words: Words,
    drawn: Iterable[Markup],
    height: float,
    kind: str,
    legend: Sequence[Entry],
    x: Axis,
) -> Markup:
    items = []
    for sort, shape, text in legend:
        sign = _mark(sort, "12", 6) if shape == "mark" else fill(_SHAPES[shape], sort)
        items.append(fill(_SWATCH, sign, text))
    below = fill('<ul class="legend">{}</ul>', joined(items)) if items else ""
    titled = " titled" if x.title else ""
    said = slug(words.name), words.title, words.description
    return fill(_FIGURE, kind, titled, *said, _px(height), joined(drawn), below)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _px(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _title(text: str) -> Markup:
    return fill("<title>{}</title>", text) if text else Markup()


def _x_axis(scale: Scale, axis: Axis, height: float) -> Iterator[Markup]:
    """Yield the lines and texts of the axis below a chart; every second one only where it fits."""
    for number, (at, text) in enumerate(scale.ticks(9)):
        yield fill(
            '<line x1="{0}" x2="{0}" y1="0" y2="{1}" class="grid{2}"/>'
            '<text x="{0}" y="{3}" class="tick x{2}">{4}</text>',
            *(_percent(at), _px(height), " fine" if number % 2 else "", _px(height + 15), text),
        )
    if axis.title:
        yield fill('<text x="100%" y="{}" class="tick end">{}</text>', _px(height + 30), axis.title)


def _y_axis(scale: Scale, height: float) -> Iterator[Markup]:
    for at, text in scale.ticks(5):
        y = height * (1 - at)
        yield fill(
            '<line x1="0" x2="100%" y1="{0}" y2="{0}" class="grid"/>'
            '<text x="-6" y="{1}" class="tick end">{2}</text>',
            *(_px(y), _px(y + 4), text),
        )


def _line(kind: str, text: str, d: str) -> Markup:
    return fill('<path d="{}" class="{}">{}</path>', d, kind.strip(), _title(text))


# Curves


class Curve(NamedTuple):
    """A line through points in order of x; where y is not finite it is broken.

    A stepped one holds a value until the next. With a second line (`low`) the area between both is
    drawn. `style` is from 0 to `STYLES`; None is the next one that is free.
    """

    name: str
    points: Sequence[Point]
    style: int | None = None
    stepped: bool = False
    low: Sequence[Point] = ()


class ChartMark(NamedTuple):
    """Something that happened at one place of the x axis; the text is a tooltip."""

    at: float
    kind: str
    text: str = ""


def line_chart(
    words: Words,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    events: Sequence[ChartMark] = (),
    height: float = 140,
) -> Markup:
    """Return lines over one x axis."""
    every = [line for curve in curves for line in (curve.points, curve.low)]
    across = Scale(x, (px for line in every for px, _ in line))
    up = Scale(y, (py for line in every for _, py in line), room=0.05)

    def place(points: Sequence[Point]) -> Iterator[Point | None]:
        for px, py in thinned(points):
            left, share = across.at(px), up.at(py)
            known = left is not None and share is not None
            yield (left * _WIDE, height * (1 - share)) if known else None  # type: ignore[operator]

    lines: list[Markup] = []
    legend: list[Entry] = []
    for number, curve in enumerate(curves):
        kind = f"s{(number if curve.style is None else curve.style) % STYLES}"
        if curve.low:
            there, back = (
                [point for point in place(line) if point is not None]
                for line in (curve.points, curve.low)
            )
            lines.append(_line(f"band {kind}", curve.name, f"{_path([*there, *back[::-1]])}Z"))
            legend.append(Entry(f"band {kind}", "area", curve.name))
        else:
            path = _path(place(curve.points), stepped=curve.stepped)
            lines.append(_line(f"curve {kind}", curve.name, path))
            legend.append(Entry(kind, "line", curve.name))
    for name in dict.fromkeys(event.kind for event in events):
        legend.append(Entry(f"event {slug(name)}", "line", name.replace("_", " ")))
    drawn = [*_x_axis(across, x, height), *_y_axis(up, height)]
    for event in events:
        if (at := across.at(event.at)) is not None:
            upright = '<line x1="{0}" x2="{0}" y1="0" y2="{1}" class="event {2}">{3}</line>'
            where = _percent(at), _px(height)
            drawn.append(fill(upright, *where, slug(event.kind), _title(event.text)))
    # in a box that is as wide as the chart
    stretched = (
        '<svg viewBox="0 0 {0} {1}" preserveAspectRatio="none" width="100%" height="{1}"'
        ' class="stretched">{2}</svg>'
    )
    drawn.append(fill(stretched, _px(_WIDE), _px(height), joined(lines)))
    return _figure(words, drawn, height, "curves", legend, x)


def _path(points: Iterable[Point | None], *, stepped: bool = False) -> str:
    """Return lines through points; one that no line leads to is a short line of its own."""
    parts: list[str] = []
    for is_known, group in groupby(points, lambda point: point is not None):
        if is_known:
            first, *rest = [tuple(map(_px, point)) for point in group if point is not None]
            parts.append("M{} {}".format(*first))
            parts += [f"H{x}V{y}" if stepped else f"L{x} {y}" for x, y in rest] or ["h3"]
    return "".join(parts) or "M0 0"


# Lanes


class ChartSpan(NamedTuple):
    """Something that lasted: `kind` is classes, `text` a tooltip, `label` is written into it."""

    start: float
    end: float
    kind: str
    text: str = ""
    label: str = ""


class ChartLane(NamedTuple):
    """A row of spans, those behind others first; a heading if it has a title.

    The label is at its left, the sign and the word of its state, if any, at its right.
    """

    label: str
    spans: Sequence[ChartSpan] = ()
    marks: Sequence[ChartMark] = ()
    state: str = ""
    title: str = ""


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


def lanes(words: Words, rows: Sequence[ChartLane], x: Axis, legend: Sequence[Entry] = ()) -> Markup:
    """Return rows of spans over one x axis, from top to bottom."""
    ends = [at for row in rows for span in row.spans for at in (span.start, span.end)]
    across = Scale(x, [*ends, *(mark.at for row in rows for mark in row.marks)])
    height = sum(_HEADING if row.title else _LANE for row in rows)
    drawn = [*_x_axis(across, x, height)]
    top = 0.0
    for row in rows:
        if row.title:
            heading = '<text x="0" y="{}" class="heading">{}</text>'
            drawn.append(fill(heading, _px(top + _HEADING - 8), row.title))
        else:
            drawn.append(fill('<g class="lane">{}</g>', joined(_lane(row, across, top))))
        top += _HEADING if row.title else _LANE
    return _figure(words, drawn, height, "lanes", legend, x)


def _lane(row: ChartLane, across: Scale, top: float) -> Iterator[Markup]:
    middle = top + _LANE / 2
    base = _px(middle + 4)
    yield fill('<text x="-6" y="{}" class="label end">{}</text>', base, row.label)
    for span in row.spans:
        start, end = across.at(span.start), across.at(max(span.start, span.end))
        if start is not None and end is not None:
            yield _span(span, _percent(start), _px(top + 3), _percent(end - start))
    for mark in row.marks:
        if (at := across.at(mark.at)) is not None:
            yield _mark(mark.kind, _percent(at), middle, mark.text)
    if row.state:
        yield fill(
            '<text x="100%" dx="6" y="{}" class="fate {}"><tspan class="sign">{}</tspan>'
            '<tspan class="word"> {}</tspan></text>',
            *(base, slug(row.state), sign_of(row.state), row.state.replace("_", " ")),
        )


def _span(span: ChartSpan, x: str, y: str, width: str) -> Markup:
    place = x, y, width, _px(_LANE - 6)
    kind, title = f"span {span.kind}", _title(span.text)
    if not span.label:
        rect = '<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>'
        return fill(rect, *place, kind, title)
    return fill(
        '<svg x="{0}" y="{1}" width="{2}" height="{3}">'
        '<rect width="100%" height="{3}" class="{4}">{5}</rect>'
        '<text x="4" y="{6}" class="inside">{7}</text></svg>',
        *(*place, kind, title, _px(_LANE - 10), span.label),
    )


def _mark(kind: str, x: str, y: float, text: str = "") -> Markup:
    shape = _line(f"mark {slug(kind)}", text, MARKS.get(kind, "M0 -6V6"))
    return fill('<svg x="{}" y="{}" class="at">{}</svg>', x, _px(y), shape)


# Points


class Dot(NamedTuple):
    """A point; the text is a tooltip, `kind` is ``best``, ``failed`` or empty."""

    x: float
    y: float
    text: str = ""
    kind: str = ""


def scatter(
    words: Words,
    points: Sequence[Dot],
    x: Axis,
    y: Axis,
    legend: Sequence[Entry] = (),
    height: float = 160,
) -> Markup:
    """Return points over two axes, those behind others first; what lies nowhere is omitted."""
    across = Scale(x, (point.x for point in points))
    up = Scale(y, (point.y for point in points), room=0.05)
    drawn = [*_x_axis(across, x, height), *_y_axis(up, height)]
    for point in points:
        left, share = across.at(point.x), up.at(point.y)
        if left is not None and share is not None:
            dot = '<circle cx="{}" cy="{}" r="4" class="{}">{}</circle>'
            where = _percent(left), _px(height * (1 - share))
            drawn.append(fill(dot, *where, f"point {point.kind}".strip(), _title(point.text)))
    return _figure(words, drawn, height, "scatter", legend, x)
