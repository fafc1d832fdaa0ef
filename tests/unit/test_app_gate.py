"""What is not allowed does not start: the app in this process, until it refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from omegaconf import OmegaConf
from support.project import Project
from support.verbs import Ended, hydra_put_back, listing

from lllaunch.app import command
from lllaunch.app.gate import asks_for_lock
from lllaunch.app.naming import as_written, experiment_name, job_name, unlocked

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
    found.experiment("a", "{entrypoint: env, args: ['${lr}'], nproc: 2}", "lr: 1")
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
    with hydra_put_back():
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
        ("+hydra.callbacks.mine._target_=trap.make", "hydra.callbacks.mine", "callbacks"),
        ("+hydra.callbacks.mine={_target_: trap.make}", "hydra.callbacks.mine", "callbacks"),
        ("hydra.searchpath=[pkg://trap]", "hydra.searchpath", "searchpath"),
        ("hydra.searchpath=[file://conf,'pkg://trap']", "hydra.searchpath", "searchpath"),
        ("hydra/job_logging=factory", "hydra.job_logging", "targets"),
        ("+hydra.job_logging.formatters.mine.class=trap.make", "hydra.job_logging", "targets"),
        ("hydra/hydra_logging=factory", "hydra.hydra_logging", "targets"),
        ("hydra/hydra_logging=by_text", "hydra.hydra_logging", "targets"),
        ("hydra.launcher._target_=trap.make", "hydra.launcher", "targets"),
        ("hydra.sweeper._target_=trap.make", "hydra.sweeper", "targets"),
        ("+model._target_=trap.make", "model._target_", "targets"),
        ("+deep.list=[{a: {_target_: trap.make}}]", "deep.list[0].a._target_", "targets"),
        ("+model={name: trap.make, _target_: '${.name}'}", "model._target_", "targets"),
        ("+hydra.job.env_set.PYTHONSTARTUP=trap.py", "PYTHONSTARTUP", "env"),
        ("+hydra.job.env_set={LD_PRELOAD: x}", "LD_PRELOAD", "env"),
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
        assert f"allow.{wanted}" in ended.err
        assert "Traceback" not in ended.err
        assert files(project) == before  # nor has Hydra begun a directory


@pytest.mark.parametrize(
    ("overrides", "key", "wanted"),
    [
        (["launch.entrypoint=train.py"], "launch.entrypoint", "entrypoints"),
        (["launch.entrypoint=trap:make", "launch.args=null"], "launch.entrypoint", "entrypoints"),
        (["launch.entrypoint='-m trap'"], "launch.entrypoint", "entrypoints"),
        (["launch.entrypoint=sh"], "launch.entrypoint", "programs"),
        (["launch.entrypoint=/bin/sh"], "launch.entrypoint", "programs"),
        (["launch.preload=[trap]"], "launch.preload", "preload"),
        (["++launch.env.LD_PRELOAD=x"], "launch.env.LD_PRELOAD", "env"),
        (["++launch.env.PATH=x:/usr/bin:/bin"], "launch.env.PATH", "env"),
        (["++launch.env_per_rank={1: {PYTHONPATH: x}}"], "PYTHONPATH", "env"),
        (["launch.log_dir=@OUT@/logs"], "launch.log_dir", "paths"),
        (["launch.cwd=@OUT@"], "launch.cwd", "paths"),
    ],
)
def test_what_a_run_may_not_be_is_refused_before_it_starts(
    overrides: list[str], key: str, wanted: str, run: Run, project: Project, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    before = files(project)
    ended = run("+exp=a", *(text.replace("@OUT@", str(outside)) for text in overrides))
    assert ended.code == 5
    assert key in ended.err
    assert f"allow.{wanted}" in ended.err
    assert "Traceback" not in ended.err
    made = files(project) - before
    # Hydra's record of what was asked for, and nothing of a run
    assert {Path(name).name for name in made} <= {
        *("config.yaml", "hydra.yaml", "overrides.yaml", "lllaunch.log")
    }
    assert list(outside.iterdir()) == []


def test_no_override_changes_what_is_allowed(run: Run, project: Project) -> None:
    lenient = "allow: {programs: ['*'], callbacks: ['*'], targets: ['*'], searchpath: ['*']}\n"
    project.write("mine/lllaunch.yaml", lenient)
    project.write("mine/conf/lllaunch.yaml", lenient)
    project.write("conf/policy/open.yaml", f"# @package _global_\n{lenient}")
    for argv in (
        ["+exp=a", "+allow.programs=['*']"],
        ["+exp=a", "++allow={programs: ['*'], callbacks: ['*']}"],
        ["+exp=a", "+lllaunch.allow.programs=['*']"],
        ["+exp=a", "+policy=open"],
        ["--config-name", "lllaunch", "+exp=a"],
        ["--config-dir", "mine", "--config-name", "lllaunch", "+exp=a"],
        ["--config-dir", "mine", "+exp=a"],
        ["+exp=a", "hydra.searchpath=[file://mine/conf]"],
        ["+exp=a", "+hydra.job.env_set.LLLAUNCH_POLICY=mine/lllaunch.yaml"],
        ["+exp=a", "hydra.run.dir=mine", "hydra.job.chdir=true"],
    ):
        ended = run(*argv, "launch.entrypoint=sh")
        assert ended.code in {2, 5}, argv
        assert "allow." in ended.err or "LLLAUNCH_POLICY" in ended.err
        ended = run(*argv, "+hydra.callbacks.mine._target_=trap.make")
        assert ended.code in {2, 5}, argv
        assert not Path("sprung").exists()


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
        ("allow:\n  programs: env\n", 2),
        ("allow: [\n", 2),
        ("\n\nallow: !!python/object:trap.make {}\n", 3),
        ("", 1),
        ("allow: &a [*a]\n", 1),
    ],
)
def test_a_broken_policy_lets_nothing_start(
    policy: str, line: int, run: Run, project: Project
) -> None:
    project.write("conf/lllaunch.yaml", policy)
    before = files(project)
    for more in ((), ("-m",)):
        ended = run(*more, "+exp=a")
        assert (ended.code, ended.out) == (2, "")
        assert f"conf/lllaunch.yaml:{line}" in ended.err
        assert "Traceback" not in ended.err
    assert files(project) == before


@pytest.mark.parametrize("argv", [["launch.locked=true"], ["launch.locked=b"], ["-m"], []])
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


def test_names_of_runs() -> None:
    def named(choice: object, primary: object) -> str:
        hydra = {"runtime": {"choices": {"exp": choice}}, "job": {"config_name": primary}}
        return experiment_name(OmegaConf.create({"hydra": hydra}))

    assert named("vision/a", "own") == "vision/a"
    assert named(None, "own") == "own"
    assert named(None, "_lllaunch_app") == ""
    assert named(None, "_lllaunch_again") == ""
    assert named(None, None) == ""


def test_overrides_stay_as_they_were_written() -> None:
    config = OmegaConf.create({"a": 1, "task": ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]})
    assert as_written(config.task) == ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]


def test_a_job_is_named_without_its_secrets() -> None:
    assert job_name(["a=b c", "launch.env.A_TOKEN=abc"]) == (
        "'a=b c' 'launch.env.A_TOKEN=${oc.env:A_TOKEN}'"
    )


def test_what_locks_is_no_part_of_a_command() -> None:
    given = ("+exp=a", "launch.locked=true", "++launch.locked=b", "hydra.mode=RUN", "launch.role=x")
    assert unlocked(given) == ("+exp=a", "launch.role=x")


@pytest.mark.parametrize(
    ("launch", "asked"),
    [
        ({}, False),
        ({"locked": False}, False),
        ({"locked": None}, False),
        ({"locked": True}, True),
        ({"locked": "name"}, True),
        ({"locked": "${nowhere}"}, True),
        ({"locked": "???"}, True),
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
