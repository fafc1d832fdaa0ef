"""What `python -m lllaunch` does beside running: its verbs, and what it tells CI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project, environment

from lllaunch.cli import VERBS


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.experiment(
        "x", "{entrypoint: sh, args: ['-c', 'exit ${params.code}']}", "params: {code: 0}"
    )
    return found


def in_ci(project: Project) -> dict[str, str]:
    summary = str(project.root / "summary.md")
    return {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": summary}


def test_github_is_told_of_a_failed_run_and_of_a_sweep(project: Project) -> None:
    ended = project.lllaunch("+exp=x", "params.code=3", env=in_ci(project))
    assert ended.returncode == 3
    assert ended.stdout.count("::error ") == 1
    ended = project.lllaunch("-m", "+exp=x", "params.code=0,4,5", env=in_ci(project))
    assert ended.returncode == 6
    # once for each failed job, and not by the jobs' own launchers, too
    assert ended.stdout.count("::error ") == 2
    assert (project.root / "summary.md").read_text().count("\n#") >= 1


def test_a_misspelt_verb_is_told(project: Project) -> None:
    ended = project.lllaunch("pln", "+exp=x")
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "lllaunch: unknown command 'pln' (choose from check, logs, ls, plan, "
    )
    assert ended.stderr.endswith("did you mean 'plan'?\n")


def test_the_help_names_every_verb_and_nobody_needs_to_read_it_to_the_end(project: Project) -> None:
    shown = project.lllaunch("--help").stdout
    for verb in VERBS:
        assert f"python -m lllaunch {verb}" in shown
        assert project.lllaunch(verb, "--help").returncode == 0
    with subprocess.Popen(
        [sys.executable, "-m", "lllaunch", "--help"],
        cwd=project.root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as help_page:
        assert help_page.stdout is not None
        assert help_page.stderr is not None
        help_page.stdout.close()
        assert help_page.stderr.read() == ""
    assert help_page.returncode == 0


INTERRUPTED = """
import runpy, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "lllaunch.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
runpy.run_module("lllaunch", run_name="__main__")
"""


def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


INTERRUPTED_AT_THE_END = """
import os, signal, sys
from lllaunch import cli
from lllaunch.spawner.client import Spawner

def interrupted(spawner, close=Spawner.close):
    os.kill(os.getpid(), signal.SIGINT)
    close(spawner)

Spawner.close = interrupted
sys.argv = ["lllaunch", "+exp=x"]
sys.exit(cli.main())
"""


def test_ctrl_c_while_the_spawner_is_closed_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED_AT_THE_END)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
