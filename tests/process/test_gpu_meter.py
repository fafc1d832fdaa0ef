"""GPUs read by a process of its own: with a driver that answers, hangs, or is not there."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from support.launching import gone, until
from support.nvml import DRIVER, FakeNvml

from lllaunch.console.console import Console
from lllaunch.linux import proc
from lllaunch.linux.gpu_meter import GpuMeter, GpuReading, serve
from lllaunch.linux.gpus import GpuUse
from lllaunch.run.execute import execute
from lllaunch.spec import Entrypoint, LaunchSpec

WORKING = (
    DRIVER
    + """
    def nvmlDeviceGetUtilizationRates(handle):
        {use}
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetMemoryInfo(handle):
        return SimpleNamespace(used=handle)

    def nvmlDeviceGetPowerUsage(handle):
        raise NVMLError("Not Supported")
"""
)


class Driver:
    """A module pynvml that the meter's process finds, and meters that are closed in the end."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.meters: list[GpuMeter] = []
        monkeypatch.setattr(sys, "path", [str(root), *sys.path])

    def meter(self, init: str = "pass", use: str = "pass") -> tuple[GpuMeter, int]:
        """A meter, and the process id of its process."""
        (self.root / "pynvml.py").write_text(dedent(WORKING.format(init=init, use=use)))
        before = set(proc.children(os.getpid()))
        meter = GpuMeter([None, "1", ""])
        self.meters.append(meter)
        (pid,) = set(proc.children(os.getpid())) - before
        return meter, pid


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver(tmp_path, monkeypatch)
    yield driver
    for meter in driver.meters:
        meter.close()


def taken(meter: GpuMeter) -> GpuReading:
    found: list[GpuReading] = []

    def take() -> bool:
        reading = meter.take(0.0)
        found.extend([] if reading is None else [reading])
        return bool(found)

    until(take, "a reading")
    return found[0]


def test_a_driver_is_asked_again_and_again(driver: Driver) -> None:
    meter, pid = driver.meter()
    assert meter.take(0.0) is None
    for _ in range(3):
        assert taken(meter) == GpuReading(
            [("0", "1"), ("1",), ()], {"0": GpuUse(0.5, 0, None), "1": GpuUse(0.5, 1, None)}
        )
    meter.close()
    meter.close()
    assert gone(pid)
    assert meter.take(0.0) is None


def test_a_driver_that_hangs_keeps_nobody_waiting(driver: Driver) -> None:
    hanging = driver.root / "hanging"
    meter, pid = driver.meter(use=f"open({str(hanging)!r}, 'w').close(); time.sleep(1000)")
    assert meter.take(0.0) is None
    until(hanging.exists, "the driver to hang")
    for _ in range(100):
        assert meter.take(0.0) is None
    meter.close()
    assert gone(pid)


def test_without_a_driver_the_process_ends_and_nobody_asks_again(driver: Driver) -> None:
    meter, pid = driver.meter(init="raise NVMLError('Driver Not Loaded')")
    meter.take(0.0)

    def over() -> bool:
        assert meter.take(0.0) is None
        return gone(pid)

    until(over, "the process to end")


def test_a_process_that_cannot_be_started_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    meter = GpuMeter([None])
    assert meter.take(0.0) is None
    meter.close()
    assert "nobody looks at GPUs: No such file or directory" in caplog.text


def test_the_process_ends_with_the_launcher(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    (tmp_path / "pynvml.py").write_text(dedent(WORKING.format(init="pass", use="pass")))
    child = os.fork()
    if child == 0:
        sys.path.insert(0, str(tmp_path))
        meter = GpuMeter([None])
        assert meter._process is not None
        said.write_text(str(meter._process.pid))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    pid = int(said.read_text())
    until(lambda: gone(pid), "its end")


def test_requests_are_answered_in_lines_of_json_until_there_are_no_more() -> None:
    requests, ask = os.pipe()
    answers, answer = os.pipe()
    nvml = FakeNvml(None, None, ["MIG-a"])
    os.write(ask, b"0.000\n")
    pid = os.fork()
    if pid == 0:
        os.close(ask)
        serve([None, "MIG-a"], requests, answer, nvml)
        os._exit(nvml.open)
    try:
        with open(answers, "rb", buffering=0) as lines:
            line = lines.readline()
    finally:
        # it is in the wait of another request, or before it
        os.close(ask)
        _, status = os.waitpid(pid, 0)
        os.close(requests)
        os.close(answer)
    assert os.waitstatus_to_exitcode(status) == 0
    assert json.loads(line) == [
        [["0", "1", "2"], ["MIG-a"]],
        {
            "0": [0.0, 1 << 30, 70.0],
            "1": [0.1, 1 << 30, 70.001],
            "2": [0.2, 1 << 30, 70.002],
            "MIG-a": [None, 5 << 30, None],
        },
    ]


def test_a_run_has_samples_of_the_gpus_that_its_workers_see(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.meter()
    monkeypatch.setattr(proc, "_GPU_DRIVER", (str(tmp_path),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = LaunchSpec(
        Entrypoint("program", "sleep", "sleep"),
        2,
        args=("4.5",),
        cwd=str(tmp_path),
        log_dir=str(tmp_path / "run"),
        virtual_local_rank=True,
        samples=1.0,
    )
    console = Console(io.StringIO(), cwd=str(tmp_path))
    outcome = execute(spec, plan_text="", plan_hash="h", console=console)
    assert outcome.state == "succeeded"
    lines = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert "gpus" not in found[0]
    assert found[-1]["gpus"] == {"0": {"use": 0.5, "memory": 0}, "1": {"use": 0.5, "memory": 1}}
    assert {rank: each["gpus"] for rank, each in found[-1]["ranks"].items()} == {
        "0": ["0"],
        "1": ["1"],
    }


def test_a_driver_is_seen_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(proc, "_GPU_DRIVER", (str(tmp_path / "other"), str(file)))
    assert not proc.has_gpu_driver()
    file.touch()
    assert proc.has_gpu_driver()
