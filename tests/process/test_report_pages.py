"""Pages of real runs: `report --format html`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

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
def test_values_of_the_plan_have_the_place_that_they_came_from(project: Project) -> None:
    page = page_of(project, "failed")
    text = Seen(page).text
    line = WORK.splitlines().index('        raise ValueError("no <b>bold</b> data")') + 1
    assert f"at work.py:{line} in fails" in text
    assert re.findall('<section id="([a-z]+)"', page) == [
        *("cause", "time", "measured", "logs", "plan", "environment")
    ]
    assert re.search(r"nproc: 2 +# conf/exp/a.yaml:5\n", text)
    assert re.search(
        r"steps: 5 +# conf/exp/a.yaml:4 <- params.steps: override params.steps=5", text
    )
    assert "Set on the command line" in text


def test_where_values_came_from_is_not_guessed(project: Project, tmp_path: Path) -> None:
    copy = project.root / "copy"
    shutil.copytree(project.root / "failed", copy)
    config = project.root / "conf/exp/a.yaml"
    config.write_text(EXPERIMENT.replace("nproc: 2", "nproc: 3"))
    try:
        text = Seen(page_of(project, "copy")).text
        assert "cannot be told: its config has changed since" in text
        assert "conf/exp/a.yaml" not in text
        config.unlink()
        text = Seen(page_of(project, "copy")).text
        assert "cannot be told: its command line cannot be composed now" in text
    finally:
        config.write_text(EXPERIMENT)
    (copy / ".hydra" / "hydra.yaml").unlink()
    text = Seen(page_of(project, "copy")).text
    assert "cannot be told: it has left no .hydra/hydra.yaml" in text
    elsewhere = Project(tmp_path / "elsewhere")
    shutil.copytree(project.root / "failed", elsewhere.root / "failed")
    text = Seen(page_of(elsewhere, "failed")).text
    assert f"cannot be told: it was started in {project.root}" in text
    # what the run says of itself needs no config
    assert "nproc: 2" in text


OWN = """
import lllaunch

@lllaunch.main(config_path="conf", config_name="own")
def train(cfg):
    return cfg.lr

if __name__ == "__main__":
    train()
"""


def test_the_plan_of_a_users_own_app_has_origins_too(tmp_path: Path) -> None:
    project = Project(tmp_path / "own")
    project.write("train.py", OWN)
    project.write("conf/own.yaml", "launch:\n  nproc: 2\n  tee: none\nlr: 0.1\n")
    ended = project.python("train.py", "launch.max_restarts=3", "hydra.run.dir=out")
    assert ended.returncode == 0, ended.stderr
    text = Seen(page_of(project, "out")).text
    assert re.search(r"entrypoint: train.py:train +# the app's own function\n", text)
    assert re.search(r"nproc: 2 +# conf/own.yaml:2\n", text)
    assert re.search(r"max_restarts: 3 +# override launch.max_restarts=3", text)
