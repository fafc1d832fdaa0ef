"""What progress bars and training loops print, read back: tqdm, rich, Lightning, Trainer. Pure.

A stream comes in blocks, cut wherever they may be; what is found in it does not depend on where. A
bar is redrawn with carriage returns, so a stream is split at those and at newlines, and each
*segment* is looked at by itself: one bar, one line.

How they look was recorded from tqdm 4.70, rich 15, Lightning 2.6 (which draws with either of these)
and transformers 5.23; a test records them anew from what is installed.

Nothing that workers print may hold up the launcher. So each segment is tested for a few bytes
before a regular expression sees it, no expression here takes more than a bounded number of steps at
any place of a text, and of each block only the last segments are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from lllaunch.text import plain

# A segment is not read beyond this, bytes, colours included: lines of numbers are shorter.
LONGEST = 4096
# Characters of a bar, and what a pattern is searched in.
LONGEST_BAR = 1024
# Segments of a block that are looked at, the last ones.
MOST_SEGMENTS = 4096
MOST_METRICS = 32
# Characters of a number.
_LONGEST_NUMBER = 60


class Shown(NamedTuple):
    """One state of a bar, or a line of numbers."""

    name: str = ""  # what stands before the bar without its numbers, which tells it from others
    # what it has counted, of the present epoch; None for a line that tells metrics only
    step: float | None = None
    total: float | None = None  # up to what it counts, or None
    depth: int = 0
    epoch: int | None = None  # the epoch that it is of, as it is written; or None
    epochs: int | None = None  # how many epochs there are, or None
    metrics: Mapping[str, float] = {}


class Captured(NamedTuple):
    """A line that matched a user's pattern."""

    numbers: Mapping[str, float]


class OtherOutput(NamedTuple):
    """A line that is neither of these."""


Printed: TypeAlias = Shown | Captured | OtherOutput


class OutputParser:
    """Reads bars and lines of numbers from one stream.

    ``pattern``: what else to look for; its named groups are numbers. None for nothing.
    """

    def __init__(self, pattern: re.Pattern[str] | None = None) -> None:
        self._pattern = pattern
        self._pending = b""  # what came after the last segment, its first `LONGEST` bytes
        # Names of the rows of rich that stand above the present line.
        self._rows: tuple[str, ...] = ()
        self.skipped = False  # whether the last block had more than is looked at of one

    def feed(self, block: bytes) -> list[Printed]:
        """Take the next bytes of the stream; return what they show, in order."""
        found: list[Printed] = []
        parts = _ENDS.split(self._pending + block)
        self._pending = parts[-1][:LONGEST]
        self.skipped = len(parts) > 2 * MOST_SEGMENTS + 1
        parts = parts[-2 * MOST_SEGMENTS - 1 :]
        for whole, end in zip(parts[::2], parts[1::2], strict=False):
            segment = whole[:LONGEST]
            shown = self._parse(segment) if _may_show(segment) else None
            if shown is not None:
                found.append(shown)
            drawn = shown is not None and _is_rich(segment)
            above = self._rows[: shown.depth] if shown is not None else ()
            self._rows = (*above, shown.name) if drawn and shown and end == b"\n" else ()
            numbers = captured(self._pattern, segment) if self._pattern else None
            if numbers is not None:
                found.append(Captured(numbers))
            elif shown is None and not _BLANK.fullmatch(segment):
                found.append(OtherOutput())
        return found

    def pending(self) -> Shown | None:
        """Return what a bar of tqdm was redrawn to last, which nothing has ended yet."""
        segment = self._pending
        # what may be cut in the middle of a number says nothing
        return None if _is_rich(segment) or not _may_show(segment) else self._parse(segment)

    def _parse(self, segment: bytes) -> Shown | None:
        text = _text(segment)
        if segment.startswith(_DICTIONARY):
            return _numbers(text)
        if len(text) > LONGEST_BAR:
            return None
        if _is_rich(segment):
            return self._row(_rich(text))
        shown = _tqdm(text)
        # tqdm goes up again from a bar that stands below others
        return None if shown is None else shown._replace(depth=segment.count(b"\x1b[A"))

    def _row(self, shown: Shown | None) -> Shown | None:
        if shown is None or shown.name in self._rows:
            # the same bar again: the next of a loop, and none below the one before
            return shown
        return shown._replace(depth=len(self._rows))


def captured(pattern: re.Pattern[str], segment: bytes) -> dict[str, float] | None:
    """Return the numbers of the named groups of a pattern in the first `LONGEST_BAR` characters.

    Returns None where it does not match. Groups that took no part, or hold no number, are left out.
    """
    match = pattern.search(_text(segment)[:LONGEST_BAR])
    if match is None:
        return None
    numbers = {name: as_number(text) for name, text in match.groupdict().items() if text}
    return {name: number for name, number in numbers.items() if number is not None}


def as_number(text: str) -> float | None:
    """Return the number that a text is: ``1,200``, ``3e-4``, ``nan``, ``12%``; else None."""
    if len(text) > _LONGEST_NUMBER:
        return None
    text = text.strip().rstrip("%").replace(",", "").replace("_", "")
    if _ODD.fullmatch(text):
        # Lightning writes nan.0
        text = text.removesuffix(".0")
    try:
        return float(text)
    except ValueError:
        return None


_ENDS = re.compile(rb"([\r\n])")
_ODD = re.compile(r"[-+]?(?:nan|inf(?:inity)?)(?:\.0)?", re.IGNORECASE)
_NUMBER = r"[-+]?(?:\d[\d_]{0,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,4})?"
_COUNT = r"\d{1,20}(?:\.\d{1,20})?"
_CLOCK = r"-?(?:\d{1,9}:)?\d{1,9}:\d\d"
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SCALE = "[kMGTPE]?"

# |####    | 5/10 [00:01<00:01,  4.99it/s, loss=0.3]
_OF_TOTAL = re.compile(
    rf"(?<![\d.])(?P<step>{_COUNT})(?P<scale>{_SCALE})"
    rf"/(?:(?P<total>{_COUNT})(?P<scale2>{_SCALE})|\?) \[{_CLOCK}<[^,\]]{{0,40}},"
)
# 5it [00:01,  4.99it/s, loss=0.3]
_OF_UNKNOWN = re.compile(
    rf"(?<![\d.])(?:^|(?<=[\s:]))(?P<step>{_COUNT})(?P<scale>{_SCALE})(?P<unit>[^\d\[\]]{{0,30}})"
    rf" \[{_CLOCK},"
    rf"(?=\s{{0,9}}(?:\?|{_COUNT})(?:[^\d\[\],/]{{0,30}}/s|s/[^\d\[\],]{{1,30}})\s?[,\]])"
)
_BYTES = r"[kKMGTPE]?(?:i?B|bytes)"
# the rate of a download; that counts no steps
_BYTES_PER_SECOND = re.compile(rf"\s{{0,9}}(?:\?|{_COUNT})\s?(?:{_BYTES}/s|s/{_BYTES})(?!\w)")
_PERCENT_BEFORE = re.compile(r"(?<!\d)\d{1,9}%\Z")
_PAIR = re.compile(
    rf"(?<![\w./-])(?P<name>[A-Za-z_][\w./-]{{0,60}})\s?[=:]\s?"
    rf"(?P<value>{_NUMBER}|{_ODD.pattern})(?![\w.])",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"\bepochs?\b[\s:#\[(]{0,9}(\d{1,9})(?!\d)(?:\s{0,9}(?:/|of)\s{0,9}(\d{1,9})(?!\d))?",
    re.IGNORECASE,
)
# without spinners, colons, emojis around it
_INNER = re.compile(r"[\w#](?:.*[\w#])?")
_QUOTED = re.compile(
    rf"""(['"])(?P<name>[^'"]{{1,80}})\1: (['"]?)(?P<value>{_NUMBER}|{_ODD.pattern})\3"""
)
_DICTIONARY = (b"{'", b'{"')
_BLANK = re.compile(rb"(?:\s|\x1b\[[0-9;?]*[A-Za-z])*")

# rich draws with these, or with hyphens where the encoding has nothing better.
_THICK = "━".encode()
_BAR = re.compile(r"(?<!\S)(?:[━╸╺]{5,}|-{10,})")
# A percentage, a count or a time follows a bar at once; else it is a rule, or a table.
_FOLLOWS = re.compile(rf"\s*(?:{_COUNT}%|{_COUNT}(?:/| of )(?:\d|\?)|{_CLOCK}|-:--)")
_PERCENT = re.compile(rf"(?<![\d.])(?P<percent>{_COUNT})%")
_ROW_OF = re.compile(
    rf"(?<![\d:.])(?P<step>{_COUNT})(?:/| of )(?P<total>{_COUNT}|\?)(?![\d:/])"
    rf"(?P<bytes>\s?{_BYTES}\b)?"
)
_TRANSFER = re.compile(rf"(?<![\d.=]){_COUNT}\s?{_BYTES}/s")


def _text(segment: bytes) -> str:
    return plain(segment.decode("utf-8", "replace"))


def _may_show(segment: bytes) -> bool:
    """Whether it is worth the while to parse a segment."""
    if _is_rich(segment) or segment.startswith(_DICTIONARY):
        return True
    if b" [" not in segment or b"]" not in segment:
        return False
    return b"<" in segment or b"/s" in segment or b"s/" in segment


def _tqdm(text: str) -> Shown | None:
    match = _OF_TOTAL.search(text) or _OF_UNKNOWN.search(text)
    end = text.rfind("]")
    if match is None or end < match.end() or _BYTES_PER_SECOND.match(text, match.end()):
        return None
    groups = match.groupdict()
    total = groups.get("total")
    before = text[: match.start()].rstrip()
    if before.endswith("|") and "|" in before[:-1]:
        before = before[: before.rindex("|", 0, -1)].rstrip()
    _, _, postfix = text[match.end() : end].partition(",")
    return _shown(
        _PERCENT_BEFORE.sub("", before),
        float(match["step"]) * _SCALES[match["scale"]],
        float(total) * _SCALES[groups["scale2"]] if total else None,
        _metrics(_PAIR.finditer(postfix)),
    )


def _is_rich(segment: bytes) -> bool:
    return _THICK in segment or (b"----------" in segment and b"%" in segment)


def _rich(text: str) -> Shown | None:
    bar = _BAR.search(text)
    if bar is None or not _FOLLOWS.match(text, bar.end()):
        return None
    before, after = text[: bar.start()], text[bar.end() :]
    # a title stands between two rules
    if "━" in after or "-----" in after or _TRANSFER.search(after):
        return None
    count, percent = _ROW_OF.search(after), _PERCENT.search(after)
    if count is not None and count["bytes"]:
        return None
    if count is not None:
        total = None if count["total"] == "?" else float(count["total"])
        step = float(count["step"])
    elif percent is not None:
        step, total = float(percent["percent"]), 100.0
    else:
        return None
    shown = _shown(before, step, total, _metrics(_PAIR.finditer(after)))
    if "•" in after and shown.epochs is not None:
        # Lightning's: its epochs count from 0 to the last one
        shown = shown._replace(epochs=shown.epochs + 1)
    return shown


def _shown(before: str, step: float, total: float | None, metrics: dict[str, float]) -> Shown:
    epoch = _EPOCH.search(before)
    name = _INNER.search(re.sub(r"[\d.]+", "#", before))
    return Shown(
        name=name[0][-80:] if name else "",
        step=step,
        total=total,
        epoch=int(epoch[1]) if epoch else None,
        epochs=int(epoch[2]) if epoch and epoch[2] else None,
        metrics=metrics,
    )


def _numbers(text: str) -> Shown | None:
    """Return a line of the Trainer, ``{'loss': 0.3, 'epoch': 1.0}``; numbers may be quoted."""
    if not text.rstrip().endswith("}"):
        return None
    metrics = _metrics(_QUOTED.finditer(text))
    return Shown(metrics=metrics) if metrics else None


def _metrics(pairs: Iterable[re.Match[str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair in pairs:
        number = as_number(pair["value"])
        if number is not None and len(found) < MOST_METRICS:
            found[pair["name"]] = number
    return found
