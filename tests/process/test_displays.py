"""What only shows something ends nothing, whatever it raises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.launching import launch
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
