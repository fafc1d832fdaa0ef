"""Times of a run do not hang on a clock that somebody sets."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from lllaunch import clock
from lllaunch.clock import Deadlines, RunClock
from lllaunch.events import Exited
from lllaunch.run.observer import SentSignal, WorkerRecord
from lllaunch.spawner.protocol import dated

if TYPE_CHECKING:
    import pytest


def test_what_was_asked_before_its_end_was_asked_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = SentSignal(signal.SIGTERM, clock.now_ns())
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    exited = dated(Exited(0, 7, 0, clock.since_boot_ns()))
    assert isinstance(exited, Exited)
    assert WorkerRecord(0, 0, exited=exited, sent=(sent,)).was_asked


def test_a_time_that_is_left_out_brings_no_deadline_nearer() -> None:
    clock = RunClock()
    deadlines = Deadlines(clock)
    deadlines.start("grace", 1000.0)
    clock.leave_out(-5000.0)
    assert deadlines.passed() == ["grace"]
    deadlines.start("grace", 1000.0)
    clock.leave_out(5000.0)
    left = deadlines.next_in()
    assert left is not None
    assert left > 5000.0
