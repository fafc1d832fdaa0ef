"""Traces keep the rules of their format, whatever they are made of; nothing runs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.timelines import EVENTS, SAMPLES, START, event, sample
from support.traces import ruled as ruled_text

from lllaunch.documents import Fields
from lllaunch.results.timeline import NodeRecords, RunTimeline, timeline_of
from lllaunch.results.trace import TraceEvent, rendered, run_events, sweep_events, thinned
from lllaunch.results.tries import tries_of
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    JournalEntry,
    Result,
    StartedRecord,
)
from lllaunch.sweep.pool import Lease


def ruled(events: list[TraceEvent]) -> list[dict[str, Any]]:
    return ruled_text(rendered(events, "run", START))


def run_of(*events: Fields, samples: list[Fields] | None = None) -> RunTimeline:
    return timeline_of([NodeRecords("", events, samples or [])], None)


FAILED = (
    event(0, "Begin"),
    event(0, "StartWorkers", attempt=0),
    event(0.1, "GroupStarted", ranks=[0, 1], base_rank=0),
    event(0.5, "Ready", seconds=0.3),
    event(1, "Started", local_rank=0, pid=1, attempt=0),
    event(1, "Started", local_rank=1, pid=2, attempt=0),
    event(3, "Exited", local_rank=1, pid=2, exitcode=1, attempt=0),
    event(3.5, "SignalWorkers", signum=15, reason="failure"),
    event(4, "Exited", local_rank=0, pid=1, exitcode=-15, attempt=0),
    event(4.5, "OrphansGone"),
    event(4.5, "Pause", seconds=1, restart=1),
    event(5.5, "PauseOver"),
    event(5.5, "StartWorkers", attempt=1, reason="failure"),
)


def short(events: list[dict[str, Any]], phase: str) -> list[tuple[Any, ...]]:
    return [
        (each["name"], each["ts"], *([each["dur"]] if phase == "X" else ()))
        for each in events
        if each["ph"] == phase
    ]


def names(events: list[TraceEvent], what: str) -> list[str]:
    return [each["args"]["name"] for each in events if each["name"] == f"{what}_name"]


def test_a_run_has_a_process_for_each_attempt_and_a_thread_for_each_rank() -> None:
    events = run_events(run_of(*FAILED))
    assert names(events, "process") == ["attempt 0", "attempt 1"]
    assert names(events, "thread") == ["group", "spawner", "rank 0", "rank 1", "group"]
    timed = ruled(events)
    assert short(timed, "X") == [
        ("preload", 200_000, 300_000),
        ("spawn", 500_000, 500_000),
        ("spawn", 500_000, 500_000),
        ("run: ended", 1_000_000, 3_000_000),
        ("run: failed", 1_000_000, 2_000_000),
        ("grace", 3_500_000, 500_000),
        ("pause", 4_500_000, 1_000_000),
    ]
    assert short(timed, "i") == [
        ("ended with exit status 1", 3_000_000),
        ("SIGTERM to all workers", 3_500_000),
        ("attempt 1 begins: a worker failed", 5_500_000),
    ]
    [failed] = [each for each in timed if each["name"] == "run: failed"]
    assert failed["args"] == {
        "fate": "failed",
        "text": "ended with exit status 1",
        "exit code": 1,
        "rank": 1,
        "local rank": 1,
    }


def test_counters_have_units_and_end_with_their_workers() -> None:
    told = {"cpu": 0.5, "rss": 3 << 20, "metrics": {"loss": 0.25, "bad": "nan"}}
    samples = [sample(2, {"1": told}, gpus={"0": {"use": 0.75}})]
    timed = ruled(run_events(run_of(*FAILED, samples=samples)))
    counters = [(each["name"], each["ts"], each["args"]) for each in timed if each["ph"] == "C"]
    assert counters == [
        ("CPU (cores)", 2_000_000, {"rank 1": 0.5}),
        ("memory (MiB)", 2_000_000, {"rank 1": 3.0}),
        ("metric loss", 2_000_000, {"rank 1": 0.25}),
        ("GPU use (%)", 2_000_000, {"GPU 0": 75.0}),
        ("CPU (cores)", 4_500_000, {"rank 1": 0.0}),
        ("memory (MiB)", 4_500_000, {"rank 1": 0.0}),
    ]


def test_of_very_many_samples_a_bounded_number_is_there_with_the_extremes() -> None:
    samples = [
        sample(1 + n / 1000, {"0": {"step": n % 7, "cpu": int(n == 500)}}) for n in range(1000)
    ]
    timed = ruled(run_events(run_of(*FAILED, samples=samples), most_values=100))
    values = [value for each in timed if each["ph"] == "C" for value in each["args"].values()]
    assert 50 <= len(values) <= 102
    assert 1.0 in values
    assert max(values) == 6.0


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(allow_nan=False))), st.integers(2, 20))
def test_points_that_are_left_are_some_of_them_in_order(
    given_points: list[tuple[int, float]], most: int
) -> None:
    points = sorted(given_points)
    kept = thinned(points, most)
    assert len(kept) <= most
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
    if len(points) <= most:
        assert kept == points


def sweep_of(*records: Any) -> Any:
    return tries_of(JournalEntry(START + at * 10**9, record) for at, record in enumerate(records))


def test_a_sweep_has_a_thread_for_each_gpu_and_a_span_for_each_try() -> None:
    secret = "hunter2hunter2"
    events = sweep_events(
        sweep_of(
            Header("s", "1", slots=Lease(("0", "1"))),
            ComposedRecord(0, ("lr=1", f"name={secret}"), "0", None),
            StartedRecord(0, 0, Lease(("0", "1"))),
            EndedRecord(0, 0, Result("failed", 3, f"rank 0: {secret}")),
            StartedRecord(0, 1, Lease(("1",))),
            EndedRecord(0, 1, Result("succeeded", 0, "", 1.0, "0.5")),
        ),
        lambda text: text.replace(secret, "***"),
    )
    assert names(events, "thread") == ["launcher", "GPU 0", "GPU 1"]
    assert secret not in rendered(events, "sweep", START)
    timed = ruled(events)
    assert short(timed, "X") == [
        ("sweep", 0, 5_000_000),
        ("job 0: failed", 2_000_000, 1_000_000),
        ("job 0: failed", 2_000_000, 1_000_000),
        ("job 0: succeeded", 4_000_000, 1_000_000),
    ]
    assert [each["args"] for each in timed if each["ph"] == "X"][-1] == {
        "overrides": "lr=1 name=***",
        "job": 0,
        "try": 1,
        "fate": "succeeded",
        "exit code": 0,
        "objective": 0.5,
    }
    running = [each["args"]["running"] for each in timed if each["ph"] == "C"]
    assert running == [1, 0, 1, 0]


@given(st.lists(EVENTS, max_size=25), st.lists(SAMPLES, max_size=6), st.lists(EVENTS, max_size=10))
def test_whatever_a_run_is_made_of_its_trace_keeps_the_rules(
    events: list[dict[str, Any]], samples: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    first = NodeRecords("a", [*map(Fields, events)], [*map(Fields, samples)])
    nodes = [first, NodeRecords("b", [*map(Fields, others)])] if others else [first]
    ruled(run_events(timeline_of(nodes, None)))


_LEASES = st.sampled_from([Lease(), Lease(("0",)), Lease(("0", "1")), Lease((), (0, 1))])
_RECORDS = st.one_of(
    st.tuples(st.integers(0, 3), _LEASES).map(lambda each: StartedRecord(each[0], lease=each[1])),
    st.integers(0, 3).map(lambda job: EndedRecord(job, 0, Result("failed"))),
)


@given(st.lists(st.tuples(st.integers(0, 10**10), _RECORDS), max_size=30))
def test_whatever_a_sweep_is_made_of_its_trace_keeps_the_rules(
    records: list[tuple[int, Any]],
) -> None:
    ruled(sweep_events(tries_of(JournalEntry(START + at, each) for at, each in records)))
