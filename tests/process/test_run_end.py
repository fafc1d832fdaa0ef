"""The end of a run: what is written is true, and signals do not keep it from being written."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from support.launching import Launcher, gone, text_of, until

from lllaunch.linux import proc

pytestmark = pytest.mark.measured


def test_a_run_has_succeeded_though_the_spawner_dies_while_leftovers_are_ended(
    tmp_path: Path,
) -> None:
    node = {"entrypoint": "sh", "args": ["-c", "sleep 100 & exit 0"], "nproc": 2}
    launcher = Launcher(tmp_path, node)
    events = tmp_path / "run" / "events.jsonl"
    until(lambda: "CleanUp" in text_of(events), "the end of all workers")
    os.kill(launcher.spawner(), signal.SIGKILL)
    done = launcher.finish()
    assert "SpawnerGone" in text_of(events), "the spawner was killed too late"
    assert (done.code, done.result["state"]) == (0, "succeeded"), done.err
    assert done.result["root_cause"] is None


@pytest.mark.parametrize("signals", [["SIGTERM"], ["SIGTERM", "SIGINT"]])
def test_a_keyboard_interrupt_ends_the_run_as_the_signal_does(
    tmp_path: Path, signals: list[str]
) -> None:
    node = {"entrypoint": "sleep", "args": ["1000"], "signals": signals, "grace_period": "20s"}
    launcher = Launcher(tmp_path, node)
    until(lambda: '"Started"' in text_of(tmp_path / "run" / "events.jsonl"), "the worker")
    launcher.signal(signal.SIGINT)
    done = launcher.finish()
    assert done.code == 130
    assert (done.result["state"], done.result["exit_code"]) == ("signalled", 130)
    assert "Traceback" not in done.err


@pytest.mark.parametrize("limit", [10, 16, 22, 26, 34])
def test_too_few_descriptors_are_named_with_their_limit_and_the_result_is_true(
    tmp_path: Path, limit: int
) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    node = {"entrypoint": "echo", "args": ["x"], "nproc": 4, "tee": "all"}
    launcher = Launcher(tmp_path, node, preexec_fn=few)
    done = launcher.finish()
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert done.code in {0, 1}
    if done.code:
        assert f"this process may have {limit} open (ulimit -n)" in done.err
    result = tmp_path / "run" / "result.json"
    if result.exists():
        assert done.result["exit_code"] == done.code
        started = {event["local_rank"] for event in done.events() if event["type"] == "Started"}
        for attempt in done.result["attempts"]:
            for worker in attempt["workers"]:
                assert (worker["fate"] != "not_started") == (worker["local_rank"] in started)


# Preloaded: lets this spawner end nothing, as where the kernel does not let go of a process.
HELPLESS = """
import sys
from lllaunch.spawner import orphans, server

server._GIVE_UP_SECONDS = 0.5
server._BRANCH_SECONDS = 0.1
orphans.signal_process = lambda known, signum: False
open("helpless", "w").close()
"""


def test_an_orphaned_spawner_gives_up_on_what_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "helpless.py").write_text(HELPLESS)
    (tmp_path / "work.py").write_text(
        "import os, time\n"
        "with open('pid', 'w') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(1000)\n"
    )
    node = {"entrypoint": "work.py", "tee": "none", "preload": ["helpless"]}
    launcher = Launcher(tmp_path, node)
    until(lambda: text_of(tmp_path / "pid").endswith("\n"), "the worker")
    assert (tmp_path / "helpless").exists()
    worker, spawner = int(text_of(tmp_path / "pid")), launcher.spawner()
    launcher.process.kill()
    launcher.process.communicate()
    until(lambda: gone(spawner), "the end of the spawner")
    # by its parent-death signal
    until(lambda: gone(worker), "the end of the worker")


def states(pids: list[int]) -> set[str]:
    found = {pid: proc.facts(pid) for pid in pids}
    return {facts.state for facts in found.values() if facts is not None}


def test_ctrl_z_stops_the_workers_too_and_no_time_passes_until_they_go_on(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "with open(f'pids{os.environ[\"RANK\"]}', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}\\n')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "child.kill()\n"
    )
    node = {"entrypoint": "work.py", "nproc": 2, "tee": "none"}
    launcher = Launcher(tmp_path, node)
    files = [tmp_path / f"pids{rank}" for rank in range(2)]
    until(lambda: all(text_of(file).endswith("\n") for file in files), "the workers")
    pids = [launcher.pid, *(int(pid) for file in files for pid in file.read_text().split())]
    for _ in range(2):
        launcher.signal(signal.SIGTSTP)
        until(lambda: states(pids) == {"T"}, "all to be stopped")
        launcher.signal(signal.SIGCONT)
        until(lambda: "T" not in states(pids), "all to go on")
    (tmp_path / "go").touch()
    done = launcher.finish()
    assert (done.code, done.result["state"]) == (0, "succeeded"), done.err
    assert not [event for event in done.events() if event["type"] == "SignalReceived"]
