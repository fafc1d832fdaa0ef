"""How far a run is, in one line: below its output on a terminal, now and then in a log.

Pure. What has no room is left out, what matters least first; so a line is never broken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.display import display
from lllaunch.console.table import cells, cut
from lllaunch.text import count, duration, plain, size
from lllaunch.words import StyledText, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.console.console import RunStatus
    from lllaunch.console.table import Row
    from lllaunch.watchdog.progress import Progress

_NAME = "lllaunch: "
_BETWEEN = ", "
# It can be told from its looks, too, whose line it is.
_WEIGHT_OF_NAME = 3
_LONGEST_DOING = 60


class Part(NamedTuple):
    """A part of the line.

    Attributes:
        text: what it says.
        weight: what has less goes first where there is no room.
        style: how it looks, as `StyledText` has it.
    """

    text: str
    weight: int
    style: str = "faint"


def time_left(seconds: float) -> str:
    """Return ``about 41 min left``: no more exactly than anybody can know."""
    if seconds < 60:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min left"
    return f"about {duration(minutes * 60.0)} left"


def passed(seconds: float) -> str:
    """Return how long it has been, in whole seconds: ``3 min 20 s``."""
    whole = int(max(0.0, seconds))
    return duration(float(whole)) if whole >= 10 else f"{whole} s"


def parts_of(run: RunStatus, now: float) -> list[Part]:
    """Return what is known of a run but for the time, in its order.

    Args:
        run: the run.
        now: the time, by the same clock as within ``run``.
    """
    parts = []
    if run.attempt is not None:
        parts.append(Part(f"attempt {run.attempt}", 6 if run.attempt else 4))
    if run.doing:
        text = cut(plain(run.doing), _LONGEST_DOING)
        if run.until is not None:
            text += f" {passed(math.ceil(run.until - now))}"
        parts.append(Part(text, 9, "cause"))
    parts += _of_progress(run.progress, now - run.seen)
    if run.memory:
        parts.append(Part(size(run.memory), 2))
    if run.findings:
        last = run.findings[-1]
        named = f" ({last})" if last else ""
        parts.append(Part(f"{counted(len(run.findings), 'finding')}{named}", 10, "bad"))
    return parts


def _of_progress(progress: dict[int, Progress], ago: float) -> list[Part]:
    """Return how far the ranks are.

    Args:
        progress: by rank.
        ago: seconds since that was seen.
    """
    if not progress:
        return []
    furthest = max(progress.values(), key=lambda each: each.step)
    slowest = min(progress, key=lambda rank: progress[rank].step)
    step, total = count(furthest.step), furthest.total
    text = f"step {step}/{count(total)}" if total else f"step {step}"
    parts = [Part(text, 9, "title")]
    if furthest.rate:
        parts.append(Part(rate_text(furthest.rate), 1))
    lefts = [each.eta for each in progress.values() if each.eta is not None]
    if lefts:
        # all are done when the last one is
        parts.append(Part(time_left(max(0.0, max(lefts) - ago)), 7))
    if progress[slowest].step < furthest.step:
        behind = count(progress[slowest].step)
        parts.append(Part(f"rank {slowest} is slowest (step {behind})", 5))
    return parts


def rate_text(rate: float) -> str:
    """Return ``12.3/s``, or ``8.1 s a step``."""
    if rate >= 1:
        return f"{rate:.3g}/s" if rate < 1000 else f"{count(round(rate))}/s"
    return f"{duration(1 / rate)} a step"


def line_of(run: RunStatus, now: float) -> list[Part]:
    """Return the parts of the line below the output; the rest is left to `fitted`."""
    parts = parts_of(run, now)
    at = 0 if run.attempt is None else 1
    return [*parts[:at], Part(passed(now - run.began), 8), *parts[at:]]


_OURS = Part(_NAME, _WEIGHT_OF_NAME)


def fitted(parts: Sequence[Part], columns: int, name: Part = _OURS) -> list[StyledText]:
    """Return a line of at most so many columns.

    Args:
        parts: of the line.
        columns: how many character cells there are.
        name: stands before them.

    Returns:
        The line in pieces; together they are its text.
    """
    everything = [name, *parts]
    kept: set[int] = set()
    room = columns + len(_BETWEEN)
    for index in sorted(range(len(everything)), key=lambda index: -everything[index].weight):
        between = len(_BETWEEN) if index else 0
        width = cells(everything[index].text) + between
        if width <= room:
            kept.add(index)
            room -= width
    if not kept - {0}:
        # not even what matters most
        first = max(parts, key=lambda part: part.weight)
        return [StyledText(cut(first.text, columns), first.style)]
    found: list[StyledText] = []
    for index in sorted(kept):
        if index > min(kept - {0}):
            found.append(StyledText(_BETWEEN, "faint"))
        found.append(StyledText(everything[index].text, everything[index].style))
    return found


def heartbeat_text(run: RunStatus, now: float) -> str:
    """Return what is said now and then where no line stays: ``10 min: step 1200/5000, ...``.

    It has what the line below the output has, but for the rate, and for the attempt as long as
    there was one only and something better is known.
    """
    parts = [part for part in parts_of(run, now) if part.weight != 1]
    if len(parts) > 1 and run.attempt == 0:
        del parts[0]
    return f"{passed(now - run.began)}: {_BETWEEN.join(part.text for part in parts)}"


@display("line below the output")
class StatusLine:
    """The line below the output, for those who draw it.

    Args:
        paint: returns a row with the colours of the terminal.
    """

    def __init__(self, paint: Callable[[Row], str]) -> None:
        self._paint = paint
        self._parts: list[Part] = []
        # as it was drawn last: for so many columns, these parts
        self._drawn: tuple[int, list[Part], str] = (0, [], "")

    def update(self, run: RunStatus, now: float) -> None:
        """Take note of how far the run is."""
        self._parts = line_of(run, now)

    def text(self, columns: int) -> str:
        """Return the line as it fits into so many columns.

        Whoever writes to the terminal asks for it, with every line of output.
        """
        parts = self._parts
        drawn_for, drawn, text = self._drawn
        if drawn_for != columns or drawn is not parts:
            text = self._paint(tuple(fitted(parts, columns)))
            self._drawn = columns, parts, text
        return text
