"""How many GPUs a process would see, counted through NVML: neither CUDA nor torch is loaded.

The rules of ``CUDA_VISIBLE_DEVICES`` are those of the CUDA programming guide, "Environment
Variables": the list ends at the first entry that names no device, and a device that is named twice
leaves none at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lllaunch.config.findings import Unfit


class Nvml(Protocol):
    """The part of the module ``pynvml`` that is used here."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, as are the next ones
        """Loads the driver's library."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Lets it go."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Number of GPUs."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Handle of a GPU."""

    def nvmlDeviceGetUUID(self, handle: Any) -> str:  # noqa: N802
        """``GPU-…`` or ``MIG-…``."""

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        """How many slices the GPU can have."""

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:  # noqa: N802
        """Handle of a slice."""


def count_gpus(visible: str | None, nvml: Nvml | None = None) -> int:
    """Counts the GPUs that a process with this environment sees.

    Args:
        visible: value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.
        nvml: stands in for the module ``pynvml``.

    Returns:
        Number of GPUs, or of MIG slices where the list names slices.

    Raises:
        Unfit: the driver cannot be asked; the text says why.
    """
    if visible is not None and not visible.strip():
        return 0
    if nvml is None:
        # Only those who ask for GPUs pay for it.
        import pynvml  # noqa: PLC0415

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        raise Unfit(f"found no NVIDIA driver ({error})") from error
    try:
        return _count(visible, nvml)
    except nvml.NVMLError as error:
        raise Unfit(f"could not count GPUs: NVML says {error}") from error
    finally:
        nvml.nvmlShutdown()


def _count(visible: str | None, nvml: Nvml) -> int:
    total = nvml.nvmlDeviceGetCount()
    if visible is None:
        return total
    entries = [entry.strip() for entry in visible.split(",")]
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(total)]
    if entries[0].startswith("MIG-"):
        return _listed(entries, "MIG-", [uuid for gpu in gpus for uuid in _slices(gpu, nvml)])
    if entries[0].startswith("GPU-"):
        return _listed(entries, "GPU-", [_text(nvml.nvmlDeviceGetUUID(gpu)) for gpu in gpus])
    return _numbered(entries, total)


def _numbered(entries: Sequence[str], total: int) -> int:
    seen: set[int] = set()
    for entry in entries:
        if not entry.isdecimal() or int(entry) >= total:
            break
        if int(entry) in seen:
            return 0
        seen.add(int(entry))
    return len(seen)


def _listed(entries: Sequence[str], prefix: str, uuids: Sequence[str]) -> int:
    seen: set[str] = set()
    for entry in entries:
        # The beginning of an identifier will do, as long as only one device has it.
        named = [uuid for uuid in uuids if uuid.startswith(entry)]
        if not entry.startswith(prefix) or len(named) != 1:
            break
        if named[0] in seen:
            return 0
        seen.add(named[0])
    return len(seen)


def _slices(gpu: Any, nvml: Nvml) -> list[str]:
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nvml.NVMLError:
        return []  # a GPU that cannot be sliced
    uuids = []
    for index in range(most):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nvml.NVMLError:
            continue  # slices may have gaps in their numbers
        uuids.append(_text(nvml.nvmlDeviceGetUUID(part)))
    return uuids


def _text(uuid: str | bytes) -> str:
    # Releases of nvidia-ml-py before 12 return bytes.
    return uuid.decode() if isinstance(uuid, bytes) else uuid
