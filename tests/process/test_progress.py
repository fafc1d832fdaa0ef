"""How far workers are, as it is seen by who looks at their runs, and what a run ends for."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import Finished, launch

from lllaunch.spawner.protocol import Channel, connected
from lllaunch.sweep import processes
from lllaunch.sweep.processes import JobProcess
from lllaunch.sweep.protocol import JobProgressed

WATCHDOG, FAILED = 4, 3


def run(directory: Path, script: str, *overrides: str, **node: Any) -> Finished:
    """Run a script to its end."""
    (directory / "work.py").write_text(dedent(script))
    settings = {"entrypoint": "work.py", "grace_period": "1m", "tee": "none", **node}
    return launch(directory, settings, *overrides)


def samples(ended: Finished) -> list[Any]:
    text = (ended.run_dir / "samples.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_what_workers_say_is_in_the_samples_the_result_and_the_report(tmp_path: Path) -> None:
    script = """
    import os, time
    import lllaunch

    rank = int(os.environ["RANK"])
    for step in range(100, 120 + 10 * rank):
        lllaunch.progress(step, 500, loss=1 / step)
        time.sleep(0.1)
    if rank:
        raise ValueError("no")
    """
    ended = run(tmp_path, script, nproc=2, samples="1s")
    assert ended.code == FAILED, ended.err
    workers = ended.result["attempts"][0]["workers"]
    assert [worker["progress"]["step"] for worker in workers] == [119.0, 129.0]
    assert workers[1]["progress"]["total"] == 500.0
    assert workers[1]["progress"]["metrics"] == {"loss": pytest.approx(1 / 129)}
    assert "It was at step 129 of 500 (25 %), loss 0.007752." in ended.err
    shown = [sample["ranks"]["1"] for sample in samples(ended)]
    assert all(100 <= each["step"] <= 129 for each in shown)
    assert any(each.get("rate", 0) > 0 for each in shown)


def test_bars_are_read_and_a_restart_says_how_far_it_was(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    script = """
    import os
    from tqdm import tqdm

    for step in tqdm(range(40), mininterval=0):
        if step == 30:
            os._exit(7)
    """
    ended = run(tmp_path, script, max_restarts=1)
    assert ended.code == FAILED, ended.err
    attempts = ended.result["attempts"]
    found = [attempt["workers"][0]["progress"]["step"] for attempt in attempts]
    assert found == [30.0, 30.0]
    assert "exited with status 7, at step 30 of 40 (75 %); restarting (1 of 1)" in ended.err


@pytest.mark.smoke
def test_a_run_that_gets_no_further_is_ended_though_it_prints(tmp_path: Path) -> None:
    script = """
    import time

    for step in range(5):
        print(f"step {step}", flush=True)
    def waits():
        while True:
            print("waiting", flush=True)
            time.sleep(0.05)
    waits()
    """
    limit = {"pattern": "step (?P<step>[0-9]+)", "first_within": "5m", "within": "2s"}
    ended = run(tmp_path, script, nproc=2, watchdog={"progress": limit, "preset": "none"})
    assert ended.code == WATCHDOG, ended.err
    cause = ended.result["root_cause"]["cause"]
    assert cause["type"] == "ProgressMissing"
    assert cause["step"] == 4.0
    assert "hung: no progress for " in ended.err
    assert "in waits" in (ended.run_dir / "attempt_0" / "0" / "stacks.txt").read_text()


def test_a_worker_that_truncates_what_it_shares_with_the_launcher_ends_nothing(
    tmp_path: Path,
) -> None:
    script = """
    import os, time

    os.truncate(os.environ["LLLAUNCH_HEARTBEAT"].partition(":")[2], 0)
    time.sleep(2)
    """
    ended = run(tmp_path, script, samples="1s", watchdog={"heartbeat": "1m"})
    assert ended.code == 0, ended.err
    assert ended.result["state"] == "succeeded"


NAN = """
import sys, time
import lllaunch

for step in range(1, int(sys.argv[1])):
    lllaunch.progress(step, loss=0.5 if step < 5 else float("nan"))
    time.sleep(0.1)
"""


def test_nan_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    ended = run(tmp_path, NAN, samples="1s", args=["40"])
    assert ended.code == 0, ended.err
    assert ended.err.count("loss is nan since step 5") == 1
    (event,) = [event for event in ended.events() if event["type"] == "NotFinite"]
    assert (event["name"], event["value"]) == ("loss", "nan")
    assert ended.result["attempts"][0]["workers"][0]["progress"]["metrics"] == {"loss": "nan"}


def test_nan_ends_a_run_that_is_watched_for_progress(tmp_path: Path) -> None:
    watchdog = {"progress": "5m", "preset": "none"}
    ended = run(tmp_path, NAN, watchdog=watchdog, samples="1s", args=["1000"])
    assert ended.code == WATCHDOG, ended.err
    cause = ended.result["root_cause"]["cause"]
    assert (cause["type"], cause["step"], cause["exact"]) == ("NotFinite", 5, True)
    assert ended.result["root_cause"]["rank"] == 0
    assert "rank 0 (attempt 0) says that loss is nan since step 5" in ended.err


def test_a_job_tells_its_sweep_how_far_it_is_and_waits_for_nobody() -> None:
    ours, theirs = connected()
    job, channel = JobProcess(4, 0, -1, Channel(ours), ()), Channel(theirs)
    processes._launchers.append((channel, 4))
    try:
        processes.tell_progress(7.0, 9.0, None)
        job.receive()
        assert job.progress == JobProgressed(4, 7.0, 9.0, None)
        for step in range(100_000):
            processes.tell_progress(float(step), None, None)
            if channel.pending:
                break
        assert channel.pending
        job.close()
        processes.tell_progress(1.0, None, None)
    finally:
        processes._launchers.clear()
        channel.close()
    processes.tell_progress(1.0, None, None)
