"""What the dead hold on GPUs, by a driver without any."""

from __future__ import annotations

import os

import pytest

from lllaunch.linux.gpus import GpusUnknown, memory_holders
from lllaunch.supervisor.gpu_memory import tell_holders
from tests.support.nvml import FakeNvml, FakeNvmlError

PIDS = frozenset({11, 12})


def test_who_holds_memory_where() -> None:
    nvml = FakeNvml(None, ["MIG-a", None], None)
    nvml.holders = {0: [11, 99], 1: [], "MIG-a": [12], 2: [11]}
    assert memory_holders(PIDS, nvml) == {11: (0, 2), 12: (1,)}
    assert memory_holders({7}, nvml) == {}
    assert nvml.open == 0


def test_a_gpu_that_does_not_answer_is_passed_over() -> None:
    class Lost(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
            if not index:
                raise FakeNvmlError("GPU is lost")
            return index

    nvml = Lost(None, None)
    nvml.holders = {1: [12]}
    assert memory_holders(PIDS, nvml) == {12: (1,)}


def test_without_a_driver_nothing_is_known() -> None:
    with pytest.raises(GpusUnknown):
        memory_holders(PIDS, FakeNvml(broken=True))


@pytest.mark.parametrize("nvml", [FakeNvml(None), FakeNvml(broken=True)])
def test_where_nothing_is_held_or_known_nothing_is_told(nvml: FakeNvml) -> None:
    source, sink = os.pipe()
    try:
        tell_holders(PIDS, sink, nvml)
        os.close(sink)
        assert os.read(source, 100) == b""
    finally:
        os.close(source)
