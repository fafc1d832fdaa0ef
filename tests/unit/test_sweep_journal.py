"""sweep.jsonl: whole records or none, whatever it is cut off at; and sweep.json, made from it."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from lllaunch.documents import Plain, isoformat
from lllaunch.errors import ConfigError, OutputError
from lllaunch.sweep.history import (
    RETURN_LIMIT,
    JobHistory,
    SweepHistory,
    read_result,
    read_results,
    read_summary,
    result_of,
    summary_of,
)
from lllaunch.sweep.journal import (
    JOURNAL,
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    JournalEntry,
    OverRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    decode,
    encode,
    read_journal,
)
from lllaunch.sweep.objective import (
    Direction,
    Objective,
    Objectives,
    improvements,
    objective_of,
)
from lllaunch.sweep.pool import Lease

HEADER = Header("day-time", "0.1.0", ("+exp=resnet", "params.lr=0.1,0.01"))
COMPOSED = ComposedRecord(
    0, ("+exp=resnet", "params.lr=0.1"), "0", "f" * 64, {"params": {"lr": 0.1}}
)
STARTED = StartedRecord(0, 1, Lease(("0", "GPU-a"), (2, 3)), 4711)
ENDED = EndedRecord(0, 1, Result("failed", 3, "rank 1: ValueError: ünï", 1.5, '{"loss": 0.5}'))
SKIPPED = Skipped(1, "another job failed")

texts = st.text(max_size=8)
numbers = st.integers(0, 99)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
lists = st.lists(texts, max_size=3).map(tuple)
leases = st.builds(Lease, lists, st.lists(numbers, max_size=3).map(tuple))
directions = st.sampled_from([None, "minimize", "maximize"])
returned = st.none() | plain.map(json.dumps)
results = st.builds(
    Result, texts, st.none() | numbers, texts, st.none() | st.floats(0, 1e9), returned
)
configs = st.none() | st.dictionaries(texts, plain, max_size=3)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(Resumed, texts, lists, directions, st.none() | leases),
    st.builds(ComposedRecord, numbers, lists, texts, st.none() | texts, configs),
    st.builds(StartedRecord, numbers, numbers, leases, st.none() | numbers),
    st.builds(EndedRecord, numbers, numbers, results),
    st.builds(Skipped, numbers, texts),
    st.builds(OverRecord, numbers),
)
journals = st.lists(records, max_size=5).map(lambda some: (HEADER, *some))


def lines_of(some: tuple[Record, ...]) -> list[bytes]:
    return [encode(record, 1_700_000_000_123_456_789 + i) for i, record in enumerate(some)]


headers = st.builds(
    lambda direction, slots: structs.replace(HEADER, direction=direction, slots=slots),
    st.sampled_from([None, "maximize"]),
    st.none() | leases,
)


@given(records | headers, st.integers(0, 2**62))
def test_a_record_is_one_line_and_reads_as_it_was(record: Record, time_ns: int) -> None:
    line = encode(record, time_ns)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == JournalEntry(time_ns, record)


@given(journals, st.binary(max_size=20).filter(lambda tail: b"\n" not in tail))
@settings(max_examples=60)
def test_appending_after_any_torn_tail_keeps_all_good_records(
    some: tuple[Record, ...], tail: bytes
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, JOURNAL)
        whole = b"".join(lines_of(some))
        with open(path, "wb") as file:
            file.write(whole + tail)
        journal = Journal.open(path)
        with open(path, "rb") as file:
            assert file.read() == whole + tail, "changed before the first append"
        journal.append(STARTED)
        journal.append(ENDED)
        journal.close()
        assert [entry.record for entry in read_journal(path)] == [*some, STARTED, ENDED]
        with open(path, "rb") as file:
            assert file.read().startswith(whole)


def test_what_a_power_failure_leaves_of_a_line_is_torn_too(tmp_path) -> None:
    path = tmp_path / JOURNAL
    good = b"".join(lines_of((HEADER, COMPOSED)))
    path.write_bytes(good + b'{"type": "star' + b"\0" * 40 + b"}\n")
    journal = Journal.open(str(path))
    journal.append(STARTED)
    journal.close()
    assert [entry.record for entry in read_journal(str(path))] == [HEADER, COMPOSED, STARTED]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\n", "it is not JSON"),
        (b'{"a": NaN}\n', "NaN is not JSON"),
        (b"[1]\n", "expected object, got array"),
        (b'{"type": "skipped", "time_ns": 1}\n', "object missing required field job"),
        (b'{"type": "skipped", "time_ns": 1, "job": -1}\n', "expected int >= 0 at $.job"),
        (b'{"type": "over", "time_ns": %d}\n' % 10**30, "expected int <= 46116"),
        (encode(HEADER, 1), "a sweep begins with its header, and only there"),
        (b"[" * 100_000 + b"\n", "it is nested too deeply"),
        (b"\0\0\n", "it holds NUL bytes"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line: bytes, reason: str) -> None:
    path = tmp_path / JOURNAL
    good = encode(HEADER, 1) + encode(COMPOSED, 2)
    path.write_bytes(good + line + encode(STARTED, 3))
    for read in (Journal.open, lambda path: list(read_journal(path))):
        with pytest.raises(ConfigError) as caught:
            read(str(path))
        assert f"{str(path)!r} is damaged in line 3: {reason}" in str(caught.value)
        assert caught.value.exit_code == 2


def test_what_a_later_lllaunch_adds_is_passed_over(tmp_path) -> None:
    path = tmp_path / JOURNAL
    more = json.loads(encode(SKIPPED, 2)) | {"mood": "good"}
    unknown = b'{"type": "praised", "time_ns": 3}\n'
    path.write_bytes(encode(HEADER, 1) + json.dumps(more).encode() + b"\n" + unknown)
    journal = Journal.open(str(path))
    journal.append(STARTED)
    journal.close()
    found = [entry.record for entry in read_journal(str(path))]
    assert found == [HEADER, SKIPPED, STARTED]
    assert unknown in path.read_bytes()


def test_a_full_disk_names_the_file_and_leaves_no_torn_line(tmp_path, monkeypatch) -> None:
    path = tmp_path / JOURNAL
    journal = Journal.create(str(path), HEADER)
    write = os.write
    room = [10]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        # nor can it be mended at once
        patched.setattr("os.ftruncate", lambda fd, size: write(-1, b""))
        with pytest.raises(OutputError) as caught:
            journal.append(COMPOSED)
    assert caught.value.path == str(path)
    assert caught.value.reason == "No space left on device"
    assert path.read_bytes().endswith(encode(COMPOSED, 1)[:10])
    assert [entry.record for entry in read_journal(journal.path)] == [HEADER]
    journal.append(STARTED)
    assert [entry.record for entry in read_journal(journal.path)] == [HEADER, STARTED]
    journal.close()


def test_every_record_is_one_write_and_one_fsync(tmp_path, monkeypatch) -> None:
    calls = []
    write, fsync = os.write, os.fsync
    journal = Journal.create(str(tmp_path / JOURNAL), HEADER)
    monkeypatch.setattr("os.write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr("os.fsync", lambda fd: calls.append("fsync") or fsync(fd))
    for record in (COMPOSED, STARTED):
        journal.append(record)
    # what is kept goes with the next one
    journal.keep(ENDED)
    journal.append(SKIPPED)
    journal.close()
    assert calls == ["write", "fsync"] * 3
    found = [entry.record for entry in read_journal(journal.path)]
    assert found == [HEADER, COMPOSED, STARTED, ENDED, SKIPPED]


SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
FIRST = Header("day-time", "0.1.0", ("lr=1,2",))
LEASE = Lease(("0",), (1, 2))
BAD = Result("failed", 3, "rank 1: ValueError: no", 1.0)


def composed(job: int) -> ComposedRecord:
    return ComposedRecord(job, (f"lr={job}",), str(job), "f" * 64, {"lr": job})


def history(*records: Record) -> SweepHistory:
    return SweepHistory(JournalEntry(T0 + i * SECOND, record) for i, record in enumerate(records))


GOLDEN = Path(__file__).parent / "golden" / "sweep_version_1"


def test_a_sweep_of_the_version_before_is_read_whole() -> None:
    path = GOLDEN / JOURNAL
    entries = list(read_journal(str(path)))
    lines = path.read_bytes().splitlines(keepends=True)
    unknown = b', "direction": null, "slots": null'
    for entry, line in zip(entries, lines, strict=True):
        assert json.loads(encode(entry.record, entry.time_ns).replace(unknown, b"")) == json.loads(
            line
        )
    known = SweepHistory(entries)
    summary = read_summary(str(GOLDEN / "sweep.json"))
    assert summary is not None
    document = json.loads((GOLDEN / "sweep.json").read_bytes())
    assert Plain()(summary) == document
    found = Plain()(summary_of(known, entries[-1].time_ns))
    assert found | {name: document[name] for name in ("ended", "seconds")} == document


def result_json(directory: Path, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    times = {"started": isoformat(T0 - 5 * SECOND // 2), "ended": isoformat(T0)}
    whole = {"state": "succeeded", "exit_code": 0, "attempts": [], **times}
    (directory / "result.json").write_text(json.dumps(whole | fields))
    return directory


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"root_cause": {"rank": 1, "cause": {"type": "X", "text": "Error: a\nb"}}},
            "rank 1: Error: a",
        ),
        ({"root_cause": {"rank": None, "cause": {"type": "X", "text": "it died"}}}, "it died"),
        (
            {"limit": {"type": "TimedOut", "limit": 3600.0, "what": "run"}},
            "took too long: the run is limited to 1 h",
        ),
        ({"error": "\n'/x': No space left\nmore"}, "'/x': No space left"),
        ({"signal": "SIGTERM"}, "SIGTERM"),
        ({"error": "x" * 1000}, "x" * 297 + "..."),
    ],
)
def test_the_root_cause_is_one_line(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    directory = result_json(tmp_path / "0", state="failed", exit_code=3, **fields)
    result = result_of(read_result(str(directory)))
    assert result is not None
    assert (result.state, result.exit_code, result.root_cause) == ("failed", 3, text)


@pytest.mark.parametrize(
    ("state", "value", "kept", "objective"),
    [
        ("succeeded", {"a": [1.0]}, '{"a": [1.0]}', None),
        ("succeeded", 3, "3", 3.0),
        ("failed", 0.5, "0.5", None),
        # a long one stays in result.json
        ("succeeded", "x" * RETURN_LIMIT, None, None),
    ],
)
def test_what_rank_0_returned_is_kept_and_a_number_of_a_success_is_the_objective(
    tmp_path: Path, state: str, value: Any, kept: str | None, objective: float | None
) -> None:
    values = {"0": {"path": "return.json", "value": value}, "1": {"value": 7}}
    directory = result_json(tmp_path / "0", state=state, return_values=values)
    result = result_of(read_result(str(directory)))
    assert result == Result(state, 0, "", 2.5, kept)
    assert JobHistory(0, **structs.asdict(result)).objective == objective


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": 3}', '{"state": "succeeded"}', "[" * 9999]
)
def test_what_is_no_result_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert result_of(read_result(str(tmp_path))) is None


def test_the_result_of_a_job_that_was_never_started_is_somebody_elses(tmp_path: Path) -> None:
    for name in "012":
        result_json(tmp_path / name, started=isoformat(T0 - SECOND))
    jobs = [
        JobHistory(0, directory="0"),
        JobHistory(1, directory="1", started_ns=T0),
        JobHistory(2, directory="2", composed_ns=T0),
    ]
    found = read_results(str(tmp_path), jobs)
    assert [number for number, job in found.items() if job.finished] == [1]


def test_a_result_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(OutputError) as caught:
        read_result(str(tmp_path))
    assert caught.value.path == str(tmp_path / "result.json")


def test_jobs_that_the_sweep_did_not_come_to_are_in_its_summary() -> None:
    known = history(
        FIRST, composed(0), StartedRecord(0, 0, LEASE), EndedRecord(0, 0, BAD), OverRecord(6)
    )
    document = summary_of(known, T0 + 9 * SECOND)
    asked: list[int] = []

    def overrides(number: int) -> tuple[str, ...]:
        asked.append(number)
        return (f"lr={number}",)

    whole = document.with_others(range(3), overrides)
    assert asked == [1, 2]  # thousands that it has come to are not looked up
    assert whole.jobs[0] == document.jobs[0]
    assert [(job.job, job.state, job.reason) for job in whole.jobs[1:]] == [
        (1, "skipped", "not_run"),
        (2, "skipped", "not_run"),
    ]
    assert whole.jobs[2].overrides == ("lr=2",)
    assert whole.counts == {"failed": 1, "skipped": 2}
    assert structs.replace(whole, jobs=()) == structs.replace(document, jobs=())
    assert document.with_others([0], overrides) == document


@pytest.mark.parametrize(
    "value",
    [True, None, "1.5", [1.0], {"loss": 1.0}, float("nan"), float("inf"), -float("inf"), 10**400],
)
def test_what_is_no_finite_number_is_no_objective(value: object) -> None:
    assert objective_of(value) is None
    assert objective_of(10**15) == 1e15


def test_without_a_direction_none_is_best() -> None:
    objectives = Objectives(None, [Objective(2.0, 0)])
    # of equal ones the first counts
    assert not objectives.add(Objective(2.0, 1))
    assert objectives.extremes == (("objective", Objective(2.0, 0)),)
    assert objectives.add(Objective(1.0, 2))
    assert objectives.best is None
    assert objectives.extremes == (("lowest", Objective(1.0, 2)), ("highest", Objective(2.0, 0)))


VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False))


@given(VALUES, st.sampled_from(["minimize", "maximize"]))
def test_what_improves_gets_ever_better_and_ends_with_the_best(
    values: list[float], direction: Direction
) -> None:
    found = [(time, Objective(value, time)) for time, value in enumerate(values)]
    steps = list(improvements(reversed(found), direction))
    assert [time for time, _ in steps] == sorted(time for time, _ in steps)
    best = [each.value for _, each in steps]
    ordered = sorted(set(best), reverse=direction == "minimize")
    assert best == ordered
    if values:
        assert steps[0] == found[0]
        assert best[-1] == (min(values) if direction == "minimize" else max(values))
