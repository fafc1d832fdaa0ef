"""What `python -m lllaunch` does beside running: its verbs, completion, and what it tells CI."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import WAIT, Project, environment
from support.left import LeftRun

from lllaunch import verbs
from lllaunch.app.command_line import VERBS
from lllaunch.verbs.printing import Parser, perform


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.experiment(
        "x", "{entrypoint: sh, args: ['-c', 'exit ${params.code}']}", "params: {code: 0}"
    )
    return found


def test_github_is_told_of_a_failed_run_and_of_a_sweep(project: Project) -> None:
    summary = project.root / "summary.md"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    ended = project.lllaunch("+exp=x", "params.code=3", env=env)
    assert ended.returncode == 3
    assert ended.stdout.count("::error ") == 1
    ended = project.lllaunch("-m", "+exp=x", "params.code=0,4,5", env=env)
    assert ended.returncode == 6
    # once for each failed job, and not by the jobs' own launchers, too
    assert ended.stdout.count("::error ") == 2
    assert summary.read_text().count("\n#") >= 1


def test_the_help_names_every_verb_and_nobody_needs_to_read_it_to_the_end(project: Project) -> None:
    shown = project.lllaunch("--help").stdout
    for verb in VERBS:
        assert f"\n  {verb} " in shown
        assert verbs.verb(verb)(["--help"]) == 0
    script = f"{shlex.quote(sys.executable)} -m lllaunch --help | true; exit ${{PIPESTATUS[0]}}"
    unread = subprocess.run(["bash", "-c", script], capture_output=True, timeout=WAIT, check=False)
    assert (unread.returncode, unread.stderr) == (0, b"")


@pytest.mark.parametrize("output", [">&-", "> /dev/full"])
@pytest.mark.parametrize("verb", ["ls .", "show run", "logs run", "report run"])
def test_output_that_nobody_gets_is_told(tmp_path: Path, verb: str, output: str) -> None:
    LeftRun(tmp_path / "run").log(0, "stdout", "said\n")
    (tmp_path / "run" / ".lllaunch.lock").touch()
    command = f"{shlex.quote(sys.executable)} -m lllaunch {verb} {output}"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == 1
    expected = "standard output is closed" if "-" in output else "No space left on device"
    assert expected in ended.stderr
    assert ended.stderr.startswith("lllaunch: ")
    assert ended.stderr.count("\n") == 1


def test_an_error_of_the_system_is_not_that_of_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: argparse.Namespace) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert perform(Parser("show", ""), [], fail) == 1
    assert capsys.readouterr().err == "lllaunch: Input/output error\n"


@pytest.mark.parametrize("files", [5, 6, 7, 8, 9])
def test_too_few_descriptors_are_one_sentence(project: Project, files: int) -> None:
    command = f"ulimit -n {files}; exec {shlex.quote(sys.executable)} -m lllaunch +exp=x"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=project.root, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert re.fullmatch(r"lllaunch: .*(open files|ulimit -n).*\n", ended.stderr), ended.stderr


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"cd gone && rmdir ../gone && {shlex.quote(sys.executable)} -m lllaunch ls"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "lllaunch: the working directory: No such file or directory\n"


INTERRUPTED = """
import runpy, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "lllaunch.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
runpy.run_module("lllaunch", run_name="__main__")
"""


def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


INTERRUPTED_AT_THE_END = """
import os, signal, sys
from lllaunch.__main__ import main
from lllaunch.spawner.client import Spawner

def interrupted(spawner, close=Spawner.close):
    os.kill(os.getpid(), signal.SIGINT)
    close(spawner)

Spawner.close = interrupted
sys.argv = ["lllaunch", "+exp=x"]
sys.exit(main())
"""


def test_ctrl_c_while_the_spawner_is_closed_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED_AT_THE_END)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


def test_on_a_terminal_a_page_goes_to_a_file(project: Project) -> None:
    pexpect = pytest.importorskip("pexpect")
    assert project.lllaunch("+exp=x", "params.code=4", "hydra.run.dir=outputs/a").returncode == 3

    words = ["-m", "lllaunch", "report", "outputs/a", "--format", "html"]
    shown = pexpect.spawn(sys.executable, words, cwd=str(project.root), timeout=WAIT)
    page = shown.read().decode().strip()
    shown.close()
    assert (page, shown.exitstatus) == ("outputs/a/report.html", 0)
    assert (project.root / page).read_text().startswith("<!DOCTYPE html>")


def test_a_script_runs_where_there_is_nothing_else(tmp_path: Path) -> None:
    project = Project(tmp_path / "a b")
    project.write("my script.py", "import os, sys; sys.exit(os.environ['RANK'] + sys.argv[1])")
    ended = project.lllaunch(
        "--nproc", "2", "-t3", "launch.collapse=false", "my script.py", "--help"
    )
    assert ended.returncode == 3
    assert "[default1]:1--help" in ended.stderr
    assert sorted(os.listdir(project.root)) == ["my script.py", "outputs"]


# What readline gives to the function
HARNESS = """
eval "$(lllaunch -sc install=bash)"
try() {
    COMP_LINE="$1" COMP_POINT=${#1}
    local words=($1)
    [[ "$1" == *" " ]] && words+=("")
    COMP_CWORD=$((${#words[@]} - 1))
    hydra_bash_completion
    printf '<%s>' "${COMPREPLY[@]}"
    echo
}
"""


@pytest.mark.timeout(600)
def test_overrides_and_commands_are_completed_and_nothing_is_written_into_the_prompt(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.experiment("toy", "{entrypoint: train.py}")
    project.write("train.py", "")
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    expected = {
        "lllaunch +exp=": "<+exp=toy>",
        "lllaunch -m plan +exp=": "<>",
        "lllaunch sh": "<show>",
        "lllaunch train.py +exp=": "<>",
        "lllaunch plan +exp=to": "<+exp=toy>",
        "lllaunch +exp=toy launch.np": "<launch.nproc=>",
        "lllaunch foo bar +exp=": "<>",
    }
    tries = "".join(f"try {line!r}\n" for line in expected)
    ended = subprocess.run(
        ["bash", "-c", HARNESS + tries],
        cwd=project.root,
        env=environment() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert dict(zip(expected, ended.stdout.splitlines(), strict=True)) == expected
    assert not ended.stderr
