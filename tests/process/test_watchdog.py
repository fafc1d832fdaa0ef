"""Real hangs, found, explained and ended: ``python -m lllaunch`` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.diagnosis import limited_memory, memory_cgroup, write_experiment
from support.launching import Finished, Launcher, launch, text_of, until

pytestmark = pytest.mark.measured

WATCHDOG, FAILED = 4, 3

# Short enough for a test; a look is taken four times in this.
STALL = {"stall": "1s"}


def run(directory: Path, script: str, *overrides: str, **node: Any) -> Finished:
    """Run a script to its end."""
    (directory / "work.py").write_text(dedent(script))
    settings = {"entrypoint": "work.py", "grace_period": "2s", "tee": "none", **node}
    return launch(directory, settings, *overrides)


def stacks(ended: Finished, rank: int, attempt: int = 0) -> str:
    return (ended.run_dir / f"attempt_{attempt}" / str(rank) / "stacks.txt").read_text()


def root(ended: Finished) -> Any:
    return ended.result["root_cause"]


def types(ended: Finished) -> list[str]:
    return [event["type"] for event in ended.events()]


def test_a_rank_that_never_joins_an_all_reduce_is_named_and_the_others_only_wait(
    tmp_path: Path,
) -> None:
    script = """
    import os, time
    import torch
    import torch.distributed as dist

    def forgets_to_join():
        time.sleep(1000)

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        forgets_to_join()
    dist.all_reduce(torch.ones(1))
    """
    ended = run(tmp_path, script, nproc=3, preload=["torch"], watchdog={"stall": "2s"})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "Stalled"
    assert root(ended)["rank"] == 1
    assert "in forgets_to_join" in stacks(ended, 1)
    for rank in (0, 2):
        assert "all_reduce" in stacks(ended, rank)
    assert "rank 1 (attempt 0) stalled" in ended.err
    assert "forgets_to_join" in ended.err
    assert "all_reduce" in ended.err
    events = types(ended)
    order = ["WatchdogFired", "TakeStacks", "StacksTaken", "SignalWorkers", "Finish"]
    assert [event for event in events if event in order] == order


def test_a_deadlock_of_two_threads_is_seen_in_both(tmp_path: Path) -> None:
    script = """
    import threading, time

    a, b = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def first():
        with a:
            both.wait()
            with b:
                pass

    def second():
        with b:
            both.wait()
            with a:
                pass

    other = threading.Thread(target=second)
    other.start()
    first()
    """
    ended = run(tmp_path, script, watchdog=STALL)
    assert ended.code == WATCHDOG, ended.err
    text = stacks(ended, 0)
    assert "in first" in text
    assert "in second" in text


def test_code_that_sleeps_with_the_gil_held(tmp_path: Path) -> None:
    script = """
    import ctypes

    def holds_the_gil():
        # locked by itself already, and waited for again without letting Python go on
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)

    holds_the_gil()
    """
    ended = run(tmp_path, script, watchdog=STALL)
    assert ended.code == WATCHDOG, ended.err
    assert "in holds_the_gil" in stacks(ended, 0)
    assert "holds_the_gil" in ended.err


def test_a_stopped_rank_is_told_apart_from_one_that_waits(tmp_path: Path) -> None:
    script = """
    import os, signal, time

    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
    """
    ended = run(tmp_path, script, nproc=2, watchdog=STALL, grace_period="0.5s")
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["rank"] == 1
    assert root(ended)["cause"]["stopped"] == [1]
    assert "SIGSTOP" in ended.err or "stopped" in ended.err


def test_a_busy_loop_is_no_stall_and_is_ended_by_the_clock(tmp_path: Path) -> None:
    script = """
    def spins():
        while True:
            pass

    spins()
    """
    ended = run(tmp_path, script, watchdog={"stall": "1s", "timeout": "3s"})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "TimedOut"
    assert "in spins" in stacks(ended, 0)


def test_uninterruptible_sleep_is_told_apart(tmp_path: Path) -> None:
    """posix_spawn waits for its child as vfork does, in state D; the child waits for a FIFO."""
    script = """
    import os

    os.mkfifo("never")
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, "never", os.O_RDONLY, 0)])
    """
    ended = run(tmp_path, script, watchdog=STALL, grace_period="0.5s")
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["asleep"] == [0]
    assert "uninterruptible" in ended.err
    assert "State: D" in stacks(ended, 0)


def test_one_idle_rank_among_busy_ones(tmp_path: Path) -> None:
    script = """
    import os, time

    while os.environ["RANK"] == "0":
        pass
    time.sleep(1000)
    """
    watchdog = {**STALL, "stall_scope": "rank"}
    ended = run(tmp_path, script, nproc=2, watchdog=watchdog)
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["ranks"] == [1]
    assert root(ended)["rank"] == 1


def test_heartbeats_that_stop_are_missed_though_the_worker_is_busy(tmp_path: Path) -> None:
    script = """
    import lllaunch

    for _ in range(3):
        lllaunch.heartbeat()

    def spins():
        while True:
            pass

    spins()
    """
    ended = run(tmp_path, script, watchdog={"heartbeat": "1s"})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "HeartbeatLost"
    assert "in spins" in stacks(ended, 0)


def test_a_run_that_prints_no_more_is_found_though_all_are_busy(tmp_path: Path) -> None:
    script = """
    print("begun", flush=True)

    def spins():
        while True:
            pass

    spins()
    """
    ended = run(tmp_path, script, nproc=2, watchdog={"silence": "1s", "stall": "1s"})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "Silent"
    assert "all workers hung: no output for 1." in ended.err
    assert all("in spins" in stacks(ended, rank) for rank in (0, 1))


def test_heartbeats_keep_a_quiet_worker_alive(tmp_path: Path) -> None:
    script = """
    import time
    import lllaunch

    for _ in range(30):
        lllaunch.heartbeat()
        time.sleep(0.1)
    """
    ended = run(tmp_path, script, watchdog={"stall": "1.5s", "heartbeat": "1.5s"})
    assert ended.code == 0, ended.err


def test_a_timer_that_runs_out(tmp_path: Path) -> None:
    script = """
    import os, time
    from lllaunch.timer import expires

    def sleeps():
        with expires(after=0.5, scope="the slow part"):
            time.sleep(1000)

    with expires(after=1000):
        if os.environ["RANK"] == "1":
            sleeps()
    time.sleep(1000)
    """
    ended = run(tmp_path, script, nproc=2, watchdog={"timers": True})
    assert ended.code == WATCHDOG, ended.err
    cause = root(ended)["cause"]
    assert (cause["type"], cause["scope"], cause["rank"]) == ("TimerExpired", "the slow part", 1)
    assert "in sleeps" in stacks(ended, 1)
    assert "SignalProcess" in types(ended)
    worker = ended.result["attempts"][0]["workers"][1]
    assert worker["signal"] == "SIGKILL"


def test_torchs_client_asks_our_server_in_a_worker(tmp_path: Path) -> None:
    script = """
    import os, time
    import torch.distributed.elastic.timer as timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=1000):
        pass
    with timer.expires(after=0.5):
        time.sleep(1000)
    """
    preload = ["torch.distributed.elastic.timer"]
    ended = run(tmp_path, script, preload=preload, watchdog={"timers": True})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "TimerExpired"
    # torch's own default: the line in contextlib that entered it
    assert "contextlib.py#" in root(ended)["cause"]["scope"]


def test_torchs_variable_changes_nothing_of_what_a_config_says(tmp_path: Path) -> None:
    script = "import os\nprint(os.environ.get('TORCHELASTIC_TIMER_FILE'))\n"
    environ = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    (tmp_path / "work.py").write_text(script)
    node = {"entrypoint": "work.py", "tee": "none", "watchdog": "none"}
    ended = launch(tmp_path, node, environ=environ)
    assert ended.code == 0, ended.err
    assert ended.log(0) == b"None\n"
    assert "TORCHELASTIC_ENABLE_FILE_TIMER=1 serves no timers here" in ended.err


def test_a_process_below_a_worker_may_set_timers_too(tmp_path: Path) -> None:
    script = """
    import subprocess, sys, time

    child = "from lllaunch.timer import *; import time\\nwith expires(0.3, 'x'): time.sleep(99)"
    subprocess.run([sys.executable, "-c", child])
    time.sleep(1000)
    """
    ended = run(tmp_path, script, watchdog={"timers": True})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["scope"] == "x"
    assert root(ended)["cause"]["pid"] != ended.result["attempts"][0]["workers"][0]["pid"]


def test_a_bad_request_is_told_and_hurts_no_other(tmp_path: Path) -> None:
    script = """
    import os, time
    from lllaunch.timer import expires

    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as file:
        file.write("no request\\n")
    with expires(after=0.5):
        time.sleep(1000)
    """
    ended = run(tmp_path, script, watchdog={"timers": True})
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "TimerExpired"
    assert "Rejected" in types(ended)
    assert "no request" in ended.err


def test_memory_over_the_limit(tmp_path: Path) -> None:
    script = """
    import subprocess, sys, time

    def eats():
        code = "import time; x = bytearray(300 << 20); print('full', flush=True); time.sleep(1000)"
        subprocess.run([sys.executable, "-c", code])

    eats()
    """
    # how long a stall may last decides how often a look is taken
    ended = run(tmp_path, script, watchdog={"memory": "150MiB", "stall": "8s"})
    assert ended.code == WATCHDOG, ended.err
    cause = root(ended)["cause"]
    assert cause["type"] == "OverMemory"
    assert cause["used"] > cause["limit"] == 150 << 20
    assert "150 MiB" in ended.err


# What follows


HANGS_ONCE = """
import os, time

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(1000)
"""


def test_a_hang_may_be_worth_another_attempt(tmp_path: Path) -> None:
    restart = {"on": ["hang"], "delay": "0.2s"}
    watchdog = {"stall": "1.5s"}  # the second attempt must not be taken for a hang
    ended = run(tmp_path, HANGS_ONCE, watchdog=watchdog, max_restarts=1, restart=restart)
    assert ended.code == 0, ended.err
    assert [attempt["state"] for attempt in ended.result["attempts"]] == ["failed", "succeeded"]
    assert "Pause" in types(ended)


def test_or_not(tmp_path: Path) -> None:
    ended = run(tmp_path, HANGS_ONCE, watchdog=STALL, max_restarts=1, restart={"on": ["failure"]})
    assert ended.code == WATCHDOG, ended.err
    assert len(ended.result["attempts"]) == 1


@pytest.mark.parametrize(
    ("end", "cause"), [("sys.exit(3)", "failure"), ("os.kill(os.getpid(), 11)", "signal")]
)
def test_failures_are_told_apart_by_the_policy(tmp_path: Path, end: str, cause: str) -> None:
    script = f"import os, sys; os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and {end}"
    others = sorted({"failure", "signal", "oom", "hang", "timeout"} - {cause})
    for on, code in ((cause, 0), (others, FAILED)):
        directory = tmp_path / str(code)
        directory.mkdir()
        ended = run(directory, script, max_restarts=1, restart={"on": on})
        assert ended.code == code, ended.err


def test_the_time_of_the_run_ends_its_restarts(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "raise SystemExit(1)",
        watchdog={"run_timeout": "6s"},
        max_restarts=1000,
        # the second attempt has three seconds for its end, and the third one would come too late
        restart={"delay": "3s", "max_delay": "100s"},
    )
    assert ended.code == WATCHDOG, ended.err
    assert len(ended.result["attempts"]) == 2
    assert root(ended)["cause"]["type"] == "CalledExit"
    assert "time limit" in ended.err


def test_ctrl_c_ends_the_wait_before_a_restart(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("raise SystemExit(1)")
    node = {"entrypoint": "work.py", "max_restarts": 1, "restart": {"delay": "1h"}}
    launcher = Launcher(tmp_path, {**node, "restart": {"delay": "1h", "max_delay": "1h"}})
    until(lambda: '"Pause"' in text_of(launcher.run_dir / "events.jsonl"), "the pause")
    launcher.signal(signal.SIGINT)
    ended = launcher.finish()
    assert ended.code == 128 + signal.SIGINT, ended.err


def test_a_preload_that_hangs_is_a_hang(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(1000)")
    ended = run(tmp_path, "pass", preload=["hangs"], watchdog=STALL)
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "Stalled"


def test_an_import_that_hangs_is_a_hang(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("import time; time.sleep(1000)\ndef main(): pass\n")
    ended = launch(tmp_path, {"entrypoint": "work:main", "watchdog": STALL, "tee": "none"})
    assert ended.code == WATCHDOG, ended.err
    assert "work.py" in stacks(ended, 0)


def test_a_program_is_watched_without_its_help(tmp_path: Path) -> None:
    ended = launch(
        tmp_path, {"entrypoint": "sleep", "args": ["1000"], "watchdog": STALL, "nproc": 2}
    )
    assert ended.code == WATCHDOG, ended.err
    assert "sleep" in stacks(ended, 1)


@pytest.mark.parametrize("preset", ["default", "strict"])
def test_with_a_preset_an_ordinary_run_is_left_alone(tmp_path: Path, preset: str) -> None:
    script = """
    from lllaunch.timer import expires

    with expires(after=60):
        print("done")
    """
    ended = run(tmp_path, script, nproc=2, watchdog=preset)
    assert ended.code == 0, ended.err
    assert ended.log(1) == b"done\n"
    assert not (ended.run_dir / "attempt_0" / "0" / "stacks.txt").exists()


def test_a_stall_is_watched_from_a_terminal_less_python_too(tmp_path: Path) -> None:
    """Start method spawn: py-spy and the kernel tell where a fresh interpreter stands."""
    script = "import time\ndef sleeps(): time.sleep(1000)\nsleeps()\n"
    ended = run(tmp_path, script, start_method="spawn", watchdog=STALL)
    assert ended.code == WATCHDOG, ended.err
    assert sys.executable in stacks(ended, 0) or "python" in stacks(ended, 0)


IDLE = """
import os, time

def waits_for_a_file():
    while not os.path.exists("go"):
        time.sleep(0.1)

print("ready", flush=True)
waits_for_a_file()
"""


def test_ctrl_backslash_shows_where_the_workers_stand_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(IDLE)
    node = {"entrypoint": "work.py", "nproc": 2, "tee": "none"}
    console = tmp_path / "console"
    with console.open("wb") as file:
        launcher = Launcher(tmp_path, node, stdout=file, stderr=file)
    logs = [tmp_path / "run" / "attempt_0" / str(rank) / "stdout.log" for rank in range(2)]
    until(lambda: all("ready" in text_of(log) for log in logs), "both workers")
    for times in (1, 2):
        launcher.signal(signal.SIGQUIT)
        until(lambda n=times: text_of(console).count("in waits_for_a_file") == n, "their stacks")
        assert launcher.process.poll() is None
    assert "Ranks 0-1 were here" in text_of(console)
    (tmp_path / "go").touch()
    ended = launcher.finish()
    assert ended.code == 0, text_of(console)
    assert ended.result["state"] == "succeeded"
    assert types(ended).count("StacksTaken") == 2
    assert "SignalWorkers" not in types(ended)


def test_by_default_a_stall_is_reported_once_with_stacks_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    script = IDLE.replace('exists("go")', 'exists("run/attempt_0/0/stacks.txt")') + "time.sleep(6)"
    # what is said is that of the default but for the half hour
    soon = "launch.watchdog.stall={after: 2s, action: report}"
    ended = run(tmp_path, script, soon, nproc=2, max_restarts=1)
    assert ended.code == 0, ended.err
    assert ended.result["state"] == "succeeded"
    assert len(ended.result["attempts"]) == 1
    assert ended.err.count("all workers stalled: no output, no CPU use and no heartbeat") == 1
    assert ended.err.count("in waits_for_a_file") == 1
    assert "in waits_for_a_file" in stacks(ended, 1)
    assert types(ended).count("StacksTaken") == 1
    assert "SignalWorkers" not in types(ended)


@pytest.mark.skipif(
    memory_cgroup() is None, reason="no cgroup with a limit of memory can be made here"
)
def test_a_process_below_a_worker_that_the_oom_killer_ended_counts_as_oom(tmp_path: Path) -> None:
    script = """
    import subprocess, sys

    grow = "kept = []\\nwhile True: kept.append(b'x' * (8 << 20))"
    subprocess.run([sys.executable, "-c", grow], check=True)
    """
    (tmp_path / "work.py").write_text(dedent(script))
    restarts = {"max_restarts": 1, "restart": {"on": ["oom"]}}
    write_experiment(tmp_path, {"entrypoint": "work.py", **restarts})
    ours = [sys.executable, "-m", "lllaunch", "+exp=test", "hydra.run.dir=run"]
    with limited_memory(300 << 20) as words:
        command = [*words, *ours]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == FAILED, ended.stderr
    assert "CalledProcessError" in ended.stderr
    assert "The kernel's OOM killer struck" in ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["attempts"]) == 2
