"""``wait``: until a run of another process is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import Launcher, until

from lllaunch.verbs import wait

pytestmark = pytest.mark.measured

SCRIPT = """\
import os, sys, time
open("begun", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
sys.exit(int(open("go").read()))
"""


def begun(directory: Path) -> Launcher:
    (directory / "s.py").write_text(SCRIPT)
    launcher = Launcher(directory, {"entrypoint": "s.py"})
    until((directory / "begun").exists, "the worker")
    return launcher


def waiting(directory: Path) -> subprocess.Popen[str]:
    """A ``wait`` that has come to the lock."""
    waiter = subprocess.Popen(
        [sys.executable, "-m", "lllaunch", "wait", "run"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: blocked(waiter), "the wait")
    return waiter


def blocked(waiter: subprocess.Popen[str]) -> bool:
    """Whether a process has the lock's file open, which it does to wait."""
    for link in Path(f"/proc/{waiter.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link).endswith(".lllaunch.lock"):
                return True
    return False


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (7, 3)])
def test_it_ends_with_the_run_and_as_the_run_does(tmp_path: Path, code: int, ended: int) -> None:
    launcher = begun(tmp_path)
    waiter = waiting(tmp_path)
    assert waiter.poll() is None
    (tmp_path / "go").write_text(str(code))
    assert launcher.finish().code == ended
    out, err = waiter.communicate(timeout=60)
    assert (waiter.returncode, err) == (ended, "")
    if code:
        assert out.startswith("run: failed, exit code 3 after ")
        assert out.endswith(": rank 0: called sys.exit(7)\n")
    else:
        assert out.startswith("run: succeeded after ")


def test_a_run_without_a_result_is_an_error(tmp_path: Path) -> None:
    launcher = begun(tmp_path)
    waiter = waiting(tmp_path)
    launcher.signal(signal.SIGKILL)
    launcher.finish()
    out, _ = waiter.communicate(timeout=60)
    assert waiter.returncode == 1
    assert "run: died after" in out
    assert "ended without a result" in out


def test_what_is_over_is_not_waited_for_and_ctrl_c_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = begun(tmp_path)
    waiter = waiting(tmp_path)
    waiter.send_signal(signal.SIGINT)
    _, err = waiter.communicate(timeout=60)
    assert (waiter.returncode, err) == (130, "")
    (tmp_path / "go").write_text("7")
    launcher.finish()
    monkeypatch.chdir(tmp_path)
    assert wait.main(["run"]) == 3
    assert capsys.readouterr().out.startswith("run: failed, exit code 3")
    assert wait.main(["elsewhere"]) == 2
    assert "elsewhere" in capsys.readouterr().err
