"""Reports of real runs and sweeps: their documents fit the schemas, their failures are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft202012Validator
from support.launching import Launcher, text_of, until
from support.project import Project, environment

from lllaunch.results.report import load
from lllaunch.results.store import locate
from lllaunch.verbs.report import main

# the same lines are measured where others run them

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
VERB = "import sys; from lllaunch.verbs.report import main; sys.exit(main(sys.argv[1:]))"

WORK = """
import os
import sys
import time

def values():
    return {"loss": 0.5, "rank": int(os.environ["RANK"])}

def fails(x=1.0):
    print("\\x1b[31mepoch 1 ]]> <done>\\x1b[0m")
    print("careful", file=sys.stderr)
    if os.environ["RANK"] == "1":
        raise ValueError(f"no: {x}")
    time.sleep(60)

def crashes():
    os.abort()

def hangs():
    time.sleep(60)

def job(x):
    if x < 0:
        raise ValueError(f"negative: {x}")
    return x
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    made.write("work.py", WORK)
    return made


def valid(path: Path) -> Any:
    """A document, which fits its schema."""
    document = json.loads(path.read_text())
    text = (SCHEMAS / path.name.replace(".json", ".schema.json")).read_text()
    Draft202012Validator(json.loads(text)).validate(document)
    return document


def run(project: Project, name: str, code: int, *overrides: str) -> Path:
    """A run that has ended, in a directory of its own."""
    ended = project.lllaunch(f"hydra.run.dir={name}", "launch.redirects=all", *overrides)
    assert ended.returncode == code, ended.stderr
    return project.root / name


def test_values_of_a_run_that_succeeded(project: Project) -> None:
    place = run(project, "good", 0, "launch.entrypoint=work:values", "launch.nproc=2")
    document = valid(place / "result.json")
    assert document["return_values"]["1"]["value"] == {"loss": 0.5, "rank": 1}
    (case,) = load(locate(str(place))).cases
    assert (case.outcome, case.exit_code) == ("succeeded", 0)
    assert "launch.entrypoint=work:values" in case.overrides


def test_a_failed_run_in_all_forms(project: Project, tmp_path: Path) -> None:
    place = run(
        *(project, "failed", 3, "launch.entrypoint=work:fails", "launch.nproc=2"),
        "launch.max_restarts=1",
    )
    assert len(valid(place / "result.json")["attempts"]) == 2
    line = WORK.splitlines().index('        raise ValueError(f"no: {x}")') + 1
    summary = tmp_path / "summary.md"
    forms = {
        form: subprocess.run(
            [sys.executable, "-c", VERB, "failed", "--format", form],
            cwd=project.root,
            env=environment() | {"GITHUB_STEP_SUMMARY": str(summary), "PYTHONIOENCODING": "ascii"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.decode()
        for form in ("text", "json", "junit", "github")
    }
    assert f"    at work.py:{line}\n" in forms["text"]
    assert "Logs: failed/attempt_1\n" in forms["text"]
    (case,) = json.loads(forms["json"])["cases"]
    assert (case["kind"], case["file"], case["line"]) == ("Raised", "work.py", line)
    assert case["message"] == "rank 1: raised ValueError: no: 1.0"
    suite = ET.fromstring(forms["junit"])[0]
    assert "raise ValueError" in (suite.findtext("testcase/failure") or "")
    assert suite.findtext("system-out", "").splitlines()[1:] == ["epoch 1 ]]> <done>"]
    assert "careful" in suite.findtext("system-err", "")
    where = f"file=work.py,line={line}"
    assert forms["github"].startswith(f"::error {where},title=lllaunch%3A run failed::rank 1")
    assert forms["github"].count("\n") == 1
    assert "<details open>" in summary.read_text()


def test_a_crash_and_a_hang_are_told(project: Project) -> None:
    crash = run(project, "crash", 3, "launch.entrypoint=work:crashes")
    assert valid(crash / "result.json")["root_cause"]["cause"]["type"] == "KilledBySignal"
    (case,) = load(locate(str(crash)), [str(project.root)]).cases
    assert case.message == "rank 0: died of SIGABRT"
    line = WORK.splitlines().index("    os.abort()") + 1
    assert case.place == ("work.py", line)
    hung = run(
        *(project, "hung", 4, "launch.entrypoint=work:hangs"),
        *("launch.watchdog={timeout: 1s}", "launch.grace_period=1s"),
    )
    document = valid(hung / "result.json")
    assert document["root_cause"]["hang"]["stacks"]
    (case,) = load(locate(str(hung)), [str(project.root)]).cases
    assert (case.outcome, case.kind) == ("failed", "TimedOut")
    line = WORK.splitlines().index("def hangs():") + 2
    assert case.place == ("work.py", line)


def test_a_run_that_is_refused_after_it_began_is_an_error(project: Project) -> None:
    project.write("unlucky.py", "raise RuntimeError('no luck')\n")
    place = run(project, "refused", 2, "launch.entrypoint=work:values", "launch.preload=[unlucky]")
    assert valid(place / "result.json")["state"] == "error"
    (case,) = load(locate(str(place))).cases
    assert (case.outcome, case.kind) == ("error", "config")
    assert "no luck" in case.message


def test_a_run_is_unfinished_until_a_signal_has_ended_it(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    launcher = Launcher(tmp_path, {"entrypoint": "work.py", "redirects": "all", "tee": "none"})
    until(lambda: text_of(launcher.run_dir / "attempt_0" / "0" / "stdout.log"), "a worker")
    report = load(locate(str(launcher.run_dir)))
    assert (report.finished, report.verdict()) == (False, "still running")
    launcher.signal(signal.SIGTERM)
    assert launcher.finish().code == 128 + signal.SIGTERM
    assert valid(launcher.run_dir / "result.json")["signal"] == "SIGTERM"
    (case,) = load(locate(str(launcher.run_dir))).cases
    assert (case.outcome, case.kind, case.message) == ("error", "signal", "ended by SIGTERM")
    assert case.logs[0].lines == ("up",)


def test_a_sweep_is_one_test_case_a_job(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.experiment(
        "sweep",
        "{entrypoint: 'work:job', args: {x: '${params.x}'}, redirects: all, tee: none}",
        "params: {x: 1}",
    )
    ended = project.lllaunch(
        *("-m", "+exp=sweep", "params.x=1,-1,2", "hydra.sweep.dir=sweep"),
        *("hydra.launcher.max_parallel=1", "hydra.launcher.on_failure=stop"),
    )
    assert ended.returncode == 6, ended.stderr
    assert valid(project.root / "sweep" / "sweep.json")["jobs"][0]["return_value"] == 1
    for job in "01":
        valid(project.root / "sweep" / job / "result.json")
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["sweep/sweep.json", "--format", "junit", "--output", "reports/sweep.xml"]) == 0
    suites = ET.fromstring((project.root / "reports" / "sweep.xml").read_text())
    tests = {test.get("name"): [child.tag for child in test] for test in suites.iter("testcase")}
    assert tests == {"params.x=1": [], "params.x=-1": ["failure"], "params.x=2": ["skipped"]}
    assert main(["sweep", "--format", "github"]) == 0
    failure, skipped = capsys.readouterr().out.splitlines()
    assert failure.startswith("::error file=work.py,line=")
    assert "title=lllaunch%3A job 1 (params.x=-1) failed::rank 0: raised ValueError: neg" in failure
    assert skipped == "::warning title=lllaunch::1 of 3 jobs were not run"
    # neither do the files of its jobs say more of them than they do by themselves
    assert load(locate("sweep/1")).cases[0].message == load(locate("sweep")).cases[1].message


def test_a_reader_that_leaves_is_no_error(project: Project) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", VERB, "good"],
            cwd=run(project, "good", 0, "launch.entrypoint=work:values").parent,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_no_report_needs_hydra_or_torch(project: Project) -> None:
    place = run(project, "good", 0, "launch.entrypoint=work:values")
    code = (
        "import sys; from lllaunch.verbs.report import main; "
        f"main([{str(place)!r}, '--output', '/dev/null/x']); "
        f"main([{str(place)!r}]); print(*sorted(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"hydra", "omegaconf", "torch"} & set(ended.stderr.split())
