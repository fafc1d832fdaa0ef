"""Workers that get nowhere though they are busy, and some that only look like it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import Finished, launch

pytestmark = pytest.mark.measured

WATCHDOG = 4
# Short enough for a test; the processes are looked at four times in this.
SPIN = {"preset": "none", "spin": "2s"}

# What a collective on a GPU does that hangs: C code that is busy for ever without the interpreter's
# lock. hashlib lets it go.
BUSY = """
    import hashlib

    def spins(rounds=10**9):
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", rounds)
"""

# Ends itself some time after it was reported; who only asks whether a file is there reads nothing.
ENDS = """
import os, threading, time

def ends():
    while not os.path.exists("run/attempt_0/0/stacks.txt"):
        time.sleep(0.2)
    time.sleep(3)
    os._exit(0)

threading.Thread(target=ends, daemon=True).start()
"""


def run(directory: Path, script: str, *overrides: str, **node: Any) -> Finished:
    """Run a script to its end."""
    (directory / "work.py").write_text(dedent(BUSY) + dedent(script))
    settings = {"entrypoint": "work.py", "grace_period": "2s", "tee": "none", **node}
    return launch(directory, settings, *overrides)


def stacks(ended: Finished, rank: int) -> str:
    return (ended.run_dir / "attempt_0" / str(rank) / "stacks.txt").read_text()


def cause(ended: Finished) -> Any:
    return ended.result["root_cause"]["cause"]


def fired(ended: Finished) -> list[Any]:
    return [event["finding"] for event in ended.events() if event["type"] == "WatchdogFired"]


def test_one_rank_spins_while_the_others_wait_for_it(tmp_path: Path) -> None:
    script = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        spins()
    dist.all_reduce(torch.ones(1))
    """
    ended = run(tmp_path, script, nproc=3, preload=["torch"], watchdog={**SPIN, "stall": "2s"})
    assert ended.code == WATCHDOG, ended.err
    assert cause(ended)["type"] == "Spinning"
    assert cause(ended)["ranks"] == [0, 1, 2]
    assert cause(ended)["looks"] >= 2
    assert ended.result["root_cause"]["rank"] == 1
    assert "in spins" in stacks(ended, 1)
    assert all("all_reduce" in stacks(ended, rank) for rank in (0, 2))
    assert (
        "rank 1 (attempt 0) got nowhere: no output, no heartbeat and less than 1 KiB/s of I/O for "
        in ended.err
    )
    assert "ranks 0, 2 wait for it" in ended.err


def test_all_ranks_spin(tmp_path: Path) -> None:
    ended = run(tmp_path, "spins()", nproc=2, watchdog={**SPIN, "stall": "1s"})
    assert ended.code == WATCHDOG, ended.err
    assert cause(ended)["type"] == "Spinning"
    assert (
        "all workers got nowhere: no output, no heartbeat and less than 1 KiB/s of I/O for "
        in ended.err
    )
    assert "at the same line of Python in each of " in ended.err
    # the looks before that were written nowhere
    assert stacks(ended, 0).count("the watchdog found: got nowhere") == 1


def test_what_is_only_reported_is_said_once_and_looked_for_no_more(tmp_path: Path) -> None:
    watchdog = {"preset": "none", "spin": {"after": "1s", "action": "report"}}
    ended = run(tmp_path, f"{ENDS}spins()", watchdog=watchdog)
    assert ended.code == 0, ended.err
    assert [found["type"] for found in fired(ended)] == ["Spinning"]
    assert ended.err.count("the run goes on") == 1
    assert "in spins" in stacks(ended, 0)


def test_a_stall_that_was_reported_is_no_spin_as_well(tmp_path: Path) -> None:
    script = f"{ENDS}time.sleep(1000)"
    watchdog = {
        "stall": {"after": "1s", "action": "report"},
        "spin": {"after": "1s", "action": "report"},
    }
    ended = run(tmp_path, script, watchdog={"preset": "none", **watchdog})
    assert ended.code == 0, ended.err
    assert [found["type"] for found in fired(ended)] == ["Stalled"]


def test_a_data_loader_that_is_slow_but_reads_is_none(tmp_path: Path) -> None:
    # the main thread stands in one line all the time, and a child reads for it
    (tmp_path / "data").write_bytes(bytes(4096))
    script = """
    import os, subprocess, sys, time

    CHILD = '''
    import time
    for _ in range(60):
        with open("data", "rb", buffering=0) as file:
            file.read(4096)
        time.sleep(0.1)
    '''
    import textwrap
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD)])
    child.wait()
    """
    ended = run(tmp_path, script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_a_loop_that_its_gpu_bounds_and_that_prints_now_and_then_is_none(tmp_path: Path) -> None:
    script = """
    import time

    for step in range(8):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            # nearly all of its time in this line
            spins(20_000)
        print("step", step, flush=True)
    """
    ended = run(tmp_path, script, watchdog={"preset": "none", "spin": "5s"})
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_code_that_moves_is_none_however_quiet(tmp_path: Path) -> None:
    script = """
    import time

    end = time.monotonic() + 6
    while time.monotonic() < end:
        spins(20_000)
        spins(20_000)
        spins(20_000)
        spins(20_000)
        spins(20_000)
    """
    ended = run(tmp_path, script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_heartbeats_are_signs_of_life(tmp_path: Path) -> None:
    script = """
    import lllaunch, time

    end = time.monotonic() + 8
    while time.monotonic() < end:
        spins(20_000)
        lllaunch.heartbeat()
    """
    ended = run(tmp_path, script, watchdog={"preset": "none", "spin": "4s"})
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_a_worker_that_executed_another_interpreter_is_seen_by_py_spy(tmp_path: Path) -> None:
    script = """
    import os, sys

    if len(sys.argv) == 1:
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    spins()
    """
    ended = run(tmp_path, script, nproc=2, watchdog=SPIN)
    assert ended.code == WATCHDOG, ended.err
    assert cause(ended)["type"] == "Spinning"
    assert "read by py-spy" in stacks(ended, 0)


def test_where_nobody_can_look_nothing_is_found_and_nothing_breaks(tmp_path: Path) -> None:
    # no Python at all
    program = "i=0; while [ $i -lt 4000000 ]; do i=$((i+1)); done"
    watchdog = {"preset": "none", "spin": "1s"}
    ended = run(tmp_path, "", entrypoint="sh", args=["-c", program], watchdog=watchdog)
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_who_waits_for_a_program_that_computes_gets_somewhere(tmp_path: Path) -> None:
    script = """
    import subprocess, sys

    code = "import time, work\\nend = time.monotonic() + 6\\nwhile time.monotonic() < end: "
    if __name__ == "__main__":
        subprocess.run([sys.executable, "-c", code + "work.spins(20_000)"], check=True)
    """
    ended = run(tmp_path, script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_who_waits_for_a_thread_that_computes_gets_somewhere(tmp_path: Path) -> None:
    script = """
    import threading, time

    def works():
        end = time.monotonic() + 6
        while time.monotonic() < end: spins(20_000)

    thread = threading.Thread(target=works)
    thread.start()
    thread.join()
    """
    ended = run(tmp_path, script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert fired(ended) == []


def test_a_thread_that_only_wakes_up_hides_no_spin(tmp_path: Path) -> None:
    script = """
    import threading

    def watches():
        while not threading.Event().wait(0.5):
            pass

    threading.Thread(target=watches, daemon=True).start()
    spins()
    """
    ended = run(tmp_path, script, nproc=2, watchdog=SPIN)
    assert ended.code == WATCHDOG, ended.err
    assert cause(ended)["type"] == "Spinning"


def test_lines_in_a_log_of_its_own_are_signs_of_life(tmp_path: Path) -> None:
    script = """
    import os, time

    log = os.open("own.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(20):
        end = time.monotonic() + 0.3
        while time.monotonic() < end: spins(20_000)
        os.write(log, b"step %d loss 0.123\\n" % step)
    """
    ended = run(tmp_path, script, watchdog=SPIN)
    assert ended.code == 0, ended.err
    assert fired(ended) == []
