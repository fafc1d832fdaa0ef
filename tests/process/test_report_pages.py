"""Pages of real runs: `report --format html`."""

from __future__ import annotations

import re

import pytest
from support.pages import Seen
from support.project import Project

WORK = """
import os, sys, time
import lllaunch

def fails(steps):
    for step in range(steps):
        lllaunch.progress(step + 1, steps, loss=1 / (step + 1))
        print(f"\\x1b[1mstep {step}\\x1b[0m <b>", file=sys.stderr, flush=True)
        time.sleep(0.3)
    if os.environ["RANK"] == "1":
        raise ValueError("no <b>bold</b> data")
    time.sleep(600)
"""
EXPERIMENT = """\
# @package _global_
launch:
  entrypoint: work:fails
  args: {steps: "${params.steps}"}
  nproc: 2
  max_restarts: 1
  samples: 1s
params: {steps: 6}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    made.write("work.py", WORK)
    made.write("conf/exp/a.yaml", EXPERIMENT)
    ended = made.lllaunch("+exp=a", "params.steps=5", "hydra.run.dir=failed")
    assert ended.returncode == 3, ended.stderr
    return made


def page_of(project: Project, path: str) -> str:
    # such that directories are made, as for artifacts of CI
    name = f"artifacts/{path}.html"
    ended = project.lllaunch("report", path, "--format", "html", "--output", name)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    return (project.root / name).read_text(encoding="utf-8")


@pytest.mark.smoke
def test_the_page_of_a_failed_run_has_its_cause_and_its_plan(project: Project) -> None:
    page = page_of(project, "failed")
    text = Seen(page).text
    line = WORK.splitlines().index('        raise ValueError("no <b>bold</b> data")') + 1
    assert f"at work.py:{line} in fails" in text
    assert re.findall('<section id="([a-z]+)"', page) == [
        *("cause", "time", "measured", "logs", "plan", "environment")
    ]
    assert "nproc: 2" in text
    assert "Set on the command line" in text
