"""The run's directory: claimed once, grown attempt by attempt, files whole or not at all."""

from __future__ import annotations

import errno
import io
import os

import pytest

from lllaunch.console.console import Console
from lllaunch.errors import ConfigError, OutputError
from lllaunch.files import write_all
from lllaunch.run.directory import LOCK_NAME, RunDirectory
from lllaunch.run.events import EventLog
from lllaunch.run.files import link_atomic, write_atomic
from lllaunch.run.group import Attempt, _Group
from lllaunch.run.observer import RunObserver
from lllaunch.signal_source import SignalSource
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.std import Std
from lllaunch.supervisor.machine import StartWorkers
from lllaunch.testing import FakeSpawner

HOSTILE = ["plain", "with space", "ünï→cødé", "per%cent", "new\nline", "-rf", "quo'te\"d"]


def entries(path: str) -> set[str]:
    return {name for name in os.listdir(path) if name != LOCK_NAME}


@pytest.mark.parametrize("name", HOSTILE)
def test_attempts_are_numbered_and_latest_follows(tmp_path, name):
    path = str(tmp_path / name)
    with RunDirectory.claim(path) as directory:
        assert directory.make_attempt(2) == (0, os.path.join(path, "attempt_0"))
        assert os.readlink(os.path.join(path, "latest")) == "attempt_0"
        assert directory.make_attempt(1) == (1, os.path.join(path, "attempt_1"))
    assert os.readlink(os.path.join(path, "latest")) == "attempt_1"
    assert entries(path) == {"attempt_0", "attempt_1", "latest"}
    assert sorted(os.listdir(os.path.join(path, "attempt_0"))) == ["0", "1"]


def test_attempts_of_former_runs_are_kept(tmp_path):
    old = tmp_path / "attempt_7" / "0"
    old.mkdir(parents=True)
    (old / "stdout.log").write_text("precious")
    (tmp_path / "attempt_x").mkdir()
    (tmp_path / "attempt_9_backup").mkdir()
    with RunDirectory.claim(str(tmp_path)) as directory:
        assert directory.make_attempt(1)[0] == 8
    assert (old / "stdout.log").read_text() == "precious"


def test_second_run_in_same_directory_is_refused_by_name(tmp_path):
    path = str(tmp_path / "run")
    with RunDirectory.claim(path):
        with pytest.raises(ConfigError) as caught:
            RunDirectory.claim(path)
        (problem,) = caught.value.problems
        assert caught.value.exit_code == 2
        assert repr(path) in str(caught.value)
        assert f"pid {os.getpid()} on " in problem.message
        assert "hydra.run.dir" in problem.hint
    RunDirectory.claim(path).release()


def test_release_may_be_repeated(tmp_path):
    directory = RunDirectory.claim(str(tmp_path))
    directory.release()
    directory.release()
    RunDirectory.claim(str(tmp_path)).release()


def test_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def unsupported(fd, operation):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with RunDirectory.claim(str(tmp_path)) as directory:
        assert directory.make_attempt(1)[0] == 0


def test_lock_that_fails_otherwise_is_an_output_error(tmp_path, monkeypatch):
    def broken(fd, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(OutputError, match="Input/output error"):
        RunDirectory.claim(str(tmp_path))


def test_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "run")
    with pytest.raises(OutputError) as caught:
        RunDirectory.claim(path)
    assert caught.value.path == path
    assert caught.value.reason == "Not a directory"


def test_full_disk_while_making_an_attempt_names_path_and_rank(tmp_path, monkeypatch):
    directory = RunDirectory.claim(str(tmp_path))
    make = os.mkdir

    def full(path, *args):
        if path.endswith("/1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        make(path, *args)

    monkeypatch.setattr("os.mkdir", full)
    with directory, pytest.raises(OutputError) as caught:
        directory.make_attempt(2)
    assert (caught.value.path, caught.value.rank) == (str(tmp_path / "attempt_0" / "1"), 1)
    assert caught.value.reason == "No space left on device"


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path):
    path = str(tmp_path / "result.json")
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert (tmp_path / "result.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_atomic_keeps_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    path = str(tmp_path / "result.json")
    write_atomic(path, b"old")

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OutputError) as caught:
        write_atomic(path, b"new")
    assert caught.value.path == path
    assert (tmp_path / "result.json").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_write_all_goes_on_after_a_short_write(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr("os.write", lambda fd, data: write(fd, data[:3]))
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    write_all(fd, b"0123456789")
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_link_atomic_does_not_replace_a_directory(tmp_path):
    (tmp_path / "latest").mkdir()
    with pytest.raises(OutputError) as caught:
        link_atomic(str(tmp_path / "latest"), "attempt_0")
    assert caught.value.path == str(tmp_path / "latest")
    assert os.listdir(tmp_path) == ["latest"]


class Begun(RunObserver):
    """Keeps the attempts that it is told of."""

    attempts: list[Attempt]

    def begin(self, attempt: Attempt) -> None:
        super().begin(attempt)
        self.attempts = [*getattr(self, "attempts", []), attempt]


def test_an_attempt_is_laid_out_and_told_of(tmp_path):
    spec = LaunchSpec(
        Entrypoint("program", "p", "p"),
        nproc=3,
        log_dir=str(tmp_path),
        cwd="/",
        redirects={0: Std.OUT, 1: Std.NONE, 2: Std.ALL},
        tee={0: Std.ERR, 1: Std.NONE, 2: Std.OUT},
        local_ranks_filter=(range(2),),
    )
    log = EventLog(str(tmp_path / "events.jsonl"), pytest.fail)
    observer = Begun(spec, log, Console(io.StringIO(), cwd="/"))
    spawner = FakeSpawner()
    with RunDirectory.claim(str(tmp_path)) as directory:
        signals = SignalSource([])
        group = _Group(spec, directory, observer, signals, spawner, None, None, 0.0)
        workers = group.start(StartWorkers(0, 0))
        group.let_port_go()
    workers.release()
    log.close()
    attempt = str(tmp_path / "attempt_0")
    assert [(each.number, each.path) for each in observer.attempts] == [(0, attempt)]
    files = observer.attempts[0].files
    assert files.stdouts == {
        0: f"{attempt}/0/stdout.log",
        1: "",
        2: f"{attempt}/2/stdout.log",
    }
    assert files.stderrs == {
        0: f"{attempt}/0/stderr.log",
        1: "",
        2: f"{attempt}/2/stderr.log",
    }
    assert files.tee_stderrs == {0: f"{attempt}/0/stderr.log"}
    assert files.tee_stdouts == {}
    env = spawner.ordered[1][2]["env"]
    assert {name: value for name, value in env.items() if name.endswith("_FILE")} == {
        "TORCHELASTIC_ERROR_FILE": f"{attempt}/0/error.json",
        "LLLAUNCH_RESULT_FILE": f"{attempt}/0/return.json",
        "LLLAUNCH_CRASH_FILE": f"{attempt}/0/crash.txt",
    }
    spawner.close()
