"""Every test leaves no process behind, also none that is no descendant any more, nor a descriptor.

Jobs have sessions of their own, and those of a launcher that was killed belong to nobody. So each
test marks the environment of whatever it starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sweeping import MARK, SweepProject, end_all, settled

from lllaunch.testing import leaked_fds, open_fds


@pytest.fixture(autouse=True)
def leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fds = open_fds()
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    strays = settled(MARK, mark)
    end_all(strays)
    assert not strays, f"processes are left: {strays}"
    leaked = leaked_fds(fds, settle=30.0)
    assert not leaked, f"open descriptors are left: {leaked}"


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    return SweepProject(tmp_path)
