# ruff: noqa: N802 - the functions of the fakes have NVML's names
"""A driver without GPUs behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

# Text of a module pynvml that another process imports, with two GPUs; what a test wants of them is
# added to it. ``init`` is what happens when the driver is loaded.
DRIVER = """
    import json, time
    from types import SimpleNamespace

    class NVMLError(Exception):
        pass

    def nvmlInit():
        {init}

    def nvmlShutdown():
        pass

    def nvmlDeviceGetCount():
        return 2

    def nvmlDeviceGetHandleByIndex(index):
        return index
"""


class FakeNvmlError(Exception):
    pass


class FakeNvml:
    """A machine with GPUs, each a list of its slices' names (None: cannot be sliced)."""

    NVMLError: type[Exception] = FakeNvmlError

    def __init__(self, *gpus: list[str | None] | None, broken: bool = False) -> None:
        self.gpus = gpus
        self.broken = broken
        self.open = 0
        self.holders: dict[Any, list[int]] = {}

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.holders.get(handle, [])]

    def nvmlInit(self) -> None:
        if self.broken:
            raise FakeNvmlError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return handle if isinstance(handle, str) else f"GPU-{handle}{handle}aa-bb"

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        slices = self.gpus[handle]
        if slices is None:
            raise FakeNvmlError("Not Supported")
        return len(slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: int, index: int) -> Any:
        name = (self.gpus[device] or [])[index]
        if name is None:
            raise FakeNvmlError("Not Found")
        return name

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        if isinstance(handle, str):
            raise FakeNvmlError("Not Supported")
        return SimpleNamespace(gpu=10 * handle, memory=99)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=80 << 30, used=len(str(handle)) << 30)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        if isinstance(handle, str):
            raise FakeNvmlError("Not Supported")
        return 70_000 + handle
