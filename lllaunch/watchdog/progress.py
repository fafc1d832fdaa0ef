"""How far the workers of an attempt are, and when they get no further.

What a rank says by `lllaunch.progress` counts alone from then on; else what the user's pattern
captures, if that has a group ``step``; else its bars. Of several bars the outermost counts, and of
outermost ones that follow each other the last: tqdm and rich draw inner ones below it. A bar whose
name tells its epoch counts over the epochs; one that begins anew goes on counting. A bar that has
reached its total demands no more progress, and is not the step any more when something else is
printed.

A stream comes in blocks, cut wherever they may be; what is found in it does not depend on where. A
bar is redrawn with carriage returns, so a stream is split at those and at newlines, and each
*segment* is looked at by itself: one bar, one line. How they look was recorded from tqdm 4.70,
rich 15, Lightning 2.6 (which draws with either of these) and transformers 5.23; a test records them
anew from what is installed.

Nothing that workers print may hold up the launcher. So each segment is tested for a few bytes
before a regular expression sees it, no expression here takes more than a bounded number of steps at
any place of a text, and of each block only the last segments are parsed.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lllaunch.heartbeats import read_progress
from lllaunch.text import plain
from lllaunch.watchdog.findings import NotFinite, ProgressMissing, Unchanged
from lllaunch.watchdog.stall import Detector

if TYPE_CHECKING:
    from io import FileIO

    from lllaunch.heartbeats import ProgressRecord
    from lllaunch.spec import ProgressLimit
    from lllaunch.watchdog.sampling import Usage

# A segment is not read beyond this, bytes, colours included: lines of numbers are shorter.
LONGEST = 4096
# Characters of a bar, and what a pattern is searched in.
LONGEST_BAR = 1024
# Segments of a block that are looked at, the last ones.
MOST_SEGMENTS = 4096
MOST_METRICS = 32
# Characters of a number.
_LONGEST_NUMBER = 60
# Bytes of a file that are read in one look. Of more the last ones are, and nobody waits.
_MOST = 256 * 1024
# The rate is that of so many seconds, or of the last two steps that were seen if those took longer.
_WINDOW = 120.0
_MOST_BARS = 64
# Seconds, ten years: what would take longer nobody can tell. Of an odd step or total a rate is
# infinite, or none that is shown, and so is the rest.
_LONGEST = 10 * 365 * 86400.0


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
Teller: TypeAlias = Literal["user", "bar", "trainer"]


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
            shown = self._bar(segment)
            is_row = shown is not None and end == b"\n" and _is_rich(segment)
            self._rows = (*self._rows[: shown.depth], shown.name) if shown and is_row else ()
            if shown is not None:
                found.append(shown)
            text = _text(segment)[:LONGEST_BAR] if self._pattern else ""
            if self._pattern and (match := self._pattern.search(text)):
                texts = match.groupdict().items()
                found.append(Captured(_numbers((name, text) for name, text in texts if text)))
            elif shown is None and not _BLANK.fullmatch(segment):
                found.append(OtherOutput())
        return found

    def pending(self) -> Shown | None:
        """Return what a bar of tqdm was redrawn to last, which nothing has ended yet."""
        # what may be cut in the middle of a number says nothing
        return None if _is_rich(self._pending) else self._bar(self._pending)

    def _bar(self, segment: bytes) -> Shown | None:
        """Return the bar, or the numbers of the Trainer, that a segment shows."""
        if segment.startswith(_DICTIONARY):
            # {'loss': 0.3, 'epoch': 1.0}; numbers may be quoted
            text = _text(segment)
            metrics = _metrics(_QUOTED, text) if text.rstrip().endswith("}") else {}
            return Shown(metrics=metrics) if metrics else None
        rich = _is_rich(segment)
        if not rich and not (
            # it is worth the while to parse it
            (b" [" in segment and b"]" in segment)
            and (b"<" in segment or b"/s" in segment or b"s/" in segment)
        ):
            return None
        text = _text(segment)
        shown = None if len(text) > LONGEST_BAR else (_rich if rich else _tqdm)(text)
        if shown is None:
            return None
        # tqdm goes up again from a bar that stands below others
        depth = segment.count(b"\x1b[A")
        if rich:
            # the same bar again is the next of a loop, and none below the one before
            depth = 0 if shown.name in self._rows else len(self._rows)
        return shown._replace(depth=depth)


def as_number(text: str) -> float | None:
    """Return the number that a text is: ``1,200``, ``3e-4``, ``nan``, ``12%``; else None."""
    if len(text) > _LONGEST_NUMBER:
        return None
    text = text.strip().rstrip("%").replace(",", "").replace("_", "")
    try:
        # Lightning writes nan.0
        return float(text.removesuffix(".0") if _ODD.fullmatch(text) else text)
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
_PERCENT = re.compile(rf"(?<![\d.])(?P<step>{_COUNT})%")
_ROW_OF = re.compile(
    rf"(?<![\d:.])(?P<step>{_COUNT})(?:/| of )(?P<total>{_COUNT}|\?)(?![\d:/])"
    rf"(?P<bytes>\s?{_BYTES}\b)?"
)
_TRANSFER = re.compile(rf"(?<![\d.=]){_COUNT}\s?{_BYTES}/s")


def _text(segment: bytes) -> str:
    return plain(segment.decode("utf-8", "replace"))


def _numbers(texts: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return what are numbers among texts, by their names."""
    found = ((name, as_number(text)) for name, text in texts)
    return {name: number for name, number in found if number is not None}


def _metrics(pairs: re.Pattern[str], text: str) -> dict[str, float]:
    numbers = _numbers((pair["name"], pair["value"]) for pair in pairs.finditer(text))
    return dict(itertools.islice(numbers.items(), MOST_METRICS))


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
        postfix,
    )


def _is_rich(segment: bytes) -> bool:
    return _THICK in segment or (b"----------" in segment and b"%" in segment)


def _rich(text: str) -> Shown | None:
    bar = _BAR.search(text)
    if bar is None or not _FOLLOWS.match(text, bar.end()):
        return None
    after = text[bar.end() :]
    count = _ROW_OF.search(after)
    found = count or _PERCENT.search(after)
    transfers = _TRANSFER.search(after) or (count and count["bytes"])
    # a title stands between two rules
    if found is None or transfers or "━" in after or "-----" in after:
        return None
    total = count["total"] if count else "100"
    goal = None if total == "?" else float(total)
    shown = _shown(text[: bar.start()], float(found["step"]), goal, after)
    if "•" in after and shown.epochs is not None:
        # Lightning's: its epochs count from 0 to the last one
        shown = shown._replace(epochs=shown.epochs + 1)
    return shown


def _shown(before: str, step: float, total: float | None, after: str) -> Shown:
    epoch = _EPOCH.search(before)
    name = _INNER.search(re.sub(r"[\d.]+", "#", before))
    return Shown(
        name=name[0][-80:] if name else "",
        step=step,
        total=total,
        epoch=int(epoch[1]) if epoch else None,
        epochs=int(epoch[2]) if epoch and epoch[2] else None,
        metrics=_metrics(_PAIR, after),
    )


class Progress(NamedTuple):
    """How far a worker is."""

    step: float
    total: float | None = None  # how many there are, or None
    rate: float | None = None  # steps per second, or None as long as that is not known
    eta: float | None = None  # seconds that the rest will take at that rate, or None
    idle: float = 0.0  # seconds since the step changed
    metrics: Mapping[str, float] = {}


class _Counter:
    """The steps of one bar, or of all that a rank says."""

    def __init__(self, now: float, depth: int = 0) -> None:
        self.began = self.seen = self.moved = now
        self.step: float | None = None
        self.total: float | None = None
        self.depth = depth
        self.is_full = False  # whether it is a bar that has reached its total
        self.is_over = False  # and something else was printed since
        self._shown = self._before = 0.0
        self._from_zero = False
        self.points: deque[tuple[float, float]] = deque(maxlen=64)

    def count(self, step: float, total: float | None, now: float) -> bool:
        """Take note of a step; return whether it is another one than before."""
        moved = step != self.step
        self.step, self.total, self.seen = step, total, now
        if moved:
            self.moved = now
            if self.points and step < self.points[-1][1]:
                self.points.clear()
            if self.points and self.points[-1][0] >= now:
                # one look sees all that was drawn since the last
                self.points.pop()
            self.points.append((now, step))
            while len(self.points) > 2 and self.points[1][0] < now - _WINDOW:
                self.points.popleft()
        return moved

    def draw(self, bar: Shown, now: float) -> bool:
        """Take note of what a bar shows; return whether it has moved."""
        step = bar.step or 0.0
        moved = self.step is None or step != self._shown
        if bar.epoch is not None and bar.total is not None:
            # "Epoch 1/10" is the first of ten, unless there was an epoch 0
            self._from_zero = self._from_zero or not bar.epoch or bar.epochs is None
            done = bar.epoch if self._from_zero else bar.epoch - 1
            full = total = None if bar.epochs is None else bar.epochs * bar.total
            count = done * bar.total + step
        else:
            if step < self._shown:
                self._before += self._shown
            count, full = (
                self._before + step,
                None if bar.total is None else self._before + bar.total,
            )
            total = None if self._before else bar.total
        self.count(count, total, now)
        # of epochs more may follow, as far as is known
        self.is_full, self.is_over = full is not None and count >= full, False
        self._shown = step
        return moved


class _Rank:
    """How far one rank is."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        # Names of metrics that were finite.
        self.finite: set[str] = set()
        self.bars: dict[tuple[int, str, int], _Counter] = {}
        self.main: _Counter | None = None
        # What it says itself, or else the user's pattern; and when it said that last.
        self.own: _Counter | None = None
        self.moment = 0

    def draw(self, stream: int, bar: Shown, now: float) -> bool:
        """Take note of a bar on a stream; return whether it has moved."""
        key = stream, bar.name, bar.depth
        if key not in self.bars:
            if len(self.bars) >= _MOST_BARS:
                self.bars = {key: each for key, each in self.bars.items() if each is self.main}
            self.bars[key] = _Counter(now, bar.depth)
        counter = self.bars[key]
        if self.main is None or bar.depth <= self.main.depth:
            self.main = counter
        return counter.draw(bar, now)

    @property
    def counter(self) -> _Counter | None:
        """What tells how far it is."""
        return self.own or (None if self.main is None or self.main.is_over else self.main)

    @property
    def step(self) -> float | None:
        """How many steps are done, None if that is not known."""
        return None if self.counter is None else self.counter.step

    @property
    def furthest(self) -> float | None:
        """The step of what has counted for the longest, None if nothing counts.

        A bar that shows for moments, of an evaluation or a download, is none to measure a training
        by.
        """
        bars = [each for each in self.bars.values() if not each.depth]
        longest = max(bars, key=lambda bar: bar.seen - bar.began, default=self.main)
        counter = self.own or longest
        return None if counter is None or counter.is_over else counter.step

    def at(self, now: float) -> Progress | None:
        """Return how far it is, with the rate of late; None if it has not said."""
        counter = self.counter
        if counter is None or counter.step is None:
            return None
        rate = eta = None
        idle = max(0.0, now - counter.moved)
        if len(counter.points) > 1:
            (begin, first), (end, last) = counter.points[0], counter.points[-1]
            found = (last - first) / (end - begin)
            rate = found if 1 / _LONGEST <= found < math.inf else None
        if rate and counter.total is not None and counter.total >= counter.step:
            needs = (counter.total - counter.step) / rate
            eta = max(0.0, needs - idle) if needs <= _LONGEST else None
        return Progress(counter.step, counter.total, rate, eta, idle, dict(self.metrics))


class _Stream:
    """A file that a worker prints to; it need not be there yet."""

    def __init__(self, path: str, pattern: re.Pattern[str] | None) -> None:
        self._path, self._pattern = path, pattern
        self._read = 0
        self.parser = OutputParser(pattern)

    def new(self) -> tuple[list[Printed], bool] | None:
        """Return what was printed since the last call, and whether that is all of it; or None."""
        try:
            size = os.stat(self._path).st_size
            if size == self._read:
                return None
            # the worker has truncated it
            begin = self._read if size > self._read else 0
            start = max(begin, size - _MOST)
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                block = os.pread(fd, size - start, start)
            finally:
                os.close(fd)
        except OSError:
            return None
        self._read = start + len(block)
        if start > begin:
            # it begins within a line
            self.parser = OutputParser(self._pattern)
            block = re.split(rb"[\r\n]", block, maxsplit=1)[-1]
        printed = self.parser.feed(block)
        return printed, start == begin and not self.parser.skipped


class ProgressTracker:
    """How far the ranks of an attempt are, read each time that somebody looks.

    ``memory``: the file that they say it in; None if they cannot. ``outputs``: files of their
    output, by local rank. ``pattern``: what to search in these, a valid regular expression; empty
    for nothing.
    """

    def __init__(
        self,
        memory: FileIO | None = None,
        outputs: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
        pattern: str = "",
    ) -> None:
        self._memory, self._captures = memory, bool(pattern)
        searched = re.compile(pattern) if pattern else None
        self._streams = {
            rank: [_Stream(path, searched) for path in dict.fromkeys(paths)]
            for rank, paths in outputs.items()
        }
        self._ranks: defaultdict[int, _Rank] = defaultdict(_Rank)
        self.spoke = 0.0  # moment of the last word of any rank, whether new or not
        # moment of the last progress of any rank; None before the first
        self.moved: float | None = None
        self.longest_step: float | None = None  # between two of these, seconds
        # Names of numbers that were reported, by whether the user's code told them.
        self._named: dict[bool, set[str]] = {True: set(), False: set()}
        self._not_finite: list[NotFinite] = []

    def read(self, now: float, ranks: Iterable[int]) -> None:
        """Take note of what is new of some ranks."""
        for rank in ranks:
            record = None if self._memory is None else read_progress(self._memory, rank)
            if record is not None:
                self.say(rank, record, now)
            for number, stream in enumerate(self._streams.get(rank, ())):
                if (new := stream.new()) is None:
                    continue
                printed, complete = new
                if not complete:
                    self.skip(now)
                self.show(rank, number, printed, now, complete)
                # perhaps it was not drawn to its end: one that is known, or the first one
                bar, bars = stream.parser.pending(), self._ranks[rank].bars
                if bar is not None and (not bars or (number, bar.name, bar.depth) in bars):
                    self.show(rank, number, [bar], now, complete)

    def say(self, rank: int, record: ProgressRecord, now: float) -> None:
        """Take note of what a rank said by `lllaunch.progress`."""
        known = self._ranks[rank]
        if record.moment == known.moment:
            return
        if known.own is None or not known.moment:
            known.own = _Counter(now)
        known.moment = record.moment
        # it may have been a while ago
        moved = known.own.count(record.step, record.total, min(now, record.moment / 1e9))
        # of what was told between two looks only the first NaN is known
        first = None if self._named[True] else record.wrong
        step = record.step if first is None else first
        self._add(rank, record.metrics, step, first is not None, "user")
        if not self._captures:
            self._note(now, moved=moved)

    def show(
        self, rank: int, stream: int, printed: Iterable[Printed], now: float, complete: bool = True
    ) -> None:
        """Take note of what is new on a stream of a rank, in order."""
        known = self._ranks[rank]
        for each in printed:
            if isinstance(each, Shown) and each.step is not None:
                moved = known.draw(stream, each, now)
                self._add(rank, each.metrics, known.step, complete and known.own is None, "bar")
                if not self._captures:
                    self._note(now, moved=moved)
                continue
            if known.main is not None:
                known.main.is_over = known.main.is_full
            if isinstance(each, Shown):
                self._add(rank, each.metrics, known.step, False, "trainer")
            elif isinstance(each, Captured):
                numbers = dict(each.numbers)
                step, total = numbers.pop("step", None), numbers.pop("total", math.nan)
                moved = step is None or known.own is None or step != known.own.step
                if step is not None and math.isfinite(step) and not known.moment:
                    known.own = known.own or _Counter(now)
                    known.own.count(step, total if math.isfinite(total) else None, now)
                at = known.step if step is None else step
                self._add(rank, numbers, at, complete and step is not None, "user")
                self._note(now, moved=moved)

    def skip(self, now: float) -> None:
        """Take note that a rank printed more than was read: nobody knows what."""
        if self._captures or self.moved is not None:
            self._note(now, moved=True)

    def _note(self, now: float, *, moved: bool) -> None:
        self.spoke = now
        if moved and self.moved is not None:
            self.longest_step = max(self.longest_step or 0.0, now - self.moved)
        if moved:
            self.moved = now

    def _add(
        self, rank: int, metrics: Mapping[str, float], step: float | None, exact: bool, by: Teller
    ) -> None:
        """Take note of numbers, of too many of the first; notice those that are none any more.

        That is NaN, and infinity after a finite number. Placeholders stand in a bar until there is
        a number.
        """
        known = self._ranks[rank]
        for name, number in metrics.items():
            if name not in known.metrics and len(known.metrics) >= MOST_METRICS:
                continue
            known.metrics[name] = number
            if math.isfinite(number):
                known.finite.add(name)
                continue
            if name not in known.finite and (by == "bar" or not math.isnan(number)):
                continue
            # what the user's code tells ends a run, so it is said again
            reported = self._named[chosen := by == "user"]
            if name in reported or name in self._named[True] or len(reported) >= MOST_METRICS:
                continue
            reported.add(name)
            self._not_finite.append(NotFinite(rank, name, str(number), step, exact, chosen))

    def not_finite(self) -> list[NotFinite]:
        """Return the numbers that have become NaN or infinite since the last call, each once."""
        found, self._not_finite = self._not_finite, []
        return found

    @property
    def demands_more(self) -> bool:
        """Whether any rank has shown some progress and not the end of it."""
        return self._captures or any(
            each.own is not None or (each.main is not None and not each.main.is_full)
            for each in self._ranks.values()
        )

    @property
    def step(self) -> float | None:
        """The step of the rank that is the furthest, None if none is known."""
        return _highest(each.step for each in self._ranks.values())

    def furthest(self) -> float | None:
        """Return the highest step of any rank, None if none is known."""
        return _highest(each.furthest for each in self._ranks.values())

    def at(self, now: float) -> dict[int, Progress]:
        """Return how far each rank is that has said, by local rank."""
        found = {rank: each.at(now) for rank, each in sorted(self._ranks.items())}
        return {rank: each for rank, each in found.items() if each is not None}


def _highest(steps: Iterable[float | None]) -> float | None:
    return max((step for step in steps if step is not None), default=None)


class ProgressDetector(Detector):
    """Finds that no rank gets any further."""

    def __init__(self, limit: ProgressLimit, tracker: ProgressTracker, starts: float) -> None:
        # numbers that are none are looked for where nothing else asks for looks
        super().__init__(limit.shortest or 20.0, starts)
        self._within, self._first_within = limit.within, limit.first_within
        self._tracker = tracker

    def look(self, now: float, looks: Mapping[int, Usage]) -> ProgressMissing | Unchanged | None:
        """Return what is wrong now."""
        tracker, within, waited = self._tracker, self._within, now - self._starts
        if not looks:
            return None
        if tracker.moved is None:
            late = self._first_within is not None and waited >= self._first_within
            return ProgressMissing(waited, first=True) if late else None
        idle = min(waited, now - tracker.moved)
        if within is None or idle < within or not tracker.demands_more:
            return None
        if min(waited, now - tracker.spoke) >= within:
            return ProgressMissing(idle, tracker.step)
        return None if tracker.step is None else Unchanged("step", tracker.step, idle)
