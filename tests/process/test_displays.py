"""What only shows something, takes nothing or is not there ends nothing, whatever it raises."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, Launcher, launch, until
from support.sweeping import SweepProject

BROKEN = """
import importlib, os, sys

if "-m" in sys.orig_argv and "lllaunch" in sys.orig_argv:
    module, _, path = os.environ["VIEW"].partition(":")
    *owner, name = path.split(".")
    place = importlib.import_module("lllaunch." + module)
    for each in owner:
        place = getattr(place, each)

    def shows(*args, **options):
        raise OverflowError("shown too much")

    setattr(place, name, shows)
"""
WORK = """
import os, sys, time
import lllaunch

lllaunch.progress(1)
if "heartbeat" in os.environ["VIEW"]:
    time.sleep(1.5)
sys.exit(int(sys.argv[1]))
"""

REPORT = "console.report:report_lines"
RUN = [
    "console.console:Console.note",
    "console.console:heartbeat_text",
    REPORT,
    "results.report:commands",
    "results.report:summary",
]
SUMMARY = "console.views:summary_rows"
SWEEP = [
    "console.sweep:painter",
    "console.sweep:Board.take",
    "console.sweep:heartbeat_text",
    SUMMARY,
    "console.sweep:Reported.is_new",
    "results.report:load",
]


def environ(directory: Path, view: str) -> dict[str, str]:
    (directory / "sitecustomize.py").write_text(BROKEN)
    summary = str(directory / "summary.md")
    told = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": summary}
    return {"VIEW": view, "PYTHONPATH": str(directory), **told}


def expect_notices(err: str, expected: list[str]) -> None:
    told = re.findall(r"lllaunch: no (.*?): OverflowError: shown too much \(", err)
    assert sorted(told) == sorted(expected)
    assert "Traceback" not in err


@pytest.mark.parametrize("view", RUN)
def test_a_run_has_its_result_and_exit_code_without_its_displays(tmp_path: Path, view: str) -> None:
    (tmp_path / "work.py").write_text(WORK)
    node: dict[str, Any] = {"entrypoint": "work.py", "args": [3], "console": {"interval": "1s"}}
    ended = launch(tmp_path, node, environ=environ(tmp_path, view))
    assert ended.code == 3, ended.err
    assert ended.result["state"] == "failed"
    messages = ["more messages of this launcher"] if "console" in view else []
    reports = ["report for GitHub Actions"] if "results" in view or view == REPORT else []
    expect_notices(ended.err, messages + reports)
    assert ("FAILED after" in ended.err) == (view != REPORT)


@pytest.mark.parametrize("view", SWEEP)
def test_a_sweep_has_its_results_and_exit_code_without_its_displays(
    tmp_path: Path, view: str
) -> None:
    project = SweepProject(tmp_path)
    project.write("work.py", WORK)
    project.experiment("a", "{entrypoint: work.py, args: ['${code}']}", "code: 0\n")
    ended = project.run(
        *("+exp=a", "code=0,3", "hydra.launcher.console.interval=1s"),
        env=environ(tmp_path, view),
    )
    assert ended.code == 6, ended.err
    assert project.states() == {0: "succeeded", 1: "failed"}
    whose = {"Reported": "more messages of this job", "results.report": "report for GitHub Actions"}
    found = [text for part, text in whose.items() if part in view]
    expect_notices(ended.err, found or ["more messages of this sweep"])
    shown = "1 of 2 jobs succeeded, 1 failed" in ended.err
    assert shown == (view not in {"console.sweep:painter", SUMMARY})


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes nothing until it is read."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"." * 4096)
    os.set_blocking(write, True)
    yield read, write
    os.close(read)
    os.close(write)


def test_ctrl_c_ends_the_run_though_nobody_reads(
    tmp_path: Path, full_pipe: tuple[int, int]
) -> None:
    (tmp_path / "work.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    node = {"entrypoint": "work.py", "nproc": 2, "tee": "none", "grace_period": "1m"}
    launcher = Launcher(tmp_path, node, stdout=subprocess.DEVNULL, stderr=full_pipe[1])
    logs = [launcher.run_dir / "attempt_0" / str(rank) / "stdout.log" for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text() for log in logs), "the workers")
    launcher.signal(signal.SIGINT)
    until((launcher.run_dir / "result.json").exists, "the end of the run")
    # all is over; the report waits for a reader for a while
    shown = bytearray()

    def report() -> bool:
        with contextlib.suppress(BlockingIOError):
            while block := os.read(full_pipe[0], 65536):
                shown.extend(block)
        return b"exit code 130" in shown

    until(report, "the report")
    ended = launcher.finish()
    assert ended.code == ended.result["exit_code"] == 130
    told = shown.decode().lstrip(".")
    assert told.startswith("lllaunch: attempt 0: 2 workers of work.py, logs in run/attempt_0\n")
    assert "lllaunch: SIGINT received, forwarded to 2 workers" in told


@pytest.mark.parametrize(("flags", "code"), [([], 3), (["--multirun", "hydra.sweep.dir=sweep"], 6)])
def test_a_closed_standard_error_does_not_change_the_exit_code(
    tmp_path: Path, flags: list[str], code: int
) -> None:
    (tmp_path / "work.py").write_text("raise SystemExit(5)")
    shell = 'exec "$@" 2>&-'
    command = [sys.executable, "-m", "lllaunch", *flags, "launch.entrypoint=work.py"]
    ended = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *command],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=WAIT,
        check=False,
    )
    assert ended.returncode == code


def test_a_reader_that_goes_away_gets_no_words_about_it(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, time\n"
        "for n in range(1000): print(n, flush=True)\n"
        "while not os.path.exists('gone'): time.sleep(0.01)\n"
        "print('last', flush=True)\n"
    )
    node = {"entrypoint": "work.py", "nproc": 1, "tee": "all"}
    launcher = Launcher(tmp_path, node, stdout=subprocess.PIPE)
    with launcher.process.stdout as reader:  # type: ignore[union-attr]
        assert reader.readline() == b"0\n"
    (tmp_path / "gone").touch()
    ended = launcher.finish()
    assert (ended.code, ended.result["state"]) == (0, "succeeded")
    assert all(line.startswith("lllaunch: ") for line in ended.err.splitlines()), ended.err
    assert ended.log(0).endswith(b"last\n")


def test_a_full_disk_below_the_output_is_said_once_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("for number in range(5):\n    print(number, flush=True)\n")
    given = ["launch.entrypoint=work.py", "launch.tee=all", "hydra.run.dir=run"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "lllaunch", *given],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    began, warning, over = ended.stderr.splitlines()
    assert began.startswith("lllaunch: attempt 0:")
    path = tmp_path / "run" / "attempt_0" / "0" / "stdout.log"
    assert warning == (
        f"lllaunch: warning: {path}: it cannot be shown: No space left on device (reported once; "
        "the file is complete)"
    )
    assert over.startswith("lllaunch: succeeded")
    assert path.read_text() == "0\n1\n2\n3\n4\n"
