"""What is not allowed does not start: the app in this process, until it refuses."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from omegaconf import OmegaConf
from support.project import Project
from support.verbs import Ended, listing

from lllaunch.app import command
from lllaunch.app.gate import asks_for_lock
from lllaunch.app.naming import as_written, job_name
from lllaunch.verbs import plan

# Leaves a file behind when it is imported, and when it is called.
TRAP = "open('sprung', 'w').close()\ndef make(*args, **kwargs): open('sprung', 'w').close()\n"


class Run(Protocol):
    def __call__(self, *argv: str) -> Ended: ...


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)
    found = Project(tmp_path / "tree")
    (found.root / ".git").mkdir()
    monkeypatch.chdir(found.root)
    # the app has it there, too
    monkeypatch.syspath_prepend(str(found.root))
    found.experiment(
        "a", "{entrypoint: env, args: ['${lr}'], nproc: 2}", "lr: 1\nelsewhere: {LD_PRELOAD: x}"
    )
    found.write("conf/lllaunch.yaml", "allow: {programs: [env]}\n")
    found.write("trap/__init__.py", TRAP)
    found.write("trap/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    found.write("trap/__main__.py", TRAP)
    found.write("train.py", "")
    for group in ("job", "hydra"):
        for name, text in (("factory", "'()': trap.make"), ("by_text", "x: ext://trap.make")):
            found.write(
                f"conf/hydra/{group}_logging/{name}.yaml",
                f"version: 1\nformatters: {{mine: {{{text}}}}}\nroot: {{level: INFO}}\n",
            )
    yield found
    assert "trap" not in sys.modules


@pytest.fixture
def run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    def run(*argv: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["lllaunch", *argv])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        capfd.readouterr()
        code = command.run(None)
        return Ended(code, *capfd.readouterr())

    return run


def files(project: Project) -> set[str]:
    return {name for name, content in listing(project.root).items() if content is not None}


@pytest.mark.parametrize(
    ("override", "key", "wanted"),
    [
        ("+hydra.callbacks.mine._target_=trap.make", "hydra.callbacks.mine", "allow.callbacks"),
        ("hydra.searchpath=[file://conf,'pkg://trap']", "hydra.searchpath", "allow.searchpath"),
        ("hydra/job_logging=factory", "hydra.job_logging", "allow.targets"),
        ("hydra/hydra_logging=by_text", "hydra.hydra_logging", "allow.targets"),
        ("hydra.launcher._target_=trap.make", "hydra.launcher", "allow.targets"),
        ("+model._target_=trap.make", "model._target_", "allow.targets"),
        ("+model={name: trap.make, _target_: '${.name}'}", "model._target_", "allow.targets"),
        ("+hydra.job.env_set.PYTHONSTARTUP=trap.py", "PYTHONSTARTUP", "allow.env"),
        ("hydra.job.env_set='${elsewhere}'", "hydra.job.env_set", "write them out"),
    ],
)
def test_what_hydra_would_make_is_refused_before_it_makes_it(
    override: str, key: str, wanted: str, run: Run, project: Project
) -> None:
    before = files(project)
    for more in ((), ("-m",)):
        ended = run(*more, "+exp=a", override)
        assert (ended.code, ended.out) == (5, "")
        assert key in ended.err
        assert wanted in ended.err
        assert "Traceback" not in ended.err
        assert files(project) == before  # nor has Hydra begun a directory


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["+exp=a", "++allow={programs: ['*'], callbacks: ['*']}"], 5),
        (["+exp=a", "+policy=open"], 5),
        (["--config-dir", "mine", "--config-name", "lllaunch", "+exp=a"], 5),
        (["+exp=a", "hydra.searchpath=[file://mine/conf]"], 5),
        (["+exp=a", "hydra.run.dir=mine", "hydra.job.chdir=true"], 5),
        (["+exp=a", "+hydra.job.env_set.LLLAUNCH_POLICY=mine/lllaunch.yaml"], 2),
        (["+exp=a", "+hydra.job.env_set.LLLAUNCH_LOCKED=0"], 2),
    ],
)
def test_no_override_changes_what_is_allowed(
    argv: list[str], code: int, run: Run, project: Project
) -> None:
    lenient = "allow: {programs: ['*'], callbacks: ['*'], targets: ['*'], searchpath: ['*']}\n"
    project.write("mine/lllaunch.yaml", lenient)
    project.write("mine/conf/lllaunch.yaml", lenient)
    project.write("conf/policy/open.yaml", f"# @package _global_\n{lenient}")
    for more in ("launch.entrypoint=sh", "+hydra.callbacks.mine._target_=trap.make"):
        ended = run(*argv, more)
        assert ended.code == code
        assert "allow." in ended.err or "LLLAUNCH_" in ended.err
        assert not Path("sprung").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["+exp=a", "--config-path=pkg://trap"],
        ["+exp=a", "hydra.mode=MULTIRUN", "launch.entrypoint=env,sh"],
        ["+exp=a", "hydra.output_subdir=../../../../out"],
        ["+exp=a", "hydra.run.dir=../out"],
        ["-m", "+exp=a", "hydra.sweep.dir=../out"],
        ["-m", "+exp=a", "hydra/launcher=basic", "hydra/sweeper=basic", "launch.preload=[trap]"],
    ],
)
def test_a_run_reads_and_writes_in_the_tree_alone(
    argv: list[str], run: Run, project: Project
) -> None:
    ended = run(*argv)
    assert ended.code == 5
    assert "Traceback" not in ended.err
    assert not list(project.root.rglob("attempt_0"))
    assert not (project.root.parent / "out").exists()


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch sprung",))


@pytest.mark.parametrize("flag", ["--experimental-rerun", "--exp"])
@pytest.mark.parametrize("locked", [False, True])
def test_no_pickle_is_loaded_where_there_are_rules(
    flag: str, locked: bool, run: Run, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "config.pickle").write_bytes(pickle.dumps(_Evil()))
    if locked:
        (project.root / "conf/lllaunch.yaml").unlink()
        monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = run(flag, "config.pickle")
    assert ended.code == 5
    assert "--experimental-rerun" in ended.err
    assert not Path("sprung").exists()


def test_a_lock_is_that_of_the_project_wherever_hydra_changes_to(
    run: Run, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan.main(["--lock", "+exp=a"]) == 0
    reviewed = (project.root / "conf/locks/a.yaml").read_text()
    assert plan.main(["--lock", "+exp=a", "launch.nproc=3"]) == 0
    project.write("there/conf/locks/a.yaml", (project.root / "conf/locks/a.yaml").read_text())
    project.write("conf/locks/a.yaml", reviewed)
    monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = run("+exp=a", "launch.nproc=3", "hydra.job.chdir=true", "hydra.run.dir=there")
    assert ended.code == 5
    assert "launch.nproc: 2 -> 3" in ended.err


def test_the_policy_of_the_tree_counts_in_all_of_its_directories(
    run: Run, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project.root / "sub/project"
    project.write("sub/project/conf/exp/b.yaml", "# @package _global_\nlaunch: {entrypoint: sh}\n")
    project.write("sub/project/conf/lllaunch.yaml", "allow: {programs: [sh]}\n")
    monkeypatch.chdir(below)
    ended = run("+exp=b")
    assert ended.code == 5
    assert "allow.programs" in ended.err
    ended = run("+exp=b", "+hydra.callbacks.mine._target_=trap.make")
    assert ended.code == 5


def test_another_policy_is_named_by_the_environment(
    run: Run, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "policy.yaml"
    other.write_text("allow: {programs: [true]}\n")
    monkeypatch.setenv("LLLAUNCH_POLICY", str(other))
    ended = run("+exp=a")
    assert ended.code == 2  # true is no text
    other.write_text("allow: {programs: ['true']}\n")
    ended = run("+exp=a")
    assert ended.code == 5
    assert str(other) in ended.err
    monkeypatch.setenv("LLLAUNCH_POLICY", str(tmp_path / "nowhere.yaml"))
    ended = run("+exp=a")
    assert ended.code == 2
    assert "nowhere.yaml" in ended.err


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("allow:\n  programs: [env]\n  program: [sh]\n", 3),
        ("\n\nallow: !!python/object:trap.make {}\n", 3),
        ("allow: &a [*a]\n", 1),
    ],
)
def test_a_broken_policy_lets_nothing_start(
    policy: str, line: int, run: Run, project: Project
) -> None:
    project.write("conf/lllaunch.yaml", policy)
    before = files(project)
    ended = run("+exp=a")
    assert (ended.code, ended.out) == (2, "")
    assert f"conf/lllaunch.yaml:{line}" in ended.err
    assert "Traceback" not in ended.err
    assert files(project) == before


@pytest.mark.parametrize("argv", [["launch.locked=true"], ["-m"], []])
def test_without_a_policy_nothing_locked_starts(
    argv: list[str], run: Run, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "conf/lllaunch.yaml").unlink()
    if "launch.locked" not in " ".join(argv):
        monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    before = files(project)
    ended = run(*argv, "+exp=a", "+hydra.callbacks.mine._target_=trap.make")
    assert (ended.code, ended.out) == (5, "")
    assert "conf/lllaunch.yaml" in ended.err
    assert files(project) == before


# ---------------------------------------------------------------- parts


def test_a_job_is_named_as_its_overrides_were_written_without_its_secrets() -> None:
    config = OmegaConf.create({"a": 1, "task": ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]})
    assert as_written(config.task) == ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]
    named = "'a=b c' 'launch.env.A_TOKEN=${oc.env:A_TOKEN}'"
    assert job_name(["a=b c", "launch.env.A_TOKEN=abc"]) == named


@pytest.mark.parametrize(
    ("launch", "asked"),
    [
        ({}, False),
        ({"locked": True}, True),
        ({"locked": "name"}, True),
        ({"locked": "${nowhere}"}, True),
    ],
)
def test_what_asks_for_a_lock(
    launch: dict[str, object], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLLAUNCH_LOCKED", raising=False)
    config = OmegaConf.create({"launch": launch})
    assert asks_for_lock(config) is asked
    for value, locks in (("1", True), ("yes", True), ("0", False), ("", False), (" No ", False)):
        monkeypatch.setenv("LLLAUNCH_LOCKED", value)
        assert asks_for_lock(config) is (asked or locks)
