"""Choosing among GPUs and cores by what the config allows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lllaunch.linux.cpus import Cores
from lllaunch.linux.nvml import Gpu

_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})", re.ASCII)
_MOST_SHOWN = 80


class Refused(Exception):
    """A limit is wrong, or cannot be met.

    Attributes:
        expected: what was expected, the predicate of a sentence about the value.
        hint: what can be done, or an empty string.
    """

    def __init__(self, expected: str, hint: str = "") -> None:
        super().__init__(expected, hint)
        self.expected = expected
        self.hint = hint


def gives_none(limit: object) -> bool:
    """Whether a limit is right and leaves nothing: 0, or an empty list."""
    return _number(limit) == 0 or (_is_list(limit) and not limit)


def choose_gpus(limit: object, visible: Sequence[Gpu], why_none: str = "") -> tuple[Gpu, ...]:
    """Takes the first GPUs, or those that are listed, in the order of the list.

    Args:
        limit: how many; a list of names or UUIDs (the beginning will do, as long as only one has
            it); None for all.
        visible: what there is.
        why_none: if there is nothing: why, a predicate.

    Raises:
        Refused: it is none of these, or not all of them are there.
    """
    if limit is None:
        return tuple(visible)
    count = _number(limit)
    if count is None and not _is_list(limit):
        raise Refused("is not a number of GPUs (0, 1, 2, ...) nor a list of them")
    if count is not None and count < 0:
        raise Refused("is too few: 0 is the least number of GPUs")
    if (count or limit) and not visible:
        raise Refused(f"asks for GPUs, but {why_none or 'found no GPU'}", "leave it out")
    if count is not None:
        return tuple(visible[: _at_most(count, len(visible), "GPUs that are visible")])
    assert isinstance(limit, Sequence)
    chosen: list[Gpu] = []
    for entry in limit:
        gpu = _named(entry, visible)
        if gpu in chosen:
            raise Refused(f"names GPU {gpu.name} twice")
        chosen.append(gpu)
    return tuple(chosen)


def choose_cpus(limit: object, cores: Cores) -> tuple[int, ...]:
    """Takes the first cores, or those that are listed.

    Args:
        limit: how many; a list of cores and ranges of them (``"0-3"``); None for as many as the
            quota gives time for, rounded down, at least one.
        cores: what there is.

    Returns:
        Their numbers, ascending.

    Raises:
        Refused: it is none of these, or not all of them may be used.
    """
    if limit is None:
        quota = len(cores.numbers) if cores.quota is None else int(cores.quota)
        return cores.numbers[: max(1, quota)]
    count = _number(limit)
    if count is not None:
        if count < 0:
            raise Refused("is too few: 0 is the least number of CPU slots")
        hint = "for more jobs side by side: launch.resources.cpus_per_proc=0 and max_parallel"
        return cores.numbers[: _at_most(count, len(cores.numbers), "cores that may be used", hint)]
    if not _is_list(limit):
        raise Refused("is not a number of CPU slots (0, 1, 2, ...) nor a list of cores")
    assert isinstance(limit, Sequence)
    chosen: set[int] = set()
    for low, high in map(_range, limit):
        # Not expanded before it is known to be there: a range may be very long.
        within = [core for core in cores.numbers if low <= core <= high]
        if len(within) != high - low + 1:
            which = str(low) if low == high else f"{low}-{high}"
            raise Refused(f"names {which}; the cores that may be used are {_written(cores)}")
        if chosen.intersection(within):
            raise Refused(f"names core {min(chosen.intersection(within))} twice")
        chosen.update(within)
    return tuple(sorted(chosen))


def shown(value: object) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


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
        raise Refused(f"is more than the {there} {what}", hint)
    return count


def _named(entry: object, visible: Sequence[Gpu]) -> Gpu:
    name = entry.strip() if isinstance(entry, str) else str(entry)
    if not isinstance(entry, str) and (isinstance(entry, bool) or not isinstance(entry, int)):
        raise Refused(f"has the entry {shown(entry)}, which is not the name of a GPU")
    found = [gpu for gpu in visible if gpu.name == name]
    if not found and name.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in visible if gpu.uuid.startswith(name)]
    if len(found) != 1:
        names = ", ".join(gpu.name for gpu in visible)
        number = "several" if found else "none"
        raise Refused(f"names {shown(name)}: {number} of the visible GPUs ({names})")
    return found[0]


def _range(entry: object) -> tuple[int, int]:
    number = _number(entry)
    if number is not None:
        return number, number
    match = _RANGE.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise Refused(f"has the entry {shown(entry)}, which is not a core nor a range such as 0-3")
    return int(match[1]), int(match[2])


def _written(cores: Cores) -> str:
    """The numbers as ranges, such as ``0-3, 8``."""
    return ", ".join(
        str(low) if low == high else f"{low}-{high}" for low, high in _runs(cores.numbers)
    )


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    low = 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            yield numbers[low], number
            low = place + 1
