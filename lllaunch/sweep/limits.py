"""Choosing among GPUs and cores by what the config allows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lllaunch.linux.cgroup import Cores
from lllaunch.linux.gpus import Gpu

_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})", re.ASCII)
_MOST_SHOWN = 80


class Refused(Exception):
    """A limit is wrong, or cannot be met.

    Attributes:
        expected: what was expected in place of the value, or an empty string.
        hint: what can be done, or an empty string.
        message: of a value that is of the right kind: what is wrong with it, the predicate of a
            sentence about it, or an empty string.
    """

    def __init__(self, expected: str = "", hint: str = "", *, message: str = "") -> None:
        super().__init__(expected or message, hint)
        self.expected = expected
        self.hint = hint
        self.message = message


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
        raise Refused("a number of GPUs (0, 1, 2, ...) or a list of them")
    if count is not None and count < 0:
        raise Refused("a number of GPUs, 0 or more")
    if (count or limit) and not visible:
        message = f"asks for GPUs, but {why_none or 'found no GPU'}"
        raise Refused(message=message, hint="leave it out")
    if count is not None:
        return tuple(visible[: _at_most(count, len(visible), "GPUs that are visible")])
    assert isinstance(limit, Sequence)
    chosen: list[Gpu] = []
    for entry in limit:
        gpu = _named(entry, visible)
        if gpu in chosen:
            raise Refused("each GPU at most once", f"{gpu.name} is named twice")
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
            raise Refused("a number of CPU slots, 0 or more")
        hint = "for more jobs side by side: launch.resources.cpus_per_proc=0 and max_parallel"
        return cores.numbers[: _at_most(count, len(cores.numbers), "cores that may be used", hint)]
    if not _is_list(limit):
        raise Refused("a number of CPU slots (0, 1, 2, ...) or a list of cores")
    assert isinstance(limit, Sequence)
    chosen: set[int] = set()
    for low, high in map(_range, limit):
        # Not expanded before it is known to be there: a range may be very long.
        within = [core for core in cores.numbers if low <= core <= high]
        if len(within) != high - low + 1:
            which = str(low) if low == high else f"{low}-{high}"
            expected = f"cores that may be used ({_written(cores)})"
            raise Refused(expected, f"{which} may not be used")
        if chosen.intersection(within):
            twice = min(chosen.intersection(within))
            raise Refused("each core at most once", f"{twice} is named twice")
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
        raise Refused(f"at most {there}, the number of {what}", hint)
    return count


def _named(entry: object, visible: Sequence[Gpu]) -> Gpu:
    name = entry.strip() if isinstance(entry, str) else str(entry)
    if not isinstance(entry, str) and (isinstance(entry, bool) or not isinstance(entry, int)):
        raise Refused("names of GPUs", f"{shown(entry)} is not one")
    found = [gpu for gpu in visible if gpu.name == name]
    if not found and name.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in visible if gpu.uuid.startswith(name)]
    if len(found) != 1:
        names = ", ".join(gpu.name for gpu in visible)
        number = "several of them" if found else "none of them"
        raise Refused(f"names of visible GPUs ({names})", f"{shown(name)} is {number}")
    return found[0]


def _range(entry: object) -> tuple[int, int]:
    number = _number(entry)
    if number is not None:
        return number, number
    match = _RANGE.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None or int(match[1]) > int(match[2]):
        raise Refused("cores and ranges of them (0, 3, '0-3')", f"{shown(entry)} is neither")
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
