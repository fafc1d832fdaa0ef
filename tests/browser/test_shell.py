"""What a reader does with a page: tables are sorted and filtered, what is folded is unfolded."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import Markup
from support.browsing import (
    Window,
    unseen,
)
from support.pages import page_of

from lllaunch.pages.html import PageColumn, numbers, table
from tests.browser.conftest import Open

HOSTILE = "</script><script>throw 1</script><b onclick='x'>&amp; \"'\u202e\x1b[31m\udcff"
VALUES: tuple[float | None, ...] = (3, 10, -1, None, 0.5, 1e-7, 200, 7, 8, 9)
# a table of ten rows, one of which has no number, and something that is folded away
SECTIONS = """[
  ("what", "What it is", link),
  ("things", "A table", table(things)),
  ("logs", "Logs", log),
]"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    columns = [
        PageColumn("name", lambda row: f"thing {row[0]}"),
        numbers("height", lambda row: row[1], lambda value: f"{value:g} m"),
        PageColumn("text", lambda _: "long " * 30 + HOSTILE, "minor wide"),
    ]
    things = table("Things", columns, enumerate(VALUES))
    link = Markup('<a href="#err">its log</a>')
    log = Markup("<details><summary>Standard error</summary><p id='err'>first</p></details>")
    path = tmp_path / "page.html"
    path.write_text(page_of(SECTIONS, "a page", things=things, link=link, log=log))
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
    window.page.locator("details[open] #err").wait_for()

    assert unseen(window) == []
