"""Tables: which columns those of ``top`` have, in which order, and what has no room."""

from __future__ import annotations

from typing import Any

import pytest

from lllaunch.console.table import Row, aligned
from lllaunch.console.views import (
    columns_of,
    head_rows,
    matches,
    sorted_rows,
    view_rows,
)
from lllaunch.results.live import LiveView
from lllaunch.results.store import ListEntry
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.sweep.pool import Lease
from lllaunch.workers.terminal import cells

BUSY = ListEntry(
    "run",
    "/w/outputs/2026-11-23/12-00-00",
    "running",
    attempts=2,
    seconds=754.2,
    step=1200,
    total=5000,
    rate=12.3456,
    eta=2440.0,
    idle=0.2,
    slowest=3,
    behind=1180,
    cpu=3.904,
    memory=13_207_000_000,
    gpus=("0", "1"),
    gpu_use=0.97,
    gpu_memory=150_000_000_000,
    metrics={"accuracy": 0.91, "loss": 0.3},
    given=("+exp=resnet", "params.lr=0.1"),
)
FAILED = ListEntry(
    "run",
    "/w/outputs/\x1b[31mred",
    "failed",
    seconds=3.0,
    root_cause="rank 1: raised ValueError: no\x1b[2J luck\nand more",
    exit_code=3,
)
WIDE = ListEntry(
    "run", "/w/実験/" + "長い名前" * 12, "queued", batch_job="123", queue="PENDING (Priority)"
)
ROWS = (BUSY, FAILED, WIDE)
ALL = LiveView(0, ROWS, roots=("outputs", "multirun/"))


def texts(rows: list[Row]) -> list[str]:
    return ["".join(span.text for span in row) for row in rows]


def shown(view: LiveView, columns: int = 0, lines: int = 0) -> list[str]:
    return texts(view_rows(view, columns, lines, "/w"))


def test_everything_has_room_where_there_is_no_terminal() -> None:
    head, titles, busy, failed, wide = shown(ALL)
    assert head == "1 running, 1 queued, 1 ended of late; in outputs/ multirun/"
    names = ["path", "state", "time", "step", "rate", "left", "tries", "slow", "cpu", "mem", "gpu"]
    assert titles.split() == [*names, "gpu", "mem", "metrics", "what"]
    for part in (
        "outputs/2026-11-23/12-00-00",
        "12 min 34 s  1200/5000  12.3/s  40 min 40 s      2",
    ):
        assert part in busy
    assert "rank 3  390%  12 GiB  0,1 97%  140 GiB  loss=0.3 accuracy=0.91" in busy
    assert busy.endswith("exp=resnet lr=0.1")
    assert "rank 1: raised ValueError: no luck" in failed
    assert "and more" not in failed
    assert "\x1b" not in "".join((titles, busy, failed, wide))


@pytest.mark.parametrize("columns", [*range(1, 140, 3), 200, 400])
@pytest.mark.parametrize("lines", [3, 6, 15, 60])
def test_nothing_is_wider_or_longer_than_the_terminal(columns: int, lines: int) -> None:
    jobs = tuple(ListEntry("job", "/w/s", "waiting", number=number) for number in range(30))
    sweep = ListEntry("sweep", "/w/s", "running", seconds=1.0, counts={"waiting": 30})
    slots = Lease(tuple(map(str, range(8))), tuple(range(64)))
    run = LiveView(0, (ListEntry("rank", "/w", "running", number=0),), subject=BUSY)
    for view in (ALL, run, LiveView(0, jobs, subject=sweep, slots=slots)):
        rows = shown(view, columns, lines)
        assert len(rows) < lines
        assert max(map(cells, rows)) < max(columns, 2)


def test_rows_that_have_no_room_are_counted() -> None:
    jobs = [ListEntry("job", "", "running", number=0)]
    jobs += [ListEntry("job", "", "succeeded", number=number) for number in range(1, 40)]
    counts = {"running": 1, "succeeded": 39, "waiting": 60}
    sweep = ListEntry("sweep", "/w/s", "running", counts=counts)
    view = LiveView(0, tuple(jobs), subject=sweep)
    rows = shown(view, 80, 12)
    assert len(rows) == 11
    assert rows[-1] == "and 32 more succeeded, 60 more waiting"
    assert shown(view)[-1] == "and 60 more waiting"


def test_the_head_of_a_run() -> None:
    findings = ("attempt 0: rank 1: hung", "rank 2: the loss became NaN")
    rows = texts(head_rows(LiveView(0, (), subject=BUSY, findings=findings), 0, "/w"))
    assert rows == [
        (
            "outputs/2026-11-23/12-00-00: running, attempt 1, 12 min 34 s, 0 ranks, "
            "step 1200/5000, about 41 min left, rank 3 is slowest (step 1180)"
        ),
        *findings,
        "exp=resnet lr=0.1",
    ]


def test_the_head_of_a_sweep_has_its_best_job_and_who_holds_what() -> None:
    objectives = Objectives("minimize", [Objective(0.5, 0, "lr=0"), Objective(0.25, 1, "lr=1")])
    counts = {"succeeded": 3, "failed": 1, "running": 1, "waiting": 5}
    sweep = ListEntry("sweep", "/w/s", "running", eta=90.0, counts=counts, given=("+exp=x",))
    job = ListEntry("job", "/w/s/7", "running", number=7, gpus=("1", "2"))
    slots = Lease(("0", "1", "2"), (0, 1))
    view = LiveView(0, (job,), subject=sweep, objectives=objectives, slots=slots)
    rows = texts(head_rows(view, 0, "/w"))
    assert rows == [
        "s: running, 3/10 done, 1 failed, 1 running, 5 waiting, 1 of 3 GPUs idle, about 2 min left",
        "exp=x",
        "best 0.25 of job 1 (lr=1)",
    ]


@pytest.mark.parametrize("values", [(0.5, 1.5, None), (1.5, "b", None)])
def test_sorted_by_a_column_what_has_nothing_there_is_last(values: tuple[Any, ...]) -> None:
    (by,) = (column for column in columns_of("all", "/w") if column.title == "value")
    few, many, none = rows = [ListEntry("job", "", "running", value=value) for value in values]
    assert sorted_rows([many, none, few], by) == rows
    assert sorted_rows([few, none, many], by, reverse=True) == [many, few, none]
    # as they come
    assert sorted_rows([many, none, few], None) == [many, none, few]
    assert sorted_rows([many, none, few], None, reverse=True) == [few, none, many]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("LR=0.1 running", [BUSY]),
        ("lr=0.1 failed", []),
        ("valueerror", [FAILED]),
        ("実験", [WIDE]),
    ],
)
def test_a_filter_wants_all_of_its_words(wanted: str, found: list[ListEntry]) -> None:
    assert [row for row in ROWS if matches(row, wanted, "/w")] == found


# Lines without titles


ALIGNED = [
    ("rank 0", "raised ValueError: " + "word " * 50, "pid 1", "logs/0"),
    ("rank 1", "succeeded", "pid 22", "logs/1"),
]


def test_a_column_gives_way_where_there_is_no_room_for_all() -> None:
    first, second = aligned(ALIGNED, room=80, shrinks=1)

    assert cells(first) == 80
    assert first.startswith("rank 0  raised ValueError: word ")
    assert first.endswith("...  pid 1   logs/0")
    assert second.startswith("rank 1  succeeded   ")
    assert second.endswith("  pid 22  logs/1")
    # it stays as wide as it can be read
    _, second = aligned(ALIGNED, room=10, shrinks=1)
    assert second == "rank 1  succeeded" + " " * 15 + "  pid 22  logs/1"
    assert aligned(ALIGNED, room=1000, shrinks=1) == aligned(ALIGNED)
