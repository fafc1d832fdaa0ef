"""Which job holds which GPU or core, in one row: ``GPU 0:12 1:12 2:- 3:14``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from lllaunch.console.table import Row
from lllaunch.text import plain
from lllaunch.words import StyledText
from lllaunch.workers.terminal import cells

IDLE = "-"
"""The holder of an idle slot."""

OTHER = "other"
"""The holder of a slot that another launcher has."""

_LONGEST_NAME = 4
# What NVML begins the names of GPUs with, of which nobody compares these letters.
_PREFIX = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)


def slots_row(word: str, names: Sequence[str], holders: Mapping[str, str], width: int) -> Row:
    """Return a row that shows who holds slots, none if there are no slots or there is no room.

    Each slot has a cell of its own if they all fit. Else slots beside each other that one job holds
    share one. If not even these fit, the last ones are left out, and the idle ones are counted.

    Args:
        word: what they are: ``GPU``, ``core``.
        names: of all slots, in order.
        holders: who holds one, by name; those that are not in it are idle.
        width: columns that it may take.
    """
    short = short_names(names)
    held = [(holders.get(name, IDLE), short[name]) for name in names]
    joined = [
        (holder, f"{group[0]}-{group[-1]}" if len(group) > 1 else group[0])
        for holder, pairs in groupby(held, key=lambda pair: pair[0])
        for group in [[name for _, name in pairs]]
    ]
    idle = sum(holder == IDLE for holder, _ in held)
    end = f" ... {idle} of {len(held)} idle"
    room = width - len(word)
    for each in (held, joined):
        if each and sum(2 + cells(name) + cells(holder) for holder, name in each) <= room:
            return _row(word, each)
    room -= len(end)
    if not held or room < 0:
        return ()
    shown = []
    for holder, name in joined:
        room -= 2 + cells(name) + cells(holder)
        if room < 0:
            break
        shown.append((holder, name))
    return (*_row(word, shown), StyledText(end, "faint"))


def _row(word: str, held: Sequence[tuple[str, str]]) -> Row:
    return (
        StyledText(word, "faint"),
        *(
            StyledText(f" {name}:{holder}", "" if holder in {IDLE, OTHER} else "busy")
            for holder, name in held
        ),
    )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest beginnings that differ between slots, of at least a few letters."""
    plains = {name: plain(_PREFIX.sub("", name, count=1)) for name in names}
    longest = max(map(len, plains.values()), default=0)
    for length in range(_LONGEST_NAME, longest):
        found = {name: text[:length] for name, text in plains.items()}
        if len({*found.values()}) == len(found):
            return found
    return plains
