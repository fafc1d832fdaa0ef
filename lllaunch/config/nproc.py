"""How many workers: a number, or as many as there are CPUs or GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable

from lllaunch.config.findings import Unfit
from lllaunch.config.suggest import did_you_mean

# More than any machine runs as one group; a slip of the finger should not fill the process table.
MOST_WORKERS = 10_000

WORDS = ("auto", "cpu", "gpu")
"""What stands for a number that the machine decides."""

_EXPECTED = "a number of workers (1, 2, ... or auto, cpu, gpu)"


def nproc_word(value: object) -> str:
    """The word that leaves the number of workers to the machine, an empty string for a number."""
    word = value.strip().lower() if isinstance(value, str) else ""
    return word if word in WORDS else ""


def count_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def parse_nproc(value: object, *, cpus: Callable[[], int], gpus: Callable[[], int]) -> int:
    """Finds the number of workers.

    Args:
        value: a number; ``cpu`` or ``gpu``: one worker for each; ``auto``: one for each GPU or,
            where there is none, for each CPU.
        cpus: counts the CPUs.
        gpus: counts the GPUs; raises `Unfit` if it cannot.

    Returns:
        Number of workers, at least 1.

    Raises:
        Unfit: it is none of these, or ``gpu`` on a machine without one.
    """
    word = nproc_word(value)
    if word == "cpu":
        return cpus()
    if word == "gpu":
        return _one_or_more(gpus())
    if word == "auto":
        return _if_any(gpus) or cpus()
    return _number(value)


def _one_or_more(gpus: int) -> int:
    if not gpus:
        raise Unfit(
            message="found no visible GPU", hint="see CUDA_VISIBLE_DEVICES, or use 'auto' or 'cpu'"
        )
    return gpus


def _if_any(gpus: Callable[[], int]) -> int:
    try:
        return gpus()
    except Unfit:
        return 0


def _number(value: object) -> int:
    # Text: what ${oc.env:N} gives is always text.
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unfit(_EXPECTED, did_you_mean(value, WORDS) if isinstance(value, str) else "")
    if value < 1:
        raise Unfit("a number of workers, 1 or more")
    if value > MOST_WORKERS:
        raise Unfit(f"a number of workers, {MOST_WORKERS} at most")
    return value
