"""What this launcher may lease: GPUs and cores, as many as it sees and was allowed.

GPUs are counted by NVML, through the ``CUDA_VISIBLE_DEVICES`` of the launcher. Cores are those of
its affinity; where a cgroup gives it less time than that, there are only so many CPU slots.
``LLLAUNCH_PRETEND_GPUS=a,b,c,d`` puts made-up GPUs in the place of those that NVML finds (an empty
value: none), so that a sweep can be tried where there are none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from lllaunch.errors import ConfigError, Problem
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import PRETEND, Gpu, GpusUnknown, Nvml, list_gpus, pretended_gpus
from lllaunch.sweep.limits import Refused, choose_cpus, choose_gpus, gives_none, shown
from lllaunch.sweep.resources import Lease

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Machine(NamedTuple):
    """What a sweep's launcher may lease.

    Attributes:
        gpus: the GPUs, in the order of CUDA_VISIBLE_DEVICES.
        cpus: the cores, ascending; each is one CPU slot.
        masks_gpus: whether jobs are told which GPUs are theirs. Not where no GPU was found: there
            may be some that NVML does not know.
        no_gpus: why there is no GPU, a predicate (``"found no NVIDIA driver (...)"``); empty if
            there are some, or if none were wanted.
    """

    gpus: tuple[Gpu, ...] = ()
    cpus: tuple[int, ...] = ()
    masks_gpus: bool = False
    no_gpus: str = ""

    @property
    def everything(self) -> Lease:
        """All there is to lease."""
        return Lease(tuple(gpu.name for gpu in self.gpus), self.cpus)

    def environment(self, lease: Lease) -> dict[str, str]:
        """Returns the variables that show a job its GPUs and no others."""
        return {VISIBLE: ",".join(lease.gpus)} if self.masks_gpus else {}


def find_machine(
    environ: Mapping[str, str],
    gpus: object = None,
    cpus: object = None,
    *,
    key: str = "hydra.launcher",
    nvml: Nvml | None = None,
    cores: Cores | None = None,
) -> Machine:
    """Looks what there is and takes what the limits allow.

    Args:
        environ: the launcher's environment.
        gpus: how many, or a list of names as CUDA_VISIBLE_DEVICES has them or of UUIDs; None for
            all.
        cpus: how many, or a list of cores and ranges of them (``"0-3"``); None for as many as the
            cgroups of the launcher give it time for. A number may go beyond that.
        key: where the limits stand in the config, for messages.
        nvml: stands in for the module ``pynvml``; not asked if no GPU is wanted.
        cores: stands in for those of this process.

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
        except Refused as refused:
            problems.append(_problem(f"{key}.gpus", gpus, refused))
    try:
        chosen_cpus = choose_cpus(cpus, find_cores() if cores is None else cores)
    except Refused as refused:
        problems.append(_problem(f"{key}.cpus", cpus, refused))
    if problems:
        raise ConfigError(tuple(problems))
    masks = bool(found.gpus) or gives_none(gpus)
    return Machine(chosen_gpus, chosen_cpus, masks, found.why_none)


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
    problems: tuple[Problem, ...] = ()


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
        return _Visible(problems=(Problem(PRETEND, shown(names), "", expected=str(error)),))
    return _Visible(gpus, _why_none(gpus, visible))


def _why_none(gpus: tuple[Gpu, ...], visible: str | None) -> str:
    if gpus:
        return ""
    return "found no GPU" if visible is None else f"found no GPU with {VISIBLE}={shown(visible)}"


def _problem(key: str, value: object, refused: Refused) -> Problem:
    found = shown(value)
    return Problem(key, found, refused.message, refused.hint, expected=refused.expected)
