"""When workers count as stalled, decided without processes and without waiting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.spec import RestartPolicy, StallScope
from lllaunch.watchdog import stall
from lllaunch.watchdog.findings import Finding, HeartbeatLost, Silent, Stalled
from lllaunch.watchdog.stall import (
    IDLE_SHARE,
    SilenceDetector,
    StallDetector,
    WorkerActivity,
    heartbeats_lost,
    look_interval,
    next_silence,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize("name", ["stall", "findings", "stacks/frames"])
def test_the_decisions_know_neither_processes_nor_time(name: str) -> None:
    path = Path(stall.__file__).parent / f"{name}.py"
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    pure = {"__future__", "collections", "collections.abc", "dataclasses", "enum", "re", "signal"}
    pure |= {"types", "typing"}
    ours = {"lllaunch.spec", "lllaunch.text", "lllaunch.watchdog.findings"}
    ours |= {"lllaunch.watchdog.collectives", "lllaunch.watchdog.stacks.frames"}
    assert imported <= pure | ours


def watched(
    looks: list[dict[int, WorkerActivity]],
    limit: float = 30.0,
    scope: StallScope = "group",
    **more: float,
) -> list[Stalled | None]:
    """What a detector says to looks that are ten seconds apart, the first at 0."""
    detector = StallDetector(limit, scope, more.get("starts", 0.0))
    return [detector.look(10.0 * index, look) for index, look in enumerate(looks)]


def test_who_writes_nothing_is_silent_after_the_limit_whatever_it_does() -> None:
    detector = SilenceDetector(30.0, starts=0.0)
    looks = [{0: WorkerActivity(cpu=10.0 * n, beat=n), 1: WorkerActivity(5.0)} for n in range(4)]
    found = [detector.look(10.0 * n, look) for n, look in enumerate(looks)]
    assert found == [None, None, None, Silent(30.0)]
    assert detector.look(40.0, {1: WorkerActivity(5.0, output=1)}) is None
    assert detector.look(69.0, {1: WorkerActivity(5.0, output=1)}) is None
    detector.forgive(69.0)
    assert detector.look(98.0, {1: WorkerActivity(5.0, output=1)}) is None
    assert detector.look(99.0, {1: WorkerActivity(5.0, output=1)}) == Silent(30.0)
    assert detector.look(200.0, {}) is None, "nobody lives"
    # what a child had written is not counted when it has ended
    assert detector.look(201.0, {1: WorkerActivity(5.0, output=0)}) is not None


def idle(*ranks: int, **more: object) -> dict[int, WorkerActivity]:
    return {rank: WorkerActivity(cpu=5.0, **more) for rank in ranks}  # type: ignore[arg-type]


def test_a_group_that_does_nothing_is_stalled_after_the_limit() -> None:
    assert watched([idle(0, 1)] * 4) == [None, None, None, Stalled((0, 1), 30.0, "group")]


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": 5.0 + 10 * IDLE_SHARE + 0.01},
        {"cpu": 5.0, "output": 1},
        {"cpu": 5.0, "beat": 7 * SECOND},
    ],
    ids=["cpu", "output", "heartbeat"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_sign_of_life_of_one_worker_is_enough_for_the_group(
    change: dict[str, float], rank: int
) -> None:
    alive = idle(0, 1) | {rank: WorkerActivity(**change)}  # type: ignore[arg-type]
    # the sign of life comes at 20, and stays as it was then
    found = watched([idle(0, 1), idle(0, 1), alive, alive, alive, alive])
    assert found == [None] * 5 + [Stalled((0, 1), 30.0, "group")]


def test_waking_up_now_and_then_is_no_sign_of_life() -> None:
    looks = [{0: WorkerActivity(cpu=0.9 * IDLE_SHARE * 10 * n)} for n in range(4)]
    assert watched(looks)[-1] == Stalled((0,), 30.0, "group")


def test_one_idle_rank_among_busy_ones_is_found_if_it_is_asked_for() -> None:
    looks = [{0: WorkerActivity(cpu=10.0 * n), 1: WorkerActivity(cpu=0.0)} for n in range(4)]
    assert watched(looks, scope="rank")[-1] == Stalled((1,), 30.0, "rank")
    assert watched(looks, scope="group")[-1] is None


def test_ranks_that_ended_are_not_waited_for() -> None:
    looks = [{0: WorkerActivity(cpu=10.0 * n), 1: WorkerActivity(cpu=0.0)} for n in range(3)]
    assert watched([*looks, {1: WorkerActivity(cpu=0.0)}])[-1] == Stalled((1,), 30.0, "group")


def test_nothing_lives_nothing_stalls() -> None:
    assert watched([{}] * 9) == [None] * 9


def test_idleness_counts_from_the_end_of_the_warmup() -> None:
    found = watched([idle(0)] * 7, starts=25.0)
    assert found[:6] == [None] * 6
    assert found[6] == Stalled((0,), 35.0, "group")


def test_a_worker_that_appears_later_is_idle_from_then_on() -> None:
    found = watched([idle(0), idle(0), idle(0, 1), idle(0, 1), idle(0, 1), idle(0, 1)])
    assert found[4] is None
    assert found[5] == Stalled((0, 1), 30.0, "group")


def test_uninterruptible_sleep_and_stopped_workers_are_told_apart() -> None:
    looks = {
        0: WorkerActivity(5.0, state="S"),
        1: WorkerActivity(5.0, state="D"),
        2: WorkerActivity(5.0, state="T"),
    }
    found = watched([looks] * 4)[-1]
    assert found == Stalled((0, 1, 2), 30.0, "group", asleep=(1,), stopped=(2,))


def test_output_that_shrinks_and_cpu_that_falls() -> None:
    """A truncated log is a sign of life; a child's CPU time that went with it is none."""
    looks = [
        {0: WorkerActivity(5.0, output=9)},
        {0: WorkerActivity(5.0, output=9)},
        {0: WorkerActivity(5.0, output=1)},
    ]
    assert watched(looks, limit=20.0) == [None, None, None]
    looks = [{0: WorkerActivity(5.0)}, {0: WorkerActivity(4.0)}, {0: WorkerActivity(3.0)}]
    assert watched(looks, limit=20.0)[-1] == Stalled((0,), 20.0, "group")


@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 3),
            st.builds(WorkerActivity, st.floats(0, 100), st.integers(0, 3), st.integers(0, 3)),
            max_size=4,
        ),
        max_size=20,
    ),
    st.sampled_from(["group", "rank"]),
)
def test_a_stall_is_never_shorter_than_the_limit_and_names_live_ranks(
    looks: list[dict[int, WorkerActivity]], scope: StallScope
) -> None:
    for look, found in zip(looks, watched(looks, limit=25.0, scope=scope), strict=True):
        if found is not None:
            assert found.seconds >= 25.0
            assert found.ranks
            assert set(found.ranks) <= set(look)
            if scope == "group":
                assert set(found.ranks) == set(look)


def test_heartbeats_are_lost_only_by_those_that_sent_some() -> None:
    beats = {0: 0, 1: 90 * SECOND, 2: 60 * SECOND}
    assert heartbeats_lost(30.0, 89.0, beats, 0.0) is None
    assert heartbeats_lost(30.0, 95.0, beats, 0.0) == HeartbeatLost((2,), 35.0)
    assert heartbeats_lost(30.0, 125.0, beats, 0.0) == HeartbeatLost((1, 2), 65.0)


def test_silence_in_the_warmup_is_allowed() -> None:
    assert heartbeats_lost(30.0, 125.0, {0: SECOND}, 100.0) is None
    assert heartbeats_lost(30.0, 130.0, {0: SECOND}, 100.0) == HeartbeatLost((0,), 30.0)


def test_the_next_silence_is_known_beforehand() -> None:
    assert next_silence(30.0, 5.0, {0: 0}, 0.0) is None
    assert next_silence(30.0, 5.0, {0: 0, 1: 3 * SECOND, 2: 4 * SECOND}, 0.0) == 28.0
    assert next_silence(30.0, 500.0, {1: 3 * SECOND}, 0.0) == 0.0
    assert next_silence(30.0, 5.0, {1: 3 * SECOND}, 60.0) == 85.0


@pytest.mark.parametrize(
    ("limit", "interval"), [(3600.0, 180.0), (600.0, 30.0), (60.0, 5.0), (20.0, 5.0), (2.0, 0.5)]
)
def test_looks_are_rare_and_a_short_limit_is_kept(limit: float, interval: float) -> None:
    assert look_interval(limit) == interval


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RestartPolicy(), [0.0, 0.0, 0.0]),
        (RestartPolicy(delay=5.0, max_delay=12.0), [5.0, 10.0, 12.0]),
    ],
)
def test_the_wait_before_a_restart(policy: RestartPolicy, waits: list[float]) -> None:
    assert [policy.wait(restart) for restart in (1, 2, 3)] == waits
    assert policy.wait(10**9) == (policy.max_delay if policy.delay else 0.0)


def test_a_finding_reads_as_a_sentence_about_its_workers() -> None:
    found: Finding = Stalled((0,), 600.0)
    assert f"rank 0 {found}" == (
        "rank 0 stalled: no output, no CPU use and no heartbeat for 10 min"
    )
