"""``python -m lllaunch`` as its user runs it: entrypoints, overrides, Hydra's own flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Project, result


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "my project")


@pytest.mark.smoke
def test_function_gets_its_arguments_and_returns_a_value_per_rank(project: Project) -> None:
    project.write(
        "work.py",
        """
        import os

        def train(lr, scale=1, device=""):
            return {"loss": lr * scale, "rank": int(os.environ["RANK"]), "device": device}
        """,
    )
    project.experiment(
        "x",
        "{entrypoint: 'work:train', nproc: 2,"
        " args: {lr: '${params.lr}', scale: 4, device: 'cuda:${worker:local_rank}'}}",
        "params: {lr: 0.5}",
    )
    project.write(
        "watched.py",
        """
        import sys
        from lllaunch.__main__ import main

        code = main()
        print("torch" in sys.modules, "numpy" in sys.modules)
        sys.exit(code)
        """,
    )
    ended = project.python("watched.py", "+exp=x", "params.lr=2.0")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "False False", "what only workers import"
    found = result(project.run_dir())
    assert found["state"] == "succeeded"
    assert [found["return_values"][rank]["value"] for rank in ("0", "1")] == [
        {"loss": 8.0, "rank": 0, "device": "cuda:0"},
        {"loss": 8.0, "rank": 1, "device": "cuda:1"},
    ]


@pytest.mark.parametrize("override", ["hydra.job.chdir=true", "launch.cwd=elsewhere"])
def test_functions_are_imported_from_where_the_command_was_given(
    project: Project, override: str
) -> None:
    project.write("work.py", "import os\ndef where(): return os.getcwd()\n")
    (project.root / "elsewhere").mkdir()
    project.experiment("x", "{entrypoint: 'work:where', preload: [work]}")
    ended = project.lllaunch("+exp=x", override)
    assert ended.returncode == 0, ended.stderr
    value = result(project.run_dir())["return_values"]["0"]["value"]
    chdir = override.startswith("hydra")
    assert value == str(project.run_dir() if chdir else project.root / "elsewhere")


def test_with_q_nothing_is_said_while_all_goes_well(project: Project) -> None:
    project.write("train.py", "import sys; sys.exit(int(sys.argv[1]))")
    project.experiment("x", "{entrypoint: train.py, args: ['${params.code}']}", "params: {code: 0}")
    own = "@lllaunch.main(config_path=None)\ndef train(cfg): ...\n"
    project.write("own.py", f"import lllaunch\n{own}train()\n")
    assert "attempt 0" in project.lllaunch("+exp=x").stderr
    for ended in (
        project.lllaunch("-q", "+exp=x"),
        project.lllaunch("+exp=x", "launch.console.quiet=true"),
        project.lllaunch("rerun", "--quiet"),
        project.python("own.py", "-q"),
    ):
        assert (ended.returncode, ended.stderr) == (0, "")
    failed = project.lllaunch("+exp=x", "params.code=3", "-q")
    assert failed.returncode == 3
    assert failed.stderr.startswith("lllaunch: FAILED")


# Sends the launcher a signal at a moment after its run has ended.
LATE = """
import atexit, os, signal
from hydra.experimental.callback import Callback

def come(*_):
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))

class Late(Callback):
    def on_job_start(self, config, **_):
        if os.environ["MOMENT"] == "leaving":
            atexit.register(come)

    def on_job_end(self, config, job_return, **_):
        if os.environ["MOMENT"] == "callback":
            come()
"""


@pytest.mark.parametrize(
    ("moment", "signum"),
    [
        ("callback", "SIGHUP"),
        ("callback", "SIGINT"),
        ("callback", "SIGUSR1"),
        ("leaving", "SIGTERM"),
    ],
)
def test_a_signal_after_the_end_does_not_change_the_exit_code(
    project: Project, moment: str, signum: str
) -> None:
    project.write("late.py", LATE)
    late = ("+hydra.callbacks.late._target_=late.Late", "hydra.run.dir=run")
    environ = {"MOMENT": moment, "SIGNAL": signum}
    ended = project.lllaunch("launch.entrypoint=/bin/false", *late, env=environ)
    assert (ended.returncode, result(project.root / "run")["exit_code"]) == (3, 3), ended.stderr
    assert "Traceback" not in ended.stderr
