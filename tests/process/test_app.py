"""``python -m lllaunch`` as its user runs it: entrypoints, overrides, Hydra's own flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.project import Project, quiet_environment, result

pytestmark = pytest.mark.measured


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "my project")


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


def test_rank_zero_is_shown_and_the_others_are_kept(project: Project) -> None:
    project.write("say.py", "import os; print('hello from', os.environ['RANK'])\n")
    project.experiment("x", "{entrypoint: say.py, nproc: 2}")
    ended = project.lllaunch("+exp=x")
    assert "hello from 0" in ended.stdout
    assert "hello from 1" not in ended.stdout
    assert "hello from 1" in (project.run_dir() / "attempt_0/1/stdout.log").read_text()


def test_hydra_writes_its_own_files_beside_ours(project: Project) -> None:
    project.experiment("x", "{entrypoint: 'true'}")
    ended = project.lllaunch("+exp=x", "hydra.run.dir=out put/${hydra.job.name}")
    assert ended.returncode == 0, ended.stderr
    run = project.root / "out put/lllaunch"
    names = {path.name for path in run.iterdir()}
    assert names >= {".hydra", "plan.yaml", "attempt_0", "latest", "events.jsonl", "result.json"}
    assert "+exp=x" in (run / ".hydra/overrides.yaml").read_text()


def test_job_environment_and_working_directory_of_hydra_reach_the_workers(
    project: Project,
) -> None:
    project.write("where.py", "import os; print(os.getcwd(), os.environ['FROM_HYDRA'])\n")
    project.experiment("x", "{entrypoint: where.py}")
    ended = project.lllaunch("+exp=x", "hydra.job.chdir=true", "+hydra.job.env_set.FROM_HYDRA=yes")
    assert ended.returncode == 0, ended.stderr
    run = project.run_dir()
    assert (run / "attempt_0/0/stdout.log").read_text() == f"{run} yes\n"


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


def test_config_name_and_config_dir_choose_among_the_users_configs(project: Project) -> None:
    project.write("conf/mine.yaml", "launch: {entrypoint: echo, args: [mine]}\n")
    project.write("conf/exp/x.yaml", "# @package _global_\nparams: {from: conf}\n")
    project.write("other configs/exp/x.yaml", "# @package _global_\nparams: {from: other}\n")
    shown = project.lllaunch("--config-name", "mine", "--cfg", "job", "launch.nproc=7")
    assert shown.returncode == 0, shown.stderr
    assert "entrypoint: echo" in shown.stdout
    assert "nproc: 7" in shown.stdout
    plain = project.lllaunch("+exp=x", "--cfg", "job", "--package", "params")
    assert "from: conf" in plain.stdout
    other = project.lllaunch(
        "--config-dir=other configs", "+exp=x", "--cfg", "job", "--package", "params"
    )
    assert "from: other" in other.stdout


def test_config_path_replaces_the_place_of_the_primary_config(project: Project) -> None:
    primary = project.write("elsewhere/mine.yaml", "launch: {entrypoint: echo}\n")
    shown = project.lllaunch(
        "--config-path", str(primary.parent), "--config-name", "mine", "--cfg", "job"
    )
    assert "entrypoint: echo" in shown.stdout, shown.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--cfg", "job"], "max_restarts: null"),
        (["--cfg", "hydra"], "name: lllaunch"),
        (["--info", "searchpath"], "pkg://lllaunch.conf"),
        (["--help"], "python -m lllaunch +exp=NAME"),
        (["--version"], "Hydra"),
    ],
)
def test_hydras_flags_show_and_run_nothing(
    project: Project, flags: list[str], expected: str
) -> None:
    shown = project.lllaunch(*flags)
    assert shown.returncode == 0, shown.stderr
    assert expected in shown.stdout
    assert os.listdir(project.root) == []


def test_a_sweep_runs_its_jobs_in_directories_of_their_own(project: Project) -> None:
    project.experiment("x", "{entrypoint: echo, args: ['${params.lr}']}", "params: {lr: 1}")
    ended = project.lllaunch("-m", "+exp=x", "launch.nproc=1,2", "params.lr=3,4")
    assert ended.returncode == 0, ended.stderr
    runs = sorted(project.run_dirs(), key=lambda path: path.name)
    assert [run.name for run in runs] == ["0", "1", "2", "3"]
    shown = [(run / "attempt_0/0/stdout.log").read_text() for run in runs]
    assert shown == ["3\n", "4\n", "3\n", "4\n"]
    workers = [len(list((run / "attempt_0").iterdir())) for run in runs]
    assert workers == [1, 1, 2, 2]


def test_a_failed_job_lets_the_sweep_go_on_and_fails_it(project: Project) -> None:
    project.experiment("x", "{entrypoint: sh, args: ['-c', 'exit ${params.code}']}", "params: {}")
    ended = project.lllaunch("-m", "+exp=x", "+params.code=9,0", env=quiet_environment())
    assert ended.returncode == 6
    states = {run.name: result(run)["state"] for run in project.run_dirs()}
    assert states == {"0": "failed", "1": "succeeded"}
    assert "Traceback" not in ended.stderr


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
    failed = project.lllaunch("+exp=x", "params.code=3", "-q", env=quiet_environment())
    assert failed.returncode == 3
    assert failed.stderr.startswith("lllaunch: FAILED")
