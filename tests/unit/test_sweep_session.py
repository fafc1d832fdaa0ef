"""What a sweep keeps in its directory: begun, planned, resumed, finished; and refused."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import resource
import time
import tracemalloc
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest

import lllaunch.sweep.session as session_module
from lllaunch.errors import ConfigError, OutputError
from lllaunch.run.events import isoformat
from lllaunch.sweep.directory import JOURNAL, SUMMARY
from lllaunch.sweep.fingerprint import job_config, job_key
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    PlannedRecord,
    Record,
    Result,
    Resumed,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.resume import NewJob
from lllaunch.sweep.session import Batch, JobToCompare, SweepSession

COMMAND = ("+exp=resnet", "lr=0,1,2")
NEVER = "9999-01-01T00:00:00.000000Z"
GOOD = Result("succeeded", 0)
BAD = Result("failed", 3)


def finish(session: SweepSession) -> Any:
    """What sweep.json holds then."""
    result = session.result()
    session.write(result)
    return result.to_json()


def begin(path: Path, **more: Any) -> SweepSession:
    return SweepSession.begin(str(path), command=COMMAND, version="0.1.0", **more)


def resume(path: Path, **more: Any) -> SweepSession:
    return begin(path, resume=True, **more)


def records(path: Path) -> list[Record]:
    return [entry.record for entry in read_journal(str(path / JOURNAL))]


def jobs(*names: object) -> list[list[str]]:
    return [[f"lr={name}"] for name in names]


Composed: TypeAlias = Generator[NewJob, None, None]


def config(name: object, **more: Any) -> dict[str, Any]:
    return job_config({}, {"lr": str(name), **more})


def composed(number: int, name: object, **more: Any) -> ComposedRecord:
    canonical = config(name)
    fields = {"directory": str(number)} | more
    return ComposedRecord(
        number, (f"lr={name}",), fields["directory"], job_key(canonical), config=canonical
    )


def compose_nothing(finished: Sequence[JobToCompare]) -> Composed:
    yield from ()
    assert not finished, "need not be composed"


def same_config(wanted: Sequence[Sequence[str]], told: list[Any] | None = None) -> Any:
    def compose(finished: Sequence[JobToCompare]) -> Composed:
        for index, number, directory in finished:
            if told is not None:
                told.append((index, number, directory))
            canonical = config(wanted[index][0].partition("=")[2])
            yield NewJob(wanted[index], job_key(canonical), canonical)

    return compose


def succeed(path: Path, began: str | None = None, ended: str = NEVER) -> None:
    """Leaves what a run leaves that has succeeded."""
    path.mkdir(parents=True, exist_ok=True)
    times = {"started": began, "ended": ended, "seconds": 1.5}
    result = {"state": "succeeded", "exit_code": 0, **times}
    (path / "result.json").write_text(json.dumps(result))


def killed_sweep(path: Path) -> None:
    """A sweep of six jobs of which the launcher was killed.

    0 has succeeded, 1 too, but the journal does not know; 2 has failed; 3 ran; 4 and 5 never did.
    """
    with contextlib.closing(begin(path)) as session:
        session.plan(jobs(*range(6)), 0, compose_nothing)
        for number in range(4):
            session.journal.append(composed(number, number))
            session.journal.append(StartedRecord(number))
        succeed(path / "0")
        session.journal.append(EndedRecord(0, 0, GOOD))
        succeed(path / "1")
        session.journal.append(EndedRecord(2, 0, BAD))


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


def test_a_new_sweep_has_a_journal_and_does_not_look_at_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "multi run" / "12-00-00"
    with contextlib.closing(begin(path)) as session:
        assert session.path == str(path)
        assert not session.resumed
        assert session.plan(Untouched(10_000), 7, compose_nothing) == Batch(
            range(7, 10_007), {}, {}
        )
        assert records(path) == [
            Header("multi_run-12-00-00", "0.1.0", COMMAND),
            PlannedRecord(10_000),
        ]
        with pytest.raises(ConfigError, match=r"hydra.sweep.dir: .* is in use by another sweep"):
            begin(path)
    session.close()
    with pytest.raises(OutputError):
        session.journal.append(OverRecord(0))
    resume(path).close()


def test_what_is_better_and_what_may_be_leased_stands_in_the_first_line(tmp_path: Path) -> None:
    slots = Lease(("0", "1"), (3,))
    given: dict[str, Any] = {"command": (), "version": "0"}
    path = str(tmp_path / "s")
    begin = functools.partial(SweepSession.begin, path, **given)
    with contextlib.closing(begin(direction="minimize", slots=slots)) as session:
        assert session.journal.header.direction == "minimize"
        assert session.journal.header.slots == slots
        assert session.result().direction == "minimize"
    with contextlib.closing(begin(direction="maximize", resume=True)) as session:
        session.plan([], 0, compose_nothing)
        assert session.result().direction == "maximize"


def test_a_directory_is_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(SweepSession.begin("a/b", command=(), version="0")) as session:
        monkeypatch.chdir("/")
        finish(session)
    assert session.path == str(tmp_path / "a" / "b")
    assert json.loads((tmp_path / "a" / "b" / SUMMARY).read_text())["sweep"] == "a-b"


def test_a_new_sweep_keeps_the_journal_of_the_one_before(tmp_path: Path) -> None:
    said: list[str] = []
    journals = []
    for number in range(3):
        session = SweepSession.begin(
            str(tmp_path), command=(), version=f"{number}", say=said.append
        )
        with contextlib.closing(session):
            journals.append((tmp_path / JOURNAL).read_bytes())
        (tmp_path / SUMMARY).write_text(f"{number}")
    names = ("sweep.1.jsonl", "sweep.2.jsonl", JOURNAL)
    assert [(tmp_path / name).read_bytes() for name in names] == journals
    names = ("sweep.1.json", "sweep.2.json", SUMMARY)
    assert [(tmp_path / name).read_text() for name in names] == ["0", "1", "2"]
    assert len(said) == 2
    assert f"hydra.launcher.resume={tmp_path}" in said[0]
    assert said[0].endswith("sweep.1.jsonl")


def test_what_is_no_sweep_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    hint = "give the directory of a sweep, such as multirun/DATE/TIME"
    for name, expected in {
        "missing": "is not there",
        "file/below": "is not there",
        "file": "is not a directory",
        "empty": "holds no sweep: there is no sweep.jsonl in it",
    }.items():
        path = tmp_path / name
        with pytest.raises(ConfigError) as caught:
            resume(path)
        assert (
            str(caught.value) == f"hydra.launcher.resume: {str(path)!r} {expected}; {hint} [resume]"
        )
    # nothing was made
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            b'{"type": "sweep", "time_ns": 0, "version": 9, "lllaunch": "7.0"}\n',
            r"is a journal of version 9 \(lllaunch 7.0\); this one reads 1",
        ),
        (b"nonsense\n", "is damaged in line 1: it is not JSON"),
        (b"", "holds no record of a sweep"),
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
        assert session.resumed
        assert records(tmp_path) == before
        batch = session.plan(wanted, 0, same_config(wanted, told))
        # 4 and 5 never started: they get the places that are free, or what is above
        assert batch.numbers == (4, 5, 3, 2, 1, 0, 6)
        assert {number: job.result for number, job in batch.skipped.items()} == {
            0: Result("succeeded", 0, "", 1.5),
            1: Result("succeeded", 0, "", 1.5),
        }
        assert batch.directories == {2: "2", 3: "3"}
        assert told == [(4, 1, "1"), (5, 0, "0")]
        assert records(tmp_path)[len(before) :] == [
            Resumed("0.1.0", COMMAND),
            PlannedRecord(7),
            EndedRecord(1, 0, Result("succeeded", 0, "", 1.5)),
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


def test_a_job_that_finished_does_not_run_again_though_the_journal_has_lost_its_start(
    tmp_path: Path,
) -> None:
    with contextlib.closing(begin(tmp_path)) as session:
        session.journal.append(composed(0, 0))
        succeed(tmp_path / "0", began=isoformat(time.time_ns()))
        session.journal.append(StartedRecord(0))
        session.journal.append(EndedRecord(0, 0, GOOD))
    journal = tmp_path / JOURNAL
    *before, started, ended = journal.read_bytes().splitlines(keepends=True)
    # one line, which counts as torn
    journal.write_bytes(b"".join([*before, started[:-20], bytes(40), ended[20:]]))
    with contextlib.closing(resume(tmp_path)) as session:
        batch = session.plan(jobs(0), 0, same_config(jobs(0)))
    assert set(batch.skipped) == {0}
    assert records(tmp_path)[-1] == EndedRecord(0, 0, Result("succeeded", 0, "", 1.5))


def test_the_retry_that_succeeded_is_the_one_that_is_journalled(tmp_path: Path) -> None:
    with contextlib.closing(begin(tmp_path)) as session:
        for record in (
            composed(0, 0),
            StartedRecord(0),
            EndedRecord(0, 0, BAD),
            StartedRecord(0, 1),
        ):
            session.journal.append(record)
    succeed(tmp_path / "0")
    with contextlib.closing(resume(tmp_path)) as session:
        session.plan(jobs(0), 0, same_config(jobs(0)))
    assert records(tmp_path)[-1] == EndedRecord(0, 1, Result("succeeded", 0, "", 1.5))


def test_numbers_of_what_is_there_are_not_given_to_new_jobs(tmp_path: Path) -> None:
    killed_sweep(tmp_path)
    for name in ("4", "6"):
        (tmp_path / name).mkdir()
    wanted = jobs(*range(6), "a", "b")
    with contextlib.closing(resume(tmp_path)) as session:
        batch = session.plan(wanted, 0, same_config(wanted))
    assert batch.numbers == (0, 1, 2, 3, 8, 5, 9, 7)


def test_a_job_that_never_had_a_directory_gets_one(tmp_path: Path) -> None:
    with contextlib.closing(begin(tmp_path)) as session:
        session.journal.append(ComposedRecord(0, ("lr=0",), "", None))
        session.journal.append(EndedRecord(0, 0, Result("error", 2)))
    with contextlib.closing(resume(tmp_path)) as session:
        assert session.plan(jobs(0), 0, compose_nothing) == Batch((0,), {}, {})


def test_a_refused_resume_leaves_everything_as_it_was(tmp_path: Path) -> None:
    killed_sweep(tmp_path)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"torn')
    before = (tmp_path / JOURNAL).read_bytes()
    wanted = jobs(*range(6))

    def changed(finished: Sequence[JobToCompare]) -> Composed:
        for index, _, _ in finished:
            canonical = config(index, epochs=3)
            yield NewJob(wanted[index], job_key(canonical), canonical)

    def broken(finished: Sequence[JobToCompare]) -> Composed:
        yield from ()
        raise ConfigError(())

    with contextlib.closing(resume(tmp_path)) as session:
        with pytest.raises(ConfigError) as caught:
            session.plan(wanted, 0, changed)
        assert str(caught.value) == (
            "hydra.launcher.resume: jobs 0-1 have finished, and their configs have changed since; "
            "put it back, begin another sweep, or delete their result.json files "
            "to run them again [changed]:"
            "\n    epochs: new, 3"
        )
        with pytest.raises(ConfigError):
            session.plan(wanted, 0, broken)
        assert (tmp_path / JOURNAL).read_bytes() == before
        assert not (tmp_path / SUMMARY).exists()
        # the same session may try again
        assert len(session.plan(wanted, 0, same_config(wanted)).skipped) == 2
    assert b"torn" not in (tmp_path / JOURNAL).read_bytes()
    assert records(tmp_path)[-3] == Resumed("0.1.0", COMMAND)


def test_each_batch_adds_to_the_summary(tmp_path: Path) -> None:
    found = []
    with contextlib.closing(begin(tmp_path)) as session:
        for number, exit_code in enumerate((0, 6, 0)):
            batch = session.plan(Untouched(1), number, compose_nothing)
            assert list(batch.numbers) == [number]
            result = BAD if exit_code else GOOD
            job = (composed(number, number), StartedRecord(number), EndedRecord(number, 0, result))
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


def test_the_summary_of_many_batches_takes_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = 1000.0, []

    def write(*args: Any) -> None:
        nonlocal now
        # as long as a sweep of many jobs takes
        now += 2.0
        written.append(now)
        real(*args)

    real = session_module.write_summary
    monkeypatch.setattr(session_module, "write_summary", write)
    monkeypatch.setattr(session_module.time, "monotonic", lambda: now)
    with contextlib.closing(begin(tmp_path)) as session:
        for number in range(300):
            session.journal.append(composed(number, number))
            session.write_now_and_then(range(number + 1), lambda _: ())
            now += 1.0
        before = len(written)
        # each batch takes a second; after the first, one part of fifty goes into writing
        assert 1 < before <= 1 + (now - 1000.0) / 50 / 2.0
        # who asks for it gets it at once
        finish(session)
        assert len(written) == before + 1
    assert len(json.loads((tmp_path / SUMMARY).read_text())["jobs"]) == 300


def test_what_is_kept_for_later_is_in_the_summary_at_once(tmp_path: Path) -> None:
    with contextlib.closing(begin(tmp_path)) as session:
        session.journal.append(composed(3, 3))
        session.journal.append(StartedRecord(3))
        with full_disk((tmp_path / JOURNAL).stat().st_size + 10):
            session.journal.keep(EndedRecord(3, 0, GOOD))
            assert session.result().counts == {"succeeded": 1}
        assert session.journal.error is not None


def test_configs_are_not_held_in_memory(tmp_path: Path) -> None:
    count, long = 300, "x" * 50_000
    with contextlib.closing(begin(tmp_path)) as session:
        for number in range(count):
            session.journal.append(composed(number, number)._replace(config={"long": long}))
    tracemalloc.start()
    try:
        with contextlib.closing(resume(tmp_path)) as session:
            session.plan(jobs(*range(count)), 0, compose_nothing)
            finish(session)
            assert tracemalloc.get_traced_memory()[1] < count * len(long) / 4
    finally:
        tracemalloc.stop()


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


def test_a_disk_that_fills_up_costs_no_record_that_was_there(tmp_path: Path) -> None:
    with contextlib.closing(begin(tmp_path)) as session:
        finish(session)
        before = (tmp_path / SUMMARY).read_bytes()
        with full_disk((tmp_path / JOURNAL).stat().st_size + 10):
            with pytest.raises(OutputError) as caught:
                session.journal.append(composed(0, 0))
            assert caught.value.path == str(tmp_path / JOURNAL)
            with pytest.raises(OutputError) as caught:
                finish(session)
            assert caught.value.path == str(tmp_path / SUMMARY)
        assert len(records(tmp_path)) == 1
        assert (tmp_path / SUMMARY).read_bytes() == before
        session.journal.append(composed(0, 0))
        assert finish(session)["counts"] == {"composed": 1}


def test_a_directory_without_locks_lets_everybody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with contextlib.closing(begin(tmp_path)):
        assert (tmp_path / JOURNAL).exists()


def test_a_directory_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        begin(Path("/proc/self/sweep"))
    assert caught.value.path == "/proc/self/sweep"
    if os.getuid() == 0:
        return  # nothing is read-only to root
    killed_sweep(tmp_path)
    tmp_path.chmod(0o500)
    (tmp_path / ".lllaunch-sweep.lock").chmod(0o400)
    try:
        with pytest.raises(OutputError):
            resume(tmp_path)
    finally:
        tmp_path.chmod(0o700)
