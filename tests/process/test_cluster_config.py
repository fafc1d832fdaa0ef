"""``cluster=slurm`` through the real app: composing, plans, locks, and running a plan again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import WAIT

from lllaunch.app.rerun import read_again
from lllaunch.config.cluster import CLUSTER_KEYS
from lllaunch.config.plan import SOURCES, complete

# as in a shell within an allocation, from which somebody submits
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "9"}
SITE = """
defaults: [slurm]
partition: gpu
timeout_min: 2h
max_num_timeout: 3
"""
EXPERIMENT = """
# @package _global_
launch:
  entrypoint: env
  nproc: gpu
  nnodes: 4
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "cluster/mysite.yaml": SITE,
        "exp/a.yaml": EXPERIMENT,
        "mine.yaml": "launch: {entrypoint: env}\n",
        "wrong.yaml": "defaults: [cluster: slurm, _self_]\ncluster:\n  gpus_per_node: x\n",
    }.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    return tmp_path


def python(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **ALLOCATION},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )


def lllaunch(cwd: Path, *words: str, code: int = 0) -> str:
    done = python(cwd, "-m", "lllaunch", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def node(cwd: Path, *words: str) -> Any:
    return yaml.safe_load(lllaunch(cwd, "--cfg", "job", *words)).get("cluster")


def test_a_cluster_is_chosen_by_its_group(project: Path) -> None:
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
def test_a_plan_shows_it_with_its_origins(project: Path) -> None:
    words = ["+exp=a", "cluster=mysite", "+cluster.reservation=r"]
    text = lllaunch(project, "plan", "--changed", *words)
    lines = {
        line.partition("#")[0].strip(): line.partition("#")[2].strip() for line in text.splitlines()
    }
    assert lines["nproc: gpu"] == "conf/exp/a.yaml:4"
    assert lines["nnodes: auto"] == lines["nodes: 4"] == "conf/exp/a.yaml:5"
    assert lines["partition: gpu"] == "conf/cluster/mysite.yaml:2"
    assert lines["timeout: 3"] == "conf/cluster/mysite.yaml:4"
    assert lines["reservation: r"] == "override +cluster.reservation=r"
    assert "nnodes  " not in text
    assert "nproc  " not in text
    document = json.loads(lllaunch(project, "plan", "--format", "json", *words))
    assert document["cluster"]["additional_parameters"] == {"reservation": "r"}
    assert document["origins"]["cluster.partition"][0]["where"] == "conf/cluster/mysite.yaml"


def test_what_is_wrong_names_file_and_line(project: Path) -> None:
    said = lllaunch(project, "--config-name", "wrong", "launch.entrypoint=env", code=2)
    assert "conf/wrong.yaml:3: cluster.gpus_per_node: expected a number of GPUs" in said
    assert not (project / "outputs").exists()
    said = lllaunch(project, "launch.entrypoint=env", "+cluster.partition=gpu", code=2)
    assert "cluster: expected a cluster (backend: slurm, ...)" in said


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


OWN_APP = """
import hydra

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(cfg):
    print("clusters:", cfg.cluster.n_clusters)

if __name__ == "__main__":
    main()
"""


def test_an_unrelated_node_of_a_users_own_app_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(OWN_APP)
    overrides = ["+cluster.n_clusters=5,6", "+launch.nproc=1", "hydra/launcher=lllaunch"]
    done = python(tmp_path, "app.py", "-m", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [path.read_text() for path in tmp_path.glob("multirun/*/*/*/attempt_0/0/stdout.log")]
    assert sorted(logs) == ["clusters: 5\n", "clusters: 6\n"]
