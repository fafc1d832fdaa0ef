"""Optuna's sweeper on lllaunch's launcher: trials of several workers, chosen by rank 0's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.sweeping import Finished, SweepProject

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="Optuna's sweeper is not there")

TRAIN = """
import os
import hydra

@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def train(cfg):
    if cfg.x > cfg.broken_above:
        raise ValueError(f"no value for {cfg.x}")
    if os.environ["RANK"] != "0":
        return -1e9  # nobody shall optimise this
    return (cfg.x - 2.0) ** 2 + cfg.y

if __name__ == "__main__":
    train()
"""

CONFIG = """
defaults:
  - override hydra/sweeper: optuna
  - override hydra/launcher: lllaunch
  - override hydra/sweeper/sampler: random
  - _self_

x: 0.0
y: 0.0
broken_above: 100

hydra:
  launcher: {nproc: 2}
  sweeper:
    direction: minimize
    n_trials: 8
    n_jobs: 2
    sampler: {seed: 3}
    params:
      x: interval(-3.0, 5.0)
"""


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    project = SweepProject(tmp_path)
    project.write("train.py", TRAIN)
    project.write("configs/train.yaml", CONFIG)
    return project


def optimise(project: SweepProject, *args: str, **env: str) -> Finished:
    # traced by coverage Hydra would print full tracebacks
    return project.run(*args, python=("train.py", "-m"), env=env)


def x_of(job: Any) -> float:
    """What Optuna chose for a job of sweep.json."""
    return float(dict(text.split("=") for text in job["overrides"])["x"])


def best(project: SweepProject) -> Any:
    return yaml.safe_load((project.sweep / "optimization_results.yaml").read_text())


def test_trials_are_chosen_by_what_rank_0_of_earlier_ones_returned(project: SweepProject) -> None:
    tpe = ("hydra/sweeper/sampler=tpe", "hydra.sweeper.sampler.n_startup_trials=4")
    ci = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
    ended = optimise(project, *tpe, "y=0.5", **ci)
    assert ended.code == 0, ended.err
    # of all batches together, and once
    assert (project.root / "summary.md").read_text().count("## ") == 1
    jobs = project.document()["jobs"]
    assert [job["job"] for job in jobs] == list(range(8))
    values = {}
    for job in jobs:
        assert job["state"] == "succeeded"
        assert "y=0.5" in job["overrides"]
        values[x_of(job)] = (x_of(job) - 2.0) ** 2 + 0.5
        assert job["return_value"] == pytest.approx(values[x_of(job)])
    least = min(values, key=values.__getitem__)
    assert best(project)["best_params"] == {"x": pytest.approx(least)}
    assert best(project)["best_value"] == pytest.approx(values[least])
    assert project.document()["direction"] == "minimize"
    assert f"lllaunch: objective: best {values[least]:.6g} of job " in ended.err
    # what other ranks returned is kept, and is not the objective
    assert project.result(7)["return_values"]["1"]["value"] == -1e9


def test_trials_that_fail_are_tolerated_as_far_as_was_said(project: SweepProject) -> None:
    few = ("broken_above=2", "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=6")
    ended = optimise(project, *few, "hydra.sweeper.max_failure_rate=0.9")
    assert ended.code == 0, ended.err
    document = project.document()
    states = {x_of(job): job["state"] for job in document["jobs"]}
    assert states == {x: "failed" if x > 2 else "succeeded" for x in states}
    assert set(states.values()) == {"failed", "succeeded"}
    assert best(project)["best_params"]["x"] == pytest.approx(max(x for x in states if x <= 2))
    assert document["exit_code"] == 6
    # without tolerance the first failure ends it, as with Hydra's own launcher
    ended = optimise(project, *few)
    assert ended.code == 1
    assert "Error executing job" not in ended.err
    assert ") failed (exit code 3): rank " in ended.err
    # the summary of all trials is the last that is said, and is said once
    assert ended.err.count("sweep.json") == 1
    assert "sweep.json" in ended.err.splitlines()[-1]
