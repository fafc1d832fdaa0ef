"""What a job needs of a machine, and what it holds while it runs. Pure data."""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
    """What a job asks for, all of its workers together.

    Attributes:
        gpus: number of GPUs.
        cpus: number of CPU slots.
    """

    gpus: int = 0
    cpus: int = 0


class Lease(NamedTuple):
    """What a job holds while it runs.

    Attributes:
        gpus: the GPUs, as CUDA_VISIBLE_DEVICES names them in the launcher's environment.
        cpus: the cores, by number.
    """

    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
