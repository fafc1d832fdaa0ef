"""``cluster=slurm`` through the real app: composing, plans, locks, and running a plan again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Project

from lllaunch.app.app import read_again
from lllaunch.config.cluster import CLUSTER_KEYS
from lllaunch.config.plan import SOURCES, complete

# as in a shell within an allocation, from which somebody submits
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "9"}
SITE = """\
defaults: [slurm]
partition: gpu
timeout_min: 2h
max_num_timeout: 3
"""
EXPERIMENT = """\
# @package _global_
launch:
  entrypoint: env
  nproc: gpu
  nnodes: 4
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("conf/cluster/mysite.yaml", SITE)
    made.write("conf/exp/a.yaml", EXPERIMENT)
    made.write("conf/mine.yaml", "launch: {entrypoint: env}\n")
    wrong = "defaults: [cluster: slurm, _self_]\ncluster:\n  gpus_per_node: x\n"
    made.write("conf/wrong.yaml", wrong)
    return made


def lllaunch(project: Project, *words: str, code: int = 0) -> str:
    done = project.lllaunch(*words, env=ALLOCATION)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def node(project: Project, *words: str) -> Any:
    return yaml.safe_load(lllaunch(project, "--cfg", "job", *words)).get("cluster")


def test_a_cluster_is_chosen_by_its_group(project: Project) -> None:
    assert node(project, "+exp=a") is None
    packaged = node(project, "+exp=a", "cluster=slurm", "cluster.partition=x")
    assert {*packaged} == {*CLUSTER_KEYS}
    assert (packaged["backend"], packaged["partition"]) == ("slurm", "x")
    own = node(project, "+exp=a", "cluster=mysite")
    assert own == {**packaged, "partition": "gpu", "timeout_min": "2h", "max_num_timeout": 3}
    assert node(project, "--config-name", "mine", "+cluster=mysite") == own
    said = lllaunch(project, "--cfg", "job", "+cluster=slurm", code=1)
    assert "cluster=NAME without + on the command line" in said


@pytest.mark.smoke
def test_a_plan_shows_it_with_its_origins(project: Project) -> None:
    words = ["+exp=a", "cluster=mysite", "+cluster.additional_parameters.reservation=r"]
    text = lllaunch(project, "plan", "--changed", *words)
    lines = {
        line.partition("#")[0].strip(): line.partition("#")[2].strip() for line in text.splitlines()
    }
    assert lines["nproc: gpu"] == "conf/exp/a.yaml:4"
    assert lines["nnodes: auto"] == lines["nodes: 4"] == "conf/exp/a.yaml:5"
    assert lines["partition: gpu"] == "conf/cluster/mysite.yaml:2"
    assert lines["timeout: 3"] == "conf/cluster/mysite.yaml:4"
    assert lines["reservation: r"] == "override +cluster.additional_parameters.reservation=r"
    assert "nnodes  " not in text
    assert "nproc  " not in text
    document = json.loads(lllaunch(project, "plan", "--format", "json", *words))
    assert document["cluster"]["additional_parameters"] == {"reservation": "r"}
    assert document["origins"]["cluster.partition"][0]["where"] == "conf/cluster/mysite.yaml"


def test_a_plan_that_is_run_again_keeps_its_cluster(tmp_path: Path) -> None:
    cluster = {"backend": "slurm", "partition": "gpu", "nodes": 4}
    plan = {"launch": {"entrypoint": "env", "nnodes": "auto"}, "cluster": cluster}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    (tmp_path / ".hydra").mkdir()
    rest = {"a": 1, "launch": {}, "cluster": {"backend": "slurm", "qos": "old", "detach": True}}
    (tmp_path / ".hydra/config.yaml").write_text(yaml.safe_dump(rest))
    again = read_again(str(tmp_path))
    config = again.config
    assert config["a"] == 1
    assert {*config["cluster"]} == {*CLUSTER_KEYS}
    set_ones = {name: value for name, value in config["cluster"].items() if value is not None}
    assert set_ones == complete(plan, SOURCES)["cluster"]
    # of this machine then, and again
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"launch": {"entrypoint": "env"}}))
    assert "cluster" not in read_again(str(tmp_path)).config


OWN_APP = """\
import lllaunch

@lllaunch.main(config_path="conf", config_name="mine")
def train(cfg):
    return 1

train()
print("finished with", train.return_values())
"""


def test_what_was_only_submitted_has_no_result(project: Project) -> None:
    project.write("train.py", OWN_APP)
    project.write("conf/mine.yaml", "cluster: {backend: slurm}")
    sbatch = project.write("tools/sbatch", '#!/bin/sh\n[ "$1" = --test-only ] || echo 7\n')
    sbatch.chmod(0o755)
    path = {"PATH": f"{sbatch.parent}:{os.environ['PATH']}"}
    done = project.python("train.py", env=path)
    assert done.returncode == 0, done.stderr
    assert "submitted job 7" in done.stderr
    assert done.stdout == ""
