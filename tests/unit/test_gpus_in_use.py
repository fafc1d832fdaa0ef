"""What GPUs do, as far as they tell it."""

from __future__ import annotations

from typing import Any

import pytest
from support.nvml import FakeNvml, FakeNvmlError

from lllaunch.linux.gpus import GpusUnknown, GpuUse, gpus_in_use

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


def test_a_gpu_that_is_named_by_its_uuid_has_its_index() -> None:
    assert gpus_in_use(["GPU-11"], FakeNvml(None, None))[0] == [("1",)]


def test_a_slice_tells_its_memory_only() -> None:
    seen, gpus = gpus_in_use(["MIG-b"], FakeNvml(None, ["MIG-a", "MIG-b"]))
    assert seen == [("MIG-b",)]
    assert gpus == {"MIG-b": GpuUse(None, 5 * GIB, None)}


def test_of_a_gpu_that_was_lost_nothing_is_known() -> None:
    class Losing(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's
            if index == 1:
                raise FakeNvmlError("GPU is lost")
            return index

    _, gpus = gpus_in_use([None], Losing(None, None))
    assert gpus == {"0": GpuUse(0.0, GIB, 70.0), "1": GpuUse()}


def test_without_a_driver_it_is_said() -> None:
    with pytest.raises(GpusUnknown, match="found no NVIDIA driver"):
        gpus_in_use([None], FakeNvml(broken=True))
