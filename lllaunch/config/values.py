"""Kinds of values: durations and sizes, ranks, masks of streams, numbers of workers and GPUs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from msgspec import Struct

from lllaunch.config.fields import Findings, did_you_mean
from lllaunch.config.tree import Tree, part_of, reveal
from lllaunch.errors import Unfit
from lllaunch.spec import Std
from lllaunch.text import write_range

_DURATION = "a duration (90, 90s, 10m, 1h30m, 1d)"
_MORE_THAN_0 = "a duration of more than 0"
_SIZE = "a size (1048576, 512MiB, 16GB)"

# Longest first, as they must be written.
_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_PARTS = re.compile(r"\s*".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit})?" for unit in _SECONDS), re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_DAYS = 10_000
# What is written has to be short enough to be read again.
_SHORTEST = Decimal("1e-9")
_LONGEST_TEXT = 60

_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
_BYTES = {unit.lower(): size for unit, size in _UNITS.items()}
_SIZED = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_LARGEST_SIZE = 2**63 - 1


def parse_duration(value: object, *, zero: bool = True, least: float = 0.0) -> float:
    """Return the seconds of a duration, of at least so many.

    A number is seconds; text is a number of seconds, or parts with units ``d``, ``h``, ``m``,
    ``s``, ``ms``, largest first, each at most once.

    Raises:
        Unfit: it is no duration, is negative, is shorter than a nanosecond or than ``least``, or is
            longer than 10,000 days.
    """
    seconds = _seconds(value)
    if seconds < 0:
        raise Unfit("a duration of 0 or more" if zero else _MORE_THAN_0, code="duration")
    if seconds == 0 and not zero:
        raise Unfit(_MORE_THAN_0, code="duration")
    if 0 < seconds < _SHORTEST:
        raise Unfit("a duration of a nanosecond or more", code="duration")
    if seconds < least:
        raise Unfit(f"a duration of at least {format_duration(least)}", code="duration")
    if seconds > _LONGEST_DAYS * _SECONDS["d"]:
        raise Unfit(f"a duration of {_LONGEST_DAYS} days at most", code="duration")
    return float(seconds)


def _seconds(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Unfit(_DURATION, code="duration")
    if not isinstance(value, str):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not number.is_finite():
            raise Unfit(_DURATION, detail="a duration has an end", code="duration")
        return number
    text = value.strip()
    if len(text) > _LONGEST_TEXT:
        raise Unfit(_DURATION, code="duration")
    if ":" in text:
        raise Unfit(_DURATION, "write 1h30m", "colons could mean hours or minutes", code="duration")
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    parts = _PARTS.fullmatch(text.lower())
    if not parts or not any(parts.groups()):
        raise Unfit(_DURATION, code="duration")
    pairs = zip(parts.groups(), _SECONDS.values(), strict=True)
    return sum((Decimal(part) * unit for part, unit in pairs if part), Decimal(0))


def format_duration(seconds: float) -> str:
    """Return text such as ``1h30m`` or ``1m0.5s`` that `parse_duration` reads as the same."""
    rest = Decimal(repr(float(seconds)))
    text = ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        text += f"{int(count)}{unit}" if count else ""
    if rest or not text:
        digits = f"{rest:f}"
        text += f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}s"
    return text


def parse_size(value: object, *, zero: bool = True) -> int:
    """Return the bytes of a size.

    A number is bytes; text is a number and a unit (``B``, ``kB`` … ``PB`` are powers of 1000,
    ``KiB`` … ``PiB`` powers of 1024, in any case).

    Raises:
        Unfit: it is no size, is negative, or is no whole number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Unfit(_SIZE, code="size")
    size = Decimal(value) if isinstance(value, int) else _sized(value.strip())
    if size < 0 and zero:
        raise Unfit("a size of 0 or more", code="size")
    if size <= 0 and not zero:
        raise Unfit("a size of more than 0", "null is for no such limit", code="size")
    if size != size.to_integral_value():
        raise Unfit("a whole number of bytes", code="size")
    if size > _LARGEST_SIZE:
        raise Unfit("a size of less than 8 EiB", code="size")
    return int(size)


def _sized(text: str) -> Decimal:
    match = _SIZED.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if not match:
        raise Unfit(_SIZE, code="size")
    number, unit = match[1], match[2].lower() or "b"
    if unit not in _BYTES:
        letter = unit[0].upper()
        meant = unit in {"k", "m", "g", "t", "p", "ki", "mi", "gi", "ti", "pi"}
        hint = f"write {number}{letter}B (powers of 1000) or {number}{letter}iB" if meant else ""
        raise Unfit(_SIZE, hint, code="size")
    return Decimal(number) * _BYTES[unit]


def format_size(size: int) -> str:
    """Return text such as ``512MiB`` or ``7B`` that `parse_size` reads as the same size."""
    fitting = [(n, unit) for unit, n in _UNITS.items() if size and size % n == 0]
    factor, unit = max(fitting, default=(1, "B"))
    return f"{size // factor}{unit}"


_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_ranks(value: object) -> range:
    """Read a rank or a range, both ends included (``3``, ``"1-7"``), or raise `Unfit`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _RANKS.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise Unfit("a local rank or a range of them (0, 3, '1-7')", code="ranks")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise Unfit(
            "a range from a lower to a higher rank", f"did you mean '{last}-{first}'?", code="ranks"
        )
    return range(first, last + 1)


def joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Ranges in order; those that overlap, or have no gap between them, as one."""
    found: list[range] = []
    for ranks in sorted(ranges, key=lambda each: each.start):
        if found and ranks.start <= found[-1].stop:
            last = found.pop()
            ranks = range(last.start, max(last.stop, ranks.stop))  # noqa: PLW2901 - one range now
        found.append(ranks)
    return tuple(found)


def overlap(ranges: Sequence[range]) -> tuple[range, range] | None:
    """Two of the ranges that share a rank, if there are such."""
    ordered = sorted(ranges, key=lambda ranks: ranks.start)
    for earlier, later in itertools.pairwise(ordered):
        if later.start < earlier.stop:
            return earlier, later
    return None


def check_within(ranks: range, nproc: int) -> None:
    """Raise `Unfit` for a range that goes beyond the last rank."""
    if ranks.stop > nproc:
        ranks_there = "rank 0 only" if nproc == 1 else f"ranks from 0 to {nproc - 1}"
        raise Unfit(f"{ranks_there}, as nproc is {nproc}", code="ranks")


_NAMES = {"none": Std.NONE, "out": Std.OUT, "err": Std.ERR, "all": Std.ALL}
_WORDS = {**_NAMES, **{str(int(std)): std for std in _NAMES.values()}}
_MASK = "a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out')"
_STREAMS = "a mask of streams (none, out, err, all, 0-3)"
# The least number that YAML makes of digits with a colon: 1:00.
_SEXAGESIMAL = 60


class Mask(Struct, frozen=True):
    """Streams by ranges of ranks, which do not overlap; ``rest`` is for all other ranks."""

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
        named = [
            (ranks.start, f"{write_range(ranks)}:{_name_of(std)}")
            for std in {std for _, std in self.parts if std}
            for ranks in joined(ranks for ranks, own in self.parts if own == std)
        ]
        return " ".join(text for _, text in sorted(named)) or _name_of(Std.NONE)


def parse_mask(value: Tree, key: str, findings: Findings) -> Mask | None:
    """Read a mask; None if something is wrong with it.

    It is a name or a number for all ranks, text of ``ranks:streams`` pairs separated by commas or
    blanks, or a dict of them. None and False stand for ``none``.
    """
    before, plain = findings.count, reveal(value)
    if isinstance(value, dict):
        pairs = [(f"{key}.{ranks}", ranks, streams) for ranks, streams in value.items()]
    elif isinstance(plain, str) and ":" in plain:
        words = [each.partition(":") for each in re.split(r"\s*,\s*|\s+", plain.strip())]
        pairs = [(key, part_of(word[0], value), part_of(word[2], value)) for word in words]
        if not all(colon for _, colon, _ in words):
            findings.add(key, value, Unfit(_MASK, code="mask"))
    else:
        std = findings.attempt(key, value, partial(_streams, expected=_MASK))
        return None if std is None else Mask(rest=std)
    read = partial(_streams, expected=_STREAMS)
    parts = [
        (findings.attempt(where, ranks, parse_ranks), findings.attempt(where, streams, read))
        for where, ranks, streams in pairs
    ]
    known = tuple((ranks, std) for ranks, std in parts if ranks is not None and std is not None)
    shared = overlap([ranks for ranks, _ in known])
    if shared and findings.count == before:
        first, second = (write_range(ranks) for ranks in shared)
        detail = f"{first} and {second} overlap"
        findings.add(key, value, Unfit("each rank at most once", detail=detail, code="mask"))
    return Mask(known) if findings.count == before else None


def check_mask(mask: Mask, value: Tree, key: str, nproc: int, findings: Findings) -> None:
    """Notes a mask that goes beyond the last rank."""
    last = max((ranks for ranks, _ in mask.parts), key=lambda ranks: ranks.stop, default=range(0))
    findings.attempt(key, value, lambda _: check_within(last, nproc))


def _streams(value: object, expected: str) -> Std:
    if value is None or value is False or value == "":
        return Std.NONE
    if isinstance(value, bool):
        raise Unfit(expected, "did you mean 'all'?", code="mask")
    if isinstance(value, int):
        if 0 <= value <= Std.ALL:
            return Std(value)
        ranks, streams = divmod(value, 60)
        hint = f"YAML reads {ranks}:{streams} without quotes as {value}: quote it"
        raise Unfit(expected, hint if value >= _SEXAGESIMAL else "", code="mask")
    if not isinstance(value, str):
        raise Unfit(expected, code="mask")
    word = value.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    raise Unfit(expected, did_you_mean(word, _NAMES), code="mask")


def write_mask(streams: Mapping[int, Std]) -> str:
    """Return the shortest text that means these streams, of every local rank.

    A name if all ranks have the same, else pairs such as ``0:all 1-7:out``, without the ranks that
    have none.
    """
    if len(set(streams.values())) <= 1:
        return Mask(rest=next(iter(streams.values()), Std.NONE)).text
    return Mask(tuple((range(rank, rank + 1), std) for rank, std in streams.items())).text


def _name_of(streams: Std) -> str:
    return next(name for name, std in _NAMES.items() if std == streams)


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
    """Return the number of workers: a number, or one for each ``cpu`` or ``gpu``.

    ``auto`` is one for each GPU or, without any, for each CPU. ``gpus`` raises `Unfit` if it cannot
    count.

    Raises:
        Unfit: it is none of these, or ``gpu`` on a machine without one.
    """
    word = nproc_word(value)
    if word == "cpu":
        return cpus()
    if word == "auto":
        try:
            return gpus() or cpus()
        except Unfit:
            return cpus()
    if word != "gpu":
        return _number(value)
    number = gpus()
    if not number:
        hint = "see CUDA_VISIBLE_DEVICES, or use 'auto' or 'cpu'"
        raise Unfit(message="found no visible GPU", hint=hint, code="nproc")
    return number


def _number(value: object) -> int:
    # Text: what ${oc.env:N} gives is always text.
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:20])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        hint = did_you_mean(value, WORDS) if isinstance(value, str) else ""
        raise Unfit(_EXPECTED, hint, code="nproc")
    if value > MOST_WORKERS:
        raise Unfit(f"a number of workers, {MOST_WORKERS} at most", code="nproc")
    return value


def count_gpus(
    visible: str | None, nvml: Any = None, environ: Mapping[str, str] | None = None
) -> int:
    """Return the number of GPUs, or MIG slices, that a process with this environment sees.

    ``visible`` is the value of ``CUDA_VISIBLE_DEVICES``; ``LLLAUNCH_PRETEND_GPUS`` in ``environ``
    names GPUs that replace the real ones. ``nvml`` stands in for the module ``pynvml``.

    Raises:
        Unfit: the driver cannot be asked, or the names are no names; the text says why.
    """
    from lllaunch.linux import gpus  # noqa: PLC0415 - few count them

    pretended = None if environ is None else environ.get(gpus.PRETEND)
    try:
        return len(gpus.list_gpus(visible, nvml, pretended))
    except gpus.GpusUnknown as unknown:
        raise Unfit(message=str(unknown), code="gpus") from unknown
    except ValueError as error:
        detail = f"{gpus.PRETEND}: expected {error}, got {pretended!r}"
        raise Unfit(message="cannot be counted", detail=detail, code="gpus") from error
