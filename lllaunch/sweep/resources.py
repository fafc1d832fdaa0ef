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


def need_of(
    nproc: int, per_proc: tuple[int | None, int | None], gpus_there: bool, cpus_there: int
) -> Need:
    """Returns what a job needs.

    Args:
        nproc: number of its workers.
        per_proc: number of GPUs and of CPU slots for each worker, such as
            `lllaunch.spec.Resources`. None for GPUs: one where there are GPUs; None for CPU slots:
            one for a worker that needs no GPU, and all there are for more workers than that: like
            a run of its own, the job then shares the cores among its workers.
        gpus_there: whether the sweep has GPUs to lease.
        cpus_there: how many CPU slots it has.
    """
    gpus, cpus = per_proc
    if gpus is None:
        gpus = int(gpus_there)
    if cpus is None:
        return Need(nproc * gpus, 0 if gpus else min(nproc, cpus_there))
    return Need(nproc * gpus, nproc * cpus)
