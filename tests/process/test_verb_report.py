"""Reports of real runs and sweeps: their documents fit the schemas, their failures are told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft202012Validator
from support.launching import WAIT, Project, environment
from support.pages import Seen
from support.traces import ruled

from lllaunch.results.locate import locate
from lllaunch.results.report import load
from lllaunch.results.view import RunTimeline, view_run
from lllaunch.verbs.report import report as main

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
VERB = "import sys; from lllaunch.verbs.report import report; sys.exit(report(sys.argv[1:]))"

WORK = """
import os
import sys
import time

from lllaunch.timer import expires

def values():
    return {"loss": 0.5, "rank": int(os.environ["RANK"])}

def fails(x=1.0):
    print("\\x1b[31mepoch 1 ]]> <done>\\x1b[0m")
    print("careful", file=sys.stderr)
    if os.environ["RANK"] == "1":
        raise ValueError(f"no: {x}")
    time.sleep(600)

def hangs():
    # on one line, whenever the timer runs out
    with expires(after=0.1): time.sleep(600)

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


def timeline(place: Path) -> RunTimeline:
    return view_run(locate(str(place))).timeline


def trace(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main([str(path), "--format", "trace"]) == 0
    return ruled(capsys.readouterr().out)


def names(events: list[dict[str, Any]], phase: str) -> list[str]:
    return [each["name"] for each in events if each["ph"] == phase]


def run(project: Project, name: str, code: int, *overrides: str) -> Path:
    """A run that has ended, in a directory of its own."""
    ended = project.lllaunch(f"hydra.run.dir={name}", "launch.redirects=all", *overrides)
    assert ended.returncode == code, ended.stderr
    return project.root / name


@pytest.fixture(scope="module")
def failed(project: Project) -> Path:
    """A run of two attempts, both of which failed."""
    return run(
        *(project, "failed", 3, "launch.entrypoint=work:fails", "launch.nproc=2"),
        *("launch.max_restarts=1", "launch.restart.delay=100ms"),
    )


@pytest.mark.smoke
@pytest.mark.usefixtures("failed")
def test_a_failed_run_in_all_forms(project: Project, tmp_path: Path) -> None:
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
            timeout=WAIT,
        ).stdout.decode()
        for form in ("text", "json", "junit", "github", "html")
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
    where = f"file=work.py,line={line},title=lllaunch%3A run failed"
    assert forms["github"].startswith(f"::error {where}::Root cause: rank 1")
    assert forms["github"].count("\n") == 1
    assert "```text" in summary.read_text()
    sections = re.findall('<section id="([a-z]+)"', forms["html"])
    assert sections == ["cause", "time", "logs", "plan", "environment"]
    assert f"at work.py:{line} in fails" in Seen(forms["html"]).text


def test_a_failure_and_its_restart_in_time(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = timeline(failed).attempts
    document = valid(failed / "result.json")
    for attempt, told in zip((first, second), document["attempts"], strict=True):
        assert (attempt.number, attempt.state) == (told["attempt"], told["state"])
        fates = [(lane.rank, lane.fate) for lane in attempt.lanes]
        assert fates == [(worker["rank"], worker["fate"]) for worker in told["workers"]]
    assert [span.kind for span in first.spans if span.kind == "pause"] == ["pause"]
    assert [mark.kind for mark in first.lanes[1].marks] == ["root_cause"]
    assert "grace" in {span.kind for span in first.lanes[0].spans}
    assert [mark.kind for mark in second.marks if mark.kind == "restart"] == ["restart"]
    events = trace(failed, capsys)
    assert {"run: failed", "run: ended", "pause"} <= set(names(events, "X"))
    assert "attempt 1 begins: a worker failed" in names(events, "i")


def test_a_hang_is_told_with_its_place_and_its_time(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    hung = run(
        *(project, "hung", 4, "launch.entrypoint=work:hangs", "launch.preflight=[uname]"),
        *("launch.watchdog={timers: true}", "launch.grace_period=1s"),
    )
    assert valid(hung / "result.json")["root_cause"]["hang"]["stacks"]
    (case,) = load(locate(str(hung)), [str(project.root)]).cases
    assert (case.outcome, case.kind) == ("failed", "TimerExpired")
    line = WORK.splitlines().index("def hangs():") + 3
    assert case.place == ("work.py", line)
    [attempt] = timeline(hung).attempts
    assert "preflight" in {span.kind for span in attempt.spans}
    assert {"stacks", "signal"} <= {mark.kind for mark in attempt.marks}
    [lane] = attempt.lanes
    # then grace, if it takes any time
    assert [span.kind for span in lane.spans][:3] == ["spawn", "run", "hang"]
    assert "hang" in names(trace(hung, capsys), "X")


@pytest.mark.smoke
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
    assert "title=lllaunch%3A job 1 (params.x=-1) failed::Root cause: rank 0" in failure
    assert skipped == "::warning title=lllaunch::1 of 3 jobs were not run"
    spans = names(trace(project.root / "sweep", capsys), "X")
    assert {"job 0: succeeded", "job 1: failed"} <= set(spans)
    # neither do the files of its jobs say more of them than they do by themselves
    assert load(locate("sweep/1")).cases[0].message == load(locate("sweep")).cases[1].message
