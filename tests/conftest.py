"""What holds for all tests."""

from __future__ import annotations

import os
import posix
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.foreground import heed_signals
from support.project import quiet_environment

_UNIT = Path(__file__).parent / "unit"


def pytest_configure(config: pytest.Config) -> None:
    """Let tests find signals as they are in the foreground, and a state directory of their own."""
    heed_signals()
    # no test writes to the index of runs in the user's home
    os.environ["XDG_STATE_HOME"] = _state_home(config)
    # where nobody watches the tests there may be no terminal, or one that can do nothing
    os.environ["TERM"] = "xterm-256color"
    config.addinivalue_line(
        "markers", "measured: coverage measures it, and the interpreters that it starts"
    )
    config.addinivalue_line("markers", "untraced: coverage does not measure this process meanwhile")


def _state_home(config: pytest.Config) -> str:
    """Return a state directory for this process and all that it starts."""
    directory = tempfile.mkdtemp(prefix="lllaunch-state-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    return directory


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep coverage to unit tests, and to those that ask for it.

    The tests of commands run the same lines over and over: to measure an interpreter takes more
    than half as long again as to start it, and each of its forks writes a file, too.
    """
    measured = item.get_closest_marker("measured") or _UNIT in item.path.parents
    with pytest.MonkeyPatch.context() as patch:
        if not measured:
            for name in quiet_environment():
                patch.delenv(name)
            patch.setattr(_Forks, "measured", False)
        # of a property a hundred examples are tried; other tests run the same lines once
        property_ = item.get_closest_marker("hypothesis")
        if measured and not (property_ or item.get_closest_marker("untraced")):
            return (yield)
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(trace)


class _Forks:
    """Whether forks of this process are measured."""

    measured = True


def _leave_unmeasured() -> None:
    """In a fork: without the trace function that it has inherited, or a file at its end."""
    if not _Forks.measured:
        sys.settrace(None)
        # coverage has put its own in this one's place
        os._exit = posix._exit  # type: ignore[assignment]


os.register_at_fork(after_in_child=_leave_unmeasured)
