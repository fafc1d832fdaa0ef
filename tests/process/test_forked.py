"""Start method ``fork``: what happens to workers, and to what they leave behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.launching import gone, text_of, until
from support.spawned import told

from lllaunch.events import Exited, OrphansGone, StartFailed
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import Forked
from lllaunch.testing import open_fds


@contextmanager
def forked(function: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Spawner]:
    """A spawner that has forked one worker."""
    call = Forked(function, args)
    with Spawner.forked({0: call}) as spawner:
        spawner.spawn(0, call, cwd=os.getcwd(), env={}, **options)
        yield spawner


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
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    """One whose worker has ended, and left a daemon behind."""
    with forked(leave_a_daemon, tmp_path / "pid") as found:
        told(found, Exited)
        yield found


@pytest.fixture
def daemon(spawner: Spawner, tmp_path: Path) -> int:
    pid = int(text_of(tmp_path / "pid"))
    assert not gone(pid)
    return pid


def test_a_sweep_ends_a_daemon_and_says_so(spawner: Spawner, daemon: int) -> None:
    spawner.clean_up()
    (swept,) = told(spawner, OrphansGone)
    assert (daemon, True) in [(left.pid, left.killed) for left in swept.orphans]
    assert gone(daemon)


def test_close_ends_a_daemon(spawner: Spawner, daemon: int) -> None:
    spawner.close()
    assert gone(daemon)


def test_a_child_that_is_not_a_workers_is_left_alone() -> None:
    mine = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        with forked(int) as spawner:
            told(spawner, Exited)
            spawner.clean_up()
            told(spawner, OrphansGone)
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_an_exit_status_is_known_although_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with forked(exit, 7) as spawner:
            assert told(spawner, Exited)[0].exitcode == 7
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_file_that_cannot_be_opened_leaves_no_descriptor(tmp_path: Path) -> None:
    fds = open_fds()
    missing = str(tmp_path / "no" / "such")
    with forked(int, stdout=str(tmp_path / "out"), stderr=missing) as spawner:
        (failed,) = told(spawner, StartFailed)
    assert failed.path == missing
    assert open_fds() == fds


def test_who_reads_from_workers_sees_their_end() -> None:
    read, write = os.pipe()

    def work() -> None:
        os.write(write, b"said")

    with forked(work) as spawner, open(read, "rb") as file:
        os.close(write)
        told(spawner, Exited)
        # nobody else holds the other end
        assert file.read() == b"said"


def test_workers_limits_are_those_of_the_calling_process_but_for_the_mark(tmp_path: Path) -> None:
    def report() -> None:
        limits = [resource.getrlimit(number) for number in range(15)]
        (tmp_path / "limits").write_text(str(limits))

    with forked(report) as spawner:
        told(spawner, Exited)
    assert text_of(tmp_path / "limits") == str([resource.getrlimit(n) for n in range(15)])
