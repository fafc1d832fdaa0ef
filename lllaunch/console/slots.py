"""Which job holds which GPU or core, in one row: ``GPU 0:12 1:12 2:- 3:14``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from lllaunch.console.table import Row, cells
from lllaunch.text import plain
from lllaunch.words import StyledText

IDLE = "-"
"""What stands where nobody holds a slot."""

OTHER = "other"
"""What stands where another launcher does."""

_LONGEST_NAME = 4
# What NVML begins the names of GPUs with, of which nobody compares these letters.
_PREFIX = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)


class HeldSlots(NamedTuple):
    """Some slots beside each other, and who holds them.

    Attributes:
        names: of the slots, at least one.
        holder: number of a job, `OTHER`, or `IDLE`.
    """

    names: tuple[str, ...]
    holder: str

    @property
    def text(self) -> str:
        """``0:12``, or ``0-3:12`` of several."""
        first, last = self.names[0], self.names[-1]
        return f"{first if len(self.names) == 1 else f'{first}-{last}'}:{self.holder}"


def slots_row(word: str, names: Sequence[str], holders: Mapping[str, str], width: int) -> Row:
    """Return a row that tells who holds slots, none if there are no slots or there is no room.

    Each slot has a cell of its own if they all fit. Else slots beside each other that one job holds
    share one, and where not even these fit, the last ones are left out; how many are idle is told.

    Args:
        word: what they are: ``GPU``, ``core``.
        names: of all slots, in order.
        holders: who holds one, by name; those that are not in it are idle.
        width: columns that it may take.
    """
    short = short_names(names)
    each = [HeldSlots((short[name],), holders.get(name, IDLE)) for name in names]
    for held in (each, list(_joined(each))):
        if held and len(word) + sum(1 + cells(one.text) for one in held) <= width:
            return (_label(word), *_spans(held))
    return _cut(word, list(_joined(each)), width)


def _cut(word: str, held: Sequence[HeldSlots], width: int) -> Row:
    count = sum(len(one.names) for one in held)
    idle = sum(len(one.names) for one in held if one.holder == IDLE)
    end = f" ... {idle} of {count} idle"
    room = width - len(word) - len(end)
    if not held or room < 0:
        return ()
    shown = []
    for one in held:
        room -= 1 + cells(one.text)
        if room < 0:
            break
        shown.append(one)
    return (_label(word), *_spans(shown), StyledText(end, "faint"))


def _label(word: str) -> StyledText:
    return StyledText(word, "faint")


def _spans(held: Iterable[HeldSlots]) -> Iterator[StyledText]:
    for one in held:
        yield StyledText(f" {one.text}", "" if one.holder in {IDLE, OTHER} else "busy")


def _joined(each: Iterable[HeldSlots]) -> Iterator[HeldSlots]:
    for holder, group in groupby(each, lambda one: one.holder):
        yield HeldSlots(tuple(name for one in group for name in one.names), holder)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest beginnings that tell slots apart, of at least a few letters, by name."""
    plains = {name: plain(_PREFIX.sub("", name, count=1)) for name in names}
    longest = max(map(len, plains.values()), default=0)
    for length in range(_LONGEST_NAME, longest):
        found = {name: text[:length] for name, text in plains.items()}
        if len({*found.values()}) == len(found):
            return found
    return plains
