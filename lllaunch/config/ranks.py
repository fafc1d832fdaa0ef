"""Local ranks and ranges of them: ``0``, ``1-7``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from lllaunch.config.findings import Unfit

_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_ranks(value: object) -> range:
    """Reads a rank or a range, both ends included.

    Args:
        value: a number, or text such as ``"3"`` or ``"1-7"``.

    Raises:
        Unfit: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _RANKS.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise Unfit("a local rank or a range of them (0, 3, '1-7')")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise Unfit("a range from a lower to a higher rank", f"did you mean '{last}-{first}'?")
    return range(first, last + 1)


def overlap(ranges: Sequence[range]) -> tuple[range, range] | None:
    """Two of the ranges that share a rank, if there are such."""
    ordered = sorted(ranges, key=lambda ranks: ranks.start)
    for earlier, later in itertools.pairwise(ordered):
        if later.start < earlier.stop:
            return earlier, later
    return None


def check_within(ranks: range, nproc: int) -> None:
    """Refuses ranks that no worker has.

    Raises:
        Unfit: the range goes beyond the last rank.
    """
    if ranks.stop > nproc:
        ranks_there = "rank 0 only" if nproc == 1 else f"ranks from 0 to {nproc - 1}"
        raise Unfit(f"{ranks_there}, as nproc is {nproc}")
