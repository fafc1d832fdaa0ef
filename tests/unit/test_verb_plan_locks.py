"""`python -m lllaunch plan --lock` and `--diff`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Project
from support.verbs import Called, call, listing

from lllaunch.verbs import plan as verb

SECRET = "planted-cafe1234"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return fill(tmp_path)


def fill(root: Path) -> Project:
    found = Project(root)
    found.experiment("a", "{entrypoint: env, args: ['${lr}'], nproc: 2}", "lr: 1")
    found.experiment(
        "vision/b", "{entrypoint: env, nproc: gpu, env: {A_KEY: '${oc.env:MY_TOKEN}'}}"
    )
    found.write("conf/sub/deep.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    found.write("more/extra/x.yaml", "y: 1\n")
    return found


@pytest.fixture
def plan(project: Project, capsys: pytest.CaptureFixture[str]) -> Called:
    return lambda *argv: call(verb.plan, argv, capsys)


def lock(project: Project, name: str) -> Any:
    return yaml.safe_load((project.root / f"conf/locks/{name}.yaml").read_text())


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["+exp=a", "--name", "other/name"], "other/name"),
        (["+exp=a", "launch.locked=mine"], "mine"),
        (["--config-name", "sub/deep"], "sub/deep"),
        (["--config-dir", "more", "+extra=x", "+exp=a"], "a"),
        (["+exp=a", "++launch.env.B_TOKEN=${oc.env:MY_TOKEN}"], "a"),
        (["-m", "+exp=a", "launch.args=['${oc.env:MY_TOKEN}'],[b]"], "a"),
    ],
)
def test_a_lock_is_the_same_everywhere_and_its_command_renews_it(
    argv: list[str],
    name: str,
    plan: Called,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    before = listing(project.root)
    ended = plan("--lock", *argv)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"wrote conf/locks/{name}.yaml: the plan is new\n"
    path = Path(f"conf/locks/{name}.yaml")
    text = path.read_text()
    added = listing(project.root).keys() - before.keys()
    assert {each for each in added if Path(each).is_file()} == {str(path)}
    assert SECRET not in text
    assert str(tmp_path) not in text
    # the same plan again: the same bytes, and told so
    told = f"wrote {path}: the plan is the same\n"
    assert plan("--lock", *argv) == (0, told, "")
    assert path.read_text() == text
    assert plan("--diff", *argv) == (0, f"{path}: the plan is the reviewed one\n", "")
    # what the header says renews it
    (renew,) = [line for line in text.splitlines() if line.startswith("#   python -m lllaunch ")]
    words = shlex.split(renew.removeprefix("#   python -m lllaunch "))
    assert words[:2] == ["plan", "--lock"]
    assert words[2:] == lock(project, name)["command"]
    if "launch.locked=mine" not in argv:
        assert plan(*words[1:]) == (0, told, "")
        assert path.read_text() == text
    # and from another place, on another machine
    elsewhere = fill(tmp_path / "else where")
    monkeypatch.chdir(elsewhere.root)
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MY_TOKEN", "another")
    assert plan("--lock", *argv).code == 0
    assert (elsewhere.root / path).read_text() == text


def test_what_has_changed_is_told_and_locked(plan: Called, project: Project) -> None:
    assert plan("--lock", "+exp=a").code == 0
    text = (project.root / "conf/locks/a.yaml").read_text()
    project.experiment("a", "{entrypoint: env, args: ['${lr}', new], nproc: 3}", "lr: 5\n")
    lines = ['launch.args: ["1"] -> ["5", "new"]', "launch.nproc: 2 -> 3"]
    assert plan("--diff", "+exp=a") == (5, "\n".join([*lines, ""]), "")
    told = json.loads(plan("--diff", "--json", "+exp=a").out)
    assert told["differs"] is True
    (one,) = told["locks"]
    assert one["lock"] == "conf/locks/a.yaml"
    assert one["changes"][1] == {"key": "launch.nproc", "kind": "changed", "old": 2, "new": 3}
    # to look changes nothing
    assert (project.root / "conf/locks/a.yaml").read_text() == text
    ended = plan("--lock", "+exp=a")
    changed = [f"  {line}" for line in lines]
    assert ended.out.splitlines() == ["wrote conf/locks/a.yaml: 2 changed", *changed]
    # what is no part of the plan
    others = ("+other=1", "hydra.run.dir=elsewhere", "launch.locked=true")
    told = json.loads(plan("--diff", "--json", "+exp=a", *others).out)
    assert told == {"differs": False, "locks": [{"lock": "conf/locks/a.yaml", "changes": []}]}


def test_a_missing_an_edited_and_a_broken_lock(plan: Called, project: Project) -> None:
    ended = plan("--diff", "+exp=a", "lr=2")
    assert (ended.code, ended.out) == (5, "")
    assert "conf/locks/a.yaml" in ended.err
    assert "python -m lllaunch plan --lock +exp=a lr=2" in ended.err
    plan("--lock", "+exp=a")
    path = project.root / "conf/locks/a.yaml"
    text = path.read_text()
    path.write_text(text.replace("nproc: 2", "nproc: 4"))
    ended = plan("--diff", "+exp=a")
    assert (ended.code, ended.out) == (5, "")
    assert "edited by hand" in ended.err
    path.write_text("lock: [")
    ended = plan("--diff", "+exp=a")
    assert (ended.code, ended.out) == (2, "")
    assert "conf/locks/a.yaml" in ended.err
    assert "Traceback" not in ended.err
    # and is replaced when somebody asks for that
    assert plan("--lock", "+exp=a").code == 0
    assert path.read_text() == text


@pytest.mark.parametrize("mode", ["--lock", "--diff"])
def test_a_run_without_a_name_needs_one(mode: str, plan: Called, project: Project) -> None:
    before = listing(project.root)
    ended = plan(mode, "launch.entrypoint=env")
    assert (ended.code, ended.out) == (2, "")
    assert "--name" in ended.err
    assert listing(project.root) == before


def test_each_experiment_of_a_sweep_has_its_own_lock(plan: Called, project: Project) -> None:
    ended = plan("--lock", "-m", "+exp=a,vision/b", "launch.role=r")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "wrote conf/locks/a.yaml: the plan is new",
        "wrote conf/locks/vision/b.yaml: the plan is new",
    ]
    # they are the locks of single runs, too
    for name in ("a", "vision/b"):
        assert lock(project, name)["command"] == [f"+exp={name}", "launch.role=r"]
        assert plan("--diff", f"+exp={name}", "launch.role=r").code == 0
    ended = plan("--diff", "-m", "+exp=a,vision/b")
    assert ended.code == 5
    assert ended.out.count('launch.role: "r" -> "default"') == 2
