"""sweep.jsonl: whole records or none, whatever it is cut off at; and the lock beside it."""

from __future__ import annotations

import errno
import io
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.errors import ConfigError, OutputError
from lllaunch.sweep import journal as journal_module
from lllaunch.sweep.directory import JOURNAL, SweepDirectory
from lllaunch.sweep.journal import (
    VERSION,
    ComposedRecord,
    Damaged,
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
    parse,
    read_journal,
)
from lllaunch.sweep.pool import Lease

HEADER = Header("day-time", "0.1.0", ("+exp=resnet", "params.lr=0.1,0.01"))
COMPOSED = ComposedRecord(
    0, ("+exp=resnet", "params.lr=0.1"), "0", "f" * 64, {"params": {"lr": 0.1}}
)
STARTED = StartedRecord(0, 1, Lease(("0", "GPU-a"), (2, 3)), 4711)
ENDED = EndedRecord(0, 1, Result("failed", 3, "rank 1: ValueError: ünï", 1.5, '{"loss": 0.5}'))
SKIPPED = Skipped(1, "another job failed")
ALL = (HEADER, Resumed("0.2.0", ("-m",)), COMPOSED, STARTED, ENDED, SKIPPED, OverRecord(6))

texts = st.text(max_size=8)
numbers = st.integers(0, 99)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
lists = st.lists(texts, max_size=3).map(tuple)
leases = st.builds(Lease, lists, st.lists(numbers, max_size=3).map(tuple))
seconds = st.none() | st.floats(0, 1e9)
results = st.builds(
    Result, texts, st.none() | numbers, texts, seconds, st.none() | plain.map(json.dumps)
)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Resumed,
        texts,
        lists,
        st.sampled_from([None, "minimize", "maximize"]),
        st.none() | leases,
    ),
    st.builds(
        ComposedRecord,
        numbers,
        lists,
        texts,
        st.none() | texts,
        st.none() | st.dictionaries(texts, plain, max_size=3),
    ),
    st.builds(StartedRecord, numbers, numbers, leases, st.none() | numbers),
    st.builds(EndedRecord, numbers, numbers, results),
    st.builds(Skipped, numbers, texts),
    st.builds(OverRecord, numbers),
)
journals = st.lists(records, max_size=5).map(lambda some: (HEADER, *some))


def lines_of(some: tuple[Record, ...]) -> list[bytes]:
    return [encode(record, 1_700_000_000_123_456_789 + i) for i, record in enumerate(some)]


def read(data: bytes) -> list[Record]:
    return [entry.record for _, entry in parse(data.splitlines(keepends=True)) if entry]


@given(records, st.integers(0, 2**62))
def test_a_record_is_one_line_and_reads_as_it_was(record: Record, time_ns: int) -> None:
    line = encode(record, time_ns)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == JournalEntry(time_ns, record)


def test_a_header_says_what_is_better_and_what_may_be_leased_if_that_is_known() -> None:
    known = HEADER._replace(direction="maximize", slots=Lease(("0", "1"), (4,)))
    fields = json.loads(encode(known, 1))
    assert fields["direction"] == "maximize"
    assert fields["slots"] == {"gpus": ["0", "1"], "cpus": [4]}
    assert decode(encode(known, 1)) == JournalEntry(1, known)
    # as older ones have it
    assert {"direction", "slots"}.isdisjoint(json.loads(encode(HEADER, 1)))
    # what a later one might write
    fields["direction"] = ["minimize", "maximize"]
    entry = decode(json.dumps(fields).encode())
    assert entry == JournalEntry(1, known._replace(direction=None))
    with pytest.raises(ValueError, match="'slots' is not valid"):
        decode(json.dumps({**fields, "slots": 3}).encode())


def test_a_line_has_its_time_twice_and_its_type() -> None:
    fields = json.loads(encode(ENDED, 1_700_000_000_123_456_789))
    assert list(fields)[:3] == ["time", "time_ns", "type"]
    assert fields == {
        "time": "2023-11-14T22:13:20.123456Z",
        "time_ns": 1_700_000_000_123_456_789,
        "type": "ended",
        "job": 0,
        "retry": 1,
        "result": {
            "state": "failed",
            "exit_code": 3,
            "root_cause": "rank 1: ValueError: ünï",
            "seconds": 1.5,
            "return_value": {"loss": 0.5},
        },
    }


def test_a_value_that_is_null_is_not_the_lack_of_one() -> None:
    for text, there in ((None, False), ("null", True)):
        ended = EndedRecord(0, 0, Result("succeeded", 0, return_value=text))
        line = encode(ended, 1)
        assert ("return_value" in json.loads(line)["result"]) is there
        assert decode(line) == JournalEntry(1, ended)


@given(journals, st.data())
def test_any_prefix_is_readable_and_gives_a_prefix(some: tuple[Record, ...], data) -> None:
    lines = lines_of(some)
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    found = read(whole[:cut])
    ends = [len(b"".join(lines[: i + 1])) for i in range(len(lines))]
    assert found == list(some[: sum(end <= cut for end in ends)])


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
        assert journal.header == HEADER
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


def test_a_journal_is_created_with_its_header_and_grows(tmp_path) -> None:
    path = str(tmp_path / JOURNAL)
    clock = iter(range(1, 100))
    journal = Journal.create(path, HEADER, now=lambda: next(clock))
    assert list(read_journal(journal.path)) == [JournalEntry(1, HEADER)]
    journal.append(COMPOSED)
    assert list(read_journal(journal.path)) == [JournalEntry(1, HEADER), JournalEntry(2, COMPOSED)]
    journal.close()
    journal.close()
    again = Journal.open(path, now=lambda: next(clock))
    again.append(Resumed("0.1.0"))
    again.append(STARTED)
    again.close()
    assert [entry.time_ns for entry in read_journal(path)] == [1, 2, 3, 4]
    assert os.listdir(tmp_path) == [JOURNAL]


def test_a_second_sweep_is_not_mixed_into_a_journal(tmp_path) -> None:
    path = str(tmp_path / JOURNAL)
    Journal.create(path, HEADER).close()
    with pytest.raises(ConfigError) as caught:
        Journal.create(path, HEADER)
    (problem,) = caught.value.problems
    assert problem.key == "hydra.sweep.dir"
    assert f"hydra.launcher.resume={tmp_path}" in problem.hint
    assert len(list(read_journal(path))) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{]\n", "it is not JSON"),
        (b"\xff\n", "it is not JSON"),
        (b'{"a": NaN}\n', "NaN is not JSON"),
        (b"\n", "it is not JSON"),
        (b"[1]\n", "it is not a JSON object"),
        (b"{}\n", "its 'type' is missing"),
        (b'{"type": 3}\n', "its 'type' is not valid"),
        (b'{"type": "over", "time_ns": "x"}\n', "its 'time_ns' is not valid"),
        (b'{"type": "skipped", "time_ns": 1, "job": 1}\n', "its 'reason' is missing"),
        (b'{"type": "skipped", "time_ns": 1, "job": -1}\n', "its 'job' is not valid"),
        (b'{"type": "skipped", "time_ns": 1, "job": true}\n', "its 'job' is not valid"),
        (encode(HEADER, 1), "a sweep begins with its header, and only there"),
        (b"[" * 100_000 + b"\n", "it is nested too deeply"),
        (b"\0\0\n", "it holds NUL bytes"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line: bytes, reason: str) -> None:
    path = tmp_path / JOURNAL
    good = encode(HEADER, 1) + encode(COMPOSED, 2)
    path.write_bytes(good + line + encode(STARTED, 3))
    with pytest.raises(ConfigError) as caught:
        Journal.open(str(path))
    assert f"{str(path)!r} is damaged in line 3: {reason}" in str(caught.value)
    assert caught.value.exit_code == 2
    found = []
    with pytest.raises(ConfigError):
        found.extend(entry.record for entry in read_journal(str(path)))
    with pytest.raises(Damaged) as damage:
        list(parse(path.read_bytes().splitlines(keepends=True)))
    assert damage.value.line == 3


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


def test_another_version_is_refused(tmp_path) -> None:
    path = tmp_path / JOURNAL
    path.write_bytes(encode(HEADER._replace(version=VERSION + 1, lllaunch="9.9"), 1))
    for use in (Journal.open, lambda name: list(read_journal(name))):
        with pytest.raises(ConfigError) as caught:
            use(str(path))
        assert f"version {VERSION + 1} (lllaunch 9.9)" in str(caught.value)


@pytest.mark.parametrize("cut", [0, 1, len(encode(HEADER, 1)) - 1])
def test_a_journal_without_a_whole_header_cannot_be_resumed(tmp_path, cut: int) -> None:
    path = tmp_path / JOURNAL
    path.write_bytes(encode(HEADER, 1)[:cut])
    assert list(read_journal(str(path))) == []
    with pytest.raises(ConfigError, match="holds no record of a sweep"):
        Journal.open(str(path))


def test_files_that_cannot_be_read_or_made_are_named(tmp_path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"missing/sweep\.jsonl' is not there"):
        Journal.open(f"{missing}/{JOURNAL}")
    with pytest.raises(OutputError) as caught:
        Journal.create(f"{missing}/{JOURNAL}", HEADER)
    assert caught.value.path == f"{missing}/{JOURNAL}"
    with pytest.raises(OutputError, match="Is a directory"):
        list(read_journal(str(tmp_path)))


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


def test_a_record_that_did_not_reach_the_disk_is_taken_back(tmp_path, monkeypatch) -> None:
    path = tmp_path / JOURNAL
    journal = Journal.create(str(path), HEADER)
    before = path.read_bytes()

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", broken)
        with pytest.raises(OutputError, match="Input/output error"):
            journal.append(COMPOSED)
    assert path.read_bytes() == before
    journal.append(COMPOSED)
    assert [entry.record for entry in read_journal(journal.path)] == [HEADER, COMPOSED]
    journal.close()


def test_every_record_is_one_write_and_one_fsync(tmp_path, monkeypatch) -> None:
    calls = []
    write, fsync = os.write, os.fsync
    journal = Journal.create(str(tmp_path / JOURNAL), HEADER)
    monkeypatch.setattr("os.write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr("os.fsync", lambda fd: calls.append("fsync") or fsync(fd))
    for record in ALL[1:]:
        calls.clear()
        journal.append(record)
        assert calls == ["write", "fsync"]
    journal.close()
    assert [entry.record for entry in read_journal(journal.path)] == list(ALL)


def test_a_closed_journal_takes_nothing(tmp_path) -> None:
    journal = Journal.create(str(tmp_path / JOURNAL), HEADER)
    journal.close()
    with pytest.raises(OutputError, match="Bad file descriptor"):
        journal.append(COMPOSED)
    assert [entry.record for entry in read_journal(journal.path)] == [HEADER]


def test_the_last_config_of_a_job_is_found(tmp_path) -> None:
    journal = Journal.create(str(tmp_path / JOURNAL), HEADER)
    journal.append(COMPOSED)
    journal.append(COMPOSED._replace(job=1, config=None))
    assert journal.config_of(0) == {"params": {"lr": 0.1}}
    journal.append(COMPOSED._replace(config={"params": {"lr": 0.2, "ü": [1.0, 1]}}))
    journal.append(STARTED)
    assert journal.config_of(0) == {"params": {"lr": 0.2, "ü": [1.0, 1]}}
    assert journal.config_of(1) is None
    assert journal.config_of(2) is None
    journal.close()


def test_a_line_that_is_mended_while_it_is_read_is_no_damage(tmp_path, monkeypatch) -> None:
    path = tmp_path / JOURNAL
    journal = Journal.create(str(path), HEADER)
    header = path.read_bytes()
    for record in (COMPOSED, STARTED):
        journal.append(record)
    journal.close()
    whole = path.read_bytes()
    torn = len(header) + 40
    # what a reader may see of a torn line that is cut off, and of what follows then
    for seen in (whole[:torn] + bytes(30) + whole[torn + 30 :], whole[:torn] + whole[torn + 30 :]):
        files = [io.BytesIO(seen), io.BytesIO(whole)]
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "open", lambda *_: files.pop(0), raising=False)  # noqa: B023
            found = [entry.record for entry in read_journal(str(path))]
        assert found == [HEADER, COMPOSED, STARTED]
        assert not files


def test_a_sweep_directory_is_held_by_one(tmp_path) -> None:
    path = str(tmp_path / "multi run" / "day")
    with SweepDirectory.claim(path) as directory:
        assert directory.file(JOURNAL) == os.path.join(path, JOURNAL)
        with pytest.raises(ConfigError) as caught:
            SweepDirectory.claim(path, "hydra.launcher.resume")
        message = str(caught.value)
        assert message.startswith(f"hydra.launcher.resume: {path!r} is in use by another sweep")
        assert f"(pid {os.getpid()} on " in message
    directory.release()
    SweepDirectory.claim(path).release()


def test_numbers_of_directories_that_are_there_are_known(tmp_path) -> None:
    for name in ("0", "17", "x", "1e3", "-4", "٣", "9" * 30, "latest"):
        (tmp_path / name).mkdir()
    # made ready for a cluster by a launcher that was killed then; and what went there
    for name in ("20", "21"):
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / "plan.yaml").touch()
    (tmp_path / "21" / "submission.json").touch()
    with SweepDirectory.claim(str(tmp_path)) as directory:
        # of a sweep of this machine none is looked into
        assert directory.numbers() == {0, 17, 20, 21}
        (tmp_path / "submitted").mkdir()
        assert directory.numbers() == {0, 17, 21}


@pytest.mark.parametrize("time_ns", [-1, 10**21, 10**30])
def test_a_time_that_is_none_is_damage_in_a_line(tmp_path: Path, time_ns: int) -> None:
    path = tmp_path / JOURNAL
    Journal.create(str(path), HEADER).close()
    line = json.loads(encode(STARTED, 1)) | {"time_ns": time_ns}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=r"is damaged in line 2: its 'time_ns' is not a time"):
        list(read_journal(str(path)))
