"""What holds for every page, of runs and of sweeps, small and large."""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import quote

import pytest
from support.browsing import (
    inaccessible,
    invalid,
    luminance,
    nameless_pictures,
    overflow,
    stops,
    tables,
    unseen,
)

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
    assert nameless_pictures(window) == []
    assert luminance(window) > 0.9 if scheme == "light" else luminance(window) < 0.1


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
