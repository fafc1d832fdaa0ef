"""One browser for all tests here, and windows in which nothing may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.played import Played, common_directory, play

if TYPE_CHECKING:
    from support.browsing import Browsing, Window

Open = Callable[..., "Window"]


# Not of the session: while playwright runs, this thread has an event loop, and tests of others
# could start none.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browsing]:
    from support.browsing import browse

    yield from browse()


@pytest.fixture
def browser(chromium: Browsing) -> Iterator[Browsing]:
    """The browser, for windows whose faults a test looks at itself."""
    yield chromium
    chromium.close_windows()


@pytest.fixture
def opened(browser: Browsing) -> Iterator[Open]:
    """Opens files as `Browsing.open` does, and fails the test for any fault in them."""
    windows: list[Window] = []

    def open_one(*args: Any, **options: Any) -> Window:
        windows.append(browser.open(*args, **options))
        return windows[-1]

    yield open_one
    assert not [fault for window in windows for fault in window.faults]


@pytest.fixture(scope="package")
def played(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str], Played]:
    """Plays one of `tests.browser.played.NAMES`, or returns what another test has played."""
    root = common_directory(tmp_path_factory, worker_id)
    return lambda name: play(name, root)
