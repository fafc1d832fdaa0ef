"""What holds for every page, what pages say of runs, and what a reader does with one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from markupsafe import Markup
from support.browsing import (
    Window,
    inaccessible,
    invalid,
    overflow,
    stops,
    tables,
    unseen,
)
from support.pages import page_of

from lllaunch.pages.html import PageColumn, numbers, table
from tests.browser.conftest import Open
from tests.browser.played import NAMES, SECRETS, Played

every = pytest.mark.parametrize("name", NAMES)
Play = Callable[[str], Played]


@every
@pytest.mark.parametrize("scripts", [True, False])
def test_it_fits_every_window(played: Play, opened: Open, name: str, scripts: bool) -> None:
    window = opened(played(name).page, scripts=scripts, width=300)

    for width in (300, 360, 1024, 3840):
        window.page.set_viewport_size({"width": width, "height": 800})
        assert overflow(window) <= 0, width


@every
def test_its_markup_is_valid(played: Play, name: str) -> None:
    assert invalid([played(name).page]) == []


# the large sweep has what the small one has, a thousand times, which takes axe seconds
@pytest.mark.parametrize("name", [name for name in NAMES if name != "large sweep"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_keeps_nobody_out(played: Play, opened: Open, name: str, scheme: str) -> None:
    window = opened(played(name).page, scheme=scheme)

    assert inaccessible(window) == []


@every
def test_the_keyboard_reaches_what_a_mouse_does(played: Play, opened: Open, name: str) -> None:
    window = opened(played(name).page)
    there = """() => [...document.querySelectorAll("a[href], button, input, summary")].filter(
      (one) => one.checkVisibility({ visibilityProperty: true })).length"""
    wanted = int(window.ask(there))
    found = stops(window, most=100)

    # what is scrolled is reached as well; of a thousand jobs each has a link
    links = [stop for stop in found if stop.element.split()[0] not in {"div", "pre", "figure"}]
    assert len(links) == wanted or len(found) == 100
    assert [stop for stop in found if not stop.outline or not stop.shown] == []


@every
@pytest.mark.parametrize("scripts", [True, False])
def test_it_is_printed_whole(played: Play, opened: Open, name: str, scripts: bool) -> None:
    window = opened(played(name).page, scripts=scripts)

    window.page.emulate_media(media="print")

    assert unseen(window) == []


@every
def test_scripts_change_nothing_of_what_it_says(played: Play, opened: Open, name: str) -> None:
    page = played(name).page

    assert tables(opened(page)) == tables(opened(page, scripts=False))


@every
def test_it_is_small_and_says_no_secret(played: Play, name: str) -> None:
    data = played(name).page.read_bytes()

    assert len(data) < 2_000_000
    text = data.decode()
    for secret in SECRETS.values():
        encoded = base64.b64encode(secret.encode()).decode()
        for form in (secret, secret[:12], secret[::-1], quote(secret, safe=""), encoded[:16]):
            assert form not in text


@pytest.fixture
def hung(played: Play) -> Played:
    return played("hung")


def reading(window: Window, *texts: str) -> list[int]:
    """Where texts stand in what is read out, in the order in which they are asked for."""
    body = window.page.inner_text("body").lower()
    places = [body.find(text.lower()) for text in texts]
    assert -1 not in places, list(zip(texts, places, strict=True))
    return places


@pytest.mark.smoke
def test_verdict_and_root_cause_are_read_first(hung: Played, opened: Open) -> None:
    window = opened(hung.page, scripts=False)
    cause = hung.read("result.json")["root_cause"]["cause"]["text"]
    parts = ("Failed", cause, "load_next_shard", "exit code 4", "All workers", "entrypoint")

    assert window.texts("h1") == ["✕ Failed"]
    assert (places := reading(window, *parts)) == sorted(places)
    (verdict,) = window.texts(".verdict")
    assert f"Rank 2 {cause}" in verdict
    assert "at train.py:9 in load_next_shard" in verdict
    # the log says the secret, and it is taken out where it stood
    assert "<b>bold</b> & given ${oc.env:RANK_TOKEN} [" in " ".join(window.texts("pre"))


def test_the_lanes_mark_what_happened(hung: Played, opened: Open) -> None:
    window = opened(hung.page)
    marks = window.texts("svg.lanes .mark title")
    events = [json.loads(line) for line in (hung.directory / "events.jsonl").open()]

    restarts = [one for one in events if one["type"] == "StartWorkers" and one["restart"]]
    assert len(restarts) == 1
    for kind in ("root-cause", "restart", "finding", "signal", "stacks"):
        assert window.texts(f"svg.lanes .mark.{kind} title"), kind
    assert all(marks)
    lanes = window.texts("svg.lanes .lane .label")
    assert [lane for lane in lanes if lane.startswith("rank")] == ["rank 0", "rank 1", "rank 2"] * 2


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
