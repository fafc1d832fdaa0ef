"""GPUs: those that NVML finds, or made-up ones in their place; what they do, and for whom.

The rules of ``CUDA_VISIBLE_DEVICES`` are those of the CUDA programming guide, "Environment
Variables": the list ends at the first entry that names no device, and a device that is named twice
leaves none at all. An empty value means that there are none. It chooses among made-up names as it
does among those of real ones.

A call into a driver that hangs sleeps in the kernel, and nothing ends it. In a thread it would keep
the launcher from ever ending: a process is over when the last of its threads is. So what GPUs do
while workers run is read by a small process, which writes a line for each look and is killed in the
end; the launcher reads its lines, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from lllaunch.linux.process import set_parent_death_signal

logger = logging.getLogger(__name__)

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


PRETEND = "LLLAUNCH_PRETEND_GPUS"

MISNAMED = "a list of different names (letters, digits, '_', '.', '-')"
"""What is expected in place of a value of that variable that is refused."""

# They become parts of addresses, which the kernel keeps short, and of lists.
_NAME = r"[A-Za-z0-9_.-]{1,40}"


def list_gpus(
    visible: str | None, nvml: Nvml | None = None, pretended: str | None = None
) -> tuple[Gpu, ...]:
    """Lists the GPUs that a process with this environment sees, in its order.

    ``visible``: value of ``CUDA_VISIBLE_DEVICES``, None if it is not set. ``pretended``: value of
    ``LLLAUNCH_PRETEND_GPUS``, names of GPUs that replace the real ones.

    Raises:
        GpusUnknown: there is no driver, or it fails.
        ValueError: the names are not different names; the text is `MISNAMED`.
    """
    if pretended is not None:
        known = _entries(pretended) if pretended.strip() else []
        if len(set(known)) < len(known) or not all(re.fullmatch(_NAME, name) for name in known):
            raise ValueError(MISNAMED)
        chosen = (
            known if visible is None else [name for name, _ in listed(_entries(visible), known)]
        )
        return tuple(Gpu(name, f"pretended-{name}") for name in chosen)
    if visible is not None and not visible.strip():
        return ()
    with asking(nvml) as driver:
        return tuple(
            Gpu(name, _identity(device, driver)) for name, device in _visible(visible, driver)
        )


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")]


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
    entries = _entries(visible)
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


# In a process of its own

# One that is killed ends within this, seconds, unless it hangs in the kernel.
_KILLED_WITHIN = 0.5
_MOST_BYTES = 1 << 20
# A wait for memory of less is not worth a line, seconds.
_SILENT_SECONDS = 2.0
# Between two looks at who holds memory, seconds.
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class GpuReading(NamedTuple):
    """What the GPUs of some workers do."""

    # names of the GPUs that each of them sees, in the order in which they were named
    seen: Sequence[tuple[str, ...]]
    gpus: Mapping[str, GpuUse]


class _DriverProcess:
    """A process that calls a function which asks the driver, and that ends with this one.

    If it cannot be started, that is said, and it is as if it had ended.
    """

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import below, "
            f"{function.__name__} as tell; below({os.getpid()}) and tell(*{args!r})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # what the terminal sends is for the launcher
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("nobody looks at GPUs: %s", error.strerror or error)
        else:
            os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        """Readable when it has written something."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _lines(self) -> list[bytes] | None:
        """Return the lines that it wrote since the last call, without waiting.

        Returns None if it has ended: there is no driver, or nothing more to tell.
        """
        try:
            while data := os.read(self.fileno(), _MOST_BYTES):
                self._said += data
        except BlockingIOError:
            *lines, self._said = self._said.split(b"\n")
            return lines
        return None

    def close(self) -> None:
        """End it; one that hangs in the kernel is left there. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_WITHIN)


class GpuMeter(_DriverProcess):
    """Reads what GPUs do in a process of its own, which it starts.

    ``visible``: values of ``CUDA_VISIBLE_DEVICES`` of those who see them, None where it is not set.
    ``period``: seconds between two readings.
    """

    def __init__(self, visible: Sequence[str | None], period: float) -> None:
        super().__init__(tell_use, list(visible), period)

    def take(self) -> GpuReading | None:
        """Return what was read last since the last call, None if nothing was; waits for nothing."""
        if self._process is None:
            return None
        lines = self._lines()
        if lines is None:
            # there is no driver, or it does not know this one
            self.close()
        if not lines:
            return None
        seen, gpus = json.loads(lines[-1])
        use = {name: GpuUse(*each) for name, each in gpus.items()}
        return GpuReading([tuple(names) for names in seen], use)


class HeldMemory(NamedTuple):
    """Which processes that have ended still hold memory on GPUs."""

    pids: tuple[int, ...]  # none if the driver does not answer
    gpus: tuple[int, ...]
    seconds: float  # for so long
    given_up: bool


class GpuMemoryWait(_DriverProcess):
    """Waits until processes hold no memory on GPUs, for an event loop.

    ``seconds``: how long is waited at most.
    """

    def __init__(self, pids: Collection[int], seconds: float) -> None:
        super().__init__(tell_holders, sorted(pids))
        # whether there is nothing to wait for any more, as far as `events` has told
        self.over = self._process is None
        self._began = time.monotonic()
        self._until = self._began + seconds
        self._told = False
        # By process id, the GPUs; nothing as long as nobody has answered.
        self._held: dict[str, list[int]] = {}

    @classmethod
    def begin(cls, pids: Collection[int], seconds: float) -> GpuMemoryWait | None:
        """Begin to wait; returns None if nobody can look."""
        wait = cls(pids, seconds)
        return None if wait.over else wait

    def next_in(self) -> float:
        """Return the seconds until `events` has something to tell though nothing is readable."""
        moment = self._until
        if self._held and not self._told:
            moment = min(moment, self._began + _SILENT_SECONDS)
        return max(0.0, moment - time.monotonic())

    def events(self) -> list[HeldMemory]:
        """Return what is to be said, without waiting."""
        lines, now = self._lines(), time.monotonic()
        if lines is None:
            # nothing is held, or nobody looks
            self.over = True
            return []
        if lines:
            self._held = json.loads(lines[-1])
        late = now >= self._until
        if late or (self._held and not self._told and now - self._began >= _SILENT_SECONDS):
            self.over, self._told = late, True
            gpus = {gpu for each in self._held.values() for gpu in each}
            pids = tuple(sorted(map(int, self._held)))
            return [HeldMemory(pids, tuple(sorted(gpus)), now - self._began, late)]
        return []


def below(parent: int) -> bool:
    """In that process: end with the launcher; return whether it is still there."""
    set_parent_death_signal(signal.SIGKILL)
    return os.getppid() == parent


def tell_use(
    visible: Sequence[str | None], period: float, sink: int = 1, nvml: Nvml | None = None
) -> None:
    """Tell, in a process of its own, what GPUs do, as `gpus_in_use`, until nobody listens.

    ``sink``: descriptor that gets a line of JSON for each look.
    """
    # kept, so that the driver is not loaded for each reading
    with contextlib.suppress(OSError, GpusUnknown), asking(nvml) as driver:
        while True:
            os.write(sink, json.dumps(gpus_in_use(visible, driver)).encode() + b"\n")
            time.sleep(period)


def tell_holders(pids: Collection[int], sink: int = 1, nvml: Nvml | None = None) -> None:
    """Tell, in a process of its own, which of some processes hold memory, until none does.

    ``sink``: descriptor that gets a line of JSON for each look: the GPUs, by process id.
    """
    pause = _SHORTEST_PAUSE
    while True:
        held = {}
        with contextlib.suppress(GpusUnknown):
            held = memory_holders(pids, nvml)
        if not held:
            return
        os.write(sink, json.dumps(held).encode() + b"\n")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
