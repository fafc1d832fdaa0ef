"""Traces keep the rules of their format, and the jobs of a sweep in time; nothing runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.left import LeftSweep
from support.timelines import EVENTS, SAMPLES, START, event, json_lines, node_records
from support.traces import ruled as ruled_text

from lllaunch.results.sweeps import SweepTimeline, SweepView, sweep_in_time, tracks_of
from lllaunch.results.trace import TraceEvent, rendered, run_events, sweep_events
from lllaunch.results.view import RunTimeline, timeline_of
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    JournalEntry,
    OverRecord,
    Result,
    Resumed,
    StartedRecord,
)
from lllaunch.sweep.pool import Lease


def ruled(events: list[TraceEvent]) -> list[dict[str, Any]]:
    return ruled_text(rendered(events, "run", START))


def run_of(*events: bytes, samples: list[bytes] | None = None) -> RunTimeline:
    return timeline_of([node_records("", events, samples or [])], None)


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


def of(*records: tuple[float, Any], now: float | None = None, hide: Any = str) -> SweepTimeline:
    entries = (JournalEntry(START + round(at * 1e9), record) for at, record in records)
    return sweep_in_time(entries, None if now is None else START + round(now * 1e9), hide)


def test_a_sweep_has_a_thread_for_each_gpu_and_a_span_for_each_try() -> None:
    secret = "hunter2hunter2"
    records = (
        Header("s", "1", slots=Lease(("0", "1"))),
        ComposedRecord(0, ("lr=1", f"name={secret}"), "0", None),
        StartedRecord(0, 0, Lease(("0", "1"))),
        EndedRecord(0, 0, Result("failed", 3, f"rank 0: {secret}")),
        StartedRecord(0, 1, Lease(("1",))),
        EndedRecord(0, 1, Result("succeeded", 0, "", 1.0, "0.5")),
    )
    events = sweep_events(of(*enumerate(records), hide=lambda text: text.replace(secret, "***")))
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


@given(st.lists(EVENTS, max_size=25), st.lists(SAMPLES, max_size=6), st.lists(EVENTS, max_size=10))
def test_whatever_a_run_is_made_of_its_trace_keeps_the_rules(
    events: list[dict[str, Any]], samples: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    first = node_records("a", json_lines(events), json_lines(samples))
    nodes = [first, node_records("b", json_lines(others))] if others else [first]
    ruled(run_events(timeline_of(nodes, None)))


# Tries of jobs


def told(timeline: SweepTimeline) -> list[tuple[int, int, float, float, str]]:
    return [
        (
            each.job,
            each.number,
            (each.start_ns - START) / 1e9,
            (each.end_ns - START) / 1e9,
            each.fate,
        )
        for each in timeline.tries
    ]


def laid_out(timeline: SweepTimeline) -> list[tuple[str, str, list[int]]]:
    return [
        (track.kind, track.name, [each.job for each in track.tries])
        for track in tracks_of(timeline)
    ]


BEGUN = (0, Header("s", "1", slots=Lease(("10", "2"), (0, 1))))


def test_what_was_running_when_the_launcher_was_gone_is_lost_and_starts_anew() -> None:
    timeline = of(
        BEGUN,
        (1, StartedRecord(0)),
        (1, StartedRecord(1)),
        (7, Resumed("1")),
        (8, StartedRecord(0)),
        now=10,
    )
    assert told(timeline) == [
        (0, 0, 1.0, 7.0, "lost"),
        (1, 0, 1.0, 7.0, "lost"),
        (0, 1, 8.0, 10.0, "running"),
    ]
    assert timeline.resumed_ns == (START + 7 * 10**9,)
    assert not timeline.over
    # nothing was leased: there were two at a time
    assert laid_out(timeline)[2:] == [("job", "0", [0, 0]), ("job", "1", [1])]


_HELD = st.sampled_from(
    [Lease(gpus, cpus) for gpus in ((), ("0",), ("0", "1")) for cpus in ((), (0,), (0, 2))]
)
_JOBS = st.integers(0, 4)
_RESULTS = st.sampled_from(["succeeded", "failed", "x"]).map(Result)
_HAPPENED = st.one_of(
    st.sampled_from([Header("s", "1"), Resumed("1"), OverRecord(0)]),
    st.tuples(_JOBS, _HELD).map(lambda each: StartedRecord(each[0], lease=each[1])),
    st.tuples(_JOBS, _RESULTS).map(lambda each: EndedRecord(each[0], 0, each[1])),
)


@given(st.lists(st.tuples(st.integers(0, 100), _HAPPENED), max_size=40), st.booleans())
def test_no_two_tries_overlap_none_is_missing_and_the_trace_keeps_the_rules(
    records: Sequence[tuple[int, Any]], live: bool
) -> None:
    # clocks may be set back: the times are in no order
    timeline = of(*records, now=200 if live else None)
    tracks = tracks_of(timeline)
    for track in tracks:
        for before, after in itertools.pairwise(track.tries):
            assert before.end_ns <= after.start_ns
    seen = {(each.job, each.number) for track in tracks for each in track.tries}
    started = [record for _, record in records if isinstance(record, StartedRecord)]
    assert len(seen) == len(started) == len(timeline.tries)
    assert all(each.start_ns <= each.end_ns <= timeline.end_ns for each in timeline.tries)
    ruled(sweep_events(timeline))


def test_a_journal_that_is_damaged_tells_what_stands_before_that(tmp_path: Path) -> None:
    sweep = LeftSweep(tmp_path, Header("s", "1"))
    sweep.add(StartedRecord(0))
    with sweep.journal.open("a") as file:
        file.write("nonsense\n{}\n")
    assert [each.job for each in SweepView(str(tmp_path), None).timeline.tries] == [0]
