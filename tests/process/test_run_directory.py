"""Whose a run's directory is: claimed before Hydra writes into it, and a new one by default."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.launching import SLOW_SPAWNER, Launcher, Project, gone, result, text_of, until

from lllaunch.errors import ConfigError
from lllaunch.run.directory import RunDirectory
from lllaunch.testing import live_descendants

_OWN_APP = """
import hydra
import lllaunch

@lllaunch.main(config_path=None, version_base="1.3")
def train(cfg):
    print(cfg.x)

if __name__ == "__main__":
    train()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "my project")
    made.experiment("x", "{entrypoint: echo, args: ['${x}']}", "x: 0")
    made.write("train.py", _OWN_APP)
    return made


def contents(directory: Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "command", [("-m", "lllaunch", "+exp=x", "x="), ("train.py", "+x=")], ids=["app", "own app"]
)
def test_a_refused_launcher_leaves_the_record_of_the_run_that_goes_on_as_it_is(
    project: Project, command: tuple[str, ...]
) -> None:
    *words, x = command
    assert project.python(*words, f"{x}1", "hydra.run.dir=run").returncode == 0
    run = project.root / "run"
    with RunDirectory.claim(str(run)):
        before = contents(run)
        ended = project.python(*words, f"{x}2", "hydra.run.dir=run")
        assert contents(run) == before
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"lllaunch: launch.log_dir: '{run}' is in use by another run")
    assert f"pid {os.getpid()} on " in ended.stderr
    assert "hydra.run.dir" in ended.stderr
    assert "x=1\n" in (run / ".hydra/overrides.yaml").read_text()


def test_what_a_wrong_config_says_does_not_replace_the_record_of_the_run_before(
    project: Project,
) -> None:
    assert project.lllaunch("+exp=x", "hydra.run.dir=run").returncode == 0
    before = contents(project.root / "run")
    ended = project.lllaunch("+exp=x", "hydra.run.dir=run", "launch.nproc=many")
    assert ended.returncode == 2
    after = contents(project.root / "run")
    # it says who claimed it last
    assert before.pop(".lllaunch.lock") != after.pop(".lllaunch.lock")
    assert after == before


def test_a_run_takes_away_the_result_of_the_one_before_it_at_its_start(project: Project) -> None:
    project.experiment("y", "{entrypoint: sh, args: [-c, 'test ! -e \"$OLD\"']}")
    run = project.root / "run"
    for _ in range(2):
        ended = project.lllaunch(
            "+exp=y", f"+launch.env.OLD={run}/result.json", "hydra.run.dir=run"
        )
        assert ended.returncode == 0, ended.stderr
        assert result(run)["state"] == "succeeded"


def test_a_run_waits_for_the_workers_that_a_killed_launcher_has_left_in_its_directory(
    tmp_path: Path,
) -> None:
    run, worker_file, die = (tmp_path / name for name in ("run", "worker", "die"))
    (tmp_path / "sitecustomize.py").write_text(SLOW_SPAWNER)
    environ = {"PYTHONPATH": str(tmp_path), "LET_DIE": str(die)}
    node = {"entrypoint": "sh", "args": ["-c", "echo $$ > worker; exec sleep 1000"]}
    others = {process.pid for process in live_descendants(os.getpid())}
    first = Launcher(tmp_path, node, environ=environ)
    started = [first]
    try:
        until(lambda: text_of(worker_file).endswith("\n"), "the worker")
        worker = int(worker_file.read_text())
        first.kill()
        with pytest.raises(ConfigError) as caught:
            RunDirectory.claim(str(run))
        expected = f"is still in use by workers of a run whose launcher (pid {first.pid} on "
        assert str(caught.value).startswith(f"launch.log_dir: {str(run)!r} {expected}")
        told = re.search(r"wait for them, or end them \(pids (.*)\) \[in-use\]$", str(caught.value))
        assert told is not None
        # and its spawner, which holds the directory for it
        assert str(worker) in told[1].split(", ")
        assert len(told[1].split(", ")) == 2
        second = Launcher(tmp_path, {"entrypoint": "echo", "args": ["0"]}, environ=environ)
        started.append(second)
        second.said(f"waiting for workers that the killed launcher of {str(run)!r} has left\n")
        assert not gone(worker)
        die.touch()
        done = second.finish()
        assert done.code == 0, done.err
        assert gone(worker)
    finally:
        die.touch()
        for each in started:
            each.kill()
        until(lambda: not live_descendants(os.getpid(), but=others), "the end of all")
    assert (run / "attempt_1/0/stdout.log").read_text() == "0\n"


def test_runs_of_one_moment_get_directories_of_their_own(project: Project) -> None:
    moment = "hydra.run.dir=outputs/${now:moment}"
    for x in range(3):
        assert project.lllaunch("+exp=x", f"x={x}", moment).returncode == 0
    outputs = project.root / "outputs"
    assert sorted(os.listdir(outputs)) == ["latest", "moment", "moment-1", "moment-2"]
    for x, name in enumerate(["moment", "moment-1", "moment-2"]):
        assert f"x={x}\n" in (outputs / name / ".hydra/overrides.yaml").read_text()
        assert (outputs / name / "attempt_0/0/stdout.log").read_text() == f"{x}\n"
    assert (outputs / "latest").resolve() == outputs / "moment-2"


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "lllaunch", "+exp=x", "launch.nproc=many"),
        ("-m", "lllaunch", "+exp=x", "launch.nproc=many", "hydra.run.dir=a/b/c"),
        ("-m", "lllaunch", "+exp=x", "hydra.launcher.resume=there"),
        ("train.py", "launch.nproc=many"),
    ],
)
def test_a_refused_run_leaves_nothing_behind(project: Project, words: tuple[str, ...]) -> None:
    before = sorted(os.listdir(project.root))
    assert project.python(*words).returncode == 2
    assert sorted(os.listdir(project.root)) == before


def test_a_log_directory_of_its_own_is_used_and_hydras_stays_apart(project: Project) -> None:
    assert project.lllaunch("+exp=x", "hydra.run.dir=run", "launch.log_dir=logs").returncode == 0
    assert result(project.root / "logs")["state"] == "succeeded"
    assert sorted(os.listdir(project.root / "run")) == [".hydra", ".lllaunch.lock"]


def test_a_callback_that_hydra_calls_before_the_run_still_has_its_say(project: Project) -> None:
    project.write(
        "ours.py",
        """
        import os
        from hydra.experimental.callback import Callback

        class Setting(Callback):
            def on_job_start(self, config, **kwargs):
                os.environ["WORKERS"] = "2"
        """,
    )
    project.experiment(
        "y",
        "{entrypoint: echo, nproc: '${oc.decode:${oc.env:WORKERS,1}}'}",
        "hydra: {callbacks: {ours: {_target_: ours.Setting}}}",
    )
    ended = project.lllaunch("+exp=y", "hydra.run.dir=run")
    assert ended.returncode == 0, ended.stderr
    assert len(result(project.root / "run")["attempts"][0]["workers"]) == 2
