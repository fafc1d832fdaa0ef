"""What stands above the jobs of a sweep: the best objective, and who holds what. Pure.

One row has all GPUs or cores: ``GPU 0:12 1:12 2:- 3:14``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lllaunch.console.table import Row
from lllaunch.text import plain
from lllaunch.words import StyledText, extremes_text, short_extremes
from lllaunch.workers.terminal import cells, cut

if TYPE_CHECKING:
    from lllaunch.sweep.objective import Objectives
    from lllaunch.sweep.pool import Lease

_IDLE = "-"
# the holder of a slot that another launcher has
_OTHER = "other"

_LONGEST_NAME = 4
# What NVML begins the names of GPUs with, of which nobody compares these letters.
_PREFIX = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)


def extremes_rows(objectives: Objectives, width: int) -> list[Row]:
    """Return a row with the best objective, none if there is nothing to compare."""
    text = plain(extremes_text(objectives))
    if cells(text) > width:
        text = cut(plain(short_extremes(objectives)), width)
    return [(StyledText(text),)] if text else []


def slots_rows(
    slots: Lease, leases: Sequence[tuple[str, Lease]], width: int, others: Iterable[str] = ()
) -> list[Row]:
    """Return rows that show who holds which GPU, and which core where jobs lease cores.

    `leases` has who holds what; `others` are slots that other launchers hold.
    """
    held = dict.fromkeys(others, _OTHER)
    gpus = {gpu: name for name, lease in leases for gpu in lease.gpus}
    cores = {str(core): name for name, lease in leases for core in lease.cpus}
    rows = [slots_row("GPU", slots.gpus, {**held, **gpus}, width)]
    if cores or not slots.gpus:
        rows.append(slots_row("core", [*map(str, slots.cpus)], {**held, **cores}, width))
    return [row for row in rows if row]


def slots_row(word: str, names: Sequence[str], holders: Mapping[str, str], width: int) -> Row:
    """Return a row that shows who holds slots, none if there are no slots or there is no room.

    Each slot has a cell of its own if they all fit. Else slots beside each other that one job holds
    share one. If not even these fit, the last ones are left out, and the idle ones are counted.
    Those that are not in `holders` are idle.
    """
    short = _short_names(names)
    held = [(holders.get(name, _IDLE), short[name]) for name in names]
    joined = [
        (holder, f"{group[0]}-{group[-1]}" if len(group) > 1 else group[0])
        for holder, pairs in groupby(held, key=lambda pair: pair[0])
        for group in [[name for _, name in pairs]]
    ]
    idle = sum(holder == _IDLE for holder, _ in held)
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
            StyledText(f" {name}:{holder}", "" if holder in {_IDLE, _OTHER} else "busy")
            for holder, name in held
        ),
    )


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest beginnings that differ between slots, of at least a few letters."""
    plains = {name: plain(_PREFIX.sub("", name, count=1)) for name in names}
    longest = max(map(len, plains.values()), default=0)
    for length in range(_LONGEST_NAME, longest):
        found = {name: text[:length] for name, text in plains.items()}
        if len({*found.values()}) == len(found):
            return found
    return plains
