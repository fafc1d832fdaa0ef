"""What holds for all tests."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.foreground import heed_signals

_UNIT = Path(__file__).parent / "unit"
_NUMBERS = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Let tests find signals as they are in the foreground, a terminal, and nobody's runs."""
    heed_signals()
    # for fixtures of whole modules; each test has one of its own
    state = tempfile.mkdtemp(prefix="lllaunch-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["XDG_STATE_HOME"] = state
    # where nobody watches the tests there may be no terminal, or one that can do nothing
    os.environ["TERM"] = "xterm-256color"
    # coverage measures the processes of pytest, not the interpreters that tests start: Hydra takes
    # whatever traces a process for a debugger, and each fork would write a file
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but unit tests as scenarios, of which ``make test`` runs few."""
    for item in items:
        if _UNIT not in item.path.parents:
            item.add_marker("scenario")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, let a worker that has nothing left take over half of what another has.

    By default each gets many tests that follow each other at once and keeps them. The slow ones,
    those of processes, do follow each other: one worker had nearly all of them, and the others
    waited for it in the end.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(autouse=True)
def place_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run each test in an empty directory, with a state directory of its own."""
    place = tmp_path_factory.getbasetemp() / f"place-{next(_NUMBERS)}"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_STATE_HOME", str(place.with_name(f"{place.name}-state")))


@pytest.fixture(autouse=True)
def hydra_as_it_was() -> Iterator[None]:
    """Put back what a test tells Hydra: it is for a process, and this one runs other tests."""
    if "hydra" not in sys.modules:
        yield
        return
    from support.hydra_state import hydra_put_back

    with hydra_put_back():
        yield
