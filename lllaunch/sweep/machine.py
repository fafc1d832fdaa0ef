"""What this launcher may lease: GPUs and cores, as many as it sees and was allowed.

GPUs are counted by NVML, through the ``CUDA_VISIBLE_DEVICES`` of the launcher. Cores are those of
its affinity; where a cgroup gives it less time than that, there are only so many CPU slots.
``LLLAUNCH_PRETEND_GPUS=a,b,c,d`` puts made-up GPUs in the place of those that NVML finds (an empty
value: none), so that a sweep can be tried where there are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import PRETEND, Gpu, GpusUnknown, Nvml, list_gpus, pretended_gpus
from lllaunch.sweep.pool import Lease
from lllaunch.text import shorten, spans
from lllaunch.words import counted

Limit: TypeAlias = int | Sequence[int | str] | None
"""How many slots of a kind, or which ones; None for all."""
T = TypeVar("T")

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)
_MOST_SHOWN = 80
VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpus(limit: Limit, visible: Sequence[Gpu], why_none: str) -> tuple[Gpu, ...]:
    """Takes the first GPUs, or those that are listed, in the order of the list.

    ``limit``: a list is of names or UUIDs (the beginning will do, as long as only one has it).
    ``why_none``: if there is nothing: why, a predicate.

    Raises:
        Unfit: not all of them are there.
    """
    if limit is None:
        return tuple(visible)
    if limit and not visible:
        message = f"asks for GPUs, but {why_none}"
        raise Unfit(message=message, hint="leave it out", code="gpus")
    if isinstance(limit, int):
        return tuple(visible[: _at_most(limit, len(visible), "GPUs that are visible")])
    chosen: list[Gpu] = []
    for name in (str(entry).strip() for entry in limit):
        found = [gpu for gpu in visible if gpu.name == name]
        if not found and name.startswith(("GPU-", "MIG-")):
            found = [gpu for gpu in visible if gpu.uuid.startswith(name)]
        if len(found) != 1:
            names = ", ".join(gpu.name for gpu in visible)
            number = "several of them" if found else "none of them"
            expected = f"names of visible GPUs ({names})"
            raise Unfit(expected, f"{_shown(name)} is {number}", code="gpus")
        chosen += found
    return tuple(dict.fromkeys(chosen))


def choose_cpus(limit: Limit, cores: Cores) -> tuple[int, ...]:
    """Takes the first cores, or those that are listed.

    ``limit``: a list is of cores and ranges of them (``"0-3"``); None is as many as the quota gives
    time for, rounded down, at least one.

    Raises:
        Unfit: not all of them may be used.
    """
    if limit is None:
        quota = len(cores.numbers) if cores.quota is None else int(cores.quota)
        return cores.numbers[: max(1, quota)]
    if isinstance(limit, int):
        hint = "for more jobs side by side: launch.resources.cpus_per_proc=0 and max_parallel"
        return cores.numbers[: _at_most(limit, len(cores.numbers), "cores that may be used", hint)]
    chosen: set[int] = set()
    for entry in limit:
        found = _RANGE.fullmatch(str(entry))
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if low > high:
            expected = "cores and ranges of them (0, 3, '0-3')"
            raise Unfit(expected, f"{_shown(entry)} is neither", code="cpus")
        # Not expanded before it is known to be there: a range may be very long.
        within = [core for core in cores.numbers if low <= core <= high]
        if len(within) != high - low + 1:
            which = str(low) if low == high else f"{low}-{high}"
            expected = f"cores that may be used ({spans(cores.numbers)})"
            raise Unfit(expected, f"{which} may not be used", code="cpus")
        chosen.update(within)
    return tuple(sorted(chosen))


def _shown(value: object) -> str:
    return shorten(repr(value), _MOST_SHOWN)


def _at_most(count: int, there: int, what: str, hint: str = "") -> int:
    if count > there:
        raise Unfit(f"at most {there}, the number of {what}", hint, code="number")
    return count


class SweepMachine(NamedTuple):
    """What a sweep's launcher may lease."""

    gpus: tuple[Gpu, ...] = ()
    cpus: tuple[int, ...] = ()
    # whether jobs are told which GPUs are theirs. Not where no GPU was found: there may be some
    # that NVML does not know
    masks_gpus: bool = False

    @property
    def everything(self) -> Lease:
        """All there is to lease."""
        return Lease(tuple(gpu.name for gpu in self.gpus), self.cpus)

    def environment(self, lease: Lease) -> dict[str, str]:
        """Returns the variables that show a job its GPUs and no others."""
        return {VISIBLE: ",".join(lease.gpus)} if self.masks_gpus else {}

    def __str__(self) -> str:
        gpus = [counted(len(self.gpus), "GPU")] if self.gpus else []
        return ", ".join([*gpus, counted(len(self.cpus), "core")])


def find_machine(
    environ: Mapping[str, str],
    gpus: Limit = None,
    cpus: Limit = None,
    *,
    key: str = "hydra.launcher",
    nvml: Nvml | None = None,
    cores: Cores | None = None,
) -> SweepMachine:
    """Looks what there is and takes what the limits allow.

    ``gpus``: a list is of names as CUDA_VISIBLE_DEVICES has them or of UUIDs. ``cpus``: a list is
    of cores and ranges of them (``"0-3"``); None for as many as the cgroups of the launcher give it
    time for. A number may go beyond that.

    Raises:
        ConfigError: a limit cannot be met; all that is wrong is told.
    """
    problems: list[Diagnostic] = []

    def attempt(name: str, limit: Limit, choose: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        try:
            return choose()
        except Unfit as unfit:
            value = limit if isinstance(limit, int) else list(limit or ())
            problems.append(unfit.at(f"{key}.{name}", _shown(value)))
            return ()

    none_wanted = gpus is not None and not gpus
    visible, why_none = ((), "") if none_wanted else _visible(environ, nvml)
    available = find_cores() if cores is None else cores
    chosen_gpus = attempt("gpus", gpus, lambda: choose_gpus(gpus, visible, why_none))
    chosen_cpus = attempt("cpus", cpus, lambda: choose_cpus(cpus, available))
    if problems:
        raise ConfigError(tuple(problems))
    return SweepMachine(chosen_gpus, chosen_cpus, bool(visible) or none_wanted)


def pin(lease: Lease) -> None:
    """Binds this process, and what it will start, to the cores of a lease, if there are any.

    Raises:
        OSError: this process may use none of them (any more).
    """
    if lease.cpus:
        os.sched_setaffinity(0, lease.cpus)


def _visible(environ: Mapping[str, str], nvml: Nvml | None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that are visible; if there are none, also why, a predicate.

    Raises:
        ConfigError: the names of pretended ones are wrong.
    """
    visible = environ.get(VISIBLE)
    why_none = "found no GPU" + ("" if visible is None else f" with {VISIBLE}={_shown(visible)}")
    pretended = environ.get(PRETEND)
    try:
        if pretended is None:
            return list_gpus(visible, nvml), why_none
        return pretended_gpus(pretended, visible), why_none
    except GpusUnknown as unknown:
        return (), str(unknown)
    except ValueError as error:
        problem = Diagnostic("gpus", PRETEND, _shown(pretended), "", expected=str(error))
        raise ConfigError((problem,)) from None
