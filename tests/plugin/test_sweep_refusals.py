"""What a sweep refuses, what it then leaves behind, and what it never writes or believes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import until
from support.sweeping import SweepProject

from lllaunch.sweep.journal import Header, read_journal

# no part of any path or of anything that is written otherwise
PLANTED = "planted-cafe1234"


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    found = SweepProject(tmp_path)
    found.experiment("x", "{entrypoint: env, args: ['-0'], tee: none}", "params: {lr: 1}")
    return found


def holding(directory: Path, text: str) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_a_secret_of_the_command_line_stays_a_reference(project: SweepProject) -> None:
    secret = "+params.x=${oc.env:SECRET}"
    ended = project.run("+exp=x", secret, "launch.entrypoint=echo", env={"SECRET": PLANTED})
    assert ended.code == 0, ended.err
    assert holding(project.sweep, PLANTED) == []
    assert PLANTED not in ended.out + ended.err
    header = next(iter(read_journal(str(project.journal)))).record
    assert isinstance(header, Header)
    assert secret in header.command


def test_a_sweep_that_is_refused_leaves_nothing(project: SweepProject) -> None:
    for args in (
        (f"+params.api_key={PLANTED}",),
        ("launch.nproc=1,99",),
        ("params.lr=interval(0,1)",),
        ("hydra.launcher.nporc=2",),
        ("launch.nnodes=1,2", "+launch.rdzv.endpoint=h"),
        ("hydra.sweeper.max_batch_size=3",),
    ):
        ended = project.run("+exp=x", *args)
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert PLANTED not in ended.err
        assert not project.sweep.exists(), args


def test_a_new_sweep_in_an_old_directory_says_what_it_is(project: SweepProject) -> None:
    for lr in (1, 2):
        assert project.run("+exp=x", f"params.lr={lr}").code == 0
    assert "params.lr=2" in (project.sweep / "multirun.yaml").read_text()
    resume = "hydra.launcher.resume=sweep"
    assert project.run("+exp=x", "params.lr=2,3", resume).code == 0
    # that of a resumed one stays
    assert "params.lr=2,3" not in (project.sweep / "multirun.yaml").read_text()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("+launch.env.CUDA_VISIBLE_DEVICES='7'", "launch.env."),
        ("+hydra.job.env_set.CUDA_VISIBLE_DEVICES='7'", "hydra.job.env_set."),
    ],
)
def test_no_job_chooses_its_gpus_against_its_lease(
    project: SweepProject, override: str, key: str
) -> None:
    ended = project.run("+exp=x", override)
    assert ended.code == 2, ended.err
    assert f"{key}CUDA_VISIBLE_DEVICES: '7' is set for each job" in ended.err
    # where there is none to lease it is the user's affair
    assert project.run("+exp=x", override, "hydra.launcher.gpus=0").code == 2
    none = {"LLLAUNCH_PRETEND_GPUS": ""}
    assert project.run("+exp=x", override, env=none).code == 0


CALLBACK = """
import os, sys
from hydra.experimental.callback import Callback

class Leaving(Callback):
    def on_job_start(self, config, **kwargs):
        if os.environ["LEAVE"] == "start":
            sys.exit(0)

    def on_job_end(self, config, job_return, **kwargs):
        if os.environ["LEAVE"] == "end":
            sys.exit(0)
"""


@pytest.mark.parametrize(
    ("leave", "entrypoint", "state"),
    [("start", "true", "error"), ("end", "false", "failed"), ("end", "true", "succeeded")],
)
def test_a_job_whose_launcher_is_left_early_is_what_its_run_was(
    project: SweepProject, leave: str, entrypoint: str, state: str
) -> None:
    project.write("leaving.py", CALLBACK)
    project.experiment("z", f"{{entrypoint: '{entrypoint}'}}")
    ended = project.run(
        "+exp=z", "+hydra.callbacks.leaving._target_=leaving.Leaving", env={"LEAVE": leave}
    )
    assert ended.code == (0 if state == "succeeded" else 6), ended.err
    assert project.states() == {0: state}
    if leave == "end":
        assert project.result(0)["state"] == state


def test_a_name_made_from_the_moment_does_not_keep_a_sweep_from_being_resumed(
    project: SweepProject,
) -> None:
    project.experiment(
        "now",
        "{entrypoint: echo, args: ['${params.name}'], env: {NAME: '${params.name}'}}",
        "params: {name: '${now:%H%M%S%f}'}",
    )
    assert project.run("+exp=now", "+x=1,2").code == 0
    names = project.log(0)
    ended = project.run("+exp=now", "+x=1,2,3", "hydra.launcher.resume=sweep")
    assert ended.code == 0, ended.err
    assert project.tries() == {0: 1, 1: 1, 2: 1}
    assert project.log(0) == names


APP = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    return cfg.sort_key

main()
"""
OURS = ("hydra/launcher=lllaunch", "hydra/sweeper=lllaunch")


def test_jobs_that_differ_in_what_only_sounds_secret_are_not_mixed_up(
    project: SweepProject,
) -> None:
    project.write("app.py", APP)
    for values, more in (("name,date", ()), ("size,date", ("hydra.launcher.resume=sweep",))):
        ended = project.run(*OURS, f"+sort_key={values}", *more, python=("app.py", "-m"))
        assert ended.code == 0, ended.err
    assert project.tries() == {0: 1, 1: 1, 2: 1}
    values = [job["return_value"] for job in project.document()["jobs"]]
    assert [str(value).strip('"') for value in values] == ["name", "date", "size"]
    assert len(project.numbers()) == 3


def test_an_app_without_a_file_is_forked(project: SweepProject) -> None:
    command = [sys.executable, "-", "-m", *OURS, "+sort_key=name", "hydra.sweep.dir=sweep"]
    env = project.environment()
    subprocess.run(command, cwd=project.root, env=env, input=APP.encode(), check=True)
    assert project.states() == {0: "succeeded"}


def test_a_sweep_without_any_stream_runs(project: SweepProject) -> None:
    command = 'exec "$@" <&- >&- 2>&-'
    python = (sys.executable, "-m", "lllaunch", "-m")
    closed = ["sh", "-c", command, "sh", *python, "+exp=x", "hydra.sweep.dir=sweep", "+i=1,2"]
    subprocess.run(closed, cwd=project.root, env=project.environment(), check=True)
    assert project.states() == {0: "succeeded", 1: "succeeded"}


def test_the_composing_of_a_killed_launcher_ends_with_it(project: SweepProject) -> None:
    project.write(
        "slow.py",
        """
        import os, time
        from omegaconf import OmegaConf

        def slow(name):
            if name == "job" and not os.path.exists("composing"):
                open("composing", "w").close()
                time.sleep(600)
            return name

        OmegaConf.register_new_resolver("slow", slow)
        from lllaunch.cli import main
        raise SystemExit(main())
        """,
    )
    project.experiment("s", "{entrypoint: echo, args: ['${slow:job}']}")
    launcher = project.start("+exp=s", python=("slow.py", "-m"))
    until((project.root / "composing").exists, "composing")
    launcher.kill()
    project.all_gone()
