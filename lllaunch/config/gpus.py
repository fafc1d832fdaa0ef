"""How many GPUs a worker would see; what cannot be found out is a problem of the config."""

from __future__ import annotations

from lllaunch.config.findings import Unfit
from lllaunch.linux import nvml as driver
from lllaunch.linux.nvml import Nvml

__all__ = ["Nvml", "count_gpus"]


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
    try:
        return driver.count_gpus(visible, nvml)
    except driver.GpusUnknown as unknown:
        raise Unfit(str(unknown)) from unknown
