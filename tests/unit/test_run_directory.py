"""The run's directory: claimed once, grown attempt by attempt, files whole or not at all."""

from __future__ import annotations

import errno
import os

import pytest

from lllaunch.errors import OutputError
from lllaunch.run.directory import LOCK_NAME, RunDirectory

HOSTILE = "-rf with space, ünï→cødé, per%cent, new\nline, quo'te\"d"


def entries(path: str) -> set[str]:
    return {name for name in os.listdir(path) if name != LOCK_NAME}


def test_attempts_are_numbered_and_latest_follows(tmp_path):
    path = str(tmp_path / HOSTILE)
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


def test_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def unsupported(fd, operation):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with RunDirectory.claim(str(tmp_path)) as directory:
        assert directory.make_attempt(1)[0] == 0


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
