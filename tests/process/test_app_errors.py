"""How ``python -m lllaunch`` fails: exit codes, messages, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.project import Project, environment, quiet_environment, result


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "my project")


def attempts(project: Project) -> list[Path]:
    return list(project.root.rglob("attempt_*"))


def test_several_mistakes_are_told_together_and_nothing_starts(project: Project) -> None:
    project.experiment("x", "{entrypoint: 'true', tee: al, nprocs: 2, max_restarts: -1}")
    ended = project.lllaunch("+exp=x", env=quiet_environment())
    assert ended.returncode == 2
    assert "launch.tee: expected a mask" in ended.stderr
    assert "did you mean 'all'?" in ended.stderr
    assert "launch.nprocs" in ended.stderr
    assert "launch.max_restarts" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert attempts(project) == []


def test_keys_of_the_watchdog_and_of_restarts_are_set_and_checked_from_the_command_line(
    project: Project,
) -> None:
    project.experiment("x", "{entrypoint: 'true', restart: {on: [hang]}}")
    right = ("launch.watchdog.stall=10m", "launch.restart.delay=5s", "hydra.run.dir=right")
    ended = project.lllaunch("+exp=x", *right, env=quiet_environment())
    assert ended.returncode == 0, ended.stderr
    plan = yaml.safe_load((project.root / "right/plan.yaml").read_text())["launch"]
    assert plan["watchdog"]["stall"] == "10m"
    assert plan["restart"] == {"on": ["hang"], "delay": "5s"}

    wrong = ("launch.watchdog.stal=10m", "launch.restart.delay=6m", "hydra.run.dir=wrong")
    ended = project.lllaunch("+exp=x", *wrong, env=quiet_environment())
    assert ended.returncode == 2
    assert "launch.watchdog.stal: unknown setting; did you mean 'stall'?" in (ended.stderr)
    assert "launch.restart.delay: '6m' is more than launch.restart.max_delay" in ended.stderr
    assert list((project.root / "wrong").glob("attempt_*")) == []


def test_a_users_own_app_has_the_same_keys_and_messages(project: Project) -> None:
    project.write(
        "train.py",
        """
        import lllaunch

        @lllaunch.main(config_path=None, version_base="1.3")
        def train(cfg):
            return 1

        if __name__ == "__main__":
            train()
        """,
    )
    overrides = ("launch.watchdog.stall=10m", "launch.watchdog.preset=strict")
    ended = project.python("train.py", *overrides, env=quiet_environment())
    assert ended.returncode == 0, ended.stderr
    plan = yaml.safe_load((project.run_dir() / "plan.yaml").read_text())["launch"]
    assert (plan["watchdog"]["stall"], plan["watchdog"]["stall_scope"]) == ("10m", "rank")

    ended = project.python("train.py", "launch.watchdog=strickt", env=quiet_environment())
    assert ended.returncode == 2
    assert "launch.watchdog: expected a preset" in ended.stderr
    assert "did you mean 'strict'?" in ended.stderr


def test_a_missing_conf_directory_is_named(project: Project) -> None:
    ended = project.lllaunch("+exp=resnet", env=quiet_environment())
    assert ended.returncode == 2
    assert "no config group 'exp'" in ended.stderr
    assert str(project.root / "conf") in ended.stderr
    assert attempts(project) == []


def test_nothing_to_run_is_an_error(project: Project) -> None:
    ended = project.lllaunch("launch.nproc=2")
    assert ended.returncode == 2
    assert "launch.entrypoint: expected an entrypoint" in ended.stderr


def test_a_function_that_is_not_there_is_found_out_before_the_attempt(project: Project) -> None:
    project.write("work.py", "def train(lr): ...\n")
    project.experiment("x", "{entrypoint: 'work:trian', args: {lr: 1}}")
    ended = project.lllaunch("+exp=x", env=quiet_environment())
    assert ended.returncode == 2
    assert "trian" in ended.stderr
    assert attempts(project) == []


def test_arguments_that_do_not_fit_are_found_out_before_the_attempt(project: Project) -> None:
    project.write("work.py", "def train(lr): ...\n")
    project.experiment("x", "{entrypoint: 'work:train', args: {lrr: 1}}")
    ended = project.lllaunch("+exp=x", env=quiet_environment())
    assert ended.returncode == 2
    assert "lrr" in ended.stderr
    assert attempts(project) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cfg", "everything"], "invalid choice"),
        (["+exp=nope"], "no experiment 'nope' in conf/exp; there are x"),
        (["params.nothing=2"], "params"),
        (["params.lr=["], "no viable alternative"),
        (["--cfg", "job", "--info"], "Only one of"),
        (["--help", "+exp=nope"], "no experiment 'nope'"),
        (["--config-dir", "nowhere", "+exp=x"], "not found"),
        (["--config-name", "nowhere"], "nowhere"),
    ],
)
def test_what_hydra_cannot_compose_ends_with_1_and_a_message(
    project: Project, arguments: list[str], message: str
) -> None:
    project.experiment("x", "{entrypoint: 'true'}")
    ended = project.lllaunch(*arguments, env=quiet_environment())
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "HYDRA_FULL_ERROR" not in ended.stderr


OWN_APP = """
    import lllaunch

    @lllaunch.main(config_path="conf", config_name="main")
    def train(cfg):
        pass

    if __name__ == "__main__":
        train()
"""


@pytest.mark.parametrize(
    "argv",
    [
        ("-m", "lllaunch", "+exp=x"),
        # callbacks may change what runs: it is planned after them
        ("-m", "lllaunch", "+exp=x", "+hydra.callbacks.c={_target_: noting.Callback}"),
        ("-m", "lllaunch", "+exp=x", "hydra.job.chdir=true"),
        ("-m", "lllaunch", "+exp=x", "-m", "+lr=1,2"),
        ("-m", "lllaunch", "+exp=x,right", "-m"),
        ("-m", "lllaunch", "plan", "+exp=x"),
        ("-m", "lllaunch", "plan", "+exp=x", "-m", "+lr=1,2"),
        ("own.py", "+exp=x"),
        ("own.py", "+exp=x", "-m", "+lr=1,2", "hydra/launcher=basic", "hydra/sweeper=basic"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_files_name_and_the_line(
    argv: tuple[str, ...], project: Project
) -> None:
    project.write("own.py", OWN_APP)
    project.write("conf/main.yaml", "")
    project.write(
        "noting.py", "from hydra.experimental.callback import Callback as Callback  # noqa: PLC0414"
    )
    text = "# @package _global_\nlaunch:\n  entrypoint: env\n  nproc: ${count}\n  tee: al\n"
    project.write("conf/exp/x.yaml", f"{text}count: two\n")
    project.experiment("right", "{entrypoint: 'true', tee: none}")
    ended = project.python(*argv, env=quiet_environment())
    assert "conf/exp/x.yaml:4: launch.nproc: expected a number" in ended.stderr
    assert "conf/exp/x.yaml:5: launch.tee: expected a mask" in ended.stderr


REFUSED = [
    (("-m", "lllaunch", "+exp=x"), 5),
    (("-m", "lllaunch", "+exp=x", "hydra.job.chdir=true"), 5),
    (("-m", "lllaunch", "+exp=x", "-m", "+lr=1,2"), 5),
    (("-m", "lllaunch", "plan", "+exp=x"), 5),
    (("-m", "lllaunch", "plan", "--lock", "+exp=x"), 5),
    (("-m", "lllaunch", "plan", "+exp=x", "-m", "+lr=1,2"), 5),
    (("-m", "lllaunch", "check"), 5),
]


@pytest.mark.parametrize(("argv", "code"), REFUSED)
def test_what_is_not_allowed_is_told_with_the_files_name_and_the_line(
    argv: tuple[str, ...], code: int, project: Project
) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [ls]}\n")
    project.write("conf/shared.yaml", "launch:\n  preload: [json]\n")
    project.write(
        "conf/exp/x.yaml",
        "# @package _global_\ndefaults: [/shared]\nlaunch:\n"
        "  entrypoint: env\n  env:\n    LD_PRELOAD: x.so\n",
    )
    ended = project.python(*argv, env=quiet_environment())
    assert ended.returncode == code
    text = ended.stdout if argv[-1] == "check" else ended.stderr
    assert "conf/exp/x.yaml:4: launch.entrypoint: 'env' is not in allow.programs" in text
    assert "conf/exp/x.yaml:6: launch.env.LD_PRELOAD: is not in allow.env" in text
    assert "conf/shared.yaml:2: launch.preload: 'json' is not in allow.preload" in text
    assert text.count("'json' is not in") == 1


@pytest.mark.parametrize("argv", [(), ("plan",)])
def test_a_directory_or_package_that_is_not_allowed_is_told_with_its_line(
    argv: tuple[str, ...], project: Project
) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [env]}\n")
    project.experiment("x", "{entrypoint: env}", "hydra:\n  run:\n    dir: /elsewhere/x\n")
    ended = project.lllaunch(*argv, "+exp=x", env=quiet_environment())
    assert ended.returncode == 5
    # a run is refused before it is decided where it would write
    key = "hydra.runtime.output_dir" if argv else "hydra.run.dir"
    directory = f"{key}: '/elsewhere/x' is outside of the tree"
    assert f"conf/exp/x.yaml:5: {directory}" in ended.stderr
    project.write("conf/main.yaml", "hydra:\n  searchpath:\n  - pkg://mine\n")
    paths = ("hydra.searchpath=[pkg://yours]",)
    ended = project.lllaunch(*argv, "--config-name=main", *paths, env=quiet_environment())
    assert ended.returncode == 5
    assert "conf/main.yaml:3: hydra.searchpath[0]: 'pkg://mine' is not in" in ended.stderr
    # on the command line
    assert " hydra.searchpath[0]: 'pkg://yours' is not in" in ended.stderr
    assert "main.yaml:3: hydra.searchpath[0]: 'pkg://yours'" not in ended.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ("-m", "lllaunch", "+exp=x"),
        ("-m", "lllaunch", "+exp=x", "-m", "+lr=1,2"),
        ("own.py", "+exp=x"),
        ("-m", "lllaunch", "plan", "+exp=x"),
        ("-m", "lllaunch", "check"),
    ],
)
def test_a_secret_in_a_file_is_told_with_the_files_name_and_the_line(
    argv: tuple[str, ...], project: Project
) -> None:
    project.write("own.py", OWN_APP)
    project.write("conf/main.yaml", "")
    project.experiment("x", "{entrypoint: env}", "service:\n  token: planted-cafe1234\n")
    env = quiet_environment() | {"GITHUB_ACTIONS": "true"}
    ended = project.python(*argv, env=env)
    assert ended.returncode == 2
    text = ended.stdout if argv[-1] == "check" else ended.stderr
    wrong = "service.token: expected a secret to come from the environment, got a literal"
    assert f"conf/exp/x.yaml:4: {wrong}" in text
    assert "planted" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("more", [(), ("-m", "+lr=1,2")])
def test_github_shows_a_mistake_at_its_line(more: tuple[str, ...], project: Project) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [ls]}\n")
    project.experiment("refused", "\n  entrypoint: env\n  preload: [json]")
    project.experiment("wrong", "\n  entrypoint: ls\n  tee: al")
    project.experiment("secret", "{entrypoint: ls}", "token: planted-cafe1234\n")
    # the checkout is a directory above
    ci = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(project.root.parent)}
    at = f"::error file={project.root.name}/conf/exp"

    def annotations(*argv: str) -> list[str]:
        ended = project.lllaunch(*argv, *more, env=quiet_environment() | ci)
        assert "planted" not in ended.stdout + ended.stderr
        return [line for line in ended.stdout.splitlines() if line.startswith("::")]

    first, second, *rest = annotations("+exp=refused")
    assert first.startswith(
        f"{at}/refused.yaml,line=3,title=lllaunch::launch.entrypoint: 'env' is not in"
    )
    assert second.startswith(f"{at}/refused.yaml,line=4,title=lllaunch::launch.preload: 'json' is")
    # of a sweep that says what jobs they are of
    assert len(rest) == len(more[:1])
    first, *rest = annotations("+exp=wrong", "++launch.nproc=0")
    assert first.startswith(f"{at}/wrong.yaml,line=4,title=lllaunch::launch.tee: expected a mask")
    # what the command line says is in no file
    assert len(rest) == 1
    assert rest[0].startswith("::error title=lllaunch::")
    assert "launch.nproc: expected a number of workers" in rest[0]
    (alone,) = annotations("+exp=secret")
    assert alone.startswith(f"{at}/secret.yaml,line=3,title=lllaunch::token: expected a secret")


def test_github_shows_what_check_finds_at_its_line_below_the_checkout(project: Project) -> None:
    project.experiment("wrong", "\n  entrypoint: ls\n  tee: al")
    ci = {"GITHUB_WORKSPACE": str(project.root.parent)}
    ended = project.lllaunch("check", "--format=github", env=quiet_environment() | ci)
    assert ended.returncode == 2
    at = f"::error file={project.root.name}/conf/exp/wrong.yaml,line=4,title=lllaunch check::"
    assert ended.stdout.startswith(f"{at}launch.tee: expected a mask")


def test_a_mistake_in_a_sweeps_own_settings_is_told_with_its_line(project: Project) -> None:
    project.experiment("x", "{entrypoint: 'true'}", "hydra:\n  launcher:\n    max_parallel: many\n")
    wrong = "hydra.launcher.max_parallel: expected a whole number"
    ended = project.lllaunch("-m", "+exp=x", "+lr=1,2", env=quiet_environment())
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"lllaunch: conf/exp/x.yaml:5: {wrong}")
    given = ("-m", "+exp=x", "+lr=1,2", "hydra.launcher.max_parallel=many")
    ended = project.lllaunch(*given, env=quiet_environment())
    assert ended.stderr.startswith(f"lllaunch: {wrong}")


def test_a_mistake_on_the_command_line_is_told_without_a_file(project: Project) -> None:
    project.experiment("x", "{entrypoint: 'true', tee: none, env: {A: b}}")
    ended = project.lllaunch("+exp=x", "launch.tee=al", "launch.env.B=[1]", env=quiet_environment())
    assert ended.returncode == 2
    assert "launch.tee: expected a mask" in ended.stderr
    assert "launch.env.B: " in ended.stderr
    assert ".yaml" not in ended.stderr


def test_nothing_of_hydras_stands_before_or_after_a_message(project: Project) -> None:
    project.experiment("x", "{entrypoint: 'true', tee: al}")
    project.write(
        "train.py",
        """
        import lllaunch

        @lllaunch.main(config_path=None, version_base="1.3")
        def train(cfg):
            raise ValueError("no luck")

        if __name__ == "__main__":
            train()
        """,
    )
    wrong = "lllaunch: launch.tee: expected a mask"
    refused = project.lllaunch("+exp=x")
    assert refused.stderr.startswith("lllaunch: conf/exp/x.yaml:2: launch.tee: expected a mask")
    assert len(refused.stderr.splitlines()) == 1
    jobs = ("-m", "launch.tee=al,err", "hydra/launcher=basic", "hydra/sweeper=basic")
    swept = project.python("train.py", *jobs)
    assert swept.stderr.splitlines()[-1].startswith(wrong)
    failed = project.python("train.py")
    assert "  Logs: " in failed.stderr.splitlines()[-1]
    for ended in (refused, swept, failed):
        assert "Error executing job" not in ended.stderr
        assert "HYDRA_FULL_ERROR" not in ended.stderr


def test_hydra_full_error_shows_the_traceback(project: Project) -> None:
    ended = project.lllaunch("+exp=nope=x", env={"HYDRA_FULL_ERROR": "1"})
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


def test_full_error_shows_where_our_own_errors_come_from(project: Project) -> None:
    ended = project.lllaunch("launch.nproc=2", env={"HYDRA_FULL_ERROR": "1"})
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert "launch.entrypoint" in ended.stderr


def test_failed_workers_end_it_with_3_and_the_report(project: Project) -> None:
    project.write("bad.py", "raise ValueError('the reason')\n")
    project.experiment("x", "{entrypoint: bad.py}")
    ended = project.lllaunch("+exp=x", env=quiet_environment())
    assert ended.returncode == 3
    assert "the reason" in ended.stderr
    assert "HYDRA_FULL_ERROR" not in ended.stderr
    assert result(project.run_dir())["exit_code"] == 3


def test_a_signal_ends_a_sweep_at_once(project: Project) -> None:
    # the worker interrupts its launcher, which is the process that it has in its arguments
    project.experiment(
        "x", "{entrypoint: sh, args: ['-c', 'kill -INT ${oc.env:LAUNCHER}; sleep 60; exit 9']}"
    )
    launcher = subprocess.Popen(
        [
            *("sh", "-c", 'export LAUNCHER=$$; exec "$@"', "sh"),
            *(sys.executable, "-m", "lllaunch"),
            *("-m", "+exp=x", "launch.nproc=1,2", "launch.grace_period=5s"),
        ],
        cwd=project.root,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGINT, errors
    assert [run.name for run in project.run_dirs()] == ["0"]


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
