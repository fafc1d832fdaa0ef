"""How a job of a sweep is told from the others: by the overrides that differ. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lllaunch.console.places import printable
from lllaunch.console.sweep.cells import cut, plain
from lllaunch.console.wording import counted
from lllaunch.units import spans

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from lllaunch.sweep.resources import Lease

_LONGEST = 200  # characters of a job's overrides
_LONGEST_NUMBER = 12
_LONGEST_SLOT = 19  # columns of a GPU's name


def short_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Returns ``lr=0.1 nproc=2`` of ``params.lr=0.1 launch.nproc=2 +exp=resnet``.

    Args:
        overrides: of the job.
        common: those that say nothing, since all jobs have them.
    """
    own = [each for each in overrides if each not in common]
    last = [_last(each) for each in own]
    often = Counter(key for key, _ in last)
    # Two keys with one name are told apart by all of it.
    texts = [
        f"{key}={_short(value)}" if value is not None and often[key] == 1 else each
        for each, (key, value) in zip(own, last, strict=True)
    ]
    return printable(" ".join(texts), _LONGEST)


def _short(value: str) -> str:
    """Returns a value; of a number with more digits than anybody compares, the first ones."""
    if len(value) <= _LONGEST_NUMBER:
        return value
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def _last(override: str) -> tuple[str, str | None]:
    """Returns the last part of an override's key, and its value if it has one."""
    key, equals, value = override.partition("=")
    return re.split(r"[./]", key.lstrip("+"))[-1], value if equals else None


def lease_text(lease: Lease) -> str:
    """Returns ``GPU 0,1, cores 0-3``; an empty string if nothing is leased."""
    return ", ".join(filter(None, (_gpus(lease.gpus), _cores(lease.cpus))))


def _gpus(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"GPU {','.join(cut(plain(name), _LONGEST_SLOT) for name in names)}"


def _cores(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{'core' if len(numbers) == 1 else 'cores'} {spans(numbers).replace(' ', '')}"


def named_jobs(numbers: Iterable[int]) -> str:
    """Returns ``job 3`` or ``jobs 0-2, 5``."""
    known = set(numbers)
    return f"{'job' if len(known) == 1 else 'jobs'} {spans(known)}"


def counts_text(counts: Iterable[tuple[int, str]]) -> str:
    """Returns ``3 failed, 2 running``; nothing of what is 0."""
    return ", ".join(f"{number} {what}" for number, what in counts if number)


def running_jobs(number: int) -> str:
    """Returns ``1 running job`` or ``2 running jobs``."""
    return counted(number, "running job")
