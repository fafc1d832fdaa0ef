"""Launchers of sweeps that are programs of their own: killed at any moment, two side by side."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launching import gone, until

from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.journal import read_journal
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.machine import find_machine

pytestmark = pytest.mark.measured

# generous: only a hang takes that long
WAIT = 30.0
NAMES = [f"{name}-{os.getpid()}" for name in "wxyz"]

PROGRAM = """
import json, os, sys, time
from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.journal import Journal
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.machine import find_machine
from lllaunch.sweep.policy import SweepPolicy
from lllaunch.sweep.protocol import Prepared
from lllaunch.sweep.journal import Header
from lllaunch.sweep.pool import Need
from lllaunch.sweep.loop import Sweep
place, held, jobs, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def prepare(number):
    open(f"{place}/pid.{os.getpid()}", "x").close()
    return Prepared(Need(1 + number % 2), directory=f"{place}/{number}", payload=number)
def execute(job, lease, spawner):
    for gpu in lease.gpus:
        open(f"{held}/{gpu}", "x").close()
    time.sleep(1000 if job.payload % 9 == 8 and sys.argv[5:] else seconds)
    for gpu in lease.gpus:
        os.unlink(f"{held}/{gpu}")
    os.mkdir(job.directory)
    with open(f"{job.directory}/.tmp", "w") as file:
        json.dump({"state": "succeeded", "exit_code": 0, "ended": "9999"}, file)
    os.rename(f"{job.directory}/.tmp", f"{job.directory}/result.json")
    return 0
machine = find_machine(os.environ)
journal = Journal.create(f"{place}/sweep.jsonl", Header("id", "0"))
def observer(what):
    if type(what).__name__ == "StartJob":
        open(f"{place}/started", "a").close()
policy = SweepPolicy(max_failures=1)
given = (machine, policy, Leases(machine), journal, prepare, execute, observer, range(jobs))
sys.exit(Sweep(*given).run().exit_code)
"""


def program(
    place: Path, held: Path, jobs: int, seconds: float, *hangs: str
) -> subprocess.Popen[bytes]:
    place.mkdir()
    held.mkdir(exist_ok=True)
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", path + PROGRAM, place, held, str(jobs), str(seconds), *hangs],
        env={**os.environ, "LLLAUNCH_PRETEND_GPUS": ",".join(NAMES)},
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_launcher_leaves_no_job_and_a_good_journal(tmp_path: Path, seed: int) -> None:
    place = tmp_path / "sweep"
    launcher = program(place, tmp_path / "held", 1000, 0.01, "some hang")
    until((place / "started").exists, "the first job", WAIT)
    time.sleep(random.Random(seed).uniform(0, 0.3))  # the moment is what is random here
    launcher.kill()
    launcher.wait(WAIT)
    pids = [int(name[4:]) for name in os.listdir(place) if name.startswith("pid.")]
    assert pids
    until(lambda: all(map(gone, pids)), "the end of the jobs", WAIT)
    history = SweepHistory(read_journal(str(place / "sweep.jsonl")))
    assert history.exit_code is None
    finished = {int(name) for name in os.listdir(place) if (place / name / "result.json").exists()}
    ended = {number for number, job in history.jobs.items() if job.state == "succeeded"}
    assert ended <= finished
    assert finished <= set(history.jobs)
    # and the GPUs are free
    machine = find_machine({"LLLAUNCH_PRETEND_GPUS": ",".join(NAMES)})
    leases, everything = Leases(machine), machine.everything
    # one that was just forked has not told its number
    until(lambda: not leases.acquire(everything), "the locks", WAIT)
    leases.close()


def test_two_sweeps_never_hold_the_same_gpu(tmp_path: Path) -> None:
    both = [program(tmp_path / name, tmp_path / "held", 20, 0.02) for name in ("one", "two")]
    assert [launcher.wait(WAIT) for launcher in both] == [0, 0]
