"""The jobs of a sweep in time: from the records of a journal; nothing runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.results.tries import (
    SweepTimeline,
    read_sweep_timeline,
    tracks_of,
    tries_of,
)
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    JournalEntry,
    OverRecord,
    Result,
    Resumed,
    StartedRecord,
)
from lllaunch.sweep.pool import Lease

START = 1_700_000_000_000_000_000


def of(*records: tuple[float, Any], now: float | None = None) -> SweepTimeline:
    entries = [JournalEntry(START + round(at * 1e9), record) for at, record in records]
    return tries_of(entries, None if now is None else START + round(now * 1e9))


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


BEGUN = (0, Header("s", "1", slots=Lease(("1", "0"), (0, 1))))


def test_each_try_has_its_own_time_fate_and_lease() -> None:
    timeline = of(
        BEGUN,
        (1, ComposedRecord(0, ("lr=1", "token=abc"), "0", None)),
        (2, StartedRecord(0, lease=Lease(("1",)))),
        (4, EndedRecord(0, 0, Result("failed", 3, "rank 0: no", 2.0))),
        (5, StartedRecord(0, 1, Lease(("0",)))),
        (9, EndedRecord(0, 1, Result("succeeded", 0, "", 4.0, "0.5"))),
        (9, OverRecord(0)),
    )
    assert told(timeline) == [(0, 0, 2.0, 4.0, "failed"), (0, 1, 5.0, 9.0, "succeeded")]
    failed, succeeded = timeline.tries
    assert (failed.exit_code, failed.root_cause, failed.objective) == (3, "rank 0: no", None)
    assert succeeded.objective == 0.5
    assert succeeded.overrides[0] == "lr=1"
    assert "abc" not in str(succeeded.overrides)
    assert laid_out(timeline) == [("gpu", "0", [0]), ("gpu", "1", [0])]
    assert (timeline.start_ns, timeline.end_ns, timeline.over) == (START, START + 9 * 10**9, True)


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


def test_a_job_stands_on_all_that_it_held_and_what_is_idle_has_a_track() -> None:
    timeline = of(
        BEGUN,
        (1, StartedRecord(0, lease=Lease((), (0, 1)))),
        (2, EndedRecord(0, 0, Result("succeeded"))),
        (2, StartedRecord(1, lease=Lease((), (1,)))),
    )
    assert laid_out(timeline) == [
        ("gpu", "0", []),
        ("gpu", "1", []),
        ("cpu", "0", [0]),
        ("cpu", "1", [0, 1]),
    ]


def test_gpus_are_in_the_order_of_their_numbers() -> None:
    slots = Lease(tuple(map(str, reversed(range(12)))))
    names = [name for _, name, _ in laid_out(of((0, Header("s", "1", slots=slots))))]
    assert names == list(map(str, range(12)))


_LEASES = st.sampled_from(
    [Lease(gpus, cpus) for gpus in ((), ("0",), ("0", "1")) for cpus in ((), (0,), (0, 2))]
)
_JOBS = st.integers(0, 4)
_RESULTS = st.sampled_from(["succeeded", "failed", "x"]).map(Result)
_RECORDS = st.one_of(
    st.sampled_from([Header("s", "1"), Resumed("1"), OverRecord(0)]),
    st.tuples(_JOBS, _LEASES).map(lambda each: StartedRecord(each[0], lease=each[1])),
    st.tuples(_JOBS, _RESULTS).map(lambda each: EndedRecord(each[0], 0, each[1])),
)


@given(st.lists(st.tuples(st.integers(0, 100), _RECORDS), max_size=40), st.booleans())
def test_no_two_tries_overlap_on_a_track_and_none_is_missing(
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


def test_a_journal_that_is_damaged_tells_what_stands_before_that(tmp_path: Path) -> None:
    journal = Journal.create(str(tmp_path / "sweep.jsonl"), Header("s", "1"))
    journal.append(StartedRecord(0))
    journal.close()
    with (tmp_path / "sweep.jsonl").open("a") as file:
        file.write("nonsense\n{}\n")
    assert [each.job for each in read_sweep_timeline(str(tmp_path)).tries] == [0]


def test_without_a_journal_the_summary_tells_of_the_last_tries(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(
        '{"version": 1, "exit_code": 6, "started": "2023-11-14T22:13:20Z",'
        ' "ended": "2023-11-14T22:13:40Z", "jobs": [{"job": 3, "overrides": ["lr=1"],'
        ' "state": "failed", "tries": 2, "exit_code": 3, "root_cause": "no",'
        ' "started": "2023-11-14T22:13:25Z", "ended": "2023-11-14T22:13:35Z"}]}'
    )
    timeline = read_sweep_timeline(str(tmp_path))
    assert told(timeline) == [(3, 1, 5.0, 15.0, "failed")]
    # and so it does under another name, wherever it is
    (tmp_path / "sweep.json").rename(tmp_path / "mine.json")
    assert read_sweep_timeline(str(tmp_path), str(tmp_path / "mine.json")) == timeline
    assert (timeline.start_ns, timeline.end_ns) == (START, START + 20 * 10**9)


def test_where_there_is_nothing_nothing_is_told(tmp_path: Path) -> None:
    assert read_sweep_timeline(str(tmp_path)).tries == ()
