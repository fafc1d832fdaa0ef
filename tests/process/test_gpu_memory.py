"""The wait for GPU memory before a restart, with a driver that a test plays by a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.launching import gone, until
from support.nvml import DRIVER

from lllaunch.events import GpuMemoryHeld
from lllaunch.linux.process import wait_readable
from lllaunch.run import group
from lllaunch.spec import RestartPolicy
from lllaunch.supervisor import gpu_memory
from lllaunch.supervisor.gpu_memory import GpuMemoryWait
from tests.process.test_run import Run

pytestmark = pytest.mark.measured

HOLDING = (
    DRIVER
    + """
    def nvmlDeviceGetMaxMigDeviceCount(handle):
        raise NVMLError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(handle):
        with open({holders!r}) as file:
            pids = json.load(file)[handle]
        return [SimpleNamespace(pid=pid) for pid in pids]
"""
)


class Driver:
    """A module pynvml that the process finds which asks it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.holders = root / "holders.json"
        self.hold([], [])
        self.write()

    def write(self, init: str = "pass") -> None:
        text = HOLDING.format(init=init, holders=str(self.holders))
        (self._root / "pynvml.py").write_text(dedent(text))

    def hold(self, *pids: list[int]) -> None:
        """Let processes hold memory on the GPUs, one list for each."""
        (self._root / "new").write_text(json.dumps(pids))
        os.replace(self._root / "new", self.holders)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    place = tmp_path / "driver"
    place.mkdir()
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    return Driver(place)


Begin = Callable[..., GpuMemoryWait]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[GpuMemoryWait] = []

    def begin(*pids: int, seconds: float = 3600.0) -> GpuMemoryWait:
        wait = GpuMemoryWait.begin(pids, seconds)
        assert wait is not None
        begun.append(wait)
        return wait

    yield begin
    for wait in begun:
        wait.close()


def until_over(wait: GpuMemoryWait) -> list[GpuMemoryHeld]:
    said: list[GpuMemoryHeld] = []
    while not wait.over:
        assert wait_readable(wait, min(60.0, wait.next_in())) or not wait.next_in()
        said += wait.events()
    return said


def test_where_nothing_is_held_the_wait_is_over_at_once(driver: Driver, begin: Begin) -> None:
    driver.hold([99], [])
    assert until_over(begin(11, 12)) == []


@pytest.mark.parametrize("init", ["raise NVMLError('Driver Not Loaded')", "raise ImportError"])
def test_where_nobody_can_tell_it_is_over_too(driver: Driver, begin: Begin, init: str) -> None:
    driver.write(init)
    assert until_over(begin(11)) == []


def test_it_is_over_when_the_memory_is_free_and_said_once_that_it_takes_time(
    driver: Driver, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_memory, "_SILENT_SECONDS", 0.0)
    driver.hold([11, 99], [12])
    wait = begin(11, 12)
    said: list[GpuMemoryHeld] = []
    until(lambda: bool(said.extend(wait.events()) or said), "a word")
    (held,) = said
    assert (held.pids, held.gpus, held.given_up) == ((11, 12), (0, 1), False)
    assert not wait.over
    driver.hold([99], [])
    assert until_over(wait) == []


def test_it_is_given_up_when_it_takes_too_long(driver: Driver, begin: Begin) -> None:
    driver.hold([], [12])
    wait = begin(12, seconds=1.5)
    (held,) = until_over(wait)
    assert (held.pids, held.gpus, held.given_up) == ((12,), (1,), True)


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
    monkeypatch.setattr(group, "has_gpu_driver", lambda: True)
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
    monkeypatch.setattr(gpu_memory, "_SILENT_SECONDS", 0.0)
    policy = RestartPolicy(gpu_wait=1.5)
    outcome = run.script(HOLDS.format(holders=str(driver.holders)), max_restarts=1, restart=policy)
    assert outcome.state == "succeeded", run.text
    first, last = run.events("GpuMemoryHeld")
    assert (first["gpus"], first["given_up"], last["given_up"]) == ([1], False, True)
    held = "processes of the last attempt still hold memory on GPU 1"
    assert f"lllaunch: {held}; waiting up to 1.5 s (launch.restart.gpu_wait)\n" in run.text
    assert f"lllaunch: warning: {held} after 1.5 s; going on all the same\n" in run.text
    assert [each["seconds"] for each in run.events("Pause")] == [0.0]


def test_nobody_waits_where_nothing_is_held(run: Run, driver: Driver) -> None:
    outcome = run.program("false", max_restarts=2)
    assert len(outcome.attempts) == 3
    assert not run.events("GpuMemoryHeld")
    assert driver.holders.exists()


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
