# ruff: noqa: N802 - the functions of the fakes have NVML's names
"""A driver without GPUs behind it."""

from __future__ import annotations

from typing import Any


class FakeNvmlError(Exception):
    pass


class FakeNvml:
    """A machine with GPUs, each a list of its slices' names (None: cannot be sliced)."""

    NVMLError: type[Exception] = FakeNvmlError

    def __init__(self, *gpus: list[str | None] | None, broken: bool = False) -> None:
        self.gpus = gpus
        self.broken = broken
        self.open = 0

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
