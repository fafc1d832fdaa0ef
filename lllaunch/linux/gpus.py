"""GPUs: those that NVML finds, or made-up ones in their place.

The rules of ``CUDA_VISIBLE_DEVICES`` are those of the CUDA programming guide, "Environment
Variables": the list ends at the first entry that names no device, and a device that is named twice
leaves none at all.

An empty value means that there are none. ``CUDA_VISIBLE_DEVICES`` chooses among their names, as it
does among those of real ones.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

Nvml: TypeAlias = Any
"""The module ``pynvml``, or what stands for it."""


class GpusUnknown(Exception):
    """The driver cannot be asked; the text is the predicate of a sentence and says why."""


class Gpu(NamedTuple):
    """A GPU, or a slice of one (MIG)."""

    name: str  # what CUDA_VISIBLE_DEVICES calls it: as it was listed there, else its index
    uuid: str  # what it is called whoever looks: ``GPU-…`` or ``MIG-…``


class GpuUse(NamedTuple):
    """What a GPU, or a slice of one, does at a moment; None for what it does not tell."""

    # share of the time for which anything ran on it, over the driver's last period, which is a
    # second at most
    use: float | None = None
    memory: int | None = None  # bytes that are in use, whoever uses them
    power: float | None = None


# A device as it was found: its index, or the identifier of a slice.
_Device = int | str


def list_gpus(visible: str | None, nvml: Nvml | None = None) -> tuple[Gpu, ...]:
    """Lists the GPUs that a process with this environment sees, in its order.

    ``visible``: value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.

    Raises:
        GpusUnknown: there is no driver, or it fails.
    """
    if visible is not None and not visible.strip():
        return ()
    with asking(nvml) as driver:
        return tuple(
            Gpu(name, _identity(device, driver)) for name, device in _visible(visible, driver)
        )


def gpus_in_use(
    visible: Sequence[str | None], nvml: Nvml | None = None
) -> tuple[list[tuple[str, ...]], dict[str, GpuUse]]:
    """Reads what the GPUs do that some processes see.

    ``visible``: values of ``CUDA_VISIBLE_DEVICES``, None where it is not set. Returns for each of
    the values the names of what is seen, in its order: a GPU's index on the machine, a slice's
    ``MIG-…``. And what each of those does.
    """
    with asking(nvml) as driver:
        seen = [_visible(value, driver) for value in visible]
        devices = {device for each in seen for _, device in each}
        use = {str(device): _use_of(device, driver) for device in sorted(devices, key=str)}
    return [tuple(str(device) for _, device in each) for each in seen], use


def _use_of(device: _Device, nvml: Nvml) -> GpuUse:
    try:
        if isinstance(device, str):
            handle = nvml.nvmlDeviceGetHandleByUUID(device)
        else:
            handle = nvml.nvmlDeviceGetHandleByIndex(device)
    except nvml.NVMLError:
        return GpuUse()  # a GPU that was lost
    use = memory = power = None
    # not every GPU tells everything, and a slice only its memory
    with contextlib.suppress(nvml.NVMLError):
        use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with contextlib.suppress(nvml.NVMLError):
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    with contextlib.suppress(nvml.NVMLError):
        power = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return GpuUse(use, memory, power)


def memory_holders(pids: Collection[int], nvml: Nvml | None = None) -> dict[int, tuple[int, ...]]:
    """Return which of some processes hold memory on GPUs, with the indices of those.

    Where the launcher has a PID namespace of its own the driver may call processes by other
    numbers; then none is found.

    ``pids``: process ids; they may have ended.
    """
    found: dict[int, tuple[int, ...]] = {}
    with asking(nvml) as driver:
        for index in range(driver.nvmlDeviceGetCount()):
            holders: set[int] = set()
            # a GPU that was lost is nobody's
            with contextlib.suppress(driver.NVMLError):
                gpu = driver.nvmlDeviceGetHandleByIndex(index)
                for device in (gpu, *_slice_handles(gpu, driver)):
                    # of a sliced GPU as a whole only who is privileged is told
                    with contextlib.suppress(driver.NVMLError):
                        running = driver.nvmlDeviceGetComputeRunningProcesses(device)
                        holders.update(each.pid for each in running)
            for pid in sorted(holders.intersection(pids)):
                found[pid] = (*found.get(pid, ()), index)
    return found


def listed(entries: Sequence[str], known: Sequence[str], prefix: str = "") -> list[tuple[str, int]]:
    """Reads a list of identifiers as CUDA does.

    ``prefix``: what an entry must begin with; then the beginning of an identifier will do, as long
    as only one device has it. Without it, an entry is a whole identifier. Returns what was listed
    and its place in ``known``, up to the first entry that names no device; nothing if one is named
    twice.
    """
    found: dict[int, str] = {}
    for entry in entries:
        named = [
            place
            for place, identifier in enumerate(known)
            if (identifier.startswith(entry) if prefix else identifier == entry)
        ]
        if not entry.startswith(prefix) or len(named) != 1:
            break
        if named[0] in found:
            return []
        found[named[0]] = entry
    return [(entry, place) for place, entry in found.items()]


@contextlib.contextmanager
def asking(nvml: Nvml | None) -> Iterator[Nvml]:
    """Let the driver be asked; with None by ``pynvml``.

    Raises:
        GpusUnknown: there is no driver, or it fails.
    """
    if nvml is None:
        # Only those who ask for GPUs pay for it.
        try:
            import pynvml  # noqa: PLC0415
        except ModuleNotFoundError:
            raise GpusUnknown("needs a package that is missing: pip install nvidia-ml-py") from None
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        raise GpusUnknown(f"found no NVIDIA driver ({error})") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise GpusUnknown(f"could not count GPUs: NVML says {error}") from error
    finally:
        nvml.nvmlShutdown()


def _visible(visible: str | None, nvml: Nvml) -> list[tuple[str, _Device]]:
    total = nvml.nvmlDeviceGetCount()
    if visible is None:
        return [(str(index), index) for index in range(total)]
    entries = [entry.strip() for entry in visible.split(",")]
    if entries[0].startswith(("MIG-", "GPU-")):
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(total)]
        if entries[0].startswith("MIG-"):
            parts = [part for gpu in gpus for part in _slice_handles(gpu, nvml)]
            slices = [nvml.nvmlDeviceGetUUID(part) for part in parts]
            return [(entry, slices[place]) for entry, place in listed(entries, slices, "MIG-")]
        uuids = [nvml.nvmlDeviceGetUUID(gpu) for gpu in gpus]
        return [(entry, place) for entry, place in listed(entries, uuids, "GPU-")]
    indices = [str(index) for index in range(total)]
    return [(entry, index) for entry, index in listed(entries, indices)]


def _identity(device: _Device, nvml: Nvml) -> str:
    if isinstance(device, str):
        return device
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(device)
        # Who names a sliced GPU gets its first slice (MIG user guide, "CUDA device enumeration").
        return str(nvml.nvmlDeviceGetUUID([*_slice_handles(gpu, nvml), gpu][0]))
    except nvml.NVMLError:
        # A GPU that was lost. It was counted, as CUDA counts it, so it needs some name.
        return f"GPU-{device}"


def _slice_handles(gpu: Any, nvml: Nvml) -> list[Any]:
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nvml.NVMLError:
        return []  # a GPU that cannot be sliced
    handles = []
    for index in range(most):
        # slices may have gaps in their numbers
        with contextlib.suppress(nvml.NVMLError):
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
    return handles


PRETEND = "LLLAUNCH_PRETEND_GPUS"

MISNAMED = "a list of different names (letters, digits, '_', '.', '-')"
"""What is expected in place of a value that `pretended_gpus` refuses."""

# They become parts of addresses, which the kernel keeps short, and of lists.
_NAME = r"[A-Za-z0-9_.-]{1,40}"


def pretended_gpus(names: str, visible: str | None) -> tuple[Gpu, ...]:
    """Lists the made-up GPUs that a process sees, in its order.

    ``names``: value of ``LLLAUNCH_PRETEND_GPUS``. ``visible``: value of ``CUDA_VISIBLE_DEVICES``,
    None if it is not set.

    Raises:
        ValueError: the names are not different names; the text is `MISNAMED`.
    """
    known = [name.strip() for name in names.split(",")] if names.strip() else []
    if len(set(known)) < len(known) or not all(re.fullmatch(_NAME, name) for name in known):
        raise ValueError(MISNAMED)
    places: Sequence[int] = range(len(known))
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",")]
        places = [place for _, place in listed(entries, known)]
    return tuple(Gpu(known[place], f"pretended-{known[place]}") for place in places)
