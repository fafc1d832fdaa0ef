"""``stop``: ends a run of another process, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.launching import Launcher, until

from lllaunch.errors import OutputError
from lllaunch.run import lock
from lllaunch.verbs import stop

pytestmark = pytest.mark.measured

SCRIPT = """\
import os, signal, sys, time
def save(*_):
    open("saved", "w").close()
    if not os.path.exists("stubborn"): sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("begun", "w").close()
while True: time.sleep(0.01)
"""


def begun(directory: Path, **more: object) -> Launcher:
    (directory / "s.py").write_text(SCRIPT)
    launcher = Launcher(directory, {"entrypoint": "s.py", "grace_period": "600s", **more})
    until((directory / "begun").exists, "the worker")
    return launcher


def stopped(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert stop.main(arguments) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_a_run_is_ended_as_ctrl_c_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = begun(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert stopped(capsys, "run").startswith("run: signalled, exit code 143 after ")
    assert (tmp_path / "saved").exists()
    # it returns when the run is over
    assert launcher.finish(5).code == 128 + signal.SIGTERM
    assert stopped(capsys).startswith("run: is over: signalled, exit code 143 after ")


def test_now_does_not_wait_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stubborn").touch()
    launcher = begun(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert stopped(capsys, "run", "--now").startswith("run: signalled, exit code 143")
    assert launcher.finish(5).code == 128 + signal.SIGTERM


def test_a_sweep_is_ended_with_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "conf/exp").mkdir(parents=True)
    text = "# @package _global_\nlaunch: {entrypoint: s.py}\n"
    (tmp_path / "conf/exp/x.yaml").write_text(text)
    jobs = ["-m", "+exp=x", "launch.grace_period=1s,2s", "hydra.sweep.dir=sweep"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "lllaunch", *jobs],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until((tmp_path / "begun").exists, "a job")
    monkeypatch.chdir(tmp_path)
    assert stopped(capsys, "sweep").startswith("sweep: signalled, exit code 143")
    out, _ = launcher.communicate(timeout=5)
    assert launcher.returncode == 128 + signal.SIGTERM, out


def signed(directory: Path, text: str) -> str:
    file = directory / ".lllaunch.lock"
    file.write_text(text)
    return str(file)


def test_who_only_has_the_number_of_a_launcher_is_left_alone(tmp_path: Path) -> None:
    host = os.uname().nodename
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        file = signed(tmp_path, f"pid {other.pid} on {host}\n")
        assert lock.open_launcher(file) is None
        # one that has it open is the launcher
        signed(tmp_path, f"pid {os.getpid()} on {host}\n")
        held = os.open(file, os.O_RDONLY)
        mine = lock.open_launcher(file)
        os.close(held)
        assert mine is not None
        os.close(mine)
    finally:
        other.kill()
        other.wait()
    assert lock.open_launcher(signed(tmp_path, f"pid {other.pid} on {host}\n")) is None
    assert lock.open_launcher(signed(tmp_path, "")) is None


def test_where_no_lock_can_be_looked_at_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/plan.yaml").write_text("")
    # a link is never followed to a lock
    (tmp_path / "run/.lllaunch.lock").symlink_to(tmp_path / "loop")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    told = stopped(capsys, "run", code=2)
    assert "'run' may be running or not" in told


def test_what_runs_elsewhere_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = begun(tmp_path)
    file = tmp_path / "run/.lllaunch.lock"
    text = file.read_text()
    file.write_text("pid 7 on another-host\n")
    monkeypatch.chdir(tmp_path)
    told = stopped(capsys, "run", code=2)
    assert "'run' is held by pid 7 on another-host; that is none of this machine" in told
    assert launcher.process.poll() is None
    file.write_text(text)
    stopped(capsys, "run")
    launcher.finish()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_run_is_told() -> None:
    with tempfile.TemporaryDirectory() as directory:
        # which that user may look into, unlike tmp_path
        Path(directory).chmod(0o755)
        file = signed(Path(directory), f"pid {os.getpid()} on {os.uname().nodename}\n")
        assert another_user_is_told(file)


def another_user_is_told(file: str) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            lock.open_launcher(file)
        except OutputError as error:
            code = 0 if "another user's" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
