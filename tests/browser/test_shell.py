"""What a reader does with a page: tables are sorted and filtered, what is folded is unfolded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsing import (
    Window,
    unseen,
)

from lllaunch.pages.html import (
    TableCell,
    TableColumn,
    TableRow,
    disclosure,
    document,
    element,
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


@pytest.fixture
def page(tmp_path: Path) -> Path:
    log = disclosure("Standard error", preformatted(["first"], "the log"), id_="err")
    body = joined(
        (
            section("what", "What it is", element("a", "its log", href="#err")),
            section("table", "A table", things()),
            section("logs", "Logs", log),
        )
    )
    path = tmp_path / "page.html"
    path.write_text(document("a page", element("h1", "A page"), body, links=[], footer=""))
    return path


def names(window: Window) -> list[str]:
    """The table's first column, of the rows that are shown."""
    return window.texts("#things tbody tr:not([hidden]) th")


def ordered(*, up: bool) -> list[str]:
    """What sorting by height comes to: what has none is the last, both ways."""
    known = [number for number, value in enumerate(VALUES) if value is not None]
    known.sort(key=lambda number: VALUES[number] or 0, reverse=not up)
    return [f"thing {number}" for number in (*known, VALUES.index(None))]


def test_a_table_is_sorted_by_mouse_and_keyboard(page: Path, opened: Open) -> None:
    plain = opened(page, scripts=False)
    assert names(plain) == [f"thing {number}" for number in range(len(VALUES))]
    assert plain.texts("#things button") == plain.texts("input") == []
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


def test_a_link_into_what_is_folded_away_unfolds_it(page: Path, opened: Open) -> None:
    window = opened(page)
    assert len(unseen(window)) == 1
    window.page.get_by_role("link", name="its log").click()
    window.page.locator("#err[open]").wait_for()

    assert unseen(window) == []
