"""Every process test leaves no live descendant and no open descriptor behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lllaunch.testing import leaked_fds, live_descendants, open_fds


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    fds = open_fds()
    before = {process.pid for process in live_descendants(os.getpid())}
    yield
    strays = live_descendants(os.getpid(), settle=30.0, but=before)
    assert not strays, f"live descendants are left: {strays}"
    leaked = leaked_fds(fds, settle=30.0)
    assert not leaked, f"open descriptors are left: {leaked}"
