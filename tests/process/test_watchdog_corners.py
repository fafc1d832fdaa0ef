"""Hangs in odd places, and runs that look like hangs but are none."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import Finished, Launcher, gone, launch, text_of, until

from lllaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.spec import WatchdogPolicy

WATCHDOG = 4


def run(directory: Path, script: str, *overrides: str, **node: Any) -> Finished:
    (directory / "work.py").write_text(dedent(script))
    options = {name: node.pop(name) for name in ("environ",) if name in node}
    settings = {"entrypoint": "work.py", "grace_period": "2s", "tee": "none", **node}
    return launch(directory, settings, *overrides, **options)


def test_limits_of_months_are_no_problem(tmp_path: Path) -> None:
    watchdog = {"timeout": "90d", "run_timeout": "300d", "stall": "60d", "timers": True}
    script = """
    import time
    from lllaunch.timer import expires

    with expires(after=90 * 86400), expires(after=1e15):
        time.sleep(0.2)
    """
    ended = run(tmp_path, script, watchdog=watchdog)
    assert ended.code == 0, ended.err


def test_the_time_of_the_run_counts_from_its_very_beginning(tmp_path: Path) -> None:
    """Also while the module of a function is imported to look at its arguments."""
    text = "import time\ntime.sleep(1000)\nglobals().update(f=print)\n"
    (tmp_path / "slow.py").write_text(text)
    node = {"entrypoint": "slow:f", "watchdog": {"run_timeout": "2s"}, "tee": "none"}
    ended = launch(tmp_path, {**node, "max_restarts": 5})
    assert ended.code == WATCHDOG, ended.err
    assert len(ended.result["attempts"]) == 1


def test_what_goes_to_the_console_counts_as_output(tmp_path: Path) -> None:
    script = """
    import time

    for step in range(16):
        print(step)
        time.sleep(0.2)
    """
    ended = run(tmp_path, script, redirects="none", watchdog={"stall": "1.5s"})
    assert ended.code == 0, ended.err
    assert "15" in ended.out.split()


def test_a_machine_that_was_suspended_is_no_stall(tmp_path: Path) -> None:
    script = """
    import time

    open("ready", "w").close()
    for _ in range(25):
        print("step")
        time.sleep(0.1)
    """
    (tmp_path / "work.py").write_text(dedent(script))
    node = {"entrypoint": "work.py", "tee": "none", "watchdog": {"stall": "1.5s"}}
    launcher = Launcher(tmp_path, node)
    until((tmp_path / "ready").exists, "the worker")
    frozen = [launcher.pid, *(process.pid for process in launcher.below())]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    ended = launcher.finish()
    assert ended.code == 0, ended.err


def test_without_a_grace_period_workers_still_have_time_to_die(tmp_path: Path) -> None:
    script = """
    import os, signal, time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1000)
    """
    ended = run(tmp_path, script, grace_period=0, max_restarts=1, watchdog={"stall": "1s"})
    assert ended.code == 0, ended.err
    assert "AbandonWorkers" not in [event["type"] for event in ended.events()]


def test_secrets_on_a_command_line_are_not_in_the_stacks(tmp_path: Path) -> None:
    secret = "s3cr3t-of-the-day"
    node = {
        "entrypoint": "sh",
        "args": ["-c", "sleep 1000; true", "x", "${oc.env:MY_TOKEN}"],
        "watchdog": {"stall": "1s"},
    }
    ended = launch(tmp_path, node, environ={"MY_TOKEN": secret})
    assert ended.code == WATCHDOG, ended.err
    stacks = (ended.run_dir / "attempt_0" / "0" / "stacks.txt").read_text()
    assert "sleep 1000" in stacks
    for path in ended.run_dir.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in ended.out + ended.err


def test_a_launcher_within_a_worker_has_timers_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "from lllaunch.timer import expires\nwith expires(after=60): print('inner')\n"
    )
    script = """
    import os, subprocess, sys
    from lllaunch.timer import expires

    command = [sys.executable, "-m", "lllaunch", "launch.entrypoint=inner.py",
               "launch.watchdog=default", "hydra.run.dir=inner"]
    with expires(after=60):
        subprocess.run(command, check=True)
    assert os.path.exists(os.environ["TORCHELASTIC_TIMER_FILE"])
    with expires(after=60):
        print("outer")
    """
    environ = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    ended = run(tmp_path, script, watchdog="default", environ=environ)
    assert ended.code == 0, ended.err
    assert b"outer\n" in ended.log(0)


def test_places_that_killed_launchers_left_are_removed_by_the_next(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "work.py").write_text("import time; time.sleep(1000)")
    node = {"entrypoint": "work.py", "tee": "none", "watchdog": {"timers": True}}
    launcher = Launcher(tmp_path, node, environ={"TMPDIR": str(temporary)})
    until(lambda: "Started" in text_of(launcher.run_dir / "events.jsonl"), "the worker")
    below = [process.pid for process in launcher.below()]
    launcher.signal(signal.SIGKILL)
    launcher.process.communicate()
    until(lambda: all(map(gone, below)), "the end of all")
    (left,) = temporary.iterdir()
    users = temporary / "lllaunch-watch-of-mine"
    (users / "timers").mkdir(parents=True)
    (users / "notes.txt").write_text("precious")
    for path in (left, users):
        os.utime(path, (1, 1))
    ended = run(tmp_path, "pass", watchdog="default", environ={"TMPDIR": str(temporary)})
    assert ended.code == 0, ended.err
    assert [path.name for path in temporary.iterdir()] == [users.name]


# The Python API


def hang() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(1000)


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_an_agent_returns_who_hung(method: str, tmp_path: Path) -> None:
    agent = LocalElasticAgent(
        WorkerSpec("trainer", 2, entrypoint=hang, max_restarts=0),
        DefaultLogsSpecs(str(tmp_path)),
        start_method=method,
        watchdog=WatchdogPolicy(stall=1.0, stall_scope="rank"),
    )
    result = agent.run()
    assert result.state is WorkerState.FAILED
    assert result.return_values == {}
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert failure.exitcode == -signal.SIGTERM
    assert "stalled" in failure.message
    with pytest.raises(RuntimeError, match="runs once"):
        agent.run()


def test_an_agent_whose_time_is_over_names_all_its_workers() -> None:
    agent = LocalElasticAgent(
        WorkerSpec("trainer", 2, entrypoint="sleep", args=("1000",), max_restarts=0),
        DefaultLogsSpecs(),
        watchdog=WatchdogPolicy(timeout=0.5),
    )
    result = agent.run()
    assert result.state is WorkerState.FAILED
    assert sorted(result.failures) == [0, 1]
    assert "took too long" in result.failures[0].message
