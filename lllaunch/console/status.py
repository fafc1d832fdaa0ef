"""How far a run is, in one line: below its output on a terminal, now and then in a log.

Pure. Parts that have no room are left out, the least important first; so a line is never broken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.text import plain, size
from lllaunch.words import StyledText, counted, passed, rate_text, short_step, time_left
from lllaunch.workers.terminal import cells, cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.console.console import RunStatus
    from lllaunch.console.table import Row
    from lllaunch.watchdog.progress import Progress

_BETWEEN = ", "
_LONGEST_DOING = 60
# Of a terminal that has room for a line below the output.
_LEAST_COLUMNS, _LEAST_LINES = 40, 4


class Part(NamedTuple):
    """A part of the line; where there is no room, parts with less weight are left out first."""

    text: str
    weight: int
    style: str = "faint"


# The colour of the line, too, says whose it is.
_OURS = Part("lllaunch: ", 3)


def parts_of(run: RunStatus, now: float) -> list[Part]:
    """Return what is known of a run but for the time, in its order."""
    parts = []
    if run.attempt is not None:
        parts.append(Part(f"attempt {run.attempt}", 6 if run.attempt else 4))
    if run.doing:
        text = cut(plain(run.doing), _LONGEST_DOING)
        if run.until is not None:
            text += f" {passed(math.ceil(run.until - now))}"
        parts.append(Part(text, 9, "cause"))
    if run.progress:
        parts += _of_progress(run.progress, now - run.seen)
    if run.memory:
        parts.append(Part(size(run.memory), 2))
    if run.findings:
        last = run.findings[-1]
        named = f" ({last})" if last else ""
        parts.append(Part(f"{counted(len(run.findings), 'finding')}{named}", 10, "bad"))
    return parts


def _of_progress(progress: dict[int, Progress], ago: float) -> list[Part]:
    """Return how far the ranks were some seconds ago."""
    furthest = max(progress.values(), key=lambda each: each.step)
    slowest = min(progress, key=lambda rank: progress[rank].step)
    parts = [Part(f"step {short_step(furthest.step, furthest.total)}", 9, "title")]
    if furthest.rate:
        parts.append(Part(rate_text(furthest.rate), 1))
    lefts = [each.eta for each in progress.values() if each.eta is not None]
    if lefts:
        # all are done when the last one is
        parts.append(Part(time_left(max(0.0, max(lefts) - ago)), 7))
    if progress[slowest].step < furthest.step:
        behind = short_step(progress[slowest].step, None)
        parts.append(Part(f"rank {slowest} is slowest (step {behind})", 5))
    return parts


def line_of(run: RunStatus, now: float) -> list[Part]:
    """Return the parts of the line below the output; `fitted` selects those that fit."""
    parts = parts_of(run, now)
    parts.insert(0 if run.attempt is None else 1, Part(passed(now - run.began), 8))
    return parts


def fitted(parts: Sequence[Part], columns: int, name: Part = _OURS) -> list[StyledText]:
    """Return a line of at most so many columns, in pieces; `name` precedes the parts."""
    everything = [name, *parts]
    kept: set[int] = set()
    room = columns + len(_BETWEEN)
    for index in sorted(range(len(everything)), key=lambda index: -everything[index].weight):
        width = cells(everything[index].text) + (len(_BETWEEN) if index else 0)
        if width <= room:
            kept.add(index)
            room -= width
    shown = sorted(kept - {0})
    if not shown:
        # not even the most important one fits
        first = max(parts, key=lambda part: part.weight)
        return [StyledText(cut(first.text, columns), first.style)]
    found = [StyledText(name.text, name.style)] if 0 in kept else []
    for index in shown:
        if index > shown[0]:
            found.append(StyledText(_BETWEEN, "faint"))
        found.append(StyledText(everything[index].text, everything[index].style))
    return found


def heartbeat_text(run: RunStatus, now: float) -> str:
    """Return the line for where no line stays: ``10 min: step 1200/5000, ...``.

    It has no rate, and the first attempt is named only if nothing else is known.
    """
    parts = [part for part in parts_of(run, now) if part.weight != 1]
    if len(parts) > 1 and run.attempt == 0:
        del parts[0]
    return f"{passed(now - run.began)}: {_BETWEEN.join(part.text for part in parts)}"


def status_rows(run: RunStatus, now: float, columns: int, lines: int) -> list[Row]:
    """Return the line below the output that fits a terminal; none where there is no room."""
    if columns < _LEAST_COLUMNS or lines < _LEAST_LINES:
        return []
    return [tuple(fitted(line_of(run, now), columns - 1))]
