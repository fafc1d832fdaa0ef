"""A run in time as text, how far it is, and what it used; nothing runs."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.timelines import EVENTS, START, json_lines, node_records, sample

from lllaunch.console.table import Row
from lllaunch.console.views import peak_rows, progress_of_ranks, timeline_rows
from lllaunch.results.history import AttemptTimeline, Lane
from lllaunch.results.view import Mark, RunTimeline, TimeSpan, timeline_of
from lllaunch.watchdog.progress import Progress
from lllaunch.workers.terminal import cells


def at(seconds: float) -> int:
    return START + round(seconds * 1e9)


def lane(rank: int, fate: str, *spans: tuple[Any, float, float], cause: float = 0) -> Lane:
    marks = (Mark("root_cause", at(cause), "no", rank),) if cause else ()
    drawn = tuple(TimeSpan(kind, at(start), at(end)) for kind, start, end in spans)
    return Lane(rank, rank=rank, fate=fate, spans=drawn, marks=marks)


def run_of(*lanes: Lane, state: str = "failed", number: int = 0) -> AttemptTimeline:
    workers = {lane.rank: lane for lane in lanes}
    return AttemptTimeline(number, at(0), at(20), state, workers=workers)


def lines(rows: list[Row]) -> list[str]:
    return ["".join(part.text for part in row).rstrip() for row in rows]


def drawn(*attempts: AttemptTimeline, width: int = 40, ascii_only: bool = True) -> list[str]:
    timeline = RunTimeline(at(0), at(20), over=True, attempts=attempts)
    return lines(timeline_rows(timeline, width, ascii_only=ascii_only))


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


def test_of_very_many_ranks_those_that_failed_are_not_left_out() -> None:
    lanes = [lane(rank, "succeeded", ("run", 0, 1 + rank / 10)) for rank in range(100)]
    lanes[77] = lane(77, "failed", ("run", 0, 5), cause=5)
    found = drawn(run_of(*lanes), width=120)
    assert len(found) < 20
    assert [line for line in found if re.match("  rank 77 .* failed$", line)]
    assert any(line.strip().endswith("more ranks") for line in found)


def test_of_very_many_attempts_the_first_and_the_last_are_shown() -> None:
    found = drawn(*(run_of(number=number) for number in range(50)))
    numbers = [int(line.split()[1]) for line in found if line.startswith("attempt ")]
    assert numbers == [0, 1, 44, 45, 46, 47, 48, 49]
    assert "... 42 more attempts ..." in found


@given(st.lists(EVENTS, max_size=30), st.integers(1, 200))
def test_whatever_happened_all_lines_fit(events: list[dict[str, Any]], width: int) -> None:
    timeline = timeline_of([node_records("", json_lines(events))], None)
    rows = lines(timeline_rows(timeline, width))
    # a label, the shortest bar and a fate
    least = 26 + 20 + 2 + 12
    assert all(cells(row) <= max(width, least) for row in rows)
    assert len(rows) <= 8 * 14 + 8


# What runs used, and how far they came


def measured(*samples: bytes) -> RunTimeline:
    return timeline_of([node_records("", [], samples)], None)


def test_the_slowest_ranks_are_named_beside_the_furthest() -> None:
    assert progress_of_ranks({}) == ""
    fast, slow = Progress(12, 12, metrics={"loss": 0.3}), Progress(9, 12)
    assert progress_of_ranks({0: fast, 1: fast}) == "step 12 of 12 (100 %), loss 0.3"
    assert progress_of_ranks({0: Progress(599, 600)}) == "step 599 of 600 (99 %)"
    known = {0: fast, 1: slow, 2: slow, 3: Progress(10, 12)}
    assert progress_of_ranks(known) == (
        "step 12 of 12 (100 %), loss 0.3; ranks 1-2 are at step 9 of 12 (75 %)"
    )


def test_the_most_of_everything_is_found_with_whose_it_was() -> None:
    run = measured(
        sample(1, {"0": {"cpu": 0.5, "rss": 10}, "1": {"cpu": 2, "rss": 5}}),
        sample(2, {"0": {"cpu": 1, "rss": 11}, "1": {"cpu": 0, "rss": 5}}),
        sample(3, {"0": {"metrics": {"cpu": 99}}}, gpus={"0": {"use": 0.5}, "1": {"use": 1.0}}),
    )
    assert lines(peak_rows([*run.series], attempts=1)) == [
        "  memory   11 B     rank 0",
        "  CPU      2 cores  rank 1",
        "  GPU use  100 %    GPU 1   75 % on average",
    ]
    assert lines(peak_rows([*run.series][:1], attempts=2))[0].endswith("in attempt 0")
    assert peak_rows([], attempts=1) == []
