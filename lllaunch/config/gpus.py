"""How many GPUs a worker would see; what cannot be found out is a problem of the config."""

from __future__ import annotations

from lllaunch.config.findings import Unfit
from lllaunch.linux import gpus as driver
from lllaunch.linux.gpus import PRETEND, Nvml, pretended_gpus

__all__ = ["PRETEND", "Nvml", "count_gpus"]


def count_gpus(
    visible: str | None, nvml: Nvml | None = None, *, pretended: str | None = None
) -> int:
    """Counts the GPUs that a process with this environment sees.

    Args:
        visible: value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.
        nvml: stands in for the module ``pynvml``.
        pretended: value of ``LLLAUNCH_PRETEND_GPUS``: names of GPUs that take the place of those
            that there are. None if it is not set.

    Returns:
        Number of GPUs, or of MIG slices where the list names slices.

    Raises:
        Unfit: the driver cannot be asked, or the names are no names; the text says why.
    """
    if pretended is not None:
        try:
            return len(pretended_gpus(pretended, visible))
        except ValueError as error:
            detail = f"{PRETEND}: expected {error}, got {pretended!r}"
            raise Unfit(message="cannot be counted", detail=detail) from error
    try:
        return driver.count_gpus(visible, nvml)
    except driver.GpusUnknown as unknown:
        raise Unfit(message=str(unknown)) from unknown
