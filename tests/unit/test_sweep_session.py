"""What a sweep keeps in its directory, and what its launcher and its jobs tell each other."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import lllaunch.sweep.schedule as v
from lllaunch.documents import Plain
from lllaunch.errors import ConfigError, OutputError
from lllaunch.sweep.fingerprint import job_config, job_key
from lllaunch.sweep.history import JobHistory
from lllaunch.sweep.journal import (
    JOURNAL,
    SUMMARY,
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    OverRecord,
    PlannedRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import (
    LONGEST,
    JobPrinted,
    OutputPipe,
    Prepared,
    SpawnerKey,
)
from lllaunch.sweep.session import JobRecords, SweepSession

COMMAND = ("+exp=resnet", "lr=0,1,2")
GOOD = Result("succeeded", 0)
BAD = Result("failed", 3)


NEVER = "2999-01-01T00:00:00.000000Z"


def finish(session: SweepSession) -> Any:
    """What sweep.json holds then."""
    result = session.result()
    session.write(result)
    return Plain()(result)


def begin(path: Path, **more: Any) -> SweepSession:
    return SweepSession.begin(str(path), command=COMMAND, version="0.1.0", **more)


def resume(path: Path, **more: Any) -> SweepSession:
    return begin(path, resume=True, **more)


def records(path: Path) -> list[Record]:
    return [entry.record for entry in read_journal(str(path / JOURNAL))]


def jobs(*names: object) -> list[list[str]]:
    return [[f"lr={name}"] for name in names]


Composed: TypeAlias = Generator[Mapping[str, Any], None, None]


def config(name: object, **more: Any) -> dict[str, Any]:
    return job_config({}, {"lr": str(name), **more})


def composed(number: int) -> ComposedRecord:
    canonical = config(number)
    return ComposedRecord(number, (f"lr={number}",), str(number), job_key(canonical), canonical)


def compose_nothing(finished: Sequence[tuple[int, JobHistory]]) -> Composed:
    yield from ()
    assert not finished, "need not be composed"


def same_config(wanted: Sequence[Sequence[str]], told: list[Any] | None = None) -> Any:
    def compose(finished: Sequence[tuple[int, JobHistory]]) -> Composed:
        for index, job in finished:
            if told is not None:
                told.append((index, job.job, job.directory))
            yield config(wanted[index][0].partition("=")[2])

    return compose


def succeed(path: Path) -> None:
    """Leaves what a run leaves that has succeeded."""
    path.mkdir(parents=True)
    result = {"state": "succeeded", "exit_code": 0, "attempts": []}
    result |= {"started": "2998-12-31T23:59:58.500000Z", "ended": NEVER}
    (path / "result.json").write_text(json.dumps(result))


def killed_sweep(path: Path) -> None:
    """A sweep of six jobs of which the launcher was killed.

    0 has succeeded, 1 too in its second attempt, but the journal does not know; 2 has failed; 3
    ran; 4 and 5 never did.
    """
    with contextlib.closing(begin(path)) as session:
        session.plan(jobs(*range(6)), 0, compose_nothing)
        for number in range(4):
            session.journal.append(composed(number))
            session.journal.append(StartedRecord(number))
        ends = (EndedRecord(0, 0, GOOD), EndedRecord(1, 0, BAD), EndedRecord(2, 0, BAD))
        for record in (*ends, StartedRecord(1, 1)):
            session.journal.append(record)
        succeed(path / "0")
        succeed(path / "1")


class Untouched(Sequence[Sequence[str]]):
    """So many jobs at which nobody may look."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(f"somebody looks at {index}")


@contextlib.contextmanager
def full_disk(at: int = 0) -> Iterator[None]:
    """No file can be written to beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_new_sweep_has_a_journal_and_does_not_look_at_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "multi run" / "12-00-00"
    slots = Lease(("0", "1"), (3,))
    monkeypatch.chdir(tmp_path)
    relative = Path("multi run/12-00-00")
    with contextlib.closing(begin(relative, direction="minimize", slots=slots)) as session:
        # whatever the working directory is later
        monkeypatch.chdir("/")
        assert session.path == str(path)
        batch = session.plan(Untouched(10_000), 7, compose_nothing)
        assert (batch.numbers, batch.skipped) == (range(7, 10_007), {})
        assert batch.index(9) == 2
        assert records(path) == [
            Header("multi_run-12-00-00", "0.1.0", COMMAND, direction="minimize", slots=slots),
            PlannedRecord(10_000),
        ]
        assert finish(session)["direction"] == "minimize"
        with pytest.raises(ConfigError, match=r"hydra.sweep.dir: .* is in use by another sweep"):
            begin(path)
    with contextlib.closing(resume(path, direction="maximize")) as session:
        session.plan([], 0, compose_nothing)
        assert session.result().direction == "maximize"


def test_a_new_sweep_keeps_the_journal_of_the_one_before(tmp_path: Path) -> None:
    said: list[str] = []
    journals = []
    for number in range(3):
        with contextlib.closing(begin(tmp_path, say=said.append)):
            journals.append((tmp_path / JOURNAL).read_bytes())
        (tmp_path / SUMMARY).write_text(f"{number}")
    names = ("sweep.1.jsonl", "sweep.2.jsonl", JOURNAL)
    assert [(tmp_path / name).read_bytes() for name in names] == journals
    names = ("sweep.1.json", "sweep.2.json", SUMMARY)
    assert [(tmp_path / name).read_text() for name in names] == ["0", "1", "2"]
    assert len(said) == 2
    assert f"hydra.launcher.resume={tmp_path}" in said[0]
    assert said[0].endswith("sweep.1.jsonl")


@pytest.mark.parametrize("name", ["missing", "file/below", "file", "."])
def test_what_is_no_sweep_cannot_be_resumed(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / name
    expected = "holds no sweep: there is no sweep.jsonl in it"
    hint = "give the directory of a sweep, such as multirun/DATE/TIME"
    with pytest.raises(ConfigError) as caught:
        resume(path)
    assert str(caught.value) == f"hydra.launcher.resume: {str(path)!r} {expected}; {hint} [resume]"
    # nothing was made
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            b'{"type": "sweep", "time_ns": 0, "version": 9, "lllaunch": "7.0"}\n',
            r"is a journal of version 9 \(lllaunch 7.0\); this one reads 1",
        ),
        (b"nonsense\n", "is damaged in line 1: it is not JSON"),
        (b'{"type": "sw', "holds no record of a sweep"),
    ],
)
def test_a_journal_that_cannot_be_understood_is_not_touched(
    tmp_path: Path, line: bytes, expected: str
) -> None:
    (tmp_path / JOURNAL).write_bytes(line)
    for _ in range(2):  # the directory is not held after the first
        with pytest.raises(ConfigError, match=rf"^hydra.launcher.resume: '.*' {expected}"):
            resume(tmp_path, patience=0.0)
    assert (tmp_path / JOURNAL).read_bytes() == line


def test_a_resume_runs_what_has_not_finished_and_tells_what_has(tmp_path: Path) -> None:
    killed_sweep(tmp_path)
    before = records(tmp_path)
    wanted = jobs(5, 4, 3, 2, 1, 0, "new")
    told: list[Any] = []
    with contextlib.closing(resume(tmp_path)) as session:
        assert records(tmp_path) == before
        batch = session.plan(wanted, 0, same_config(wanted, told))
        # 4 and 5 never started: they get the places that are free, or what is above
        assert batch.numbers == (4, 5, 3, 2, 1, 0, 6)
        assert {number: job.result for number, job in batch.skipped.items()} == {
            0: Result("succeeded", 0, "", 1.5),
            1: Result("succeeded", 0, "", 1.5),
        }
        assert told == [(4, 1, "1"), (5, 0, "0")]
        assert records(tmp_path)[len(before) :] == [
            Resumed("0.1.0", COMMAND),
            PlannedRecord(7),
            EndedRecord(1, 1, Result("succeeded", 0, "", 1.5)),
        ]
        with pytest.raises(RuntimeError, match="with one batch"):
            session.plan(wanted, 7, compose_nothing)
        document = finish(session)
    assert document["resumes"] == 1
    assert document["counts"] == {"failed": 1, "started": 1, "succeeded": 2}
    # once more: it is journalled now
    with contextlib.closing(resume(tmp_path)) as session:
        session.plan(wanted, 0, same_config(wanted))
    assert len(records(tmp_path)) == len(before) + 5


def test_each_batch_adds_to_the_summary(tmp_path: Path) -> None:
    found = []
    with contextlib.closing(begin(tmp_path)) as session:
        for number, exit_code in enumerate((0, 6, 0)):
            batch = session.plan(Untouched(1), number, compose_nothing)
            assert list(batch.numbers) == [number]
            result = BAD if exit_code else GOOD
            job = (composed(number), StartedRecord(number), EndedRecord(number, 0, result))
            for record in (*job, OverRecord(exit_code)):
                session.journal.append(record)
            document = finish(session)
            assert json.loads((tmp_path / SUMMARY).read_text()) == document
            found.append((document["exit_code"], document["counts"]))
    assert found == [
        (0, {"succeeded": 1}),
        (6, {"failed": 1, "succeeded": 1}),
        (6, {"failed": 1, "succeeded": 2}),
    ]
    # a resume counts them all
    wanted = jobs(0, 1, 2)
    with contextlib.closing(resume(tmp_path)) as session:
        assert session.plan(wanted, 0, compose_nothing).numbers == (0, 1, 2)
        assert finish(session)["exit_code"] is None
        session.journal.append(OverRecord(0))
        assert finish(session)["exit_code"] == 0


def test_a_full_disk_is_told_and_the_directory_given_back(tmp_path: Path) -> None:
    path = tmp_path / "sweep"
    with full_disk(), pytest.raises(OutputError, match="File too large") as caught:
        begin(path)
    assert caught.value.path == str(path)
    with full_disk(60), pytest.raises(OutputError, match="File too large") as caught:
        begin(path)
    assert caught.value.path == str(path / JOURNAL)
    # no half of a journal, and nobody holds it
    begin(path).close()
    assert len(records(path)) == 1


@pytest.fixture
def pipe() -> Iterator[OutputPipe]:
    found = OutputPipe(3, 1)
    yield found
    found.close()


def test_an_endless_line_is_told_in_parts(pipe: OutputPipe) -> None:
    told: list[JobPrinted] = []
    block = bytes(1 << 15)
    for _ in range(LONGEST // len(block)):
        pipe.writer.write(block)
        pipe.read(told.append)
    assert [len(one.line) for one in told] == [LONGEST]


class Written:
    """JobRecords with a journal in a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.journal = Journal.create(str(place / "sweep.jsonl"), Header("id", "0"))
        self.writer = JobRecords(self.journal)

    def records(self) -> list[Record]:
        self.journal.flush()
        return [entry.record for entry in read_journal(self.journal.path)][1:]

    def result(self, directory: str, **fields: object) -> None:
        (self.place / directory).mkdir()
        text = json.dumps({"ended": NEVER, "attempts": [], **fields})
        (self.place / directory / "result.json").write_text(text)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    found = Written(tmp_path)
    yield found
    found.journal.close()


def begun(written: Written, directory: str = "", attempt: int = 0) -> None:
    """Let the journal know of a job that runs."""
    answer = Prepared(5, Need(1), ("a=1",), directory, "f", {"a": 1})
    written.writer.starts(answer, attempt, Lease(("g",)), 77)


def test_a_job_is_composed_and_started_once_an_attempt(written: Written) -> None:
    outside = str(written.place.parent / "elsewhere")
    begun(written, outside)
    assert written.records()[0] == ComposedRecord(5, ("a=1",), outside, "f", {"a": 1})
    for attempt in (0, 1):
        begun(written, str(written.place / "5"), attempt)
    assert written.records()[2:] == [
        ComposedRecord(5, ("a=1",), "5", "f", {"a": 1}),
        StartedRecord(5, 0, Lease(("g",)), 77),
        ComposedRecord(5, ("a=1",), "5", "f", {"a": 1}),
        StartedRecord(5, 1, Lease(("g",)), 77),
    ]


DONE: dict[str, Any] = {"state": "succeeded", "exit_code": 0}
FAIL: dict[str, Any] = {"state": "failed", "exit_code": 3, "error": "no"}
MEMORY: dict[str, Any] = {"root_cause": {"cause": {"type": "OutOfMemory", "text": "memory"}}}
LIMIT: dict[str, Any] = {"exit_code": 4, "limit": {"type": "Stalled", "ranks": [0], "seconds": 1.0}}
LOSS: dict[str, Any] = {"return_values": {"0": {"value": 0.25}, "1": {"value": 7.0}}}
KEPT = "0.25"
WITH_VALUE = structs.replace(GOOD, return_value=KEPT)
OVER = Result("failed", 4, "memory")


@pytest.mark.parametrize(
    ("found", "code", "end", "result"),
    [
        # no run has written one
        (None, 0, v.JobEnded(5, 0), Result("succeeded", 0)),
        (None, 1, v.JobEnded(5, 1, "failure"), Result("error", 1)),
        (None, 2, v.JobEnded(5, 2), Result("error", 2)),
        (None, 143, v.JobEnded(5, 143, "signal"), Result("signalled", 143)),
        # a limit that was exceeded tells more than the root cause
        (FAIL | MEMORY, 3, v.JobEnded(5, 3, "oom", "memory"), Result("failed", 3, "memory")),
        (FAIL | MEMORY | LIMIT, 4, v.JobEnded(5, 4, "hang", "memory"), OVER),
        # who is killed after its success has succeeded; later than its failure it was killed
        (DONE, 137, v.JobEnded(5, 0), Result("succeeded", 0)),
        (FAIL, 137, v.JobEnded(5, 137, "signal", "no"), Result("signalled", 137, "no")),
        # what a resume would run again has not succeeded, and what it would skip has
        ({}, 0, v.JobEnded(5, 1, "failure"), Result("error", 1)),
        (FAIL, 0, v.JobEnded(5, 3, "failure", "no"), Result("failed", 3, "no")),
        (DONE, 1, v.JobEnded(5, 0), Result("succeeded", 0)),
        # the clock was set back while the job ran
        (
            DONE | {"ended": "1970-01-01T00:00:00.000000Z"},
            0,
            v.JobEnded(5, 0),
            Result("succeeded", 0),
        ),
        # an objective is a number that rank 0 of a success returned
        (
            DONE | LOSS,
            0,
            v.JobEnded(5, 0, objective=0.25),
            WITH_VALUE,
        ),
        (FAIL | LOSS, 3, v.JobEnded(5, 3, "failure", "no"), Result("failed", 3, "no", None, KEPT)),
    ],
)
def test_what_a_jobs_end_is_to_the_sweep(
    written: Written, found: dict[str, Any] | None, code: int, end: v.JobEnded, result: Result
) -> None:
    directory = "" if found is None else "5"
    begun(written, directory)
    if found is not None:
        written.result("5", **found)
    assert written.writer.ended(5, 0, directory, code, "") == end
    assert written.records()[-1] == EndedRecord(5, 0, result)


def test_the_result_of_an_earlier_attempt_does_not_count(written: Written) -> None:
    written.result("5", state="succeeded", exit_code=0)
    begun(written, "5", attempt=1)
    assert written.writer.ended(5, 1, "5", 1, "") == v.JobEnded(5, 1, "failure")
    assert written.records()[-1] == EndedRecord(5, 1, Result("error", 1))


def test_what_is_settled_before_its_start(written: Written) -> None:
    written.writer.composed(Prepared(1, overrides=("a=1",)))
    written.writer.settled(v.Settle(1, v.JobState.NOT_RUN))
    assert written.records() == [ComposedRecord(1, ("a=1",), "", None), Skipped(1, "not_run")]
    written.writer.composed(Prepared(2, overrides=("a=2",)))
    written.writer.settled(v.Settle(2, v.JobState.FAILED, exit_code=2, why="needs 9 GPUs"))
    assert written.records()[2:] == [
        ComposedRecord(2, ("a=2",), "", None),
        EndedRecord(2, 0, Result("error", 2, "needs 9 GPUs")),
    ]


ENVIRONS = st.dictionaries(
    st.sampled_from(["A", "B", "C", "CUDA_VISIBLE_DEVICES"]), st.sampled_from(["", "0", "1"])
)


@given(ENVIRONS, ENVIRONS)
def test_a_key_tells_the_environment_but_for_the_gpus(
    environ: dict[str, str], outer: dict[str, str]
) -> None:
    key = SpawnerKey.of(["m"], "/", environ, outer)
    assert "CUDA_VISIBLE_DEVICES" not in dict(key.changes)
    made = key.environ(outer)
    assert made.pop("CUDA_VISIBLE_DEVICES", None) == outer.get("CUDA_VISIBLE_DEVICES")
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    assert made == environ
    # jobs of one environment have one key
    assert SpawnerKey.of(["m"], "/", key.environ(outer), outer) == key
