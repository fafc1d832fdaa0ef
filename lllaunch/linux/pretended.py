"""Made-up GPUs: ``LLLAUNCH_PRETEND_GPUS=a,b,c,d`` puts them in the place of those that NVML finds.

An empty value means that there are none. ``CUDA_VISIBLE_DEVICES`` chooses among their names, as it
does among those of real ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lllaunch.linux.nvml import Gpu, listed

PRETEND = "LLLAUNCH_PRETEND_GPUS"

MISNAMED = "a list of different names (letters, digits, '_', '.', '-')"
"""What is expected in place of a value that `pretended_gpus` refuses."""

# They become parts of addresses, which the kernel keeps short, and of lists.
_NAME = r"[A-Za-z0-9_.-]{1,40}"


def pretended_gpus(names: str, visible: str | None) -> tuple[Gpu, ...]:
    """Lists the made-up GPUs that a process sees, in its order.

    Args:
        names: value of ``LLLAUNCH_PRETEND_GPUS``.
        visible: value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.

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
