"""Masks: which streams of which workers a setting is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.ranks import check_within, overlap, parse_ranks
from lllaunch.config.suggest import did_you_mean
from lllaunch.config.tree import Tree
from lllaunch.multiprocessing.std import Std
from lllaunch.units import as_ranges, write_range

_NAMES = {"none": Std.NONE, "out": Std.OUT, "err": Std.ERR, "all": Std.ALL}
_WORDS = {**_NAMES, **{str(int(std)): std for std in _NAMES.values()}}
_SYNONYMS = {
    "stdout": "out",
    "stderr": "err",
    "both": "all",
    "on": "all",
    "yes": "all",
    "true": "all",
    "off": "none",
    "no": "none",
    "false": "none",
}
_MASK = "a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out')"
_STREAMS = "a mask of streams (none, out, err, all, 0-3)"
# The least number that YAML makes of digits with a colon: 1:00.
_SEXAGESIMAL = 60


@dataclass(frozen=True)
class Mask:
    """Streams by ranks.

    Attributes:
        parts: ranges that do not overlap, each with its streams; ranks in none of them have none.
        rest: streams of all ranks, for a mask without ranks.
    """

    parts: tuple[tuple[range, Std], ...] = ()
    rest: Std = Std.NONE

    def by_rank(self, nproc: int) -> dict[int, Std]:
        """Streams of each of the ranks 0 to ``nproc - 1``."""
        streams = dict.fromkeys(range(nproc), self.rest)
        for ranks, std in self.parts:
            streams.update(dict.fromkeys(range(ranks.start, min(ranks.stop, nproc)), std))
        return streams

    @property
    def text(self) -> str:
        """What is said of it, for whatever number of ranks there are, as `write_mask` writes it."""
        if not self.parts:
            return _name_of(self.rest)
        joined: list[tuple[range, Std]] = []
        for ranks, std in sorted(self.parts, key=lambda part: part[0].start):
            if joined and joined[-1][0].stop == ranks.start and joined[-1][1] == std:
                ranks = range(joined.pop()[0].start, ranks.stop)  # noqa: PLW2901 - one range now
            joined.append((ranks, std))
        named = [f"{write_range(ranks)}:{_name_of(std)}" for ranks, std in joined if std]
        return " ".join(named) or _name_of(Std.NONE)


def parse_mask(value: Tree, key: str, findings: Findings) -> Mask | None:
    """Reads a mask.

    Args:
        value: a name or a number for all ranks, text of ``ranks:streams`` pairs separated by
            commas or blanks, or a dict of them. None and False stand for ``none``.
        key: its key, for messages.
        findings: takes what is wrong.

    Returns:
        The mask, or None if something is wrong with it.
    """
    before = findings.count
    if isinstance(value, dict):
        parts = [_pair(ranks, item, key, findings) for ranks, item in value.items()]
        mask = Mask(tuple(part for part in parts if part))
    else:
        mask = findings.attempt(key, value, _from_scalar) or Mask()
    shared = overlap([ranks for ranks, _ in mask.parts])
    if shared and findings.count == before:
        first, second = (write_range(ranks) for ranks in shared)
        detail = f"{first} and {second} overlap"
        findings.add(key, value, Unfit("each rank at most once", detail=detail))
    return mask if findings.count == before else None


def check_mask(mask: Mask, value: Tree, key: str, nproc: int, findings: Findings) -> None:
    """Notes each range of a mask that goes beyond the last rank."""
    for ranks, _ in mask.parts:
        try:
            check_within(ranks, nproc)
        except Unfit as unfit:
            detail = f"no worker has {write_range(ranks)}"
            findings.add(key, value, Unfit(unfit.expected, detail=detail))


def _pair(ranks: object, streams: Tree, key: str, findings: Findings) -> tuple[range, Std] | None:
    where = f"{key}.{ranks}"
    numbers = findings.attempt(where, ranks, parse_ranks)
    std = findings.attempt(where, streams, lambda plain: _streams(plain, _STREAMS))
    return None if numbers is None or std is None else (numbers, std)


def _from_scalar(value: object) -> Mask:
    if not isinstance(value, str) or ":" not in value:
        return Mask(rest=_streams(value, _MASK))
    parts = []
    for pair in re.split(r"\s*,\s*|\s+", value.strip()):
        ranks, colon, streams = pair.partition(":")
        if not colon:
            raise Unfit(_MASK, "write it as '0:all 1-7:out'", f"{pair!r} has no rank")
        try:
            numbers = parse_ranks(ranks)
        except Unfit as unfit:
            raise Unfit(_MASK, unfit.hint, f"{ranks!r} is not {unfit.expected}") from None
        parts.append((numbers, _streams_of_pair(streams)))
    return Mask(tuple(parts))


def _streams_of_pair(streams: str) -> Std:
    try:
        return _streams(streams, _STREAMS)
    except Unfit as unfit:
        raise Unfit(_MASK, unfit.hint, f"{streams!r} is not {unfit.expected}") from None


def _streams(value: object, expected: str) -> Std:
    if value is None or value is False or value == "":
        return Std.NONE
    if isinstance(value, bool):
        raise Unfit(expected, "did you mean 'all'?")
    if isinstance(value, (int, float)):
        return _numbered(value, expected)
    if not isinstance(value, str):
        raise Unfit(expected)
    word = value.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if word in _SYNONYMS:
        raise Unfit(expected, f"did you mean {_SYNONYMS[word]!r}?")
    raise Unfit(expected, did_you_mean(word, _NAMES))


def _numbered(value: float, expected: str) -> Std:
    if not isinstance(value, int):
        raise Unfit(expected)
    if 0 <= value <= Std.ALL:
        return Std(value)
    if value >= _SEXAGESIMAL:
        ranks, streams = divmod(value, 60)
        raise Unfit(expected, f"YAML reads {ranks}:{streams} without quotes as {value}: quote it")
    raise Unfit(expected)


def write_mask(streams: Mapping[int, Std]) -> str:
    """The shortest text that means these streams.

    Args:
        streams: by local rank, every rank listed.

    Returns:
        A name if all ranks have the same, else pairs such as ``0:all 1-7:out``, separated by
        blanks, without the ranks that have none.
    """
    used = set(streams.values())
    if len(used) <= 1:
        return _name_of(used.pop() if used else Std.NONE)
    parts = [
        (ranks.start, f"{write_range(ranks)}:{_name_of(std)}")
        for std in used - {Std.NONE}
        for ranks in as_ranges(rank for rank, own in streams.items() if own == std)
    ]
    return " ".join(text for _, text in sorted(parts))


def _name_of(streams: Std) -> str:
    return next(name for name, std in _NAMES.items() if std == streams)
