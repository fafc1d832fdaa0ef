"""Runs and sweeps on the disk: finding them, and what became of them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lllaunch.documents import isoformat
from lllaunch.results import index
from lllaunch.results.index import remember, used_from
from lllaunch.results.locate import (
    NoSuchRun,
    entry_of,
    jobs_of,
    list_entries,
    locate,
    roots_of,
)
from lllaunch.results.store import (
    find,
    plain,
    read_overrides,
)
from lllaunch.results.sweeps import SweepFiles
from lllaunch.run.directory import LOCK_NAME
from lllaunch.sweep.history import SweepResult
from lllaunch.sweep.journal import LOCK_NAME as SWEEP_LOCK_NAME
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    Result,
    Skipped,
    StartedRecord,
    encode,
)
from lllaunch.words import MEANINGS

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
GONE = f"pid 4194304 on {socket.gethostname()}\n"  # above any process id


def write(path: Path, text: str | bytes = "", at: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    if at is not None:
        os.utime(path, ns=(at, at))
    return path


def result(state: str = "succeeded", code: int = 0, at: int = T0, **more: Any) -> str:
    document = {
        "version": 1,
        "state": state,
        "exit_code": code,
        "started": isoformat(at),
        "ended": isoformat(at + 2 * S),
        "seconds": 2.0,
        "attempts": [{}, {}],
        "root_cause": None,
        "return_values": {},
        **more,
    }
    return json.dumps(document)


def run(path: Path, document: str | None = None, at: int = T0, lock: str = GONE) -> Path:
    """A run's directory; without a document, one that has none."""
    write(path / "plan.yaml", "launch: {}\n", at)
    write(path / "events.jsonl", json.dumps({"time_ns": at + S, "type": "Started"}) + "\n", at + S)
    write(path / LOCK_NAME, lock)
    write(path / ".hydra" / "overrides.yaml", "- +exp=a\n- params.lr=0.1\n")
    (path / "attempt_0" / "0").mkdir(parents=True, exist_ok=True)
    if document is not None:
        write(path / "result.json", document, at + 2 * S)
    return path


def sweep(path: Path, *more: tuple[int, Any]) -> Path:
    """A sweep's directory with a journal of two jobs that succeeded, and more."""
    entries = [
        (0, Header("id", "0.1", ("+exp=a", "params.lr=1,2"))),
        (1, ComposedRecord(0, ("+exp=a", "params.lr=1"), "0", "f")),
        (1, StartedRecord(0)),
        (2, EndedRecord(0, 0, Result("succeeded", 0, "", 1.0, "0.5"))),
        (2, ComposedRecord(1, ("+exp=a", "params.lr=2"), "1", "g")),
        (3, StartedRecord(1)),
        *more,
    ]
    write(path / SWEEP_LOCK_NAME, GONE)
    lines = [encode(record, T0 + at * S) for at, record in entries]
    write(path / "sweep.jsonl", b"".join(lines), T0 + 9 * S)
    return path


FAILED = EndedRecord(1, 0, Result("failed", 3, "rank 0: no", 2.0))


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """As another launcher holds it."""
    lock.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def states(*roots: Path) -> dict[str, str]:
    return {os.path.basename(each.path): each.state for each in list_entries(map(str, roots))}


# Finding


def test_runs_and_sweeps_are_found_and_nothing_else(tmp_path: Path):
    run(tmp_path / "outputs" / "day" / "one", result())
    run(tmp_path / "outputs" / "day" / "one" / "attempt_0" / "in it", result())
    sweep(tmp_path / "multirun" / "day" / "two")
    run(tmp_path / "multirun" / "day" / "two" / "0", result())
    write(tmp_path / "not ours" / "result.json", '{"state": "fine"}')
    write(tmp_path / "terraform" / "plan.yaml", "a: 1")
    write(tmp_path / "claimed" / LOCK_NAME)
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    found = {os.path.relpath(each.path, tmp_path): each.kind for each in find(str(tmp_path))}
    assert found == {"outputs/day/one": "run", "multirun/day/two": "sweep"}


def test_the_walk_is_bounded(tmp_path: Path):
    run(tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "7", result())
    assert list(find(str(tmp_path))) == []
    assert len(list(find(str(tmp_path / "1")))) == 1
    assert list(find(str(tmp_path / "gone"))) == []
    # a run that is asked for may hold others
    run(tmp_path / "1", result())
    assert len(list(find(str(tmp_path / "1")))) == 2


# Runs


def test_a_run_that_has_ended(tmp_path: Path):
    values = {"0": {"path": "p", "size": 3, "type": "json", "value": 0.5}}
    cause = {"rank": 1, "cause": {"type": "Raised", "text": "raised ValueError: no"}}
    run(tmp_path, result("failed", 3, return_values=values, root_cause=cause))
    (entry,) = list_entries([str(tmp_path)])
    assert (entry.kind, entry.state, entry.exit_code) == ("run", "failed", 3)
    assert (entry.started_ns, entry.seconds, entry.attempts) == (T0, 2.0, 2)
    assert (entry.root_cause, entry.value) == ("rank 1: raised ValueError: no", 0.5)
    assert entry.overrides == ("+exp=a", "params.lr=0.1")
    assert plain(entry, "/there")["path"] == "/there"
    assert json.loads(json.dumps(plain(entry, "")))["started"] == "2023-11-14T22:13:20.000000Z"


def test_without_a_result_a_run_runs_or_its_launcher_died(tmp_path: Path):
    run(tmp_path)
    (entry,) = list_entries([str(tmp_path)])
    assert (entry.state, entry.exit_code, entry.seconds) == ("died", None, 1.0)
    assert (entry.started_ns, entry.attempts) == (T0, 1)
    with held(tmp_path / LOCK_NAME):
        (entry,) = list_entries([str(tmp_path)])
        assert entry.state == "running"
        assert entry.seconds is not None
        assert entry.seconds > 1e6
    # artifacts that were copied without hidden files
    (tmp_path / LOCK_NAME).unlink()
    assert entry_of(next(find(str(tmp_path)))).state == "died"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "[" * 100_000,
        '{"state": [], "exit_code": "x", "attempts": 7, "seconds": NaN, "started": 5}',
        '{"state": "new", "exit_code": 0, "attempts": [], "seconds": Infinity, "ended": []}',
        '{"state": "new", "exit_code": null, "attempts": null, "started": "99Z", "seconds": -1}',
        '{"state": "new", "exit_code": 0, "attempts": {}, "return_values": {"0": 1}}',
    ],
)
def test_a_result_of_any_make_is_survived(tmp_path: Path, text: str):
    run(tmp_path, text)
    (entry,) = list_entries([str(tmp_path)])
    assert entry.state == "unknown"
    assert entry.value is None
    json.dumps(plain(entry, ""), allow_nan=False)


# Sweeps


def test_a_sweep_tells_of_its_jobs(tmp_path: Path):
    sweep(tmp_path, (5, FAILED), (6, OverRecord(6)))
    (entry,) = list_entries([str(tmp_path)])
    assert (entry.kind, entry.state, entry.exit_code) == ("sweep", "failed", 6)
    assert entry.counts == {"succeeded": 1, "failed": 1}
    assert entry.overrides == ("+exp=a", "params.lr=1,2")
    first, second = jobs_of(entry)
    assert (first.number, first.state, first.value, first.seconds) == (0, "succeeded", 0.5, 1.0)
    assert first.path == str(tmp_path / "0")
    assert (second.number, second.exit_code, second.root_cause) == (1, 3, "rank 0: no")
    assert second.overrides == ("+exp=a", "params.lr=2")
    assert plain(entry, "")["counts"] == {"failed": 1, "succeeded": 1}
    assert plain(second, "")["job"] == 1


def test_sweeps_that_run_were_killed_or_signalled(tmp_path: Path):
    waiting = (4, ComposedRecord(2, ("+exp=a",), "2", None))
    sweep(tmp_path, waiting)
    (entry,) = list_entries([str(tmp_path)])
    assert (entry.state, entry.seconds) == ("died", 9.0)
    assert [job.state for job in jobs_of(entry)] == ["succeeded", "died", "not_run"]
    with held(tmp_path / SWEEP_LOCK_NAME):
        (entry,) = list_entries([str(tmp_path)])
        jobs = jobs_of(entry)
    assert entry.state == "running"
    assert [job.state for job in jobs] == ["succeeded", "running", "waiting"]
    sweep(tmp_path, waiting, (5, Skipped(2, "SIGINT")), (5, FAILED), (6, OverRecord(130)))
    (entry,) = list_entries([str(tmp_path)])
    assert entry.state == "signalled"
    *_, last = jobs_of(entry)
    assert (last.state, last.root_cause) == ("not_run", "SIGINT")
    assert set(entry.counts) <= set(MEANINGS)


def test_the_summary_counts_unless_the_journal_is_younger(tmp_path: Path):
    sweep(tmp_path, (5, FAILED), (6, OverRecord(6)))
    write(tmp_path / "sweep.json", '{"jobs": [], "exit_code": 0}', T0 + 10 * S)
    assert SweepFiles(str(tmp_path)).look() == SweepResult(exit_code=0)
    write(tmp_path / "sweep.json", '{"jobs": [], "exit_code": 0}', T0)
    assert states(tmp_path) == {tmp_path.name: "failed"}
    # a damaged journal, and one of another version
    (tmp_path / "sweep.jsonl").write_text("{}\n{}\n")
    assert SweepFiles(str(tmp_path)).look() == SweepResult(exit_code=0)
    (tmp_path / "sweep.json").unlink()
    assert states(tmp_path) == {tmp_path.name: "unknown"}


# Files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- +exp=a\n- ~params.b\n- a/b=c\n", ("+exp=a", "~params.b", "a/b=c")),
        ("- x=[1,2]\n- 'y={a: 1}'\n", ("x=[1,2]", "y={a: 1}")),
        ("- x=#no comment\n", ("x=#no comment",)),
        ("{a: 1}", ()),
        ("- a=1\n- 'torn", ()),
        ("- !!python/object/apply:os.system [exit]\n", ()),
    ],
)
def test_overrides_are_read_as_hydra_wrote_them(tmp_path: Path, text: str, expected: Any):
    write(tmp_path / ".hydra" / "overrides.yaml", text)
    assert read_overrides(str(tmp_path)) == expected


# What users call a run


def test_a_run_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = run(tmp_path / "outputs" / "1", result())
    (path / "latest").symlink_to("attempt_0")
    monkeypatch.chdir(tmp_path)
    for name in ("", "/result.json", "/attempt_0", "/attempt_0/0/", "/latest", "/.hydra"):
        assert os.path.normpath(locate(f"outputs/1{name}").path) == "outputs/1"
    assert locate("latest").path == "outputs/1"
    monkeypatch.chdir(tmp_path / "outputs")
    assert locate("1").path == "1"
    monkeypatch.chdir(path)
    assert locate("result.json").path == "."
    assert locate("latest").path == "."


def test_the_end_of_a_path_names_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("2024-05-01/12-10-00", "2024-05-02/12-10-00", "2024-05-02/23-36-40"):
        run(tmp_path / "outputs" / name, result())
    monkeypatch.chdir(tmp_path)
    assert locate("23-36-40").path == "outputs/2024-05-02/23-36-40"
    assert locate("2024-05-01/12-10-00").path == "outputs/2024-05-01/12-10-00"
    with pytest.raises(NoSuchRun, match="RUN is empty; "):
        locate("")
    with pytest.raises(NoSuchRun, match=r"'12-10-00' names 2 runs: .*; say which one"):
        locate("12-10-00")


def test_a_directory_that_was_used_from_here_is_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    run(project / "outputs" / "1", result(at=T0 - 9 * S))
    write(project / "outputs/1/plan.yaml", "launch: {}\n", T0 - 9 * S)
    sweep(project / "sweeps" / "digits")
    run(elsewhere, result(at=T0 - S))
    for path in (project / "outputs/1", project / "sweeps/digits", elsewhere):
        remember(str(path), str(project), os.environ)
    monkeypatch.chdir(project)
    assert locate("latest").path == "sweeps/digits"
    assert roots_of()[:2] == ["outputs", "multirun"]
    assert set(roots_of()[2:]) == {"sweeps/digits", str(elsewhere)}
    monkeypatch.chdir(tmp_path)
    assert roots_of() == ["outputs", "multirun"]


def test_the_index_is_bounded_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "MOST", 10)
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for number in range(25):
        path = tmp_path / "runs" / str(number)
        path.mkdir(parents=True)
        remember(str(path), str(tmp_path), environ)
        remember(str(path), str(tmp_path), environ)
    links = list((tmp_path / "state/lllaunch/runs").iterdir())
    assert len(links) <= 10
    assert (tmp_path / "state/lllaunch/runs").stat().st_mode & 0o077 == 0
    assert str(tmp_path / "runs" / "24") in used_from(str(tmp_path), environ)
    # a state directory that cannot be made, none at all, and a directory that is gone
    (tmp_path / "file").touch()
    for broken in ({"XDG_STATE_HOME": str(tmp_path / "file")}, {"XDG_STATE_HOME": "/proc/no"}):
        remember(str(tmp_path / "x"), str(tmp_path), broken)
        assert used_from(str(tmp_path), broken) == []
    (tmp_path / "runs" / "24").rmdir()
    assert str(tmp_path / "runs" / "24") not in used_from(str(tmp_path), environ)
