"""Which streams of which ranks go where, of a decided plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lllaunch.config.findings import Findings
from lllaunch.config.masks import Mask, parse_mask
from lllaunch.config.ranks import parse_ranks
from lllaunch.multiprocessing.std import Std

_NAMES = {"stdout": Std.OUT, "stderr": Std.ERR}


def streams_of(launch: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns where the streams of each rank go.

    Args:
        launch: the node of a plan, decided. Its ``nproc`` may be a word.

    Returns:
        By rank or range (``0``, ``1-7``, or ``1-`` where the number of ranks is not known):
        ``stdout`` and ``stderr`` as ``file``, ``file and console`` or ``launcher``
        (where the launcher's own goes).
    """
    files, shown = _mask(launch["redirects"]), _mask(launch["tee"])
    asked = launch["local_ranks_filter"]
    heard = None if asked is None else [parse_ranks(each) for each in asked]
    nproc = launch["nproc"] if isinstance(launch["nproc"], int) else None
    found: dict[str, dict[str, str]] = {}
    before: tuple[int, dict[str, str]] | None = None
    ranges = [*(ranks for ranks, _ in (*files.parts, *shown.parts)), *(heard or ())]
    for first in _cuts(ranges, nproc):
        goes = _goes(first, files, shown, heard)
        if before is not None and goes != before[1]:
            found[_written(before[0], first)] = before[1]
        if before is None or goes != before[1]:
            before = (first, goes)
    assert before is not None
    found[_written(before[0], nproc)] = before[1]
    return found


def _mask(text: Any) -> Mask:
    # of a plan: nothing is wrong with it
    return parse_mask(text, "", Findings()) or Mask()


def _cuts(ranges: Iterable[range], nproc: int | None) -> list[int]:
    """The ranks at which something may change."""
    places = {0} | {place for ranks in ranges for place in (ranks.start, ranks.stop)}
    return sorted(place for place in places if nproc is None or place < nproc)


def _goes(rank: int, files: Mask, shown: Mask, heard: list[range] | None) -> dict[str, str]:
    in_file, on_console = _streams(files, rank), _streams(shown, rank)
    audible = heard is None or any(rank in ranks for ranks in heard)
    found = {}
    for name, std in _NAMES.items():
        told = bool(on_console & std)
        kept = told or bool(in_file & std)
        where = "file and console" if told and audible else "file"
        found[name] = where if kept else "launcher"
    return found


def _streams(mask: Mask, rank: int) -> Std:
    return next((std for ranks, std in mask.parts if rank in ranks), mask.rest)


def _written(first: int, stop: int | None) -> str:
    if stop is None:
        return f"{first}-"
    return str(first) if stop == first + 1 else f"{first}-{stop - 1}"
