"""``python -m lllaunch`` as its user runs it: entrypoints, overrides, Hydra's own flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.project import Project, result


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
    ended = project.lllaunch("+exp=x", "params.lr=2.0")
    assert ended.returncode == 0, ended.stderr
    found = result(project.run_dir())
    assert found["state"] == "succeeded"
    assert [found["return_values"][rank]["value"] for rank in ("0", "1")] == [
        {"loss": 8.0, "rank": 0, "device": "cuda:0"},
        {"loss": 8.0, "rank": 1, "device": "cuda:1"},
    ]


def test_script_gets_argv_and_reports_a_value(project: Project) -> None:
    project.write(
        "train.py",
        """
        import os, sys
        import lllaunch

        print("argv", sys.argv[1:])
        lllaunch.report(int(os.environ["RANK"]) + 10)
        """,
    )
    project.experiment("x", "{entrypoint: train.py, nproc: 2, args: {epochs: 3, amp: true}}")
    ended = project.lllaunch("+exp=x")
    assert ended.returncode == 0, ended.stderr
    run = project.run_dir()
    for rank in (0, 1):
        out = (run / f"attempt_0/{rank}/stdout.log").read_text()
        assert out == "argv ['--epochs', '3', '--amp']\n"
    values = result(run)["return_values"]
    assert [values[rank]["value"] for rank in ("0", "1")] == [10, 11]


def test_module_runs_as_main(project: Project) -> None:
    project.write("pkg/__init__.py", "")
    project.write("pkg/job.py", "print(__name__, __package__)\n")
    project.experiment("x", "{entrypoint: '-m pkg.job'}")
    ended = project.lllaunch("+exp=x")
    assert ended.returncode == 0, ended.stderr
    assert (project.run_dir() / "attempt_0/0/stdout.log").read_text() == "__main__ pkg\n"


def test_program_is_looked_up_on_path(project: Project) -> None:
    project.experiment("x", "{entrypoint: printf, args: ['%s|', a b, '${worker:rank}']}")
    ended = project.lllaunch("+exp=x", "launch.nproc=2")
    assert ended.returncode == 0, ended.stderr
    assert (project.run_dir() / "attempt_0/1/stdout.log").read_text() == "a b|1|"


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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--cfg", "job"], "max_restarts: null"),
        (["--cfg", "hydra"], "name: lllaunch"),
        (["--help"], "python -m lllaunch +exp=NAME"),
    ],
)
def test_hydras_flags_show_and_run_nothing(
    project: Project, flags: list[str], expected: str
) -> None:
    shown = project.lllaunch(*flags)
    assert shown.returncode == 0, shown.stderr
    assert expected in shown.stdout
    assert os.listdir(project.root) == []


def test_with_q_nothing_is_said_while_all_goes_well(project: Project) -> None:
    project.write("train.py", "import sys; sys.exit(int(sys.argv[1]))")
    project.experiment("x", "{entrypoint: train.py, args: ['${params.code}']}", "params: {code: 0}")
    project.write(
        "own.py",
        """
        import lllaunch

        @lllaunch.main(config_path=None)
        def train(cfg): ...

        if __name__ == "__main__":
            train()
        """,
    )
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


@pytest.mark.parametrize(("entrypoint", "wrong"), [("work:trian", "trian"), ("work:train", "lrr")])
def test_a_function_that_cannot_be_called_is_found_out_before_the_attempt(
    project: Project, entrypoint: str, wrong: str
) -> None:
    project.write("work.py", "def train(lr): ...\n")
    project.experiment("x", f"{{entrypoint: '{entrypoint}', args: {{lrr: 1}}}}")
    ended = project.lllaunch("+exp=x")
    assert ended.returncode == 2
    assert wrong in ended.stderr
    assert list(project.root.rglob("attempt_*")) == []


@pytest.mark.parametrize(("argv", "code"), [("+exp=nope=x", 1), ("launch.nproc=2", 2)])
def test_hydra_full_error_shows_the_traceback(project: Project, argv: str, code: int) -> None:
    ended = project.lllaunch(argv, env={"HYDRA_FULL_ERROR": "1"})
    assert ended.returncode == code
    assert "Traceback" in ended.stderr


def test_an_interrupt_while_hydra_composes_ends_with_130_and_leaves_nothing(
    project: Project,
) -> None:
    # a resolver that is called while Hydra composes is the one place where a user's code runs then
    project.write(
        "interrupted.py",
        """
        import os, signal, sys
        from omegaconf import OmegaConf
        from lllaunch.cli import main

        def resolver():
            os.kill(os.getpid(), signal.SIGINT)

        OmegaConf.register_new_resolver("interrupt", resolver)
        sys.exit(main())
        """,
    )
    ended = project.python("interrupted.py", "hydra.run.dir=${interrupt:}")
    assert ended.returncode == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert project.run_dirs() == []


def test_the_launcher_never_imports_torch(project: Project) -> None:
    project.write("work.py", "def train(): return 1\n")
    project.experiment("x", "{entrypoint: 'work:train', nproc: 2}")
    project.write(
        "watched.py",
        """
        import sys
        from lllaunch.cli import main

        code = main()
        print("torch" in sys.modules, "numpy" in sys.modules)
        sys.exit(code)
        """,
    )
    ended = project.python("watched.py", "+exp=x")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "False False"
