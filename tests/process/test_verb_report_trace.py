"""Traces and timelines of runs and sweeps that really ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.launching import Launcher, until
from support.project import Project
from support.traces import ruled

from lllaunch.results.store import look
from lllaunch.results.timeline import RunTimeline, read_timeline
from lllaunch.verbs.report import main

# the same lines are measured where others run them
pytestmark = pytest.mark.measured

WORK = """
import os, sys, time
from pathlib import Path

rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if sys.argv[1] == "fail" and restart == 0:
    if rank == 1:
        raise ValueError(f"no luck with {os.environ['OPENING_KEY']}")
    time.sleep(60)
if sys.argv[1] == "hang":
    Path(f"{sys.argv[2]}.{rank}").touch()
    time.sleep(60)
"""
SECRET = "sesame-4711"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    made.write("work.py", WORK)
    return made


def launch(*arguments: str, **more: Any) -> dict[str, Any]:
    return {
        "entrypoint": "work.py",
        "nproc": 2,
        "redirects": "all",
        "args": list(arguments),
        "env": {"OPENING_KEY": "${oc.env:OPENING_KEY,''}"},
        **more,
    }


def overrides(project: Project, name: str, node: dict[str, Any]) -> list[str]:
    """What runs a ``launch`` node in a directory of that name."""
    project.experiment(name, json.dumps(node))
    return [f"+exp={name}", f"hydra.run.dir={name}"]


def timeline(place: Path) -> RunTimeline:
    found = look(str(place))
    assert found is not None
    return read_timeline(found)


def trace(path: Path, out: Path) -> list[dict[str, Any]]:
    assert main([str(path), "--format", "trace", "--output", str(out)]) == 0
    text = out.read_text()
    assert SECRET not in text
    return ruled(text)


def names(events: list[dict[str, Any]], phase: str) -> list[str]:
    return [each["name"] for each in events if each["ph"] == phase]


def test_a_failure_and_its_restart(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = launch("fail", max_restarts=1, restart={"delay": "100ms"})
    ended = project.lllaunch(*overrides(project, "fail", node), env={"OPENING_KEY": SECRET})
    assert ended.returncode == 0, ended.stderr
    first, second = timeline(project.root / "fail").attempts
    document = json.loads((project.root / "fail" / "result.json").read_text())
    for attempt, told in zip((first, second), document["attempts"], strict=True):
        assert (attempt.number, attempt.state) == (told["attempt"], told["state"])
        fates = [(lane.rank, lane.fate) for lane in attempt.lanes]
        assert fates == [(worker["rank"], worker["fate"]) for worker in told["workers"]]
    assert [span.kind for span in first.spans if span.kind == "pause"] == ["pause"]
    assert [mark.kind for mark in first.lanes[1].marks] == ["root_cause"]
    assert "grace" in {span.kind for span in first.lanes[0].spans}
    assert [mark.kind for mark in second.marks] == ["restart"]
    monkeypatch.setenv("OPENING_KEY", SECRET)
    events = trace(project.root / "fail", tmp_path / "trace.json")
    spans = names(events, "X")
    assert spans.count("run: succeeded") == 2
    assert {"run: failed", "run: ended", "pause"} <= set(spans)
    assert "attempt 1 begins: a worker failed" in names(events, "i")


def test_a_hang_that_the_watchdog_ends(project: Project, tmp_path: Path) -> None:
    there = str(tmp_path / "there")
    node = launch("hang", there, watchdog={"stall": "1s"}, preflight={"command": "true"})
    assert project.lllaunch(*overrides(project, "hang", node)).returncode == 4
    [attempt] = timeline(project.root / "hang").attempts
    assert "preflight" in {span.kind for span in attempt.spans}
    assert {"finding", "stacks", "signal"} <= {mark.kind for mark in attempt.marks}
    for lane in attempt.lanes:
        kinds = [span.kind for span in lane.spans]
        assert kinds == ["spawn", "run", "hang", "grace"]
        hang = lane.spans[2]
        assert hang.end_ns - hang.start_ns >= 1_000_000_000
    assert "hang" in names(trace(project.root / "hang", tmp_path / "trace.json"), "X")


def test_a_run_that_goes_on_and_is_stopped(project: Project, tmp_path: Path) -> None:
    there = tmp_path / "there"
    node = launch("hang", str(there), entrypoint=str(project.root / "work.py"))
    launcher = Launcher(tmp_path, node)
    try:
        until(lambda: all(Path(f"{there}.{rank}").exists() for rank in (0, 1)), "the workers")
        live = timeline(launcher.run_dir)
        assert not live.over
        [attempt] = live.attempts
        assert (attempt.state, attempt.end_ns) == ("running", None)
        assert [lane.spans[-1].end_ns for lane in attempt.lanes] == [live.end_ns] * 2
        spans = names(trace(launcher.run_dir, tmp_path / "trace.json"), "X")
        assert spans.count("run: running") == 2
    finally:
        launcher.process.terminate()
        ended = launcher.finish()
    assert ended.code == 143, ended.err
    over = timeline(launcher.run_dir)
    assert over.over
    assert over.attempts[0].state == "stopped"
    assert {lane.fate for lane in over.attempts[0].lanes} == {"ended"}


def test_a_sweep(project: Project, tmp_path: Path) -> None:
    place = project.root / "jobs"
    experiment, _ = overrides(project, "sweep", launch("work", nproc=1))
    jobs = ["launch.args=[work],[hang,/dev/null/none]", f"hydra.sweep.dir={place}"]
    ended = project.lllaunch("-m", experiment, *jobs)
    assert ended.returncode == 6, ended.stderr
    events = trace(place, tmp_path / "trace.json")
    jobs = {name for name in names(events, "X") if name.startswith("job ")}
    assert jobs == {"job 0: succeeded", "job 1: failed"}
    [failed] = [each for each in events if each["name"] == "job 1: failed"]
    assert failed["args"]["overrides"].endswith("launch.args=[hang,/dev/null/none]")
    assert failed["args"]["exit code"] == 3
