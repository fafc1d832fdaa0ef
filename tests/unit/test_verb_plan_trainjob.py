"""`python -m lllaunch plan --format trainjob`: held against Kubeflow's own models, offline.

RENEW_GOLDEN=1 in the environment writes the files below golden/ anew, for review.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Project
from support.verbs import Called, call, listing

from lllaunch.cluster.detect import detect
from lllaunch.verbs import plan as verb
from lllaunch.verbs.plan import name_for

GOLDEN = Path(__file__).with_name("golden")
SECRET = "planted-cafe1234"
# what the controller itself sets, and refuses in a TrainJob
RESERVED = {
    f"PET_{name}"
    for name in ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY", "MY_USER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    found = Project(tmp_path)
    found.experiment("plain", "{entrypoint: env, args: ['${lr}'], nproc: 2}", "lr: 1")
    found.experiment(
        "vision/Resnet_50",
        "{entrypoint: env, nproc: 4, nnodes: 2, rdzv: {endpoint: null},"
        " resources: {gpus_per_proc: 2, cpus_per_proc: 3},"
        " env: {A_TOKEN: '${oc.env:MY_TOKEN}', WHO: '${oc.env:MY_USER,nobody}'}}",
        "hydra: {job: {env_set: {OF_HYDRA: x}}}\nunused: ${oc.env:NEVER_ASKED}",
    )
    found.experiment("auto", "{entrypoint: env, nnodes: auto}")
    found.experiment("range", "{entrypoint: env, nnodes: '1:4', rdzv: {endpoint: a}}")
    return found


@pytest.fixture
def plan(project: Project, capsys: pytest.CaptureFixture[str]) -> Called:
    return lambda *argv: call(verb.plan, ["--format", "trainjob", *argv], capsys)


def valid(text: str) -> Any:
    """The trainer of a manifest, which Kubeflow's models take, and leave nothing of out."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    document = yaml.safe_load(text)
    model = models.TrainerV1alpha1TrainJob.from_dict(document)
    assert model is not None
    assert model.to_dict() == document
    assert document["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    trainer = document["spec"]["trainer"]
    assert not RESERVED & {each["name"] for each in trainer.get("env", [])}
    return trainer


CASES = {
    "trainjob": [
        *("+exp=vision/Resnet_50", "--image", "registry.example.com/team/train:v3"),
        *("--runtime", "TrainingRuntime/ours", "+text='$(HOME) $$ \N{SNOWMAN}'"),
    ],
    "trainjob_plain": ["+exp=plain"],
}


@pytest.mark.parametrize("name", CASES)
def test_a_manifest_reads_like_this(name: str, plan: Called, project: Project) -> None:
    before = listing(project.root)
    ended = plan(*CASES[name])
    assert (ended.code, ended.err) == (0, "")
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_text(ended.out)
    assert ended.out == golden.read_text()
    assert SECRET not in ended.out
    valid(ended.out)
    assert listing(project.root) == before


def test_the_environment_of_a_pod_says_all_that_auto_needs(plan: Called) -> None:
    text = plan("+exp=vision/Resnet_50").out
    trainer, name = valid(text), yaml.safe_load(text)["metadata"]["name"]
    assert name == "vision-resnet-50"
    # as the controller makes them
    environ = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
        **{each["name"]: each["value"] for each in trainer["env"]},
    }

    placement = detect(environ)

    assert (placement.min_nodes, placement.max_nodes, placement.node_rank) == (2, 2, 1)
    assert (placement.host, placement.port) == ("vision-resnet-50-node-0-0.vision-resnet-50", 29500)
    assert (placement.nproc, placement.rdzv_id) == (4, "vision-resnet-50")


@pytest.mark.parametrize(
    ("argv", "nodes", "nproc"),
    [
        (["+exp=plain", "--nodes", "3"], 3, 2),
        (["+exp=auto", "--nodes=3"], 3, None),
        (["+exp=plain", "+launch.nnodes=2", "launch.rdzv.id=mine"], 2, 2),
    ],
)
def test_numbers_are_those_of_the_config_or_are_left_out(
    argv: list[str], nodes: int, nproc: int | None, plan: Called
) -> None:
    ended = plan(*argv)
    trainer = valid(ended.out)
    assert trainer["numNodes"] == nodes
    assert trainer.get("numProcPerNode") == nproc
    of_config = "launch.rdzv.id=mine" in argv
    assert ("env" in trainer) is (nodes > 1 and not of_config)


def test_what_the_environment_gives_is_a_hint_and_no_value(
    plan: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_values = plan("+exp=vision/Resnet_50").out
    # whoever prints it needs no secrets
    monkeypatch.delenv("MY_TOKEN")
    assert plan("+exp=vision/Resnet_50").out == with_values
    assert with_values.splitlines()[-1].endswith(": MY_TOKEN, MY_USER")


@pytest.mark.parametrize(
    ("argv", "messages"),
    [
        (["+exp=auto"], ["launch.nnodes: 'auto' is no one number", "give --nodes N"]),
        (
            ["+exp=range"],
            ["conf/exp/range.yaml:2: launch.nnodes: '1:4' is no one number", "give --nodes N"],
        ),
        (
            ["+exp=plain", "launch.node_rank=1", "launch.rdzv.endpoint=h:1"],
            [
                "launch.node_rank: 1 would be the number of every pod",
                "launch.rdzv.endpoint: 'h:1' is not where",
            ],
        ),
        (["-m", "+exp=plain", "lr=1,2"], ["-m: is for sweeps, and a TrainJob is one run"]),
        (["launch.entrypoint=env"], ["has no name that it could be made from; give --name NAME"]),
    ],
)
def test_what_no_trainjob_can_do_is_told(
    argv: list[str], messages: list[str], plan: Called, project: Project
) -> None:
    before = listing(project.root)
    ended = plan(*argv)
    assert (ended.code, ended.out) == (2, "")
    for message in messages:
        assert message in ended.err
    assert listing(project.root) == before


def test_options_of_a_manifest_are_for_nothing_else(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = call(verb.plan, ["+exp=plain", "--nodes=2"], capsys)
    assert (ended.code, ended.out) == (2, "")
    assert "--nodes: is for --format trainjob alone" in ended.err


# ---------------------------------------------------------------- locks


def test_a_plan_with_a_lock_runs_locked(
    plan: Called, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = {"name": "LLLAUNCH_LOCKED", "value": "1"}
    two_nodes = ("+exp=plain", "--nodes=2")
    assert locked not in valid(plan(*two_nodes).out)["env"]
    project.write("conf/lllaunch.yaml", "allow:\n  programs: [env]\n")
    assert call(verb.plan, ["--lock", "+exp=plain"], capsys).code == 0
    # reviewed was one node
    ended = plan(*two_nodes)
    assert (ended.code, ended.out) == (5, "")
    assert 'launch.nnodes: 1 -> "auto"' in ended.err
    renew = ["--lock", "+exp=plain", "launch.nnodes=auto"]
    assert f"python -m lllaunch plan {' '.join(renew)}" in ended.err
    assert call(verb.plan, renew, capsys).code == 0
    trainer = valid(plan(*two_nodes).out)
    assert locked in trainer["env"]
    assert trainer["args"] == renew[1:]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("vision/Resnet_50.v2", "vision-resnet-50-v2"),
        ("3d", "run-3d"),
        ("\N{SNOWMAN}", ""),
        ("a" * 70, "a" * 40),
    ],
)
def test_names_are_made_of_experiments(experiment: str, name: str) -> None:
    assert name_for(experiment) == name
    if name:
        assert name_for(name) == name
        # JobSet's rule for the names of pods
        assert len(f"{name}-node-0-7-abcde") <= 63
