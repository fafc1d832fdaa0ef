"""Attempts that get no further, preflights, and room on the disk: `execute` with real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lllaunch.linux import proc
from lllaunch.results.report import run_case
from lllaunch.run.result import PreflightFailure, RunResult, as_result
from lllaunch.spec import Preflight, RestartPolicy
from lllaunch.sweep.schedule import cause_of
from tests.process.test_run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def sh(text: str, **more: Any) -> Preflight:
    return Preflight(("sh", "-c", text), **more)


def file_of(run: Run) -> RunResult:
    found = as_result(run.result, str(run.path))
    assert found is not None
    return found


# Its checkpoint is a number, which grows as long as that is less than 3.
TRAINS = """
import os, sys
rank = int(os.environ["RANK"])
path = "done"
done = int(open(path).read()) if os.path.exists(path) else 0
if rank == 0 and done < 3:
    with open("tmp", "w") as file:
        file.write(str(done + 1))
    os.replace("tmp", path)
sys.exit(5)
"""


def test_a_run_that_gets_no_further_ends_though_restarts_are_left(run: Run) -> None:
    policy = RestartPolicy(max_without_progress=2, checkpoint="done")
    outcome = run.script(TRAINS, max_restarts=50, restart=policy)
    assert (outcome.state, outcome.exit_code) == ("failed", 7)
    # three that got further, and two that did not
    assert len(outcome.attempts) == 5
    assert [each["checkpoint_changed"] for each in run.events("AttemptProgress")] == [
        *(True, True, True, False, False)
    ]
    (end,) = run.events("Finish")
    assert end["reason"] == "no_progress"
    text = "no progress in 2 attempts: trying again is no use"
    assert run.result["no_progress"] == {
        "type": "NoProgress",
        "text": text,
        "attempts": 2,
        "step": None,
        "same": True,
    }
    assert run.result["root_cause"]["attempt"] == 4
    assert f"  {text.capitalize()}.\n" in run.text
    assert "(exit code 7)" in run.text
    assert "Root cause: rank 0 (attempt 4) called sys.exit(5)" in run.text
    # what lists, sweeps and reports say of it
    file = file_of(run)
    assert file.cause_type == "NoProgress"
    assert file.failure == f"{text}; rank 0: called sys.exit(5)"
    assert file.no_progress == outcome.no_progress
    case = run_case(file, [str(run.root)])
    assert (case.outcome, case.kind) == ("failed", "NoProgress")
    assert case.message == f"{text}; rank 0: called sys.exit(5)"
    assert cause_of(7, file.cause_type) is None


def test_a_checkpoint_that_holds_too_much_is_told_of_once_and_is_no_reason_to_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lllaunch.run.execute.MOST_ENTRIES", 2)
    for name in "abc":
        (run.root / "saved" / name).mkdir(parents=True)
    policy = RestartPolicy(max_without_progress=1, checkpoint="saved")
    outcome = run.program("false", max_restarts=2, restart=policy)
    assert (outcome.exit_code, len(outcome.attempts)) == (3, 3)
    assert run.text.count("warning: saved holds too much to tell") == 1


# Preflights


def test_the_workers_follow_a_preflight_that_succeeds(run: Run) -> None:
    outcome = run.program(
        *("sh", "-c", "test -e checked.$TORCHELASTIC_RESTART_COUNT"),
        nproc=2,
        env={"WHO": "me"},
        preflight=sh("touch checked.$TORCHELASTIC_RESTART_COUNT; echo $WHO $RANK; echo no >&2"),
    )
    assert outcome.state == "succeeded", run.text
    assert (run.path / "attempt_0/preflight.log").read_text() == "me 0\nno\n"
    assert not os.listdir(run.path / "attempt_0/0"), "what nobody wrote to is not kept"
    ranks = [event["local_rank"] for event in run.events("Exited")]
    assert (ranks[0], sorted(ranks[1:])) == (-1, [0, 1])
    assert run.result["attempts"][0]["workers"][0]["fate"] == "succeeded"


def test_a_preflight_that_fails_is_the_cause(run: Run) -> None:
    outcome = run.program("true", nproc=2, preflight=sh("echo no GPU 3; exit 9"))
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    root = outcome.root_cause
    assert root is not None
    assert root.cause == PreflightFailure("sh -c 'echo no GPU 3; exit 9'", 9)
    assert run.fates() == ["not_started", "not_started"]
    said = "preflight failed: sh -c 'echo no GPU 3; exit 9' exited with status 9"
    assert f"Root cause: all workers (attempt 0) could not be started: {said}\n" in run.text
    log = "run/attempt_0/preflight.log"
    assert f"    All of the preflight's output, {log}:\n    | no GPU 3\n" in run.text
    assert file_of(run)
    assert file_of(run).cause_type == "PreflightFailure"


def test_a_program_that_is_not_there_any_more(run: Run) -> None:
    outcome = run.program("true", preflight=Preflight(("/nowhere/check", "-v")))
    assert outcome.exit_code == 3
    assert outcome.root_cause is not None
    cause = outcome.root_cause.cause
    assert cause == PreflightFailure("/nowhere/check -v", reason="No such file or directory")


def test_a_preflight_that_hangs_is_ended_with_all_that_it_started(run: Run) -> None:
    text = "trap '' TERM; sleep 4711 & setsid sleep 4712 & echo $$ > pid; wait; wait"
    outcome = run.program("true", grace_period=1.0, preflight=sh(text, timeout=1.5))
    assert outcome.exit_code == 3
    assert outcome.root_cause is not None
    cause = outcome.root_cause.cause
    assert isinstance(cause, PreflightFailure)
    assert (cause.timeout, cause.exitcode) == (1.5, None)
    assert "took longer than 1.5 s" in run.text
    assert not sleeping("4711", "4712")


def sleeping(*seconds: str) -> list[int]:
    """The processes that sleep so long."""
    found = []
    for process in proc.processes():
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[:1] == [b"sleep"] and command[1].decode() in seconds and process.state != "Z":
            found.append(process.pid)
    return found


def test_what_a_preflight_leaves_behind_is_ended_before_the_workers_start(run: Run) -> None:
    outcome = run.script(
        """
        import os, sys
        sys.exit(os.path.exists(f"/proc/{open('pid').read().strip()}"))
        """,
        preflight=sh("setsid sleep 4713 & echo $! > pid"),
    )
    assert outcome.state == "succeeded", run.text
    assert not sleeping("4713")


def test_a_signal_ends_a_preflight(run: Run) -> None:
    # its parent is the spawner, whose parent is the launcher: this process
    text = f"echo here; kill -TERM {os.getpid()}; sleep 4714"
    outcome = run.program("true", nproc=2, max_restarts=3, preflight=sh(text))
    assert (outcome.state, outcome.exit_code) == ("signalled", 128 + signal.SIGTERM)
    assert outcome.root_cause is None
    assert run.fates() == ["not_started", "not_started"]
    assert "SIGTERM received, forwarded to the preflight" in run.text
    assert not sleeping("4714")


def test_a_preflight_sees_the_gpus_of_all_workers(run: Run) -> None:
    outcome = run.program(
        *("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"),
        nproc=2,
        env={"CUDA_VISIBLE_DEVICES": "3,5"},
        virtual_local_rank=True,
        preflight=sh("echo $CUDA_VISIBLE_DEVICES"),
    )
    assert outcome.state == "succeeded", run.text
    assert (run.path / "attempt_0/preflight.log").read_text() == "3,5\n"
    assert (run.path / "attempt_0/1/stdout.log").read_text() == "5\n"


# Room on the disk


def test_where_less_is_free_than_there_must_be_nothing_begins(run: Run) -> None:
    outcome = run.program("true", min_disk=2**62)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert not (run.path / "attempt_0").exists()
    assert outcome.error.startswith("launch.min_disk: ")
    assert f"where {str(run.path)!r} is, and " in outcome.error
    assert run.result["error"] == outcome.error


def test_a_disk_that_fills_up_ends_the_run_before_the_next_attempt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([2**40, 2**20])
    monkeypatch.setattr("lllaunch.run.execute.free_space", lambda _: ("/scratch", next(free)))
    outcome = run.program("false", max_restarts=5, min_disk=2**30)
    assert (outcome.state, outcome.exit_code) == ("error", 1)
    assert "launch.min_disk: 1.0 MiB are free on '/scratch'" in outcome.error
    assert len(outcome.attempts) == 1
    assert "Root cause: rank 0 (attempt 0) exited with status 1" in run.text
