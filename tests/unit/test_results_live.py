"""What goes on, as the files of runs and sweeps tell of it: rows of all of these and of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.left import LeftSweep

from lllaunch.locks import lock_directory
from lllaunch.results import history
from lllaunch.results.history import AppendedLines
from lllaunch.results.live import LiveReader, LiveView
from lllaunch.results.store import ListEntry
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    PlannedRecord,
    Result,
    StartedRecord,
)
from lllaunch.sweep.pool import Lease
from lllaunch.watchdog.findings import Stalled


def events(directory: Path, *found: dict[str, Any]) -> None:
    with open(directory / "events.jsonl", "a", encoding="utf-8") as file:
        for event in found:
            file.write(json.dumps({"time": "", "time_ns": 1, **event}) + "\n")


def attempt(number: int, ranks: int = 2) -> list[dict[str, Any]]:
    """The events that begin an attempt."""
    return [
        {"type": "StartWorkers", "attempt": number},
        {"type": "GroupStarted", "ranks": [*range(ranks)], "base_rank": 0, "preflight": False},
        *({"type": "Started", "local_rank": rank, "pid": 100 + rank} for rank in range(ranks)),
    ]


def exited(rank: int, code: int) -> dict[str, Any]:
    return {"type": "Exited", "local_rank": rank, "pid": 100 + rank, "exitcode": code}


def sample(directory: Path, attempt: int = 0, **ranks: dict[str, Any]) -> None:
    gpus = {"0": {"use": 0.5, "memory": 100}, "1": {"use": 1.0, "memory": 200}}
    told = {name[1:]: {"cpu": 0.5, "rss": 1000, **worker} for name, worker in ranks.items()}
    record = {"time": time.time(), "attempt": attempt, "ranks": told, "gpus": gpus}
    with open(directory / "samples.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


Locks = Callable[..., Callable[[], None]]


@pytest.fixture
def hold() -> Iterator[Locks]:
    """Holds locks of directories as launchers do; what it returns lets go of one."""
    with contextlib.ExitStack() as stack:

        def held(directory: Path, name: str = ".lllaunch.lock") -> Callable[[], None]:
            fd = lock_directory(str(directory), name, "", "run")
            assert fd is not None
            lock = os.fdopen(fd)
            stack.callback(lock.close)
            return lock.close

        yield held


def begun(directory: Path) -> Path:
    """The directory of a run that was killed, or goes on where its lock is held."""
    directory.mkdir(parents=True)
    (directory / "plan.yaml").write_text("launch: {}\n")
    (directory / ".hydra").mkdir()
    (directory / ".hydra/overrides.yaml").write_text("- params.lr=0.1\n")
    events(directory, {"type": "Begin"}, *attempt(0))
    return directory


@pytest.fixture
def run(tmp_path: Path, hold: Locks) -> Path:
    """A run that goes on."""
    directory = begun(tmp_path / "run")
    hold(directory)
    return directory


def end(directory: Path, state: str = "succeeded", code: int = 0, ago: float = 0.0) -> None:
    now = time.time() - ago
    started, ended = (
        time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(moment)) for moment in (now - 5, now)
    )
    result = {"version": 1, "state": state, "exit_code": code, "attempts": [{}]}
    times = {"started": started, "ended": ended, "seconds": 5.0}
    (directory / "result.json").write_text(json.dumps({**result, **times}))
    for name, moment in (("plan.yaml", now - 5), ("result.json", now), ("", now)):
        os.utime(directory / name, (moment, moment))


def seen(view: LiveView | None) -> tuple[LiveView, ListEntry]:
    """What is looked at, and the row of that."""
    assert view is not None
    assert view.subject is not None
    return view, view.subject


# Runs


def test_a_run_and_its_ranks(run: Path) -> None:
    worker = {"total": 500, "rate": 2.0, "idle": 0.5, "metrics": {"loss": 0.25}}
    sample(
        run,
        r0={"step": 120, "eta": 20.0, "gpus": ["0"], **worker},
        r1={"step": 90, "eta": 200.0, "gpus": ["1"]},
    )
    reader = LiveReader()
    view, row = seen(reader.run(str(run)))
    assert view.kind == "run"
    assert not view.is_over
    assert (row.state, row.attempt, row.step, row.total) == ("running", 0, 120, 500)
    assert (row.slowest, row.behind) == (1, 90)
    assert (row.cpu, row.memory) == (1.0, 2000)
    assert (row.gpus, row.gpu_use, row.gpu_memory) == (("0", "1"), 0.75, 300)
    assert row.metrics == {"loss": 0.25}
    assert row.overrides == ("params.lr=0.1",)
    # it is done when its last rank is; the sample is a moment old, or longer on a loaded machine
    assert row.eta is not None
    assert 20 < row.eta <= 200
    first, second = view.rows
    assert (first.number, first.state, first.pid, first.step) == (0, "running", 100, 120)
    assert (second.number, second.gpus, second.gpu_use, second.step) == (1, ("1",), 1.0, 90)
    # of those that are level none is slowest
    sample(run, r0={"step": 7}, r1={"step": 7})
    assert seen(reader.run(str(run)))[1].slowest is None
    # a sample of an earlier attempt says nothing of the next one
    events(run, *attempt(1))
    _, row = seen(reader.run(str(run)))
    assert (row.attempt, row.step, row.cpu) == (1, None, None)


def test_findings_and_failures_are_told_with_their_attempt(run: Path) -> None:
    reader = LiveReader()

    def look() -> LiveView:
        return seen(reader.run(str(run)))[0]

    assert look().findings == ()
    stalled = {"type": "Stalled", "ranks": [1], "seconds": 61.0, "scope": "rank"}
    events(run, {"type": "WatchdogFired", "finding": stalled, "kind": "hang", "ends": True})
    (finding,) = look().findings
    assert finding == f"rank 1: {Stalled((1,), 61.0, 'rank')}"
    # what it ends is no failure of its own
    events(run, {"type": "SignalWorkers"}, exited(0, -15), exited(1, -9))
    view = look()
    assert [(row.state, row.text) for row in view.rows] == [
        *(("ended", "SIGTERM"), ("ended", "SIGKILL"))
    ]
    assert view.findings == (finding,)
    # in the next attempt a worker fails, the other is its victim
    events(run, *attempt(1), exited(1, 7), exited(0, 1))
    view = look()
    assert view.findings == (f"attempt 0: {finding}", "rank 1: ended with exit status 7")
    assert [row.state for row in view.rows] == ["failed", "failed"]
    events(run, *attempt(2))
    assert look().findings[-1] == "attempt 1: rank 1: ended with exit status 7"


def test_ranks_of_several_nodes_are_told_by_their_node(tmp_path: Path, hold: Locks) -> None:
    for node in range(2):
        part = tmp_path / f"node_{node}"
        part.mkdir()
        started, group, *workers = attempt(0)
        events(part, {"type": "Begin"}, started, {**group, "base_rank": 2 * node}, *workers)
        sample(part, **{f"r{2 * node}": {"step": 5 + node}})
    (tmp_path / "plan.yaml").write_text("")
    hold(tmp_path)
    view, row = seen(LiveReader().run(str(tmp_path)))
    assert [(row.number, row.node) for row in view.rows] == [
        *((0, "node_0"), (1, "node_0"), (2, "node_1"), (3, "node_1"))
    ]
    assert row.slowest == 0


def test_what_is_over_no_longer_does_anything(tmp_path: Path, hold: Locks) -> None:
    run = begun(tmp_path / "run")
    release = hold(run)
    sample(run, r0={"step": 5, "rate": 1.0, "eta": 3.0})
    reader = LiveReader()
    assert seen(reader.run(str(run)))[1].cpu == 0.5
    release()
    end(run)
    view, row = seen(reader.run(str(run)))
    assert view.is_over
    assert (row.state, row.cpu, row.rate, row.eta) == ("succeeded", None, None, None)
    assert row.step == 5
    assert [(rank.state, rank.cpu) for rank in view.rows] == [("ended", None), ("ended", None)]


def test_a_failure_is_told_once_when_the_run_is_over(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    events(run, *attempt(1), exited(0, 1))
    end(run, "failed", 3)
    document = json.loads((run / "result.json").read_text())
    cause = {"type": "ExitedNonZero", "exitcode": 1, "text": "exited with status 1"}
    document["root_cause"] = {"attempt": 1, "rank": 0, "cause": cause}
    (run / "result.json").write_text(json.dumps(document))
    view, row = seen(LiveReader().run(str(run)))
    assert row.text.startswith("rank 0: exited")
    assert view.findings == ()


# Below directories


def test_what_lives_and_what_has_ended_of_late(tmp_path: Path, run: Path) -> None:
    end(begun(tmp_path / "a" / "just"), ago=400)
    end(begun(tmp_path / "a" / "failed"), "failed", 3, ago=300)
    end(begun(tmp_path / "a" / "before"), ago=7200)
    view = LiveReader().everything([str(tmp_path)])
    assert [(os.path.basename(row.path), row.state) for row in view.rows] == [
        *(("run", "running"), ("failed", "failed"), ("just", "succeeded"))
    ]
    assert view.kind == "all"
    assert not view.is_over
    # only the last few
    for number in range(8):
        end(begun(tmp_path / "b" / str(number)), ago=30 * number)
    rows = LiveReader().everything([str(tmp_path)]).rows
    assert [os.path.basename(row.path) for row in rows] == ["run", *"01234"]


# Sweeps


class Swept:
    """A sweep that goes on."""

    def __init__(self, path: Path, hold: Locks) -> None:
        command = ("+exp=x", "call=a:b", "lr=1,2")
        slots = Lease(("0", "1"), (0, 1))
        header = Header("s", "0.1.0", command, direction="minimize", slots=slots)
        self._left = LeftSweep(path, header, time.time_ns(), step_ns=0)
        self._reader = LiveReader()
        self.write, self.journal = self._left.add, self._left.journal
        self.release = hold(path, ".lllaunch-sweep.lock")

    def look(self) -> tuple[LiveView, ListEntry]:
        return seen(self._reader.sweep(str(self._left.path)))

    def start(self, job: int) -> Path:
        # as Hydra gives them to jobs
        overrides = ("+exp=x", "call=a\\:b", f"lr={job}")
        self.write(
            ComposedRecord(job, overrides, str(job), "0" * 64),
            StartedRecord(job, 0, Lease((str(job % 2),), (job,)), 1),
        )
        return begun(self._left.path / str(job))

    def end(self, job: int, value: float, state: str = "succeeded") -> None:
        code = 0 if state == "succeeded" else 3
        self.write(EndedRecord(job, 0, Result(state, code, "", 60.0, json.dumps(value))))


@pytest.fixture
def sweep(tmp_path: Path, hold: Locks) -> Swept:
    return Swept(tmp_path / "sweep", hold)


def test_a_sweep_and_its_jobs(tmp_path: Path, sweep: Swept) -> None:
    sweep.write(PlannedRecord(10))
    for job in range(4):
        directory = sweep.start(job)
    sweep.end(0, 0.5)
    sweep.end(1, 0.3, "failed")
    sample(directory, r0={"step": 10, "total": 40, "eta": 30.0})
    view, row = sweep.look()
    assert view.kind == "sweep"
    assert row.counts == {"running": 2, "succeeded": 1, "failed": 1, "waiting": 6}
    assert view.unseen == {"waiting": 6}
    assert (row.step, row.total) == (1, 10)
    # running ones first, then what failed, then what went well
    assert [(job.number, job.state) for job in view.rows] == [
        *((2, "running"), (3, "running"), (1, "failed"), (0, "succeeded"))
    ]
    busy = view.rows[1]
    assert (busy.step, busy.gpus, busy.cpus) == (10, ("1",), (3,))
    # without what all jobs have
    assert busy.overrides == ("lr=3",)
    assert row.eta is not None
    # below a directory only jobs that run follow it
    everything = LiveReader().everything([str(tmp_path)])
    assert [(each.kind, each.number) for each in everything.rows] == [
        *(("sweep", None), ("job", 2), ("job", 3))
    ]
    sweep.write(OverRecord(6))
    sweep.release()
    view, row = sweep.look()
    assert view.is_over
    assert (row.state, row.eta) == ("failed", None)
    assert row.counts["not_run"] == 6


# Lines that are added


def test_lines_are_read_once_and_only_when_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    file = AppendedLines(str(path))
    assert list(file.added()) == []
    path.write_bytes(b"one\ntw")
    assert list(file.added()) == [(True, b"one")]
    assert list(file.added()) == []
    with open(path, "ab") as more:
        more.write(b"o\nthree\n")
    assert list(file.added()) == [(False, b"two"), (False, b"three")]
    # shorter than before: another file
    path.write_bytes(b"new\n")
    assert list(file.added()) == [(True, b"new")]
    # of a long file only the end is read at first
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    monkeypatch.setattr(history, "_MOST_BYTES", 20)
    found = AppendedLines(str(path)).added()
    assert [line for _, line in found] == [b"line 998", b"line 999"]
    # of a line that does not end comes the beginning
    monkeypatch.setattr(history, "_MOST_BYTES", 1000)
    monkeypatch.setattr(history, "_LONGEST_EVENT", 16)
    path.write_bytes(b"first\n" + b"x" * 100 + b"\nlast\n")
    assert [line for _, line in AppendedLines(str(path)).added()] == [
        *(b"first", b"x" * 16, b"last")
    ]
    # what is no file is not waited for
    os.mkfifo(tmp_path / "fifo")
    assert list(AppendedLines(str(tmp_path / "fifo")).added()) == []


def test_attempts_are_counted_on_from_those_of_an_earlier_run(run: Path) -> None:
    begins, group, *starts = attempt(0)
    events(run, {"type": "Begin"}, begins, {**group, "attempt": 2})
    sample(run, attempt=2, r0={"step": 7}, r1={"step": 6})
    reader = LiveReader()

    def look() -> tuple[LiveView, ListEntry]:
        return seen(reader.run(str(run)))

    _, row = look()
    assert (row.attempt, row.step) == (2, 7)
    events(run, *starts, exited(1, 1))
    first, second = look()[0].rows
    assert (first.attempt, first.state, second.state) == (2, "running", "failed")
    events(run, {"type": "StartWorkers", "attempt": 3})
    view, row = look()
    assert row.attempt == 3
    assert view.findings == ("attempt 2: rank 1: ended with exit status 1",)
    # a later run in the directory begins anew
    events(run, {"type": "Begin"}, *attempt(1))
    assert look()[0].findings == ()
