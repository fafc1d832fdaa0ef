"""A run in time as text: a bar for each rank of each attempt, and what stands for what. Pure.

Ranks that look alike share a line, so that hundreds of them fit on a screen.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lllaunch.console.table import GAP, Row, aligned, padded
from lllaunch.text import duration, printable, size
from lllaunch.words import (
    StyledText,
    capitalised,
    counted,
    progress_text,
    ranks,
    shown_path,
    step_text,
)
from lllaunch.workers.terminal import cells

if TYPE_CHECKING:
    from lllaunch.results.history import AttemptTimeline, Lane, Mark, TimeSpan
    from lllaunch.results.view import Log, RunTimeline, Series
    from lllaunch.run.result import Reached
    from lllaunch.watchdog.progress import Progress


_LEAST_BAR = 20
_MOST_BAR = 100
_LONGEST_LABEL = 24
_MOST_LINES = 12
# Of a run with more attempts the first ones and the last ones are shown.
_FIRST, _LAST = 2, 6
_NO_BREAK = "\N{NO-BREAK SPACE}"


class Sign(NamedTuple):
    """What stands in a bar: a character of one column, and what it says, also on a page."""

    drawn: str
    meaning: str


SPANS = {
    "preload": Sign("i", "imports"),
    "rendezvous": Sign("m", "nodes meet"),
    "preflight": Sign("p", "preflight"),
    "pause": Sign("\N{MIDDLE DOT}", "pause"),
    "spawn": Sign("\N{BOX DRAWINGS LIGHT TRIPLE DASH HORIZONTAL}", "starts"),
    "run": Sign("\N{BOX DRAWINGS HEAVY HORIZONTAL}", "runs"),
    "hang": Sign("\N{LIGHT SHADE}", "hangs"),
    "grace": Sign("\N{MEDIUM SHADE}", "grace period"),
}
# The later ones hide the earlier ones.
MARKS = {
    "stacks": Sign("s", "stacks taken"),
    "restart": Sign("r", "restart"),
    "signal": Sign("\N{DOWNWARDS ARROW}", "signal"),
    "finding": Sign("!", "finding"),
    "root_cause": Sign("\N{MULTIPLICATION SIGN}", "root cause"),
}
_SIGNS = {**SPANS, **MARKS}
_STARTS = {"preload", "spawn"}
_STYLES = {
    "succeeded": "good",
    "failed": "error",
    "victim": "bad",
    "running": "busy",
    "lost": "bad",
}
_WRONG = {"hang", "root_cause", "finding"}
DRAWN = "".join(sign.drawn for sign in _SIGNS.values())
"""All that is drawn: a stream that cannot encode one of these gets ASCII."""
_ASCII = str.maketrans(DRAWN, "imp.:=~-srv!X")


# What stands in each column: the kind of a span or a mark, or nothing.
Bar: TypeAlias = tuple[str, ...]


class _Scale(NamedTuple):
    start_ns: int
    end_ns: int
    columns: int

    def at(self, time_ns: int) -> int:
        """Return the column of a time."""
        column = (time_ns - self.start_ns) * self.columns // max(1, self.end_ns - self.start_ns)
        return min(self.columns - 1, max(0, column))


class _Line(NamedTuple):
    label: str
    bar: Bar
    text: str
    style: str
    first: bool = False


def timeline_rows(run: RunTimeline, width: int, *, ascii_only: bool = False) -> list[Row]:
    """Return a run in time; nothing if no attempt was begun.

    A `width` of the terminal (columns) that is very narrow is exceeded.
    """
    attempts = [list(each) for _, each in itertools.groupby(run.attempts, lambda at: at.number)]
    if not attempts:
        return []
    left = len(attempts) - _FIRST - _LAST
    if left > 1:
        del attempts[_FIRST:-_LAST]
    guess = _Scale(run.start_ns, run.end_ns, _LEAST_BAR)
    lines = [line for attempt in attempts for line in _lines(attempt, guess)]
    label = max(cells(line.label) for line in lines) + len(GAP)
    fate = max(cells(line.text) for line in lines)
    columns = min(_MOST_BAR, max(_LEAST_BAR, width - label - len(GAP) - fate))
    scale, indent = guess._replace(columns=columns), " " * label
    end = duration((scale.end_ns - scale.start_ns) / 1e9)
    rows: list[Row] = [(StyledText(f"{indent}0{end.rjust(columns - 1)}", "faint"),)]
    used: set[str] = set()
    for place, attempt in enumerate(attempts):
        if place == _FIRST and left > 1:
            rows.append((StyledText(f"... {counted(left, 'more attempt')} ...", "faint"),))
        for line in _lines(attempt, scale):
            used.update(line.bar)
            rows.append(_row(line, label))
    signs = (f"{sign.drawn} {sign.meaning}" for kind, sign in _SIGNS.items() if kind in used)
    # a sign and its meaning stay together
    legend = "   ".join(each.replace(" ", _NO_BREAK) for each in signs)
    for text in textwrap.wrap(legend, max(width - label, columns), break_long_words=False):
        rows.append((StyledText(f"{indent}{text.replace(_NO_BREAK, ' ')}", "faint"),))
    if not ascii_only:
        return rows
    return [tuple(part._replace(text=part.text.translate(_ASCII)) for part in row) for row in rows]


def _row(line: _Line, label: int) -> Row:
    name = padded(line.label, label)
    parts = [StyledText(name, "" if line.first else "faint")]
    for kind, same in itertools.groupby(line.bar):
        sign = _SIGNS.get(kind)
        drawn = " " if sign is None else sign.drawn
        style = line.style if kind == "run" else "error" if kind in _WRONG else ""
        parts.append(StyledText(drawn * len(list(same)), style))
    return (*parts, StyledText(f"{GAP}{line.text}" if line.text else "", line.style))


def _lines(group: Sequence[AttemptTimeline], scale: _Scale) -> Iterator[_Line]:
    """Yield the lines of an attempt, of all nodes: one for all its workers, then those of ranks."""
    states = {attempt.state for attempt in group}
    state = next((each for each in ("failed", "stopped", "lost") if each in states), group[0].state)
    spans = [span for attempt in group for span in attempt.spans]
    marks = [mark for attempt in group for mark in attempt.marks]
    bar = _bar(spans, marks, scale)
    yield _Line(f"attempt {group[0].number}", bar, state, _STYLES.get(state, ""), first=True)
    lanes = [lane for attempt in group for lane in attempt.lanes]
    alike: dict[tuple[Bar, str], list[Lane]] = {}
    for lane in lanes:
        alike.setdefault((_bar(lane.spans, lane.marks, scale), lane.fate), []).append(lane)
    left = sorted(alike.items(), key=lambda item: item[1][0].rank)
    if len(left) > _MOST_LINES:
        # what went wrong is not left out
        important = sorted(left, key=lambda item: _IMPORTANT.get(item[0][1], 2))[:_MOST_LINES]
        left = [item for item in left if item in important]
    for (bar, fate), members in left:
        name = printable(ranks(lane.rank for lane in members), _LONGEST_LABEL)
        yield _Line(f"  {name}", bar, fate.replace("_", " "), _STYLES.get(fate, ""))
    missing = len(lanes) - sum(len(members) for _, members in left)
    if missing:
        empty = ("",) * scale.columns
        yield _Line(f"  {counted(missing, 'more rank')}", empty, "", "")


_IMPORTANT = {"failed": 0, "victim": 1, "lost": 1, "not_started": 1}


def _bar(spans: Iterable[TimeSpan], marks: Iterable[Mark], scale: _Scale) -> Bar:
    """Return what is seen of spans and marks; what lies within another is above it."""
    kinds = [""] * scale.columns
    order = list(SPANS)
    for span in sorted(spans, key=lambda span: order.index(span.kind)):
        first, last = scale.at(span.start_ns), scale.at(span.end_ns)
        # of what is short one column is seen; but some milliseconds are taken by any start
        if span.end_ns > span.start_ns and (last > first or span.kind not in _STARTS):
            kinds[first : last + 1] = [span.kind] * (last + 1 - first)
    order = list(MARKS)
    for mark in sorted(marks, key=lambda mark: order.index(mark.kind)):
        kinds[scale.at(mark.time_ns)] = mark.kind
    return tuple(kinds)


def progress_of_ranks(known: Mapping[int, Progress | Reached]) -> str:
    """Return how far the ranks are: ``step 12 of 12 (100 %), loss 0.3; rank 1 is at step 9``."""
    if not known:
        return ""
    furthest = max(known, key=lambda rank: (known[rank].step, -rank))
    text = progress_text(known[furthest])
    least = min(each.step for each in known.values())
    slowest = [rank for rank, each in known.items() if each.step == least]
    if least == known[furthest].step:
        return text
    verb = "is" if len(slowest) == 1 else "are"
    return f"{text}; {ranks(slowest)} {verb} at {step_text(least, known[slowest[0]].total)}"


_PEAKS: dict[str, tuple[str, Callable[[float], str]]] = {
    "rss": ("memory", lambda value: size(round(value))),
    "cpu": ("CPU", lambda value: f"{value:.3g} {'core' if f'{value:.3g}' == '1' else 'cores'}"),
    "read": ("read", lambda value: f"{size(round(value))}/s"),
    "written": ("written", lambda value: f"{size(round(value))}/s"),
    "gpu_use": ("GPU use", lambda value: f"{100 * value:.0f} %"),
    "gpu_memory": ("GPU memory", lambda value: size(round(value))),
    "gpu_power": ("GPU power", lambda value: f"{value:.0f} W"),
}


def peak_rows(measured: Sequence[Series], *, attempts: int) -> list[Row]:
    """Return the most that a run used of each thing that was measured."""
    table = []
    for name, (title, shown) in _PEAKS.items():
        known = (each for each in measured if each.name == name and not each.metric)
        found = [(value, each) for each in known for _, value in each.points]
        if not found:
            continue
        most, of = max(found, key=lambda pair: pair[0])
        where = f"{of.of} in attempt {of.attempt}" if attempts > 1 else of.of
        mean = shown(sum(value for value, _ in found) / len(found))
        more = f"{mean} on average" if name == "gpu_use" else ""
        table.append((title, shown(most), where, more))
    return [(StyledText(f"{GAP}{line}"),) for line in aligned(table)] if table else []


def log_rows(logs: Iterable[Log], cwd: str) -> list[Row]:
    """Return the ends of logs."""
    rows: list[Row] = []
    for log in logs:
        if not log.lines:
            continue
        what = f"the last {counted(len(log.lines), 'line')}" if log.cut else "all"
        text = f"{GAP}{capitalised(what)} of {shown_path(log.path, cwd)}:"
        rows.append((StyledText(text, "faint"),))
        rows += [(StyledText(f"{GAP}| {line}".rstrip(), "quote"),) for line in log.lines]
    return rows
