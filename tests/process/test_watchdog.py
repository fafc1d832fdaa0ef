"""Real hangs, found, explained and ended: ``python -m lllaunch`` as a user runs it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import Finished, launch

from lllaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.spec import WatchdogPolicy

WATCHDOG = 4

# Short enough for a test, and long enough for workers on a busy machine to come to where they hang;
# a look is taken four times in this.
STALL = {"stall": "4s"}


def run(
    directory: Path, script: str, *overrides: str, environ: Any = None, **node: Any
) -> Finished:
    """Run a script to its end."""
    (directory / "work.py").write_text(dedent(script))
    settings = {"entrypoint": "work.py", "grace_period": "2s", "tee": "none", **node}
    return launch(directory, settings, *overrides, environ=environ)


def stacks(ended: Finished, rank: int) -> str:
    return (ended.run_dir / "attempt_0" / str(rank) / "stacks.txt").read_text()


def root(ended: Finished) -> Any:
    return ended.result["root_cause"]


def types(ended: Finished) -> list[str]:
    return [event["type"] for event in ended.events()]


@pytest.mark.parametrize(
    ("watchdog", "code", "kind"),
    [
        pytest.param(STALL, "time.sleep(1000)", "Stalled", marks=pytest.mark.smoke),
        ({"heartbeat": "2s"}, "lllaunch.heartbeat(); spins()", "HeartbeatLost"),
        ({"silence": "4s"}, "print('begun', flush=True); spins()", "Silent"),
        ({"timeout": "4s"}, "spins()", "TimedOut"),
    ],
    ids=["stall", "heartbeat", "silence", "timeout"],
)
def test_what_a_limit_finds_is_shown_and_ended(
    tmp_path: Path, watchdog: dict[str, str], code: str, kind: str
) -> None:
    script = f"""
    import time
    import lllaunch

    def spins():
        while True:
            pass

    def hangs():
        {code}

    hangs()
    """
    ended = run(tmp_path, script, nproc=2, watchdog=watchdog)
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == kind
    assert all("in hangs" in stacks(ended, rank) for rank in (0, 1))
    order = ["WatchdogFired", "TakeStacks", "StacksTaken", "SignalWorkers", "Finish"]
    assert [event for event in types(ended) if event in order] == order


def test_a_worker_in_uninterruptible_sleep_is_ended_and_told_apart(tmp_path: Path) -> None:
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
    assert "State: D" in stacks(ended, 0)


def test_a_timer_of_a_process_below_a_worker_that_runs_out(tmp_path: Path) -> None:
    script = """
    import os, subprocess, sys, time
    from lllaunch.timer import expires

    def sleeps():
        with expires(after=0.5, scope="the slow part"):
            time.sleep(1000)

    def waits():
        with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as file:
            file.write("no request\\n")
        subprocess.run([sys.executable, "-c", "import work; work.sleeps()"])
        time.sleep(1000)

    if __name__ == "__main__":
        with expires(after=1000):
            waits() if os.environ["RANK"] == "1" else time.sleep(1000)
    """
    ended = run(tmp_path, script, nproc=2, watchdog={"timers": True})
    assert ended.code == WATCHDOG, ended.err
    cause = root(ended)["cause"]
    assert (cause["type"], cause["scope"], cause["rank"]) == ("TimerExpired", "the slow part", 1)
    worker = ended.result["attempts"][0]["workers"][1]
    assert cause["pid"] != worker["pid"]
    assert "in waits" in stacks(ended, 1)
    assert {"SignalProcess", "Rejected"} <= {*types(ended)}
    assert "no request" in ended.err


def test_a_launcher_within_a_worker_has_timers_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "from lllaunch.timer import expires\nwith expires(after=600): print('inner')\n"
    )
    script = """
    import os, subprocess, sys
    from lllaunch.timer import expires

    command = [sys.executable, "-m", "lllaunch", "launch.entrypoint=inner.py",
               "launch.watchdog=default", "hydra.run.dir=inner"]
    with expires(after=600):
        subprocess.run(command, check=True)
    assert os.path.exists(os.environ["TORCHELASTIC_TIMER_FILE"])
    with expires(after=600):
        print("outer")
    """
    ended = run(tmp_path, script, watchdog="default")
    assert ended.code == 0, ended.err
    assert b"outer\n" in ended.log(0)


def test_torchs_variable_changes_nothing_of_what_a_config_says(tmp_path: Path) -> None:
    script = "import os\nprint(os.environ.get('TORCHELASTIC_TIMER_FILE'))\n"
    environ = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    ended = run(tmp_path, script, watchdog="none", environ=environ)
    assert ended.code == 0, ended.err
    assert ended.log(0) == b"None\n"
    assert "TORCHELASTIC_ENABLE_FILE_TIMER=1 serves no timers here" in ended.err


# What follows


def test_a_hang_may_be_worth_another_attempt_without_a_grace_period_too(tmp_path: Path) -> None:
    script = """
    import os, signal, time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1000)
    """
    restart = {"on": ["hang"], "delay": "0.2s"}
    node = {"max_restarts": 1, "restart": restart, "grace_period": 0}
    ended = run(tmp_path, script, watchdog=STALL, **node)
    assert ended.code == 0, ended.err
    assert [attempt["state"] for attempt in ended.result["attempts"]] == ["failed", "succeeded"]
    assert "Pause" in types(ended)
    # they have time to die all the same
    assert "AbandonWorkers" not in types(ended)


def test_by_default_a_stall_is_reported_once_with_stacks_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    script = """
    import os, time

    def waits_for_a_file():
        while not os.path.exists("run/attempt_0/0/stacks.txt"):
            time.sleep(0.1)

    waits_for_a_file()
    time.sleep(6)
    """
    # what is said is that of the default but for the half hour
    soon = "launch.watchdog.stall={after: 4s, action: report}"
    ended = run(tmp_path, script, soon, nproc=2, max_restarts=1)
    assert ended.code == 0, ended.err
    assert len(ended.result["attempts"]) == 1
    assert ended.err.count("all workers stalled: no output, no CPU use and no heartbeat") == 1
    assert "in waits_for_a_file" in stacks(ended, 1)
    assert types(ended).count("StacksTaken") == 1
    assert "SignalWorkers" not in types(ended)


def test_the_time_of_the_run_counts_from_its_very_beginning(tmp_path: Path) -> None:
    """Also while the module of a function is imported to look at its arguments."""
    node = {"entrypoint": "work:f", "watchdog": {"run_timeout": "2s"}, "max_restarts": 5}
    ended = run(tmp_path, "import time\ntime.sleep(1000)\nglobals().update(f=print)\n", **node)
    assert ended.code == WATCHDOG, ended.err
    assert len(ended.result["attempts"]) == 1


# In odd places


@pytest.mark.parametrize(
    ("node", "seen"),
    [
        ({"preload": ["hangs"]}, ""),
        ({"entrypoint": "hangs:main"}, "hangs.py"),
        ({"entrypoint": "sleep", "args": ["1000"]}, "sleep"),
        # py-spy and the kernel tell where a fresh interpreter stands
        ({"start_method": "spawn", "entrypoint": "hangs.py"}, "python"),
    ],
    ids=["a preload", "the import of a function", "a program", "start method spawn"],
)
def test_also_found_are_hangs_of(tmp_path: Path, node: dict[str, Any], seen: str) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)\ndef main(): pass\n")
    ended = run(tmp_path, "pass", watchdog=STALL, **node)
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "Stalled"
    if seen:
        assert seen in stacks(ended, 0)


def test_what_goes_to_the_console_counts_as_output(tmp_path: Path) -> None:
    script = """
    import time

    for step in range(35):
        print(step)
        time.sleep(0.2)
    """
    ended = run(tmp_path, script, redirects="none", watchdog=STALL)
    assert ended.code == 0, ended.err
    assert "34" in ended.out.split()


LONG = {"timeout": "90d", "run_timeout": "300d", "stall": "60d", "timers": True}


@pytest.mark.parametrize("watchdog", ["default", "strict", LONG])
def test_an_ordinary_run_is_left_alone(tmp_path: Path, watchdog: Any) -> None:
    script = """
    from lllaunch.timer import expires

    with expires(after=90 * 86400), expires(after=1e15):
        print("done")
    """
    ended = run(tmp_path, script, nproc=2, watchdog=watchdog)
    assert ended.code == 0, ended.err
    assert ended.log(1) == b"done\n"
    assert not (ended.run_dir / "attempt_0" / "0" / "stacks.txt").exists()


# Busy ones that get nowhere, and some that only look like it

# Short enough for a test; the processes are looked at four times in this.
SPIN = {"preset": "none", "spin": "4s"}
# What a collective on a GPU does that hangs: C code that is busy for ever without the interpreter's
# lock. hashlib lets it go.
BUSY = """
import hashlib, time

def spins(rounds=10**9):
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", rounds)
"""


ALONE = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    spins()
dist.all_reduce(torch.ones(1))
"""


def test_one_rank_spins_while_the_others_wait_for_it(tmp_path: Path) -> None:
    watchdog = SPIN | {"stall": "4s"}
    ended = run(tmp_path, BUSY + ALONE, nproc=3, preload=["torch"], watchdog=watchdog)
    assert ended.code == WATCHDOG, ended.err
    assert root(ended)["cause"]["type"] == "Spinning"
    assert root(ended)["cause"]["ranks"] == [0, 1, 2]
    assert root(ended)["cause"]["looks"] >= 2
    assert ended.result["root_cause"]["rank"] == 1
    assert "in spins" in stacks(ended, 1)
    # the looks before that were written nowhere
    assert stacks(ended, 1).count("the watchdog found: got nowhere") == 1
    assert all("all_reduce" in stacks(ended, rank) for rank in (0, 2))
    assert "rank 1 (attempt 0) got nowhere: " in ended.err
    assert "ranks 0, 2 wait for it" in ended.err


THREAD = """
import threading

def works():
    end = time.monotonic() + 10
    while time.monotonic() < end: spins(20_000)

thread = threading.Thread(target=works)
thread.start()
thread.join()
"""
PROGRAM = """
import subprocess, sys

code = "import time, work\\nend = time.monotonic() + 10\\nwhile time.monotonic() < end: "
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", code + "work.spins(20_000)"], check=True)
"""


@pytest.mark.parametrize("script", [THREAD, PROGRAM], ids=["a thread", "a program"])
def test_nothing_is_found_of_who_is_quiet_and_waits_for(tmp_path: Path, script: str) -> None:
    ended = run(tmp_path, BUSY + script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert "WatchdogFired" not in types(ended)


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
        watchdog=WatchdogPolicy(stall=4.0, stall_scope="rank"),
    )
    result = agent.run()
    assert result.state is WorkerState.FAILED
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert failure.exitcode == -signal.SIGTERM
    assert "stalled" in failure.message
    with pytest.raises(RuntimeError, match="runs once"):
        agent.run()
