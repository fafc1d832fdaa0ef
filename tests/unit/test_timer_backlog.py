"""How far a FIFO has been read while others write into it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.timer.service import Backlog

MOST = 10


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=60))
def test_nothing_that_was_written_until_then_is_left(steps: list[tuple[int, int]]) -> None:
    """Each step: so much is written before a reading, and so much during it."""
    backlog = Backlog()
    fifo: list[float] = []
    for number, (before, during) in enumerate(steps):
        fifo += [number - 0.5] * before
        taken, fifo = fifo[:MOST], fifo[MOST:]
        fifo += [number + 0.5] * during
        backlog.note(float(number), len(taken), len(fifo))
        assert backlog.behind == bool(fifo)
        assert all(written > backlog.until for written in fifo)
        assert backlog.until <= number


@given(st.lists(st.integers(0, 10), min_size=40, max_size=40))
def test_it_comes_after_however_much_is_written(writes: list[int]) -> None:
    backlog = Backlog()
    waiting = 100
    for number, written in enumerate(writes):
        got = min(MOST, waiting)
        waiting += written - got
        backlog.note(float(number), got, waiting)
    # It may lag behind by two rounds of 100 bytes.
    assert backlog.until >= len(writes) - 1 - 2 * 11
