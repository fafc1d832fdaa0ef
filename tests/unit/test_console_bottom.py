"""How far a run is, in one line: what it says, and what goes first where there is no room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.console.console import (
    Part,
    RunStatus,
    fitted,
    heartbeat_text,
    status_rows,
)
from lllaunch.watchdog.progress import Progress
from lllaunch.workers.terminal import cells

GiB = 1024**3


def run_of(**facts: object) -> RunStatus:
    run = RunStatus(1000.0)
    run.attempt = 0
    for name, value in facts.items():
        assert hasattr(run, name)
        setattr(run, name, value)
    return run


def known() -> RunStatus:
    ranks = {rank: Progress(1200.0, 5000.0, 1.5, 2460.0) for rank in range(3)}
    ranks[3] = Progress(1180.0, 5000.0, 1.49, 2490.0)
    return run_of(progress=ranks, memory=int(12.3 * GiB), seen=1600.0)


def text_of(run: RunStatus, now: float, columns: int = 200) -> str:
    ((*parts,),) = status_rows(run, now, columns + 1, 24)
    return "".join(each.text for each in parts)


def test_all_that_is_known_stands_in_the_line() -> None:
    assert text_of(known(), 1600.0) == (
        "lllaunch: attempt 0, 10 min, step 1200/5000, 1.5/s, about 42 min left, "
        "rank 3 is slowest (step 1180), 12 GiB"
    )


def test_before_the_first_attempt_there_is_none_in_the_line() -> None:
    run = run_of(attempt=None, doing="importing torch")
    assert text_of(run, 1003.9) == "lllaunch: 3 s, importing torch"
    assert heartbeat_text(run, 1300.0) == "5 min: importing torch"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (80, "10 min, step 1200/5000, about 42 min left, rank 3 is slowest (step 1180), 12 GiB"),
        (52, "attempt 0, 10 min, step 1200/5000, about 42 min left"),
        (39, "attempt 0, 10 min, step 1200/5000"),
    ],
)
def test_what_matters_least_goes_first(columns: int, text: str) -> None:
    assert text_of(known(), 1600.0, columns) == text


def test_what_goes_on_beside_the_workers_is_said_with_its_end() -> None:
    run = run_of(attempt=1, doing="starts again in", until=1065.0)
    assert text_of(run, 1005.0) == "lllaunch: attempt 1, 5 s, starts again in 1 min"
    assert text_of(run, 1070.0) == "lllaunch: attempt 1, 1 min 10 s, starts again in 0 s"
    run = run_of(doing="importing torch, numpy\x1b[2J\n")
    assert text_of(run, 1001.9) == "lllaunch: attempt 0, 1 s, importing torch, numpy\\n"


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(5.0, None, 11.94), "step 5, 11.9/s"),
        (Progress(5.0, None, 12345.6), "step 5, 12,346/s"),
        (Progress(5.0, None, 0.25), "step 5, 4.0 s a"),
        (Progress(5.0, 9.0, None, 0.2), "about 1 s left"),
        (Progress(5.0, 9.0, None, 59.4), "about 59 s left"),
        (Progress(5.0, 9.0, None, 5400.0), "about 1 h 30 min left"),
    ],
)
def test_rates_and_what_is_left_are_said_as_people_say_them(progress: Progress, text: str) -> None:
    # as far as each other: none is slowest
    run = run_of(progress={0: progress, 1: progress}, seen=1001.0)
    line = text_of(run, 1001.0)
    assert text in line
    assert "slowest" not in line


def test_the_time_left_is_that_of_the_last_rank_and_passes() -> None:
    ranks = {0: Progress(5.0, 10.0, 1.0, 5.0), 1: Progress(4.0, 10.0, 0.1, 60.0)}
    run = run_of(progress=ranks, seen=1000.0)
    assert "about 1 min left" in text_of(run, 1000.0)
    assert "about 35 s left" in text_of(run, 1025.0)
    assert "about 1 s left" in text_of(run, 2000.0)
    assert "left" not in text_of(run_of(progress={0: Progress(5.0)}), 1001.0)


parts = st.lists(
    st.builds(
        Part, st.text(st.characters(categories=["L", "N", "Zs"]), min_size=1), st.integers(1)
    ),
    min_size=1,
    max_size=9,
)


@given(parts, st.integers(1, 120))
def test_a_line_is_never_wider_than_there_is_room(line: Sequence[Part], columns: int) -> None:
    found = fitted(line, columns)
    assert cells("".join(each.text for each in found)) <= columns
    assert found
    heaviest = max(line, key=lambda part: part.weight)
    if cells(heaviest.text) <= columns:
        assert heaviest.text in [each.text for each in found]


def test_a_heartbeat_says_it_in_a_sentence() -> None:
    run = known()
    assert heartbeat_text(run, 1600.4) == (
        "10 min: step 1200/5000, about 41 min left, rank 3 is slowest (step 1180), 12 GiB"
    )
    run.attempt, run.findings = 1, ["stall"]
    assert heartbeat_text(run, 1900.0) == (
        "15 min: attempt 1, step 1200/5000, about 36 min left, rank 3 is slowest (step 1180), "
        "12 GiB, 1 finding (stall)"
    )
    assert heartbeat_text(run_of(), 1300.0) == "5 min: attempt 0"
