"""GPUs asked by processes of their own: with a driver that answers, hangs, or is not there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import WAIT, gone, until
from support.nvml import DRIVER

from lllaunch.console.console import Console
from lllaunch.linux import gpus, proc
from lllaunch.linux.gpus import GpuMemoryWait, GpuMeter, GpuReading, GpuUse, HeldMemory
from lllaunch.linux.process import wait_readable
from lllaunch.run import execute
from lllaunch.spec import Entrypoint, LaunchSpec, RestartPolicy
from tests.process.test_run import Run

PLAYED = (
    DRIVER
    + """
    def nvmlDeviceGetUtilizationRates(handle):
        {use}
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetMemoryInfo(handle):
        return SimpleNamespace(used=handle)

    def nvmlDeviceGetPowerUsage(handle):
        raise NVMLError("Not Supported")

    nvmlDeviceGetMaxMigDeviceCount = nvmlDeviceGetPowerUsage

    def nvmlDeviceGetComputeRunningProcesses(handle):
        with open({holders!r}) as file:
            pids = json.load(file)[handle]
        return [SimpleNamespace(pid=pid) for pid in pids]
"""
)


class Driver:
    """A module pynvml that processes find which ask it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.holders = root / "holders.json"
        self.hold([], [])
        self.write()

    def write(self, init: str = "pass", use: str = "pass") -> None:
        text = PLAYED.format(init=init, use=use, holders=str(self.holders))
        (self.root / "pynvml.py").write_text(dedent(text))

    def hold(self, *pids: list[int]) -> None:
        """Let processes hold memory on the GPUs, one list for each."""
        (self.root / "new").write_text(json.dumps(pids))
        os.replace(self.root / "new", self.holders)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    place = tmp_path / "driver"
    place.mkdir()
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    return Driver(place)


# What they do

Meters = Callable[[], tuple[GpuMeter, int]]


@pytest.fixture
def meters(driver: Driver) -> Iterator[Meters]:
    """Makes a meter, and tells the process id of its process."""
    with contextlib.ExitStack() as stack:

        def make() -> tuple[GpuMeter, int]:
            before = set(proc.children(os.getpid()))
            meter = GpuMeter([None, "1", ""], 0.01)
            stack.callback(meter.close)
            (pid,) = set(proc.children(os.getpid())) - before
            return meter, pid

        yield make


def test_a_driver_is_asked_again_and_again(meters: Meters) -> None:
    meter, pid = meters()
    assert meter.take() is None
    for _ in range(3):
        assert until(meter.take, "a reading") == GpuReading(
            [("0", "1"), ("1",), ()], {"0": GpuUse(0.5, 0, None), "1": GpuUse(0.5, 1, None)}
        )
    meter.close()
    meter.close()
    assert gone(pid)
    assert meter.take() is None


def test_a_driver_that_hangs_keeps_nobody_waiting(driver: Driver, meters: Meters) -> None:
    hanging = driver.root / "hanging"
    driver.write(use=f"open({str(hanging)!r}, 'w').close(); time.sleep(1000)")
    meter, pid = meters()
    assert meter.take() is None
    until(hanging.exists, "the driver to hang")
    for _ in range(100):
        assert meter.take() is None
    meter.close()
    assert gone(pid)


def test_without_a_driver_the_process_ends_and_nobody_asks_again(
    driver: Driver, meters: Meters
) -> None:
    driver.write("raise NVMLError('Driver Not Loaded')")
    meter, pid = meters()
    until(lambda: meter.take() is None and gone(pid), "the process to end")
    assert meter.take() is None


@pytest.mark.usefixtures("driver")
def test_a_run_has_samples_of_the_gpus_that_its_workers_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "_GPU_DRIVER", (str(tmp_path),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # until a sample tells of them
    shell = "until grep -q '\"use\"' run/samples.jsonl; do sleep 0.1; done"
    spec = LaunchSpec(
        Entrypoint("program", "sh", "sh"),
        2,
        args=("-c", shell),
        cwd=str(tmp_path),
        log_dir=str(tmp_path / "run"),
        virtual_local_rank=True,
        samples=1.0,
    )
    console = Console(io.StringIO(), cwd=str(tmp_path))
    outcome = execute.Run(spec, "", "h", console).execute()
    assert outcome.state == "succeeded"
    lines = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    first, *_ = found = [json.loads(line) for line in lines]
    assert "gpus" not in first
    last = next(each for each in found if "gpus" in each)
    assert last["gpus"] == {"0": {"use": 0.5, "memory": 0}, "1": {"use": 0.5, "memory": 1}}
    assert {rank: each["gpus"] for rank, each in last["ranks"].items()} == {"0": ["0"], "1": ["1"]}


# Memory that the dead hold

Begin = Callable[..., GpuMemoryWait]


@pytest.fixture
def begin() -> Iterator[Begin]:
    with contextlib.ExitStack() as stack:

        def begin(*pids: int, seconds: float = 3600.0) -> GpuMemoryWait:
            wait = GpuMemoryWait.begin(pids, seconds)
            assert wait is not None
            stack.callback(wait.close)
            return wait

        yield begin


def until_over(wait: GpuMemoryWait) -> list[HeldMemory]:
    said: list[HeldMemory] = []
    while not wait.over:
        assert wait_readable(wait, min(WAIT, wait.next_in())) or not wait.next_in()
        said += wait.events()
    return said


def test_it_is_over_when_the_memory_is_free_and_said_once_that_it_takes_time(
    driver: Driver, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_SILENT_SECONDS", 0.0)
    driver.hold([11, 99], [12])
    wait = begin(11, 12)
    said: list[HeldMemory] = []
    until(lambda: bool(said.extend(wait.events()) or said), "a word")
    (held,) = said
    assert (held.pids, held.gpus, held.given_up) == ((11, 12), (0, 1), False)
    assert not wait.over
    driver.hold([99], [])
    assert until_over(wait) == []


def test_a_driver_that_hangs_is_given_up_and_its_process_ended(
    driver: Driver, begin: Begin
) -> None:
    driver.write("time.sleep(1000)")
    wait = begin(11, seconds=0.5)
    process: Any = wait._process
    (held,) = until_over(wait)
    assert (held.pids, held.gpus, held.given_up) == ((), (), True)
    wait.close()
    wait.close()
    assert gone(process.pid)


# Of a run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    # a file that is there stands for the driver's
    monkeypatch.setattr(execute, "has_gpu_driver", lambda: True)
    return Run(tmp_path)


# Fails once; holds memory of a GPU, as its driver has it, until somebody takes that away.
HOLDS = """
import json, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with open({holders!r}, "w") as file:
        json.dump([[], [os.getpid()]], file)
    sys.exit(1)
"""


def test_a_restart_waits_for_the_memory_of_the_dead(
    run: Run, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_SILENT_SECONDS", 0.0)
    policy = RestartPolicy(gpu_wait=6.5)
    outcome = run.script(HOLDS.format(holders=str(driver.holders)), max_restarts=1, restart=policy)
    assert outcome.state == "succeeded", run.text
    first, last = run.events("GpuMemoryHeld")
    assert (first["gpus"], first["given_up"], last["given_up"]) == ([1], False, True)
    held = "processes of the last attempt still hold memory on GPU 1"
    assert f"lllaunch: {held}; waiting up to 6.5 s (launch.restart.gpu_wait)\n" in run.text
    assert f"lllaunch: warning: {held} after 6.5 s; going on all the same\n" in run.text
    assert [each["seconds"] for each in run.events("Pause")] == [0.0]


@pytest.mark.parametrize(
    "more", [{"restart": RestartPolicy(gpu_wait=0.0)}, {"env": {"CUDA_VISIBLE_DEVICES": ""}}]
)
def test_nobody_looks_where_it_does_not_matter(
    run: Run, driver: Driver, more: dict[str, Any]
) -> None:
    asked = run.root / "asked"
    driver.write(f"open({str(asked)!r}, 'w').close()")
    outcome = run.program("false", max_restarts=1, **more)
    assert len(outcome.attempts) == 2
    assert not asked.exists()


def test_a_signal_ends_the_wait(run: Run, driver: Driver) -> None:
    driver.write(f"import os; os.kill({os.getpid()}, 15); time.sleep(1000)")
    outcome = run.program("false", max_restarts=1)
    assert (outcome.state, len(outcome.attempts)) == ("signalled", 1), run.text
    assert len(run.events("Pause")) == 1
