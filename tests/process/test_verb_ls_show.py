"""``ls`` and ``show`` of runs and sweeps that really ran."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, Project, Running, environment, text_of, until

from lllaunch.verbs import ls, report, show

WORK = """\
import argparse
import os
import sys
import time

import lllaunch

parser = argparse.ArgumentParser()
parser.add_argument("--how")
parser.add_argument("--lr", type=float)
given = parser.parse_args()
if given.how == "raise" and os.environ["RANK"] == "1":
    raise ValueError("no luck")
if given.how == "exit" and os.environ["RANK"] == "1":
    print("the key is", os.environ["OPENING_KEY"], file=sys.stderr)
    sys.exit(7)
if given.how != "work":
    time.sleep(600)
lllaunch.report(given.lr)
"""
LAUNCH = """
  entrypoint: work.py
  args: {how: "${params.how}", lr: "${params.lr}"}
  nproc: 2
  redirects: all
  tee: none
  env: {OPENING_KEY: "${oc.env:OPENING_KEY,''}"}
"""
PARAMS = "params: {how: work, lr: 0.5}"
RUNNERS = {"ls": ls.ls, "show": show.show, "report": report.report}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a run that succeeded, two that failed, and a sweep."""
    project = Project(tmp_path_factory.mktemp("a project"))
    project.write("work.py", WORK)
    project.experiment("toy", LAUNCH, PARAMS)
    secret = {"OPENING_KEY": "sesame-4711"}
    assert project.lllaunch("+exp=toy", "hydra.run.dir=outputs/1").returncode == 0
    for number, how in ((2, "raise"), (3, "exit")):
        run_dir = f"hydra.run.dir=outputs/{number}"
        ended = project.lllaunch("+exp=toy", f"params.how={how}", run_dir, env=secret)
        assert ended.returncode == 3
    jobs = ("params.how=work,exit", "params.lr=1,2", "hydra.sweep.dir=multirun/1")
    assert project.lllaunch("-m", "+exp=toy", *jobs, env=secret).returncode == 6
    return project


class Told:
    """What a verb said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        assert RUNNERS[verb](arguments) == code
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, verb: str, *arguments: str) -> Any:
        return json.loads(self(verb, "--json", *arguments))


@pytest.fixture
def told(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Told:
    monkeypatch.chdir(project.root)
    return Told(capsys)


def test_a_list_of_all(told: Told) -> None:
    titles, *lines = told("ls").splitlines()
    names = ["when", "path", "state", "code", "time", "tries", "value", "overrides"]
    assert titles.split() == names
    found = [re.split(r"\s{2,}", line) for line in lines]
    assert [line[1] for line in found] == ["multirun/1", "outputs/3", "outputs/2", "outputs/1"]
    assert [line[2] for line in found] == ["failed", "failed", "failed", "succeeded"]
    assert [line[3] for line in found] == ["6", "3", "3", "0"]
    assert found[0][-1] == "2 of 4 jobs succeeded, 2 failed; exp=toy how=work,exit lr=1,2"
    assert found[1][-1] == "exp=toy how=exit"
    assert found[3][-2:] == ["0.5", "exp=toy"]
    assert told.err == ""


def test_a_list_of_some(told: Told) -> None:
    def paths(*arguments: str) -> list[str]:
        found = told.json("ls", *arguments)
        return [os.path.relpath(each["path"]) for each in found]

    sweep, *_, first = told.json("ls")
    assert (sweep["kind"], sweep["counts"]) == ("sweep", {"failed": 2, "succeeded": 2})
    assert (first["exit_code"], first["attempts"], first["return_value"]) == (0, 1, 0.5)
    job = told.json("ls", "--jobs", "multirun")[-1]
    assert (job["kind"], job["job"]) == ("job", 3)
    assert job["root_cause"] == "rank 1: called sys.exit(7)"
    assert paths("--state", "failed", "outputs") == ["outputs/3", "outputs/2"]
    assert paths("--limit", "1") == ["multirun/1"]
    assert paths("--sweeps") == ["multirun/1"]
    assert paths("--jobs", "multirun") == ["multirun/1", *(f"multirun/1/{n}" for n in range(4))]
    assert paths("--jobs", "--state=succeeded") == ["multirun/1/0", "multirun/1/1", "outputs/1"]
    assert paths("--state", "running,died,not-run") == []
    several = ["multirun/1", "outputs/3", "outputs/2", "outputs/1"]
    assert paths("outputs/1", "outputs", "multirun") == several


def test_lists_of_nothing_and_of_nonsense(told: Told, tmp_path: Path) -> None:
    assert told("ls", str(tmp_path)) == ""
    assert told.err == f"lllaunch: no runs found in {tmp_path}/\n"
    assert told.json("ls", "--state=died") == []
    told("ls", "gone", code=2)
    assert "'gone' is not a directory" in told.err
    told("ls", "--state", "fine", code=2)
    wrong = "lllaunch: argument --state: unknown state 'fine' (choose from succeeded, "
    assert told.err.startswith(wrong)
    told("ls", "--limit", "0", code=2)
    assert "expected a whole number from 1 on, got '0'" in told.err
    assert "died" in told("ls", "--help")


def test_what_ran_and_why_it_failed(told: Told) -> None:
    text = told("show", "outputs/2")
    plan = Path("outputs/2/plan.yaml").read_text().splitlines()
    assert "\n".join(f"  {line}" for line in plan) in text
    document = json.loads(Path("outputs/2/result.json").read_text())
    assert re.search(rf"^plan hash +{document['plan_hash']}$", text, re.MULTILINE)
    assert re.search(r"^overrides +\+exp=toy params\.how=raise", text, re.MULTILINE)
    assert re.search(
        r"^  rank 0 +ended by the launcher \(SIGTERM\) .* outputs/2/attempt_0/0$", text, re.M
    )
    assert "  Root cause: rank 1 (attempt 0) raised ValueError: no luck" in text
    assert '    raise ValueError("no luck")' in text
    assert text.startswith("lllaunch: FAILED after ")
    # what became of it comes first, then when, then what it was
    parts = [
        "  Root cause:",
        "  Logs: ",
        "\nrun  ",
        "\nIn time ",
        "\nattempt 0 failed",
        "\nplan.yaml:",
    ]
    assert sorted(parts, key=text.index) == parts
    assert re.search(r"^  rank 1 .*\S +failed$", text, re.M)


def test_a_secret_in_a_log_is_not_shown(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENING_KEY", "sesame-4711")
    text = told("show", "outputs/3")
    assert "    | the key is ${oc.env:OPENING_KEY}" in text
    assert "sesame" not in text + told("show", "--json", "outputs/3") + told("ls", "--json")


def test_a_run_for_programs(told: Told) -> None:
    found = told.json("show", "outputs/1/result.json")
    document = json.loads(Path("outputs/1/result.json").read_text())
    assert found["result"] == document
    assert found["plan"] == Path("outputs/1/plan.yaml").read_text()
    assert found["plan_hash"] == document["plan_hash"]
    assert found["build"] == document.get("build")
    assert (found["kind"], found["path"]) == ("run", os.path.abspath("outputs/1"))
    assert "rank 1 returned 0.5; outputs/1/attempt_0/1/return.json" in told("show", "outputs/1")


def test_a_sweep_and_a_job_of_it(told: Told) -> None:
    text = told("show", "latest")
    assert re.search(r"^sweep +multirun/1$", text, re.MULTILINE)
    assert re.search(r"^ +3 +how=exit lr=2 +failed +[\d.]+ ", text, re.MULTILINE)
    assert "  jobs 2-3 failed: exit code 3: rank 1: called sys.exit(7)\n" in text
    assert "2 of 4 jobs succeeded, 2 failed" in text
    summary = json.loads(Path("multirun/1/sweep.json").read_text())
    assert told.json("show", "multirun/1")["summary"] == summary
    job = told("show", "multirun/1/3")
    assert re.search(r"^run +multirun/1/3$", job, re.MULTILINE)
    assert "params.how=exit" in job


def test_the_latest_is_meant_where_no_run_is_named(told: Told) -> None:
    assert told("show") == told("show", "latest") == told("show", "multirun/1")
    assert told("report") == told("report", "multirun/1")
    assert told("show", "3") == told("show", "outputs/3")


def test_results_that_cannot_be_understood_are_shown_as_far_as_they_go(
    told: Told, tmp_path: Path
) -> None:
    document = json.loads(Path("outputs/2/result.json").read_text())
    document["root_cause"]["cause"] = {"type": "New", "text": "was \x1b[2Jnew"}
    facts = {"commit": "12ab" * 10, "branch": "main", "dirty": True, "changed": 2, "untracked": 0}
    document["build"] = {**facts, "versions": {"torch": "2.13"}}
    (tmp_path / "result.json").write_text(json.dumps(document))
    text = told("show", str(tmp_path))
    assert "  Root cause: rank 1 (attempt 0) was new\n" in text
    assert re.search(r"^commit +(12ab){10} \(main\), with changes \(2 changed\)$", text, re.M)
    assert re.search("^versions +torch 2.13$", text, re.MULTILINE)
    assert "was new" in told("report", str(tmp_path))
    document["attempts"] = "many"
    (tmp_path / "result.json").write_text(json.dumps(document))
    text = told("show", str(tmp_path))
    assert "result.json: expected array, got str at $.attempts" in text
    assert "its files cannot be read or are incomplete" in text
    (tmp_path / "sweep.json").write_text('{"jobs": [{"job": 0}, 7]}')
    text = told("show", str(tmp_path))
    assert re.search("^state +unknown$", text, re.MULTILINE)
    assert "cannot be understood" in text
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "sweep.jsonl").write_text("no\n{}\n")
    assert "its journal cannot be understood" in told("show", str(tmp_path))


# With a launcher that lives, and one that was killed


@pytest.mark.smoke
def test_a_run_that_runs_and_is_killed(told: Told, project: Project) -> None:
    place = project.root / "alive" / "1"
    words = ("+exp=toy", "params.how=wait", f"hydra.run.dir={place}")
    process = Running([sys.executable, "-m", "lllaunch", *words], project.root)
    with contextlib.ExitStack() as after:
        after.callback(process.kill)
        until(lambda: text_of(place / "events.jsonl").count('"Started"') == 2, "both workers")
        assert f"pid {process.pid} on " in told("show", "alive/1")
        assert "still running" in told("report", "alive/1")
        (line,) = told("ls", "alive").splitlines()[1:]
        assert re.split(r"\s{2,}", line)[2] == "running"
        text = told("show", "alive/1")
        assert re.search(r"^state +running$", text, re.MULTILINE)
        assert text.startswith("lllaunch: running\n")
        assert re.search(r"^  ranks? 0.* running$", text, re.M)
        assert re.search(r"^Now:\n  rank +state .*\n +0 +running .*\n +1 +running ", text, re.M)
        assert "  entrypoint: work.py" in text
    assert told.json("ls", "alive")[0]["state"] == "died"
    text = told("show", "alive/1")
    assert text.startswith("lllaunch: its launcher ended without a result")
    assert re.search(r"^overrides +\+exp=toy params.how=wait", text, re.MULTILINE)
    assert told.json("show", "alive/1")["result"] is None
    again = project.lllaunch("+exp=toy", f"hydra.run.dir={place}")
    assert again.returncode == 0, again.stderr
    assert told.json("ls", "alive")[0]["state"] == "succeeded"


# Where it is printed


def verb(project: Project, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    code = "import sys; from lllaunch.verbs import {0}; sys.exit({0}.{0}(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code.format(arguments[0]), *arguments[1:]],
        cwd=project.root,
        env=environment() | {"TERM": "xterm", "COLUMNS": "70"},
        stdin=subprocess.DEVNULL,
        **options,
    )


def test_a_terminal_gets_colours_and_lines_that_fit(project: Project) -> None:
    ours, theirs = pty.openpty()
    with verb(project, "ls", stdout=theirs) as process, open(ours, "rb", 0) as terminal:
        os.close(theirs)
        text = ""
        with contextlib.suppress(OSError):  # nobody holds the other side any more
            while data := terminal.read(65536):
                text += data.decode()
        assert process.wait(WAIT) == 0
    assert "\x1b[32m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert plain[0].split() == ["when", "path", "state", "time", "overrides"]
    assert "multirun/1" in plain[1]
    assert max(map(len, plain)) < 70


def test_nobody_reads_on(project: Project) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with verb(project, "ls", stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        _, errors = process.communicate(timeout=WAIT)
    assert (process.returncode, errors) == (0, b"")


def test_nothing_heavy_is_imported(project: Project) -> None:
    code = (
        "import sys; from lllaunch.verbs import ls, report, show\n"
        "for verb in (ls.ls, show.show, report.report): verb([])\n"
        "heavy = {'torch', 'hydra', 'omegaconf', 'rich', 'psutil', 'numpy', 'subprocess'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = project.python("-c", code)
    assert done.returncode == 0, done.stderr
