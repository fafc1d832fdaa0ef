"""What this launcher may lease: GPUs and cores, as many as it sees and was allowed.

GPUs are counted by NVML, through the ``CUDA_VISIBLE_DEVICES`` of the launcher. Cores are those of
its affinity; where a cgroup gives it less time than that, there are only so many CPU slots.
``LLLAUNCH_PRETEND_GPUS=a,b,c,d`` puts made-up GPUs in the place of those that NVML finds (an empty
value: none), so that a sweep can be tried where there are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import PRETEND, Gpu, GpusUnknown, Nvml, list_gpus, pretended_gpus
from lllaunch.sweep.pool import Lease
from lllaunch.text import shorten, spans
from lllaunch.words import counted

_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})", re.ASCII)
_MOST_SHOWN = 80


def gives_none(limit: object) -> bool:
    """Whether a limit is right and leaves nothing: 0, or an empty list."""
    return _number(limit) == 0 or (_is_list(limit) and not limit)


def choose_gpus(limit: object, visible: Sequence[Gpu], why_none: str = "") -> tuple[Gpu, ...]:
    """Takes the first GPUs, or those that are listed, in the order of the list.

    ``limit``: how many; a list of names or UUIDs (the beginning will do, as long as only one has
    it); None for all. ``why_none``: if there is nothing: why, a predicate.

    Raises:
        Unfit: it is none of these, or not all of them are there.
    """
    if limit is None:
        return tuple(visible)
    count = _number(limit)
    if count is None and not _is_list(limit):
        raise Unfit("a number of GPUs (0, 1, 2, ...) or a list of them", code="gpus")
    if count is not None and count < 0:
        raise Unfit("a number of GPUs, 0 or more", code="gpus")
    if (count or limit) and not visible:
        message = f"asks for GPUs, but {why_none or 'found no GPU'}"
        raise Unfit(message=message, hint="leave it out", code="gpus")
    if count is not None:
        return tuple(visible[: _at_most(count, len(visible), "GPUs that are visible")])
    assert isinstance(limit, Sequence)
    chosen: list[Gpu] = []
    for entry in limit:
        gpu = _named(entry, visible)
        if gpu in chosen:
            raise Unfit("each GPU at most once", f"{gpu.name} is named twice", code="gpus")
        chosen.append(gpu)
    return tuple(chosen)


def choose_cpus(limit: object, cores: Cores) -> tuple[int, ...]:
    """Takes the first cores, or those that are listed.

    ``limit``: how many; a list of cores and ranges of them (``"0-3"``); None for as many as the
    quota gives time for, rounded down, at least one.

    Raises:
        Unfit: it is none of these, or not all of them may be used.
    """
    if limit is None:
        quota = len(cores.numbers) if cores.quota is None else int(cores.quota)
        return cores.numbers[: max(1, quota)]
    count = _number(limit)
    if count is not None:
        if count < 0:
            raise Unfit("a number of CPU slots, 0 or more", code="cpus")
        hint = "for more jobs side by side: launch.resources.cpus_per_proc=0 and max_parallel"
        return cores.numbers[: _at_most(count, len(cores.numbers), "cores that may be used", hint)]
    if not _is_list(limit):
        raise Unfit("a number of CPU slots (0, 1, 2, ...) or a list of cores", code="cpus")
    assert isinstance(limit, Sequence)
    chosen: set[int] = set()
    for low, high in map(_range, limit):
        # Not expanded before it is known to be there: a range may be very long.
        within = [core for core in cores.numbers if low <= core <= high]
        if len(within) != high - low + 1:
            which = str(low) if low == high else f"{low}-{high}"
            expected = f"cores that may be used ({spans(cores.numbers)})"
            raise Unfit(expected, f"{which} may not be used", code="cpus")
        if chosen.intersection(within):
            twice = min(chosen.intersection(within))
            raise Unfit("each core at most once", f"{twice} is named twice", code="cpus")
        chosen.update(within)
    return tuple(sorted(chosen))


def shown(value: object) -> str:
    """A value for a message, shortened."""
    return shorten(repr(value), _MOST_SHOWN)


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        # What ${oc.env:N} gives is always text.
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    return value if isinstance(value, int) else None


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _at_most(count: int, there: int, what: str, hint: str = "") -> int:
    if count > there:
        raise Unfit(f"at most {there}, the number of {what}", hint, code="number")
    return count


def _named(entry: object, visible: Sequence[Gpu]) -> Gpu:
    name = entry.strip() if isinstance(entry, str) else str(entry)
    if not isinstance(entry, str) and (isinstance(entry, bool) or not isinstance(entry, int)):
        raise Unfit("names of GPUs", f"{shown(entry)} is not one", code="gpus")
    found = [gpu for gpu in visible if gpu.name == name]
    if not found and name.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in visible if gpu.uuid.startswith(name)]
    if len(found) != 1:
        names = ", ".join(gpu.name for gpu in visible)
        number = "several of them" if found else "none of them"
        raise Unfit(f"names of visible GPUs ({names})", f"{shown(name)} is {number}", code="gpus")
    return found[0]


def _range(entry: object) -> tuple[int, int]:
    number = _number(entry)
    if number is not None:
        return number, number
    match = _RANGE.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise Unfit(
            "cores and ranges of them (0, 3, '0-3')", f"{shown(entry)} is neither", code="cpus"
        )
    return int(match[1]), int(match[2])


VISIBLE = "CUDA_VISIBLE_DEVICES"


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
    gpus: object = None,
    cpus: object = None,
    *,
    key: str = "hydra.launcher",
    nvml: Nvml | None = None,
    cores: Cores | None = None,
) -> SweepMachine:
    """Looks what there is and takes what the limits allow.

    ``gpus``: how many, or a list of names as CUDA_VISIBLE_DEVICES has them or of UUIDs; None for
    all. ``cpus``: how many, or a list of cores and ranges of them (``"0-3"``); None for as many as
    the cgroups of the launcher give it time for. A number may go beyond that.

    Raises:
        ConfigError: a limit is wrong or cannot be met; all that is wrong is told.
    """
    found = _Visible() if gives_none(gpus) else _visible(environ, nvml)
    problems = [*found.problems]
    chosen_gpus: tuple[Gpu, ...] = ()
    chosen_cpus: tuple[int, ...] = ()
    if not problems:
        try:
            chosen_gpus = choose_gpus(gpus, found.gpus, found.why_none)
        except Unfit as unfit:
            problems.append(_problem(f"{key}.gpus", gpus, unfit))
    try:
        chosen_cpus = choose_cpus(cpus, find_cores() if cores is None else cores)
    except Unfit as unfit:
        problems.append(_problem(f"{key}.cpus", cpus, unfit))
    if problems:
        raise ConfigError(tuple(problems))
    masks = bool(found.gpus) or gives_none(gpus)
    return SweepMachine(chosen_gpus, chosen_cpus, masks)


def pin(lease: Lease) -> None:
    """Binds this process, and what it will start, to the cores of a lease, if there are any.

    Raises:
        OSError: this process may use none of them (any more).
    """
    if lease.cpus:
        os.sched_setaffinity(0, lease.cpus)


class _Visible(NamedTuple):
    gpus: tuple[Gpu, ...] = ()
    why_none: str = ""
    problems: tuple[Diagnostic, ...] = ()


def _visible(environ: Mapping[str, str], nvml: Nvml | None) -> _Visible:
    visible = environ.get(VISIBLE)
    if PRETEND in environ:
        return _pretended(environ[PRETEND], visible)
    try:
        gpus = list_gpus(visible, nvml)
    except GpusUnknown as unknown:
        return _Visible(why_none=str(unknown))
    return _Visible(gpus, _why_none(gpus, visible))


def _pretended(names: str, visible: str | None) -> _Visible:
    try:
        gpus = pretended_gpus(names, visible)
    except ValueError as error:
        return _Visible(
            problems=(Diagnostic("gpus", PRETEND, shown(names), "", expected=str(error)),)
        )
    return _Visible(gpus, _why_none(gpus, visible))


def _why_none(gpus: tuple[Gpu, ...], visible: str | None) -> str:
    if gpus:
        return ""
    return "found no GPU" if visible is None else f"found no GPU with {VISIBLE}={shown(visible)}"


def _problem(key: str, value: object, unfit: Unfit) -> Diagnostic:
    return unfit.at(key, shown(value))
