"""A run in time as text: what is drawn, and that it fits; nothing runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timelines import EVENTS, START

from lllaunch.console.lanes import DRAWN, timeline_rows, track_rows
from lllaunch.console.table import cells
from lllaunch.documents import Fields
from lllaunch.results.timeline import (
    AttemptTimeline,
    Lane,
    Mark,
    NodeRecords,
    RunTimeline,
    TimeSpan,
    timeline_of,
)
from lllaunch.results.tries import JobTry, SweepTimeline, tracks_of
from lllaunch.sweep.pool import Lease


def at(seconds: float) -> int:
    return START + round(seconds * 1e9)


def lane(rank: int, fate: str, *spans: tuple[Any, float, float], cause: float = 0) -> Lane:
    marks = (Mark("root_cause", at(cause), "no", rank),) if cause else ()
    drawn = tuple(TimeSpan(kind, at(start), at(end)) for kind, start, end in spans)
    return Lane(rank, rank, "", 0, fate, drawn, marks)


def run_of(*lanes: Lane, state: str = "failed", number: int = 0) -> AttemptTimeline:
    return AttemptTimeline(number, "", at(0), at(20), state, lanes)


def drawn(*attempts: AttemptTimeline, width: int = 40, ascii_only: bool = True) -> list[str]:
    timeline = RunTimeline(at(0), at(20), over=True, attempts=attempts)
    rows = timeline_rows(timeline, width, ascii_only=ascii_only)
    return ["".join(part.text for part in row).rstrip() for row in rows]


HUNG = [
    lane(0, "failed", ("run", 0, 20), ("hang", 10, 18), ("grace", 18, 20), cause=15),
    lane(1, "ended", ("spawn", 0, 2), ("run", 2, 20), ("grace", 18, 20)),
    lane(2, "ended", ("spawn", 0, 2), ("run", 2, 20), ("grace", 18, 20)),
]


def test_each_column_is_what_was_then_and_ranks_that_look_alike_share_a_line() -> None:
    assert drawn(run_of(*HUNG)) == [
        "             0               20 s",
        "attempt 0                          failed",
        "  rank 0     ==========~~~~~X~~--  failed",
        "  ranks 1-2  ::================--  ended",
        "             : starts   = runs   ~ hangs",
        "             - grace period",
        "             X root cause",
    ]


def test_what_is_drawn_is_the_same_in_other_characters() -> None:
    plain, other = drawn(run_of(*HUNG)), drawn(run_of(*HUNG), ascii_only=False)
    assert all(line.isascii() for line in plain)
    assert not all(line.isascii() for line in other)
    assert set("".join(other)) - set("".join(plain)) <= set(DRAWN)
    assert [len(line) for line in plain] == [cells(line) for line in other]


def test_of_very_many_ranks_those_that_failed_are_not_left_out() -> None:
    lanes = [lane(rank, "succeeded", ("run", 0, 1 + rank / 10)) for rank in range(100)]
    lanes[77] = lane(77, "failed", ("run", 0, 5), cause=5)
    lines = drawn(run_of(*lanes), width=120)
    assert len(lines) < 20
    assert any(line.startswith("  rank 77 ") and line.endswith("failed") for line in lines)
    assert any(line.strip().endswith("more ranks") for line in lines)


def test_of_very_many_attempts_the_first_and_the_last_are_shown() -> None:
    lines = drawn(*(run_of(number=number) for number in range(50)))
    numbers = [int(line.split()[1]) for line in lines if line.startswith("attempt ")]
    assert numbers == [0, 1, 44, 45, 46, 47, 48, 49]
    assert "... 42 more attempts ..." in lines


def test_a_run_that_never_began_has_no_bars() -> None:
    assert drawn() == []


def swept(*tries: tuple[str, int, float, float, str], gpus: int = 2) -> list[str]:
    timeline = SweepTimeline(
        at(0),
        at(20),
        over=True,
        tries=tuple(
            JobTry(job, 0, at(start), at(end), fate, Lease((gpu,)))
            for gpu, job, start, end, fate in tries
        ),
        slots=Lease(tuple(map(str, range(gpus)))),
    )
    rows = track_rows(timeline, tracks_of(timeline), 42, ascii_only=True)
    return ["".join(part.text for part in row).rstrip() for row in rows]


def test_jobs_stand_on_their_gpus_and_what_is_idle_is_empty() -> None:
    lines = swept(
        ("0", 0, 0, 5, "succeeded"),
        ("0", 1, 5, 10, "succeeded"),
        ("0", 2, 15, 20, "failed"),
        ("1", 3, 10, 20, "running"),
    )
    assert lines == [
        "       0                   20 s",
        "GPU 0  ======------      XXXXXX  75 % busy",
        "GPU 1              >>>>>>>>>>>>  50 % busy",
        "       = a job   - the next one   > runs",
        "       X failed",
    ]


def test_a_failure_that_was_short_is_seen_among_jobs_that_were_not() -> None:
    [_, gpu, *_] = swept(
        ("0", 0, 0, 10, "succeeded"),
        ("0", 1, 10, 10.001, "failed"),
        ("0", 2, 10.001, 20, "succeeded"),
        gpus=1,
    )
    assert gpu.count("X") == 1


def test_of_very_many_gpus_some_are_shown_and_of_no_jobs_nothing() -> None:
    lines = swept(("0", 0, 0, 5, "succeeded"), gpus=100)
    assert sum(line.startswith("GPU ") for line in lines) == 16
    assert "and 84 more" in lines
    assert swept() == []


@given(st.lists(EVENTS, max_size=30), st.integers(1, 200))
def test_whatever_happened_all_lines_fit(events: list[dict[str, Any]], width: int) -> None:
    timeline = timeline_of([NodeRecords("", [*map(Fields, events)])], None)
    rows = timeline_rows(timeline, width)
    lines = ["".join(part.text for part in row).rstrip() for row in rows]
    # a label, the shortest bar and a fate
    least = 26 + 20 + 2 + 12
    assert all(cells(line) <= max(width, least) for line in lines)
    assert len(lines) <= 8 * 14 + 8


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_bar_is_as_long_as_there_is_room(width: int) -> None:
    longest = max(map(len, drawn(run_of(*HUNG), width=width)))
    assert width - 1 <= longest <= width or longest == 13 + 100 + 8
