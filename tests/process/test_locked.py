"""`launch.locked` and the allowlist at run time: runs, sweeps, and apps of users' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project, result

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
    path = project.root / "ran"
    return len(path.read_text().splitlines()) if path.exists() else 0


def starts(project: Project) -> list[Path]:
    """What a run or a sweep would have begun."""
    return [*project.root.rglob("events.jsonl"), *project.root.rglob("attempt_0")]


@pytest.mark.smoke
def test_a_locked_run_runs_if_it_is_the_reviewed_one(project: Project) -> None:
    ended = project.lllaunch("+exp=a", env=LOCKED)
    assert ended.returncode == 5
    assert "this plan has not been reviewed" in ended.stderr
    assert "python -m lllaunch plan --lock +exp=a" in ended.stderr
    assert project.lllaunch("plan", "--lock", "+exp=a").returncode == 0
    ended = project.lllaunch("+exp=a", env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    assert runs(project) == 1
    ended = project.lllaunch("+exp=a", "launch.locked=true", "hydra.run.dir=another")
    assert ended.returncode == 0, ended.stderr
    assert runs(project) == 2
    hashes = {
        result(run)["plan_hash"] for run in project.run_dirs() if (run / "result.json").exists()
    }
    lock = (project.root / "conf/locks/a.yaml").read_text()
    (only,) = hashes
    assert f"plan_hash: {only}\n" in lock
    assert "locked" not in (project.root / "another/plan.yaml").read_text()


def test_what_differs_is_refused_and_told(project: Project) -> None:
    assert project.lllaunch("plan", "--lock", "+exp=a").returncode == 0
    ended = project.lllaunch("+exp=a", "lr=2", "launch.locked=false", env=LOCKED)
    assert ended.returncode == 5
    assert 'launch.args[2]: "1" -> "2"' in ended.stderr
    assert "python -m lllaunch plan --lock +exp=a" in ended.stderr
    # of another name
    ended = project.lllaunch("+exp=a", "launch.locked=b")
    assert ended.returncode == 5
    assert "conf/locks/b.yaml" in ended.stderr
    path = project.root / "conf/locks/a.yaml"
    path.write_text(path.read_text().replace("- '1'\n", "- '2'\n"))
    ended = project.lllaunch("+exp=a", "lr=2", env=LOCKED)
    assert ended.returncode == 5
    assert "edited by hand" in ended.stderr
    assert runs(project) == 0
    assert starts(project) == []
    assert not (project.root / "outputs").exists()  # nor what Hydra makes


def test_what_hydra_sets_for_workers_is_in_no_lock(project: Project) -> None:
    assert project.lllaunch("plan", "--lock", "+exp=a").returncode == 0
    before = (project.root / "conf/locks/a.yaml").read_bytes()
    extra = "+hydra.job.env_set.EXTRA=1"
    ended = project.lllaunch("+exp=a", extra, env=LOCKED)
    assert ended.returncode == 5
    assert "hydra.job.env_set.EXTRA: is in no lock" in ended.stderr
    ended = project.lllaunch("plan", "--lock", "+exp=a", extra)
    assert ended.returncode == 2
    assert (project.root / "conf/locks/a.yaml").read_bytes() == before
    assert runs(project) == 0
    # what workers have anyway
    ended = project.lllaunch("+exp=a", "hydra.job.env_copy=[HOME]", env=LOCKED)
    assert ended.returncode == 0, ended.stderr
    assert project.lllaunch("+exp=a", extra).returncode == 0


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
    ended = project.lllaunch("+exp=a", "lr=3", env=LOCKED)
    assert ended.returncode == 5
    assert '.launch.args[2]: "1" -> "3"' in ended.stderr


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
    project.write(
        "own.py",
        """\
        import lllaunch

        @lllaunch.main(config_path="conf", config_name=None, version_base="1.3")
        def app(cfg):
            open("ran", "a").write("ran\\n")

        if __name__ == "__main__":
            app()
        """,
    )
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
