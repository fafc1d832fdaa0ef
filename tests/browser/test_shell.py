"""What pages are made of: the shell, tables that are sorted and filtered, charts of each kind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.browsing import (
    Window,
    inaccessible,
    invalid,
    luminance,
    nameless_pictures,
    overflow,
    stops,
    unseen,
)

from lllaunch.pages import charts
from lllaunch.pages.html import (
    PageLink,
    TableCell,
    TableColumn,
    TableRow,
    badge,
    disclosure,
    document,
    element,
    escaped,
    joined,
    preformatted,
    section,
    table,
)
from tests.browser.conftest import Open

HOSTILE = "</script><script>throw 1</script><b onclick='x'>&amp; \"'\u202e\x1b[31m\udcff"
VALUES: tuple[float | None, ...] = (3, 10, -1, None, 0.5, 1e-7, 200, 7, 8, 9)


def things() -> str:
    """A table of ten rows, one of which has no number."""
    rows = [
        TableRow(
            [
                f"thing {number}",
                TableCell("" if value is None else f"{value:g} m", value),
                "long " * 30 + HOSTILE,
            ]
        )
        for number, value in enumerate(VALUES)
    ]
    columns = [
        TableColumn("name"),
        TableColumn("height", numeric=True),
        TableColumn("text", minor=True, wide=True),
    ]
    return table("Things", columns, rows, id_="things")


def drawn() -> str:
    """A chart of each kind."""

    def words(name: str) -> charts.ChartText:
        return charts.ChartText(name, f"The {name} {HOSTILE}", "Goes up and down.")

    points = [(float(x), math.sin(x)) for x in range(100)]
    x, y = charts.ChartAxis(title="time"), charts.ChartAxis(title="height")
    span = charts.ChartSpan(1, 4, "run", "it ran", "run")
    marks = [charts.ChartMark(at + 0.5, kind, kind) for at, kind in enumerate(charts.MARKS)]
    return joined(
        (
            charts.line_chart(words("curve"), [charts.ChartCurve(HOSTILE, points)], x, y),
            charts.lanes(
                words("lanes"),
                [charts.ChartLane(f"rank {n}", [span], marks, "failed") for n in range(4)],
                x,
            ),
            charts.scatter(words("points"), [charts.ChartPoint(*one, "p") for one in points], x, y),
            charts.parallel(
                words("parallel"),
                [x, y, x],
                [charts.ChartPolyline((n, -n, n * n), "line", f"q{n % 5}") for n in range(9)],
            ),
            charts.category_bars(words("bars"), [charts.CategoryBar("cause", 3.0)], x),
        )
    )


@pytest.fixture
def page(tmp_path: Path) -> Path:
    body = joined(
        (
            section(
                "what",
                "What it is",
                element("p", badge("failed", "failed"), HOSTILE),
                element("p", element("a", "its log", href="#err")),
            ),
            section("table", "A table", things()),
            section("charts", "Charts", drawn()),
            section(
                "logs",
                "Logs",
                disclosure(
                    "Standard error", preformatted(["first", HOSTILE * 9], "the log"), id_="err"
                ),
            ),
        )
    )
    links = [PageLink(name, name) for name in ("what", "table", "charts", "logs")]
    path = tmp_path / "page.html"
    path.write_text(
        document(
            "a/path/" * 30,
            element("h1", escaped(HOSTILE)),
            body,
            links=links,
            footer="made by hand",
        )
    )
    return path


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("width", [300, 360, 3840])
def test_a_page_fits_its_window(page: Path, opened: Open, scripts: bool, width: int) -> None:
    assert overflow(opened(page, scripts=scripts, width=width)) <= 0


def test_a_page_is_valid(page: Path) -> None:
    assert invalid([page]) == []


@pytest.mark.parametrize("width", [300, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_keeps_nobody_out(page: Path, opened: Open, scheme: str, width: int) -> None:
    window = opened(page, scheme=scheme, width=width)

    assert inaccessible(window) == []
    assert nameless_pictures(window) == []
    assert luminance(window) > 0.9 if scheme == "light" else luminance(window) < 0.1


def test_hostile_text_is_shown_as_it_is(page: Path, opened: Open) -> None:
    window = opened(page)

    (heading,) = window.texts("h1")
    assert heading.startswith("</script><script>throw 1</script><b onclick='x'>&amp; \"'")
    assert not {"\x1b", "\u202e", "\udcff"} & set(heading)
    assert window.texts("main b") == []


@pytest.mark.parametrize("scripts", [True, False])
def test_everything_is_printed(page: Path, opened: Open, scripts: bool) -> None:
    window = opened(page, scripts=scripts)
    assert len(unseen(window)) == 1

    window.page.emulate_media(media="print")

    assert unseen(window) == []


def names(window: Window) -> list[str]:
    """The table's first column, of the rows that are shown."""
    return window.texts("#things tbody tr:not([hidden]) th")


def test_all_rows_are_there_without_scripts(page: Path, opened: Open) -> None:
    window = opened(page, scripts=False)

    assert names(window) == [f"thing {number}" for number in range(len(VALUES))]
    assert window.texts("#things button") == window.texts("input") == []


def ordered(*, up: bool) -> list[str]:
    """What sorting by height comes to: what has none is the last, both ways."""
    known = [number for number, value in enumerate(VALUES) if value is not None]
    known.sort(key=lambda number: VALUES[number] or 0, reverse=not up)
    return [f"thing {number}" for number in (*known, VALUES.index(None))]


def test_a_table_is_sorted_by_mouse_and_keyboard(page: Path, opened: Open) -> None:
    window = opened(page)
    button = window.page.get_by_role("button", name="height")
    heading = window.page.locator("#things th", has=button)

    button.click()
    assert names(window) == ordered(up=True)
    assert heading.get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert names(window) == ordered(up=False)
    assert heading.get_attribute("aria-sort") == "descending"
    window.page.get_by_role("button", name="name").press("Space")
    assert names(window) == [f"thing {number}" for number in range(len(VALUES))]
    assert heading.get_attribute("aria-sort") is None


def test_a_table_is_filtered_by_the_keyboard(page: Path, opened: Open) -> None:
    window = opened(page)
    field = window.page.get_by_label("Filter")

    field.press_sequentially("THING 8")
    assert names(window) == ["thing 8"]
    assert window.texts("[role=status]") == [f"1 of {len(VALUES)} rows"]
    field.fill("")
    assert len(names(window)) == len(VALUES)


def test_the_keyboard_reaches_all_in_order_and_shows_where_it_is(page: Path, opened: Open) -> None:
    window = opened(page)
    found = stops(window)

    reached = [stop.element for stop in found]
    assert reached[0] == "a Skip to the content"
    wanted = ["a what", "a table", "input ", "div Things (table)", "button name", "button height"]
    assert [one for one in reached if one in wanted] == wanted
    assert "summary Standard error" in reached
    assert [stop for stop in found if not stop.outline or not stop.shown] == []


def test_a_link_into_what_is_folded_away_unfolds_it(page: Path, opened: Open) -> None:
    window = opened(page)
    window.page.get_by_role("link", name="its log").click()
    window.page.locator("#err[open]").wait_for()

    assert unseen(window) == []
