"""Start method ``fork``: what happens to workers, and to what they leave behind."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import gone, text_of, until
from support.spawned import told

import lllaunch.spawner.forker
from lllaunch.events import Exited, OrphansGone, Started, StartFailed
from lllaunch.spawner.forker import Forker
from lllaunch.testing import open_fds


@pytest.fixture
def forker() -> Iterator[Forker]:
    made = Forker()
    yield made
    made.close()


def leave_a_daemon(pid_file: Path) -> None:
    """In a worker: a grandchild in a session of its own, which executes nothing."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            temporary = pid_file.with_suffix(".tmp")
            temporary.write_text(str(os.getpid()))
            temporary.rename(pid_file)
            time.sleep(1000)
        os._exit(0)
    until(lambda: text_of(pid_file), "the daemon")


@pytest.fixture
def daemon(forker: Forker, tmp_path: Path) -> int:
    """What a worker left behind that has ended."""
    forker.spawn(0, (leave_a_daemon, (tmp_path / "pid",)), env={})
    told(forker, Exited)
    pid = int(text_of(tmp_path / "pid"))
    assert not gone(pid)
    return pid


def test_a_sweep_ends_a_daemon_and_says_so(forker: Forker, daemon: int) -> None:
    forker.clean_up()
    (swept,) = told(forker, OrphansGone)
    assert (daemon, True) in [(left.pid, left.killed) for left in swept.orphans]
    assert gone(daemon)


def test_close_ends_a_daemon(forker: Forker, daemon: int) -> None:
    forker.close()
    assert gone(daemon)


def test_a_child_that_is_not_a_workers_is_left_alone(forker: Forker) -> None:
    mine = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        forker.spawn(0, (int, ()), env={})
        told(forker, Exited)
        forker.clean_up()
        told(forker, OrphansGone)
        forker.close()
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_an_exit_status_is_known_although_sigchld_was_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    forker = Forker()
    try:
        forker.spawn(0, (exit, (7,)), env={})
        assert told(forker, Exited)[0].exitcode == 7
        forker.close()
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        forker.close()
        signal.signal(signal.SIGCHLD, before)


def test_a_worker_that_somebody_else_reaped_has_ended_with_255(forker: Forker) -> None:
    pid = forker.spawn(0, (int, ()), env={})
    os.waitpid(pid, 0)
    (end,) = told(forker, Exited)
    assert (end.pid, end.exitcode) == (pid, 255)


def test_a_file_that_cannot_be_opened_leaves_no_descriptor(forker: Forker, tmp_path: Path) -> None:
    fds = open_fds()
    missing = tmp_path / "no" / "such"
    forker.spawn(0, (int, ()), env={}, stdout=str(tmp_path / "out"), stderr=str(missing))
    (failed,) = forker.dispatch()
    assert isinstance(failed, StartFailed)
    assert failed.path == str(missing)
    assert open_fds() == fds


def test_a_process_too_many_is_a_worker_that_cannot_start(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(lllaunch.spawner.forker, "fork", none_left)
    forker.spawn(0, (int, ()), env={})
    (failed,) = forker.dispatch()
    assert isinstance(failed, StartFailed)
    assert failed.errno == errno.EAGAIN
    # not only that the resource is temporarily unavailable
    assert "no process or thread can be started; limits: " in failed.reason


def test_what_an_abandoned_worker_comes_to_is_not_told(forker: Forker) -> None:
    abandoned = forker.spawn(0, (time.sleep, (1000,)), env={})
    told(forker, Started)
    forker.abandon([abandoned])
    forker.kill([abandoned])
    until(lambda: gone(abandoned), "the end of the worker")
    forker.spawn(1, (int, ()), env={})
    ends = told(forker, Exited)
    assert [end.local_rank for end in ends] == [1]


def test_workers_limits_are_those_of_the_calling_process_but_for_the_mark(
    forker: Forker, tmp_path: Path
) -> None:
    def report() -> None:
        limits = [resource.getrlimit(number) for number in range(15)]
        (tmp_path / "limits").write_text(str(limits))

    forker.spawn(0, (report, ()), env={})
    told(forker, Exited)
    assert text_of(tmp_path / "limits") == str([resource.getrlimit(n) for n in range(15)])
