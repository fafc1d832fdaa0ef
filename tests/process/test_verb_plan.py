"""`python -m lllaunch plan` in a process of its own, held against what a run then does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Project, result
from support.verbs import listing

from lllaunch.config.plan import SOURCES, complete

SECRET = "planted-cafe1234"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "a project")
    found.experiment("a", "{entrypoint: sh, args: ['-c', 'exit 0', '${lr}'], tee: none}", "lr: 1")
    found.experiment(
        "rich",
        """
          entrypoint: sh
          args: ["-c", "exit 0", "${hydra:runtime.output_dir}/x", "${hydra:runtime.cwd}", '\\${no}']
          nproc: 2
          env: {A_TOKEN: "${oc.env:MY_TOKEN}", WHERE: "${oc.env:FROM_HYDRA}"}
          env_per_rank: {1: {B: c}}
          redirects: "0:all 1:out"
          watchdog: {preset: default, stall: 10m}""",
        "hydra: {job: {chdir: true, env_set: {FROM_HYDRA: there}}}",
    )
    found.write("more/exp/mine.yaml", "# @package _global_\nlaunch: {entrypoint: 'true'}\n")
    found.write("conf/own.yaml", "launch: {entrypoint: 'true', role: own}\n")
    return found


def planned(project: Project, *argv: str) -> Any:
    before = listing(project.root)
    ended = project.lllaunch("plan", "--json", *argv, env={"MY_TOKEN": SECRET})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert SECRET not in ended.stdout
    assert listing(project.root) == before
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    "argv",
    [
        ["+exp=rich", "hydra.run.dir=out put/now"],
        ["+exp=a", "lr=0.10", "launch.role='a b'", "launch.nproc=cpu", "launch.log_dir=logs/x"],
        ["--config-dir", "more", "+exp=mine", "hydra.job.chdir=true"],
        ["launch.tee=none", "--config-name=own"],
    ],
)
def test_the_plan_is_what_a_run_writes_down(argv: list[str], project: Project) -> None:
    told = planned(project, *argv)
    ended = project.lllaunch(*argv, env={"MY_TOKEN": SECRET})
    assert ended.returncode == 0, ended.stderr
    run = next(path.parent for path in project.root.rglob("result.json"))
    assert written(run) == told["launch"]
    found = result(run)
    assert found["plan_hash"] == told["fingerprint"]["plan_hash"]
    assert found["build"].items() >= {**told["fingerprint"]["build"]}.items()


def test_the_plans_of_a_sweep_are_what_its_jobs_write_down(project: Project) -> None:
    argv = [
        *("-m", "+exp=a,rich", "launch.role=x,y", "launch.args=['-c','exit 0','${oc.env:HOME}']"),
        *("+hydra.launcher.grace_period=5s", "hydra.launcher.watchdog=strict"),
        *("+params.other=['${oc.env:NOT_THERE}']", "hydra.sweep.dir=many"),
        "hydra.sweep.subdir=${hydra.job.num}-${launch.role}",
    ]
    told = planned(project, *argv)
    ended = project.lllaunch(*argv, env={"MY_TOKEN": SECRET})
    assert ended.returncode == 0, ended.stderr
    jobs = {
        int(path.parent.name[0]): result(path.parent) for path in project.root.rglob("result.json")
    }
    hashes = [jobs[number]["plan_hash"] for number in range(4)]
    assert [each["plan_hash"] for each in told["jobs"]] == hashes
    assert len({*hashes}) == 4
    assert written(project.root / "many/0-x") == told["launch"]
    assert told["launch"]["grace_period"] == "5s"
    assert told["resolved"]["directories"]["output"] == "many/${hydra.job.num}-${launch.role}"


def written(run: Path) -> Any:
    """Return a run's plan.yaml with the defaults that it leaves out."""
    plan = complete(yaml.safe_load((run / "plan.yaml").read_text()), SOURCES)
    return json.loads(json.dumps(plan["launch"]))
