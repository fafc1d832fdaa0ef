"""`python -m lllaunch rerun RUN`: the same plan again, whatever has become of its config."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Launcher, Project, result, until
from support.verbs import call

from lllaunch.verbs import rerun

SECRET, ANOTHER = "planted-cafe1234", "planted-beef5678"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "a project")
    found.write(
        "say.py", "import os, sys\nprint(sys.argv[1:], os.getcwd(), os.environ['A_TOKEN'])\n"
    )
    found.experiment(
        "a",
        """
          entrypoint: say.py
          args: ["${lr}", "${hydra:runtime.output_dir}/x", "\\\\${no}", "1e3"]
          nproc: 2
          tee: none
          env: {A_TOKEN: "${oc.env:MY_TOKEN}"}""",
        "lr: 1",
    )
    return found


def run(project: Project, directory: str, *argv: str, token: str = SECRET, code: int = 0) -> Path:
    ended = project.lllaunch(*argv, f"hydra.run.dir={directory}", env={"MY_TOKEN": token})
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return project.root / directory


def said(run_dir: Path, rank: int = 0) -> str:
    return (run_dir / f"attempt_0/{rank}/stdout.log").read_text()


def hash_of(run_dir: Path) -> Any:
    return result(run_dir)["plan_hash"]


def test_what_was_left_to_the_environment_is_left_to_it_again(project: Project) -> None:
    project.experiment("left", "{entrypoint: env, nnodes: auto, tee: none}")
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    ended = project.lllaunch("+exp=left", "hydra.run.dir=first", env=job)
    assert ended.returncode == 0, ended.stderr
    first = project.root / "first"
    assert len(result(first)["attempts"][0]["workers"]) == 2
    again = run(project, "again", "rerun", "first")
    assert len(result(again)["attempts"][0]["workers"]) == 1
    assert hash_of(again) == hash_of(first)
    assert (again / "plan.yaml").read_bytes() == (first / "plan.yaml").read_bytes()


@pytest.mark.smoke
def test_the_same_runs_again_without_its_config(project: Project) -> None:
    first = run(project, "first", "+exp=a", "lr=5")
    assert said(first) == f"['5', '{first}/x', '${{no}}', '1e3'] {project.root} {SECRET}\n"
    project.experiment("a", "{entrypoint: env}")
    again = run(project, "again", "rerun", "first", token=ANOTHER)
    assert said(again) == f"['5', '{again}/x', '${{no}}', '1e3'] {project.root} {ANOTHER}\n"
    assert hash_of(again) == hash_of(first)
    assert (again / "plan.yaml").read_bytes() == (first / "plan.yaml").read_bytes()
    shutil.rmtree(project.root / "conf")
    # without Hydra's record, from where the command is given
    shutil.copytree(again, project.root / "bare", ignore=shutil.ignore_patterns(".hydra"))
    bare = run(project, "from bare", "rerun", "bare")
    assert hash_of(bare) == hash_of(first)
    # a file in the run, from another directory, and what was itself a rerun
    run(Project(project.root / "below"), "third", "rerun", "../again/result.json")
    third = project.root / "third"
    assert said(third) == f"['5', '{third}/x', '${{no}}', '1e3'] {project.root} {SECRET}\n"
    assert hash_of(third) == hash_of(first)
    # the worker prints it, and nothing else has it
    for path in project.root.rglob("*"):
        if path.is_file() and path.name != "stdout.log":
            assert SECRET not in path.read_text()
            assert ANOTHER not in path.read_text()


def test_what_of_hydras_node_bears_on_the_job_is_kept(project: Project) -> None:
    project.write("say.py", "import os\nprint(os.getcwd(), os.environ['SET'])\n")
    argv = ["hydra.job.chdir=true", "+hydra.job.env_set={SET: '${oc.env:MY_TOKEN}'}"]
    first = run(project, "first", "+exp=a", *argv)
    again = run(project, "again", "rerun", "first", token=ANOTHER)
    assert said(first) == f"{first} {SECRET}\n"
    assert said(again) == f"{again} {ANOTHER}\n"
    assert hash_of(again) == hash_of(first)


def test_a_job_of_a_sweep_and_its_launchers_defaults(project: Project) -> None:
    sweep = ["-m", "+exp=a", "lr=1,2", "+hydra.launcher.grace_period=7s", "hydra.sweep.dir=many"]
    ended = project.lllaunch(*sweep, env={"MY_TOKEN": SECRET})
    assert ended.returncode == 0, ended.stderr
    again = run(project, "again", "rerun", "many/1")
    assert said(again).startswith("['2', ")
    assert hash_of(again) == hash_of(project.root / "many/1")
    plan = yaml.safe_load((again / "plan.yaml").read_text())
    assert plan["launch"]["grace_period"] == "7s"
    # a job of a locked sweep was reviewed with it
    (project.root / ".git").mkdir()
    project.write("conf/lllaunch.yaml", "allow: {entrypoints: [say.py], env: [A_TOKEN]}\n")
    ended = project.lllaunch("plan", "--lock", *sweep, env={"MY_TOKEN": SECRET})
    assert ended.returncode == 0, ended.stderr
    env = {"MY_TOKEN": SECRET, "LLLAUNCH_LOCKED": "1"}
    assert project.lllaunch("rerun", "many/1", env=env).returncode == 0
    run(project, "another", "+exp=a", "lr=3")
    assert project.lllaunch("rerun", "another", env=env).returncode == 5
    ended = project.lllaunch("rerun", "many")
    assert ended.returncode == 2
    assert "is a sweep" in ended.stderr


def test_a_run_that_was_killed_can_run_again_and_so_can_the_newest(project: Project) -> None:
    launch = {"entrypoint": "sh", "args": ["-c", "test ! -e go && sleep 600"], "tee": "none"}
    launcher = Launcher(project.root, launch)
    until((project.root / "run/attempt_0/0/stdout.log").exists, "the worker")
    launcher.signal(signal.SIGKILL)
    launcher.finish()
    assert not (project.root / "run/result.json").exists()
    project.write("go", "")
    # which now fails, and does so again
    for name in ("run", "latest"):
        ended = project.lllaunch("rerun", name)
        assert ended.returncode == 3
        assert "Traceback" not in ended.stderr


def test_a_rerun_is_held_against_locks_and_policies(project: Project) -> None:
    (project.root / ".git").mkdir()
    allowed = "allow: {entrypoints: [say.py], env: [A_TOKEN]}\n"
    policy = project.write("conf/lllaunch.yaml", allowed)
    env = {"MY_TOKEN": SECRET}

    def lock(*argv: str) -> None:
        assert project.lllaunch("plan", "--lock", *argv, env=env).returncode == 0

    def refused(*argv: str, message: str, **more: str) -> None:
        ended = project.lllaunch("rerun", *argv, env=env | more)
        assert ended.returncode == 5
        assert message in ended.stderr

    lock("+exp=a")
    first = run(project, "first", "+exp=a", "launch.locked=true")
    again = run(project, "again", "rerun", "first")
    assert hash_of(again) == hash_of(first)
    run(project, "other", "+exp=a", "lr=2")
    # by the environment; the first one was locked itself
    refused("other", message='launch.args[0]: "1" -> "2"', LLLAUNCH_LOCKED="1")
    project.experiment("a", "{entrypoint: say.py, args: [new]}")
    lock("+exp=a")
    refused("first", message="the plan is not the reviewed one, conf/locks/a.yaml")
    # by the name of the primary config, which a rerun has another one of
    project.write(
        "conf/own.yaml", "launch: {entrypoint: say.py, locked: true, env: {A_TOKEN: ''}}\n"
    )
    own = ["--config-name", "own", "++launch.env.A_TOKEN=${oc.env:MY_TOKEN}"]
    lock(*own)
    run(project, "own", *own)
    run(project, "own again", "rerun", "own")
    run(project, "and again", "rerun", "own again")
    policy.write_text("allow: {entrypoints: [other.py]}\n")
    refused("other", message="allow.entrypoints")


def test_a_run_does_not_bring_the_policy_that_a_relative_path_names(
    project: Project, tmp_path: Path
) -> None:
    first = run(project, "first", "+exp=a")
    project.write("policy.yaml", "allow: {entrypoints: ['*'], env: ['*']}\n")
    mine = Project(tmp_path / "mine")
    mine.write("policy.yaml", "allow: {entrypoints: []}\n")
    shutil.copytree(first, mine.root / "run")
    ended = mine.lllaunch(
        "rerun", "run", env={"LLLAUNCH_POLICY": "policy.yaml", "MY_TOKEN": SECRET}
    )
    assert ended.returncode == 5
    assert "is not in allow.entrypoints" in ended.stderr


def test_what_cannot_run_again_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(project, "first", "+exp=a")
    before = {path for path in project.root.rglob("*") if "outputs" not in path.parts}
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setattr("sys.argv", ["lllaunch"])

    def refused(*argv: str, code: int = 2) -> str:
        ended = call(rerun.rerun, argv, capsys)
        assert ended.code == code, ended.err
        assert "Traceback" not in ended.err
        return ended.err

    assert "would make another plan" in refused("first", "lr=2")
    assert "would make another plan" in refused("first", "hydra.run.dir=x", "launch.nproc=1")
    assert "does not exist" in refused("nowhere")
    assert "is not the directory of a run" in refused("conf")
    assert "--nothing" in refused("first", "--nothing")
    # of another plan than the one that is there
    plan = (first / "plan.yaml").read_text()
    for text, code, message in (
        (plan.replace("say.py", "gone.py"), 2, "gone.py"),
        (plan.replace("- '1'", "- ${nowhere}"), 2, "nowhere"),
        (plan.replace("nproc: 2", "nproc: 3").replace("tee: none", "tee: 0:none"), 5, "launch.tee"),
        ("", 2, "is no plan"),
    ):
        (first / "plan.yaml").write_text(text)
        assert message in refused("first", code=code)
    (first / "plan.yaml").unlink()
    assert "plan.yaml" in refused("first")
    after = {path for path in project.root.rglob("*") if "outputs" not in path.parts}
    assert before - after == {first / "plan.yaml"}
    assert after <= before
    assert not [*project.root.glob("outputs/**/events.jsonl")]
