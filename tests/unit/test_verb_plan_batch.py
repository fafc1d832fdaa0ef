"""`plan` of a run that goes to a cluster: its batch file, and what the cluster says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.launching import Project
from support.verbs import Ended, call

from lllaunch.cluster import slurm
from lllaunch.cluster.slurm import SlurmMissing
from lllaunch.verbs import plan as verb


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    found = Project(tmp_path / "a project")
    found.write("conf/exp/toy.yaml", "# @package _global_\nlaunch: {entrypoint: s.py}\n")
    found.write("s.py", "")
    monkeypatch.chdir(found.root)
    monkeypatch.setattr(slurm, "available", lambda: False)
    return found


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> Ended:
    return call(verb.plan, ["+exp=toy", "cluster=slurm", *argv], capsys)


def test_the_batch_file_stands_below_the_plan(
    capsys: pytest.CaptureFixture[str], project: Project
) -> None:
    ended = planned(capsys, "cluster.partition=gpu")
    assert (ended.code, ended.err) == (0, "")
    _, _, below = ended.out.partition("# The batch file, and no part of the plan:\n")
    lines = below.splitlines()
    assert all(line.startswith("#") for line in lines)
    for option in ("--partition=gpu", "--chdir='<output_dir>'", "--job-name=toy"):
        assert f"# #SBATCH {option}" in lines
    assert lines[-1].endswith("-m lllaunch job '<output_dir>'")
    # where the directory is known it is that
    found = json.loads(planned(capsys, "--json", "hydra.run.dir=here").out)
    assert f"--chdir='{project.root}/here'" in found["batch"]
    assert found["batch_problem"] is None
    # it differs by machine, and a run of this one has none
    assert "batch" not in planned(capsys, "--portable").out.lower().replace("submitit", "")
    assert "batch" not in json.loads(call(verb.plan, ["+exp=toy", "--json"], capsys).out)


def test_what_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise SlurmMissing("something is missing; pip install it")

    monkeypatch.setattr(slurm, "batch_text", missing)
    ended = planned(capsys)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("# none: something is missing; pip install it\n")


def test_what_the_cluster_would_refuse_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def test_only(text: str) -> str | None:
        asked.append(text)
        return "sbatch: error: Invalid partition name specified"

    monkeypatch.setattr(slurm, "available", lambda: True)
    monkeypatch.setattr(slurm, "test_only", test_only)
    ended = planned(capsys, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["batch"]
    warning = "lllaunch: warning: the cluster would not take the run: sbatch: error: Invalid"
    assert ended.err.startswith(warning)
    # a directory that is there
    assert "<output_dir>" not in asked[0]
