"""`launch.locked` and the allowlist at run time: runs, sweeps, and apps of users' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Project, result, text_of

LOCKED = {"LLLAUNCH_LOCKED": "1"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    (found.root / ".git").mkdir()
    found.experiment("a", "{entrypoint: sh, args: ['-c', 'echo ran >> ran', '${lr}']}", "lr: 1")
    found.write("conf/lllaunch.yaml", "allow: {programs: [sh], env: [EXTRA]}\n")
    return found


def runs(project: Project) -> int:
    """How many workers have run."""
    return text_of(project.root / "ran").count("\n")


@pytest.mark.smoke
def test_a_locked_run_runs_if_it_is_the_reviewed_one(project: Project) -> None:
    ended = project.lllaunch("+exp=a", env=LOCKED)
    assert ended.returncode == 5
    assert "this plan has not been reviewed" in ended.stderr
    assert "python -m lllaunch plan --lock +exp=a" in ended.stderr
    assert project.lllaunch("plan", "--lock", "+exp=a").returncode == 0
    ended = project.lllaunch("+exp=a", "lr=2", "launch.locked=false", env=LOCKED)
    assert ended.returncode == 5
    assert 'launch.args[2]: "1" -> "2"' in ended.stderr
    assert "python -m lllaunch plan --lock +exp=a" in ended.stderr
    assert not (project.root / "outputs").exists()  # nor what Hydra makes
    assert runs(project) == 0
    # with what workers have anyway
    ended = project.lllaunch("+exp=a", "hydra.job.env_copy=[HOME]", env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    ended = project.lllaunch("+exp=a", "launch.locked=true", "hydra.run.dir=another")
    assert ended.returncode == 0, ended.stderr
    assert runs(project) == 2
    lock = (project.root / "conf/locks/a.yaml").read_text()
    for run in project.run_dirs():
        assert f"plan_hash: {result(run)['plan_hash']}\n" in lock
    assert "locked" not in (project.root / "another/plan.yaml").read_text()


def test_no_job_of_a_locked_sweep_starts_if_one_of_them_may_not(project: Project) -> None:
    assert project.lllaunch("plan", "--lock", "-m", "+exp=a", "lr=1,2").returncode == 0
    ended = project.lllaunch("-m", "+exp=a", "lr=1,2,3", env=LOCKED)
    assert ended.returncode == 5
    assert "+exp=a lr=3" in ended.stderr
    assert "+exp=a lr=2" not in ended.stderr
    ended = project.lllaunch("-m", "+exp=a", "lr=1,2", "launch.locked=true,false", "launch.role=x")
    assert ended.returncode == 5
    assert not (project.root / "multirun").exists()
    assert runs(project) == 0
    # in other words, and one job of it alone
    ended = project.lllaunch("-m", "lr=2,1", "+exp=a", env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    ended = project.lllaunch("+exp=a", "lr=2", env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    assert runs(project) == 3


def test_each_experiment_of_a_sweep_is_held_against_its_own_lock(project: Project) -> None:
    project.experiment("vision/b", "{entrypoint: sh, args: ['-c', 'echo ran >> ran']}")
    sweep = ["-m", "+exp=a,vision/b"]
    assert project.lllaunch("plan", "--lock", *sweep).returncode == 0
    ended = project.lllaunch(*sweep, env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    assert project.lllaunch("+exp=vision/b", env=LOCKED).returncode == 0
    assert runs(project) == 3
    project.experiment("vision/b", "{entrypoint: sh, args: ['-c', 'echo more >> ran']}")
    ended = project.lllaunch(*sweep, env=LOCKED)
    assert ended.returncode == 5
    assert "conf/locks/vision/b.yaml" in ended.stderr
    assert runs(project) == 3


def test_a_sweep_in_which_a_value_is_not_allowed_starts_nothing(project: Project) -> None:
    ended = project.lllaunch("-m", "+exp=a", "++launch.env={},{LD_PRELOAD: x}")
    assert ended.returncode == 5, ended.stderr
    assert "LD_PRELOAD" in ended.stderr
    assert not (project.root / "multirun").exists()
    assert runs(project) == 0
    # what is not swept of the launch node is found when the job's turn comes
    ended = project.lllaunch("-m", "+exp=a", "+model={},{_target_: os.system}")
    assert ended.returncode == 6
    assert "model._target_: 'os.system' is not in allow.targets" in ended.stderr
    assert runs(project) == 1


def test_an_app_of_its_own_cannot_be_locked(project: Project) -> None:
    app = "def app(cfg): print('ran', file=open('ran', 'a'))\n"
    decorated = f"@lllaunch.main(config_path='conf', version_base='1.3')\n{app}"
    project.write("own.py", f"import lllaunch\n{decorated}app()\n")
    project.write("conf/lllaunch.yaml", "allow: {entrypoints: ['own.py:app']}\n")
    for argv, env in ((["launch.locked=true"], {}), ([], LOCKED)):
        ended = project.python("own.py", *argv, env=env)
        assert ended.returncode == 5, ended.stderr
        assert "an app of its own" in ended.stderr
    assert runs(project) == 0
    ended = project.python("own.py")
    assert ended.returncode == 0, ended.stderr
    assert runs(project) == 1
    project.write("conf/lllaunch.yaml", "allow: {programs: [sh]}\n")
    ended = project.python("own.py")
    assert ended.returncode == 5
    assert "allow.entrypoints" in ended.stderr
    assert runs(project) == 1
