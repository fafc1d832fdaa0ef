"""What happened when in a run: from events, samples and the outcome; nothing runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.left import write_lines
from support.timelines import EVENTS, START, event, json_lines, node_records, sample

from lllaunch.results.history import AttemptTimeline, Lane
from lllaunch.results.locate import locate
from lllaunch.results.view import RunTimeline, timeline_of, view_run
from lllaunch.run.result import as_result


def exited(seconds: float, local_rank: int, code: int, attempt: int = 0) -> bytes:
    return event(seconds, "Exited", local_rank=local_rank, pid=10, exitcode=code, attempt=attempt)


def started(seconds: float, local_rank: int, attempt: int = 0) -> bytes:
    return event(seconds, "Started", local_rank=local_rank, pid=10, attempt=attempt)


BEGUN = [
    event(0, "Begin"),
    event(0.5, "StartWorkers", attempt=0, restart_count=0, reason=None),
    event(1, "GroupStarted", ranks=[0, 1], restarts=None, base_rank=0, preflight=False),
    event(3, "Ready", seconds=1.5),
    started(3.25, 0),
    started(3.5, 1),
]


def of(*events: bytes, now: float | None = None) -> RunTimeline:
    at = None if now is None else START + round(now * 1e9)
    return timeline_of([node_records("", [*BEGUN, *events])], None, at)


def spans(where: Lane | AttemptTimeline) -> list[tuple[str, float, float]]:
    return [
        (span.kind, (span.start_ns - START) / 1e9, (span.end_ns - START) / 1e9)
        for span in where.spans
    ]


def marks(where: Lane | AttemptTimeline) -> list[tuple[str, float, str]]:
    return [(mark.kind, (mark.time_ns - START) / 1e9, mark.text) for mark in where.marks]


def test_a_failure_ends_the_others_and_is_the_root_cause() -> None:
    [attempt] = of(
        exited(5, 1, 1),
        event(5.1, "SignalWorkers", signum=15, reason="failure"),
        event(5.1, "StartGrace"),
        exited(6, 0, -15),
        event(6.5, "OrphansGone", orphans=[]),
        event(6.6, "Finish", state="FAILED", reason="failure", signum=None),
    ).attempts
    assert (attempt.state, attempt.end_ns) == ("failed", START + 6_500_000_000)
    assert spans(attempt) == [("preload", 1.5, 3.0)]
    victim, failed = attempt.lanes
    assert (victim.fate, failed.fate) == ("ended", "failed")
    assert (victim.exitcode, failed.exitcode) == (-15, 1)
    assert spans(victim) == [("spawn", 3.0, 3.25), ("run", 3.25, 6.0), ("grace", 5.1, 6.0)]
    assert spans(failed) == [("spawn", 3.0, 3.5), ("run", 3.5, 5.0)]
    assert marks(failed) == [("root_cause", 5.0, "ended with exit status 1")]
    assert marks(attempt) == [("signal", 5.1, "SIGTERM to all workers")]


def test_a_hang_begins_when_it_had_begun_and_lasts_until_the_workers_are_asked_to_end() -> None:
    finding = {"type": "Stalled", "ranks": [0, 1], "seconds": 3.0, "scope": "group"}
    events = (
        event(8, "WatchdogFired", finding=finding, kind="hang", ends=True),
        event(8.1, "TakeStacks", ranks=[0, 1], finding=finding),
        event(8.2, "StacksTaken", stacks=[{"rank": 0}, {"rank": 1}]),
        event(8.5, "SignalWorkers", signum=15, reason="hang"),
        exited(9, 0, -15),
        exited(10, 1, -15),
    )
    # its span is that of result.json
    [attempt] = timeline_of([node_records("", [*BEGUN, *events])], outcome_of_a_hang()).attempts
    for lane, end in zip(attempt.lanes, (9.0, 10.0), strict=True):
        assert spans(lane)[1:] == [
            ("run", lane.rank * 0.25 + 3.25, end),
            ("hang", 5.0, 8.5),
            ("grace", 8.5, end),
        ]
    text = "ranks 0-1: stalled: no output, no CPU use and no heartbeat for 3.0 s"
    assert marks(attempt) == [
        ("finding", 8.0, text),
        ("stacks", 8.2, "the stacks of 2 workers were taken"),
        ("signal", 8.5, "SIGTERM to all workers"),
    ]


def test_a_restart_follows_a_pause() -> None:
    first, second = of(
        exited(5, 0, 1),
        exited(5, 1, 1),
        event(5.5, "OrphansGone"),
        event(6, "Pause", seconds=2, restart=1),
        event(8, "PauseOver"),
        event(8, "StartWorkers", attempt=1, restart_count=1, reason="failure", restart=1),
        event(8.1, "GroupStarted", ranks=[0, 1], base_rank=0, preflight=False),
        started(8.5, 0, 1),
        now=10,
    ).attempts
    assert spans(first)[-1] == ("pause", 6.0, 8.0)
    assert (first.state, second.state) == ("failed", "running")
    assert (first.end_ns, second.end_ns) == (START + 5_500_000_000, None)
    assert marks(second) == [("restart", 8.0, "attempt 1 begins: a worker failed")]
    runs, waits = second.lanes
    assert (runs.fate, runs.text, spans(runs)) == (
        "running",
        "running",
        [("spawn", 8.0, 8.5), ("run", 8.5, 10.0)],
    )
    assert (waits.text, spans(waits)) == ("is being started", [("spawn", 8.0, 10.0)])


def test_a_preflight_is_of_the_group_and_no_worker() -> None:
    events = [
        event(0, "Begin"),
        event(0, "StartWorkers", attempt=0),
        event(0.1, "GroupStarted", ranks=[-1], preflight=True),
        started(1, -1),
        exited(2, -1, 0),
        event(2, "OrphansGone"),
        event(2.1, "StartAfterPreflight"),
        event(2.2, "GroupStarted", ranks=[0], preflight=False),
        started(2.5, 0),
    ]
    [attempt] = timeline_of([node_records("", events)], None).attempts
    assert spans(attempt) == [("preflight", 1.0, 2.0)]
    assert [spans(lane) for lane in attempt.lanes] == [[("spawn", 2.1, 2.5), ("run", 2.5, 2.5)]]


def test_a_launcher_that_was_killed_leaves_workers_of_which_nobody_knows() -> None:
    timeline = of(event(7, "StacksAnswered", ranks=[0]))
    assert (timeline.over, timeline.end_ns) == (True, START + 7_000_000_000)
    [attempt] = timeline.attempts
    assert attempt.state == "lost"
    assert {lane.fate for lane in attempt.lanes} == {"lost"}


def test_nodes_have_ranks_of_all_and_the_clock_of_the_first() -> None:
    def node(ahead: float, base_rank: int) -> list[bytes]:
        return [
            event(0 + ahead, "Begin"),
            event(1 + ahead, "StartWorkers", attempt=0),
            event(4 + ahead, "GroupStarted", ranks=[0], restarts=0, base_rank=base_rank),
            started(5 + ahead, 0),
            exited(9 + ahead, 0, 0),
        ]

    timeline = timeline_of(
        [
            node_records("node 0", node(0, 0)),
            node_records("node 1", node(100, 1), [sample(106, {"1": {"cpu": 1.5}})], 100 * 10**9),
        ],
        None,
    )
    assert timeline.nodes == ("node 0", "node 1")
    assert [(each.node, each.lanes[0].rank) for each in timeline.attempts] == [
        ("node 0", 0),
        ("node 1", 1),
    ]
    for attempt in timeline.attempts:
        assert spans(attempt) == [("rendezvous", 1.0, 4.0)]
        assert spans(attempt.lanes[0]) == [("spawn", 4.0, 5.0), ("run", 5.0, 9.0)]
    [series] = timeline.series
    assert (series.of, series.node) == ("rank 1", "node 1")
    assert round((series.points[0][0] - START) / 1e9, 3) == 6.0


def test_samples_become_curves_of_what_is_finite() -> None:
    told = {"cpu": 0.5, "rss": 7, "step": 3, "metrics": {"loss": "nan", "cpu": 0.25}}
    samples = [
        sample(4, {"1": told, "x": told}, gpus={"0": {"use": 0.5, "power": None}}),
        sample(6, {"1": {"cpu": 1}}),
    ]
    timeline = timeline_of([node_records("", BEGUN, samples)], None)
    assert [
        (each.name, each.of, each.metric, [value for _, value in each.points])
        for each in timeline.series
    ] == [
        ("cpu", "rank 1", False, [0.5, 1.0]),
        ("rss", "rank 1", False, [7.0]),
        ("step", "rank 1", False, [3.0]),
        ("cpu", "rank 1", True, [0.25]),
        ("gpu_use", "GPU 0", False, [0.5]),
    ]
    assert timeline.end_ns == START + 6_000_000_000


def worker(rank: int, fate: str, **fields: Any) -> dict[str, Any]:
    moments = {"started": "2023-11-14T22:13:23Z", "ended": "2023-11-14T22:13:30Z"}
    return {"rank": rank, "local_rank": rank, "fate": fate, "exitcode": 1, **moments, **fields}


RAISED = {"type": "Raised", "message": "ValueError: no", "exitcode": 1, "text": "raised"}


def outcome_of(workers: Sequence[Mapping[str, Any]], **fields: Any) -> Any:
    times = {"started": "2023-11-14T22:13:20Z", "ended": "2023-11-14T22:13:40Z"}
    attempt = {
        "attempt": 0,
        "state": "failed",
        "workers": workers,
        "root_cause": {"rank": 1, "cause": RAISED},
        **times,
    }
    root_cause = {"attempt": 0, "rank": 1, "time_ns": START + 4 * 10**9, "cause": RAISED}
    document = {"state": "failed", "exit_code": 3, "attempts": [attempt], **times}
    document |= {"version": 1, "root_cause": root_cause, **fields}
    return as_result(document, "/run")


def outcome_of_a_hang() -> Any:
    """The second of two workers hung, the first only waited."""
    finding = {"type": "Stalled", "ranks": [0, 1], "seconds": 3.0, "scope": "group"}
    times = {"time": "2023-11-14T22:13:28Z", "since": "2023-11-14T22:13:25Z"}
    hang = {"finding": finding, "hung": [1], "waiting": [0], **times}
    cause = {**finding, "text": "stalled"}
    return outcome_of(
        [worker(0, "ended", exitcode=-15, waited_for=[1]), worker(1, "failed", cause=cause)],
        root_cause={"attempt": 0, "rank": None, "time_ns": 1, "cause": cause, "hang": hang},
    )


def test_the_outcome_says_better_what_became_of_workers() -> None:
    outcome = outcome_of([worker(0, "victim", cause=RAISED), worker(1, "failed", cause=RAISED)])
    timeline = timeline_of([node_records("", [*BEGUN, exited(5, 0, 1), exited(6, 1, 1)])], outcome)
    [attempt] = timeline.attempts
    assert [lane.fate for lane in attempt.lanes] == ["victim", "failed"]
    # the first to end is not the first that failed
    assert [len(lane.marks) for lane in attempt.lanes] == [0, 1]
    assert marks(attempt.lanes[1]) == [("root_cause", 4.0, "raised ValueError: no")]
    assert timeline.end_ns == START + 20 * 10**9


def test_who_only_waited_is_told_from_who_hung() -> None:
    [attempt] = timeline_of((), outcome_of_a_hang()).attempts
    texts = [span.text for lane in attempt.lanes for span in lane.spans if span.kind == "hang"]
    assert texts == [
        "only waited for rank 1",
        "hung: stalled: no output, no CPU use and no heartbeat for 3.0 s",
    ]
    assert spans(attempt.lanes[0])[1:] == [("run", 3.0, 10.0), ("hang", 5.0, 10.0)]


def read(path: Path) -> RunTimeline:
    (path / "plan.yaml").touch()
    return view_run(locate(str(path))).timeline


def test_the_last_run_of_a_directory_is_read_and_what_is_torn_is_passed_over(
    tmp_path: Path,
) -> None:
    events = tmp_path / "events.jsonl"
    earlier = [event(-100, "Begin"), event(-99, "StartWorkers", attempt=0), started(-98, 7)]
    write_lines(events, [*earlier, *BEGUN, exited(9, 0, 0)])
    with events.open("a") as file:
        file.write('[]\nnull\n{"time_ns": "now", "type": "Exited"}\n\x00\n{"time_ns": 17')
    write_lines(
        tmp_path / "samples.jsonl", [sample(-50, {"0": {"cpu": 1}}), sample(4, {"0": {"cpu": 2}})]
    )
    timeline = read(tmp_path)
    assert timeline.start_ns == START
    assert [lane.rank for lane in timeline.attempts[0].lanes] == [0, 1]
    assert [each.points[0][1] for each in timeline.series] == [2.0]


# Whatever stands in the files


def check_lane(lane: Lane) -> None:
    for span in lane.spans:
        assert span.start_ns <= span.end_ns
    outer = [span for span in lane.spans if span.kind in ("spawn", "run")]
    inner = [span for span in lane.spans if span.kind in ("hang", "grace")]
    for before, after in itertools.pairwise(outer):
        assert before.end_ns <= after.start_ns
    for before, after in itertools.pairwise(inner):
        assert before.end_ns <= after.start_ns
    if inner:
        [run] = [span for span in lane.spans if span.kind == "run"]
        assert all(run.start_ns <= each.start_ns and each.end_ns <= run.end_ns for each in inner)


def check(timeline: RunTimeline) -> None:
    """Holds what the attributes of a timeline promise."""
    assert timeline.start_ns <= timeline.end_ns
    for attempt in timeline.attempts:
        ranks = [lane.rank for lane in attempt.lanes]
        assert ranks == sorted(set(ranks))
        for lane in attempt.lanes:
            check_lane(lane)
        last: dict[str, int] = {}
        for span in attempt.spans:
            assert last.get(span.kind, span.start_ns) <= span.start_ns <= span.end_ns
            last[span.kind] = span.start_ns


@given(
    st.lists(EVENTS, max_size=30),
    st.lists(EVENTS, max_size=20),
    st.booleans(),
    st.integers(-(10**9), 10**9),
)
def test_whatever_the_events_say_it_is_a_timeline(
    one: list[dict[str, Any]], other: list[dict[str, Any]], live: bool, ahead_ns: int
) -> None:
    now = START + 10**12 if live else None
    first = node_records("a", json_lines(one), (), ahead_ns)
    check(timeline_of([first], None, now))
    nodes = [first, node_records("b", json_lines(other))]
    check(timeline_of(nodes, outcome_of_a_hang()))
