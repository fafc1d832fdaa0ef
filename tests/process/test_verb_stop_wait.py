"""``stop`` ends a run of another process and nothing else; ``wait`` waits for its end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.launching import Launcher, Running, until

from lllaunch import locks
from lllaunch.errors import OutputError
from lllaunch.verbs import stop

SCRIPT = """\
import os, signal, sys, time
def save(*_):
    open("saved", "w").close()
    if not os.path.exists("stubborn"): sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("begun", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
sys.exit(int(open("go").read()))
"""


def begun(directory: Path, *overrides: str) -> Launcher:
    (directory / "s.py").write_text(SCRIPT)
    launcher = Launcher(directory, {"entrypoint": "s.py", "grace_period": "600s"}, *overrides)
    until((directory / "begun").exists, "the worker")
    return launcher


def go(directory: Path, code: int) -> None:
    """Let the worker end; it never sees a file that is not written yet."""
    (directory / "go.new").write_text(str(code))
    (directory / "go.new").rename(directory / "go")


Stopped = Callable[..., str]


@pytest.fixture
def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Stopped:
    """What the verb prints, in this process; of an error what it complains of."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> str:
        assert stop.stop(arguments) == code
        out, err = capsys.readouterr()
        return err if code else out

    return call


@pytest.mark.smoke
def test_a_run_is_ended_as_ctrl_c_would(tmp_path: Path, stopped: Stopped) -> None:
    launcher = begun(tmp_path)
    lock = tmp_path / "run/.lllaunch.lock"
    text = lock.read_text()
    lock.write_text("pid 7 on another-host\n")
    elsewhere = "'run' is held by pid 7 on another-host; that is none of this machine"
    assert elsewhere in stopped("run", code=2)
    assert launcher.process.poll() is None
    lock.write_text(text)
    assert stopped("run").startswith("run: signalled, exit code 143 after ")
    assert (tmp_path / "saved").exists()
    # it returns when the run is over
    assert launcher.finish().code == 128 + signal.SIGTERM
    assert stopped().startswith("run: is over: signalled, exit code 143 after ")


def test_now_does_not_wait_for_workers(tmp_path: Path, stopped: Stopped) -> None:
    (tmp_path / "stubborn").touch()
    launcher = begun(tmp_path)
    assert stopped("run", "--now").startswith("run: signalled, exit code 143")
    assert launcher.finish().code == 128 + signal.SIGTERM


def test_a_sweep_is_ended_with_its_jobs(tmp_path: Path, stopped: Stopped) -> None:
    launcher = begun(tmp_path, "-m", "launch.grace_period=1s,2s", "hydra.sweep.dir=sweep")
    assert stopped("sweep").startswith("sweep: signalled, exit code 143")
    assert launcher.finish().code == 128 + signal.SIGTERM


def signed(directory: Path, text: str) -> str:
    file = directory / ".lllaunch.lock"
    file.write_text(text)
    return str(file)


def test_a_job_of_a_sweep_that_is_ended_starts_again_only_in_a_resume(
    tmp_path: Path, stopped: Stopped
) -> None:
    launcher = begun(tmp_path, "-m", "hydra.sweep.dir=sweep")
    assert stopped("sweep/0").startswith("sweep/0: signalled, exit code 143")
    go(tmp_path, 0)
    assert launcher.finish().code == 6
    assert begun(tmp_path, "-m", "hydra.launcher.resume=sweep").finish().code == 0


def test_who_only_has_the_number_of_a_launcher_is_left_alone(tmp_path: Path) -> None:
    host = os.uname().nodename
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        file = signed(tmp_path, f"pid {other.pid} on {host}\n")
        assert locks.open_launcher(file) is None
        # one that holds it is the launcher; to have it open is not enough
        signed(tmp_path, f"pid {os.getpid()} on {host}\n")
        held = os.open(file, os.O_RDONLY)
        assert locks.open_launcher(file) is None
        fcntl.flock(held, fcntl.LOCK_EX)
        mine = locks.open_launcher(file)
        (tmp_path / "link").symlink_to(file)
        assert locks.open_launcher(str(tmp_path / "link")) is None
        os.close(held)
        assert mine is not None
        os.close(mine)
    finally:
        other.kill()
        other.wait()
    assert locks.open_launcher(signed(tmp_path, f"pid {other.pid} on {host}\n")) is None
    assert locks.open_launcher(signed(tmp_path, "")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_run_is_told() -> None:
    with tempfile.TemporaryDirectory() as directory:
        # which that user may look into, unlike tmp_path
        Path(directory).chmod(0o755)
        file = signed(Path(directory), f"pid {os.getpid()} on {os.uname().nodename}\n")
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                locks.open_launcher(file)
            except OutputError as error:
                os._exit("another user's" not in str(error))
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


# Waiting


def waiting(directory: Path) -> Running:
    """A ``wait`` that has come to the lock: it has its file open."""
    waiter = Running([sys.executable, "-m", "lllaunch", "wait", "run"], directory)
    process, lock = psutil.Process(waiter.pid), str(directory / "run/.lllaunch.lock")
    until(lambda: lock in [each.path for each in process.open_files()], "the wait")
    return waiter


def test_it_ends_with_the_run_and_as_the_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = begun(tmp_path)
    given_up, waiter = waiting(tmp_path), waiting(tmp_path)
    given_up.signal(signal.SIGINT)
    waited = given_up.finish()
    assert (waited.code, waited.err) == (130, "")
    assert waiter.process.poll() is None
    go(tmp_path, 7)
    assert launcher.finish().code == 3
    waited = waiter.finish()
    assert (waited.code, waited.err) == (3, "")
    assert waited.out.startswith("run: failed, exit code 3 after ")
    assert waited.out.endswith(": rank 0: called sys.exit(7)\n")
    # what is over is not waited for
    monkeypatch.chdir(tmp_path)
    assert stop.wait(["run"]) == 3
    assert capsys.readouterr().out == waited.out
    assert stop.wait(["elsewhere"]) == 2
    assert "elsewhere" in capsys.readouterr().err


def test_a_run_without_a_result_is_an_error(tmp_path: Path) -> None:
    launcher = begun(tmp_path)
    waiter = waiting(tmp_path)
    launcher.signal(signal.SIGKILL)
    launcher.finish()
    waited = waiter.finish()
    assert waited.code == 1
    assert "run: died after" in waited.out
    assert "ended without a result" in waited.out
