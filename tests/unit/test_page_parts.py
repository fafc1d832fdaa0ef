"""Pages: whatever is in them is text, and where things lie in charts."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pages import Seen, page_of

from lllaunch.pages import charts
from lllaunch.pages.charts import Axis, ChartLane, ChartMark, ChartSpan, Curve, Dot, Scale, Words
from lllaunch.pages.html import (
    Cell,
    PageColumn,
    badge,
    environment,
    table,
)

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> &amp; \x1b[31m\x00\ud800"
)


@pytest.mark.parametrize("text", ["{{ a }}", '<p title="{{ a }}">{{ [a, a]|joined(a) }}</p>'])
def test_templates_escape_all_values(text: str) -> None:
    made = environment().from_string(text).render(a=f"{HOSTILE}\u202e")
    seen = Seen(made)
    assert {*seen.tags} <= {"p"}
    assert {name for name, _ in seen.attributes} <= {"title"}
    assert not re.search("[\x00\x1b\ud800\u202e]", made)


SECTIONS = "[('a', text, pre(lines, text)), ('b', text, table(rows) if rows else text)]"


def _page(rows: object, lines: Sequence[str] = (), text: str = "a text") -> str:
    return page_of(SECTIONS, text, rows=rows, lines=lines)


def _whole() -> str:
    columns = [
        PageColumn(HOSTILE, lambda _: Cell("1 KiB", 1024.0), "numeric"),
        PageColumn("what", lambda _: badge(HOSTILE, HOSTILE), "wide"),
    ]
    rows = table(HOSTILE, columns, [1, 2], kind=lambda _: HOSTILE)
    return _page(rows, [HOSTILE], text=HOSTILE)


def test_the_policy_allows_the_style_and_the_script_and_nothing_else() -> None:
    page = _whole()
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    parts = html.unescape(policy[1]).split("; ")
    rules = dict(part.split(" ", 1) for part in parts)
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        (source,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_lines_are_shown_as_they_are() -> None:
    # the first line break in <pre> does not count
    page = _page(None, ["", "a", "", "b"], "log")
    assert 'aria-label="log">\n\na\n\nb</pre>' in page


ANY = st.floats(allow_nan=True, allow_infinity=True)
UNITS = ("number", "duration", "bytes", "share")
TEN = Axis(low=0, high=10)
NAME = Words("a name", "What it shows", "and what that means")


def drawn(chart: str) -> ET.Element:
    """The chart as XML, which is what SVG is; nothing in it lies nowhere."""
    root = ET.fromstring(chart)
    for each in root.iter():
        for name, value in each.attrib.items():
            if name in {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "d", "width", "height"}:
                assert not re.search("nan|inf|e[+-]", value, re.I), value
        assert "style" not in each.attrib
    return root


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (0, 10, "number", ["0", "2", "4", "6", "8", "10"]),
        (0.12, 0.31, "number", ["0.15", "0.2", "0.25", "0.3"]),
        (0, 95, "duration", ["0", "30 s", "1 min", "1 min 30 s"]),
        (0, 7300, "duration", ["0", "30 min", "1 h", "1 h 30 min", "2 h"]),
        (0, 3.5 * 2**30, "bytes", ["0", "1 GiB", "2 GiB", "3 GiB"]),
        (0, 1, "share", ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (5, 5, "number", ["5"]),
    ],
)
def test_ticks(low: float, high: float, unit: str, expected: list[str]) -> None:
    assert [charts.tick_text(value, unit) for value in charts.ticks(low, high, unit)] == expected  # type: ignore[arg-type]


@given(st.floats(-1e140, 1e140), st.floats(0, 1e140), st.sampled_from(UNITS), st.integers(2, 12))
def test_ticks_are_few_in_order_and_within(low: float, wide: float, unit: str, most: int) -> None:
    high = low + wide
    found = charts.ticks(low, high, unit, most)  # type: ignore[arg-type]
    assert 1 <= len(found) <= most
    assert found == sorted(found)
    room = (high - low) * 1e-6
    assert all(low - room <= value <= high + room for value in found)


@given(st.lists(ANY, max_size=8), ANY, st.booleans())
def test_a_place_is_within_the_axis_or_nowhere(
    values: list[float], value: float, log: bool
) -> None:
    scale = Scale(Axis(log=log), values)
    at = scale.at(value)
    assert at is None or 0 <= at <= 1
    assert all(0 <= place <= 1 for place, _ in scale.ticks())


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400), st.integers(1, 20))
def test_thinned_keeps_ends_and_extremes(values: list[float], budget: int) -> None:
    points = [(float(at), value) for at, value in enumerate(values)]
    kept = charts.thinned(points, budget)
    assert len(kept) <= 4 * budget
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert min(y for _, y in kept) == min(values)
    assert max(y for _, y in kept) == max(values)


POINTS = st.lists(st.tuples(st.floats(0, 1e12), ANY), max_size=30).map(
    lambda points: sorted(points, key=lambda point: point[0])
)


@settings(max_examples=50)
@given(st.lists(POINTS, max_size=3), st.sampled_from(UNITS), st.booleans())
def test_curves_can_be_drawn_whatever_they_hold(
    lines: list[list[tuple[float, float]]], unit: str, stepped: bool
) -> None:
    curves = [Curve(f"<{at}>", line, stepped=stepped) for at, line in enumerate(lines)]
    curves += [Curve("all", line, low=line) for line in lines]
    axes = Axis("<time>", "duration"), Axis(unit=unit, log=stepped)  # type: ignore[arg-type]
    events = [ChartMark(5, "root_cause", "<boom>"), ChartMark(math.nan, "restart", "?")]
    drawn(charts.line_chart(NAME, curves, *axes, events=events))


def test_a_curve_lies_where_its_points_are() -> None:
    curve = Curve("a", [(0, 0), (5, 10), (10, 5), (11, math.nan), (20, 0)])
    root = drawn(charts.line_chart(NAME, [curve], Axis(), TEN, height=100))
    (path,) = [each for each in root.iter("path") if each.get("class") == "curve s0"][:1]
    # what no line leads to can be seen, too
    assert path.get("d") == "M0 100L250 0L500 50M1000 100h3"
    stepped = Curve("best", [(0, 10), (5, 5), (10, 0)], stepped=True)
    root = drawn(charts.line_chart(NAME, [stepped], Axis(), TEN, height=100))
    assert next(root.iter("path")).get("d") == "M0 0H500V50H1000V100"
    # what a chart shows is said
    (svg,) = [each for each in root.iter("svg") if each.get("role") == "img"]
    known = {each.get("id"): each.text for each in svg}
    ids = (svg.get("aria-labelledby") or "").split()
    assert [known[each] for each in ids] == ["What it shows", "and what that means"]


@settings(max_examples=50)
@given(st.lists(st.tuples(ANY, ANY), max_size=10), st.booleans())
def test_points_and_lanes_can_be_drawn_whatever_they_hold(
    values: list[tuple[float, float]], log: bool
) -> None:
    axis = Axis("x", log=log)
    drawn(charts.scatter(NAME, [Dot(x, y, "<", "best") for x, y in values], axis, axis))
    rows = [
        ChartLane("<", [ChartSpan(x, y, "run")], [ChartMark(x, "signal")], "odd") for x, y in values
    ]
    drawn(charts.lanes(NAME, rows, axis))
