"""What GPUs do and whose memory they hold, as far as they tell it: by a driver without any."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.linux.gpus import (
    GpusUnknown,
    GpuUse,
    gpus_in_use,
    memory_holders,
    tell_holders,
)

GIB = 1 << 30


def test_each_sees_its_own_and_each_gpu_is_read_once() -> None:
    class Counting(FakeNvml):
        read = 0

        def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802 - NVML's
            self.read += 1
            return super().nvmlDeviceGetUtilizationRates(handle)

    nvml = Counting(None, None, None, None)
    seen, gpus = gpus_in_use(["2,0", None, "", "2", "9"], nvml)
    assert seen == [("2", "0"), ("0", "1", "2", "3"), (), ("2",), ()]
    assert gpus == {str(each): GpuUse(each / 10, GIB, 70 + each / 1000) for each in range(4)}
    assert nvml.read == 4
    assert nvml.open == 0


def test_gpus_by_uuid_and_slices_are_known() -> None:
    assert gpus_in_use(["GPU-11"], FakeNvml(None, None))[0] == [("1",)]
    # a slice tells its memory only
    seen, gpus = gpus_in_use(["MIG-b"], FakeNvml(None, ["MIG-a", "MIG-b"]))
    assert seen == [("MIG-b",)]
    assert gpus == {"MIG-b": GpuUse(None, 5 * GIB, None)}


def test_of_a_gpu_that_was_lost_nothing_is_known() -> None:
    class Losing(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's
            if index == 1:
                raise FakeNvmlError("GPU is lost")
            return index

    nvml = Losing(None, None)
    assert gpus_in_use([None], nvml)[1] == {"0": GpuUse(0.0, GIB, 70.0), "1": GpuUse()}
    nvml.holders = {0: [12]}
    assert memory_holders({12}, nvml) == {12: (0,)}


def test_without_a_driver_it_is_said() -> None:
    with pytest.raises(GpusUnknown, match="found no NVIDIA driver"):
        gpus_in_use([None], FakeNvml(broken=True))
    with pytest.raises(GpusUnknown):
        memory_holders(PIDS, FakeNvml(broken=True))


# Memory that the dead hold

PIDS = frozenset({11, 12})


def test_who_holds_memory_where() -> None:
    nvml = FakeNvml(None, ["MIG-a", None], None)
    nvml.holders = {0: [11, 99], 1: [], "MIG-a": [12], 2: [11]}
    assert memory_holders(PIDS, nvml) == {11: (0, 2), 12: (1,)}
    assert memory_holders({7}, nvml) == {}
    assert nvml.open == 0


@pytest.mark.parametrize("nvml", [FakeNvml(None), FakeNvml(broken=True)])
def test_where_nothing_is_held_or_known_nothing_is_told(nvml: FakeNvml) -> None:
    source, sink = os.pipe()
    try:
        tell_holders(PIDS, sink, nvml)
        os.close(sink)
        assert os.read(source, 100) == b""
    finally:
        os.close(source)
