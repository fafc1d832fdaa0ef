"""What `python -m lllaunch` does beside running: its verbs, and what it tells CI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project, environment, quiet_environment, result

from lllaunch.cli import VERBS


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.experiment(
        "x", "{entrypoint: sh, args: ['-c', 'exit ${params.code}']}", "params: {code: 0}"
    )
    return found


def test_what_was_run_is_listed_shown_and_reported(project: Project) -> None:
    assert project.lllaunch("+exp=x").returncode == 0
    assert project.lllaunch("-m", "+exp=x", "params.code=0,3").returncode == 6
    listed = project.lllaunch("ls", "--jobs", "--json")
    assert listed.returncode == 0, listed.stderr
    states = sorted(each["state"] for each in json.loads(listed.stdout))
    assert states == ["failed", "failed", "succeeded", "succeeded"]
    (sweep,) = (project.root / "multirun").glob("*/*")
    shown = project.lllaunch("show", str(sweep / "1"))
    assert shown.returncode == 0, shown.stderr
    assert "exit 3" in shown.stdout
    report = project.lllaunch(
        "report", str(sweep), "--format", "junit", "--output", "out/junit.xml"
    )
    assert report.returncode == 0, report.stderr
    assert 'failures="1"' in (project.root / "out/junit.xml").read_text()


def test_a_verb_says_what_is_wrong(project: Project) -> None:
    for arguments in (("show", "nowhere"), ("report", "nowhere"), ("ls", "--state", "lost")):
        ended = project.lllaunch(*arguments)
        assert ended.returncode == 2
        assert ended.stderr.startswith("lllaunch: ")
        assert "Traceback" not in ended.stderr


def in_ci(project: Project) -> dict[str, str]:
    summary = str(project.root / "summary.md")
    return quiet_environment() | {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": summary}


def test_github_is_told_of_a_failed_run_and_of_a_sweep(project: Project) -> None:
    ended = project.lllaunch("+exp=x", "params.code=3", env=in_ci(project))
    assert ended.returncode == 3
    assert ended.stdout.count("::error ") == 1
    ended = project.lllaunch("-m", "+exp=x", "params.code=0,4,5", env=in_ci(project))
    assert ended.returncode == 6
    # once for each failed job, and not by the jobs' own launchers, too
    assert ended.stdout.count("::error ") == 2
    assert (project.root / "summary.md").read_text().count("\n#") >= 1


def test_github_is_told_why_nothing_was_run(project: Project) -> None:
    for more in ((), ("-m",)):
        ended = project.lllaunch(*more, "+exp=x", "launch.tee=al", env=in_ci(project))
        assert ended.returncode == 2
        assert ended.stdout.count("::error ") == 1
        assert "did you mean 'all'?" in ended.stdout


def test_github_is_told_no_secret(project: Project) -> None:
    secret = "planted-cafe1234"
    project.experiment(
        "s",
        "{entrypoint: sh, args: ['-c', 'echo $API_KEY >&2; exit 3'],"
        " env: {API_KEY: '${oc.env:SECRET}'}, tee: none}",
    )
    for more in ((), ("-m",)):
        ended = project.lllaunch(*more, "+exp=s", env=in_ci(project) | {"SECRET": secret})
        assert secret not in ended.stdout + ended.stderr
    assert secret not in (project.root / "summary.md").read_text()


def test_a_result_says_what_code_ran(project: Project) -> None:
    project.write(".gitignore", "outputs/\nmultirun/\n")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", *who, *command], cwd=project.root, env=environment(), check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project.root, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert project.lllaunch("+exp=x").returncode == 0
    assert project.lllaunch("-m", "+exp=x").returncode == 0
    runs = project.run_dirs()
    assert len(runs) == 2
    for found in map(result, runs):
        assert (found["build"]["commit"], found["build"]["dirty"]) == (head, False)
        assert found["build"]["versions"]["hydra-core"].startswith("1.3")


def test_a_misspelt_verb_is_told(project: Project) -> None:
    ended = project.lllaunch("pln", "+exp=x")
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "lllaunch: unknown command 'pln' (choose from check, logs, ls, plan, "
    )
    assert ended.stderr.endswith("did you mean 'plan'?\n")


def test_the_help_names_every_verb_and_nobody_needs_to_read_it_to_the_end(project: Project) -> None:
    shown = project.lllaunch("--help").stdout
    for verb in VERBS:
        assert f"python -m lllaunch {verb}" in shown
        assert project.lllaunch(verb, "--help").returncode == 0
    with subprocess.Popen(
        [sys.executable, "-m", "lllaunch", "--help"],
        cwd=project.root,
        env=environment() | quiet_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as help_page:
        assert help_page.stdout is not None
        assert help_page.stderr is not None
        help_page.stdout.close()
        assert help_page.stderr.read() == ""
    assert help_page.returncode == 0


INTERRUPTED = """
import runpy, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "lllaunch.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
runpy.run_module("lllaunch", run_name="__main__")
"""


def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


INTERRUPTED_AT_THE_END = """
import os, signal, sys
from lllaunch import cli
from lllaunch.spawner.client import Spawner

def interrupted(spawner, close=Spawner.close):
    os.kill(os.getpid(), signal.SIGINT)
    close(spawner)

Spawner.close = interrupted
sys.argv = ["lllaunch", "+exp=x"]
sys.exit(cli.main())
"""


def test_ctrl_c_while_the_spawner_is_closed_shows_no_traceback(project: Project) -> None:
    ended = project.python("-c", INTERRUPTED_AT_THE_END)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
