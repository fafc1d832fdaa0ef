"""What stays at the bottom of a terminal: the line of a run, the table of a sweep or of ``top``.

The line of a run says how far it is; in a log it comes now and then. Parts that have no room are
left out, the least important first; so a line is never broken.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple, TextIO

from lllaunch.console.stream import showing
from lllaunch.console.table import is_terminal
from lllaunch.text import plain, size
from lllaunch.words import StyledText, counted, passed, rate_text, short_step, time_left
from lllaunch.workers.terminal import cells, cut, moves_cursor, screen_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.console.stream import Outlet
    from lllaunch.console.table import Row
    from lllaunch.spec import ConsolePolicy
    from lllaunch.watchdog.progress import Progress

_BETWEEN = ", "
_LONGEST_DOING = 60
# Of a terminal that has room for a line below the output.
_LEAST_COLUMNS, _LEAST_LINES = 40, 4


def stays(stream: TextIO, policy: ConsolePolicy, *, unasked: bool) -> bool:
    """Return whether a policy has something stay below the output; ``unasked``: if it is open."""
    if not (moves_cursor() and is_terminal(stream)):
        return False
    return policy.live if policy.live is not None else unasked and not policy.quiet


def size_of(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal that a stream is, in characters; 0 if it cannot be found."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.get_terminal_size(stream.fileno())
    return os.terminal_size((0, 0))


class Bottom:
    """Rows at the bottom of a terminal, below all that is written to it.

    No thread draws them, since the launcher forks. A drawing begins only when the one before was
    taken as a whole, so that a terminal which was stopped by Ctrl-S shows the right things when it
    goes on. Methods wait at most ``patience`` seconds for the terminal.

    ``flow``: to the terminal. ``paint``: returns the texts of rows, with colours. ``rows``: returns
    the rows for so many columns and lines; asked once for each drawing.
    """

    def __init__(
        self,
        flow: Outlet,
        paint: Callable[[list[Row]], list[str]],
        rows: Callable[[int, int], list[Row]],
    ) -> None:
        self._flow = flow
        # who shows it is not kept alive
        self._paint, self._rows = paint, weakref.WeakMethod(rows)
        # what all who write to the terminal share; it lives as long as somebody has it
        self._screen = screen_of(flow.stream)
        self._held: list[str] = []
        self._drawn_for = os.terminal_size((0, 0))
        # other threads draw them again with each line that they write
        self._painted: tuple[tuple[int, int], list[str]] | None = None
        self._broken = False

    def _texts(self, columns: int, lines: int) -> list[str]:
        size = columns, lines
        if self._painted is None or self._painted[0] != size:
            self._painted = size, []
            if not self._broken:
                self._broken = True
                with showing("live view"):
                    rows = self._rows()
                    self._painted = size, [] if rows is None else self._paint(rows(columns, lines))
                    self._broken = False
        return self._painted[1]

    @property
    def hidden(self) -> bool:
        """Whether it was taken away until the next drawing."""
        return self._screen.hidden

    @property
    def resized(self) -> bool:
        """Whether the terminal has another size than it was drawn for."""
        return size_of(self._flow.stream) != self._drawn_for

    def say(self, line: str) -> None:
        """Show a line above it with the next drawing."""
        self._held.append(line)

    def draw(self, patience: float = 0.0) -> bool:
        """Show the lines and, below them, the rows; return whether the terminal took all of it."""
        self._screen.hidden = False
        # the screen keeps none alive
        asked = weakref.WeakMethod(self._texts)
        self._screen.status = lambda *size: texts(*size) if (texts := asked()) else ()
        self._painted = None
        self._drawn_for = size_of(self._flow.stream)
        return self._show(patience)

    def hide(self, patience: float) -> None:
        """Take it away until the next drawing."""
        # first of all: other threads write to the terminal meanwhile
        self._screen.hidden = True
        self._show(patience)

    def end(self, patience: float) -> None:
        """Show the last lines, and take the rows away for good."""
        self._screen.hidden = False
        self._screen.status = None
        self._show(patience, last=True)

    def _show(self, patience: float, *, last: bool = False) -> bool:
        for line in self._held:
            self._flow.hold(f"{line}\n")
        self._held.clear()
        with contextlib.suppress(OSError, ValueError):
            if self._flow.pending:
                self._flow.push(patience, last=last)
            else:
                return self._flow.redraw(patience)
        return not self._flow.pending


# The line of a run


class RunStatus:
    """How far a run is, for whatever shows that.

    ``seen``: when these two were seen, seconds.
    """

    def __init__(self, began: float) -> None:
        self.began = self.seen = began  # when it began, seconds
        self.attempt: int | None = None  # number of the present one; None before the first
        self.doing = ""  # what goes on while no workers run, such as ``importing torch``; or empty
        self.until: float | None = None  # when that is over, seconds; None if unknown
        self.progress: dict[int, Progress] = {}  # how far the ranks are, of those that show it
        self.memory = 0  # of all workers of this node, bytes; 0 if it is not known yet
        self.findings: list[str] = []  # the settings of the watchdog that something was found by


class Part(NamedTuple):
    """A part of the line; where there is no room, parts with less weight are left out first."""

    text: str
    weight: int
    style: str = "faint"


# The colour of the line, too, says whose it is.
_OURS = Part("lllaunch: ", 3)


def _parts_of(run: RunStatus, now: float) -> list[Part]:
    """Return what is known of a run but for the time, in its order."""
    parts = []
    if run.attempt is not None:
        parts.append(Part(f"attempt {run.attempt}", 6 if run.attempt else 4))
    if run.doing:
        text = cut(plain(run.doing), _LONGEST_DOING)
        if run.until is not None:
            text += f" {passed(math.ceil(run.until - now))}"
        parts.append(Part(text, 9, "cause"))
    if progress := run.progress:
        furthest = max(progress.values(), key=lambda each: each.step)
        slowest = min(progress, key=lambda rank: progress[rank].step)
        parts.append(Part(f"step {short_step(furthest.step, furthest.total)}", 9, "title"))
        if furthest.rate:
            parts.append(Part(rate_text(furthest.rate), 1))
        lefts = [each.eta for each in progress.values() if each.eta is not None]
        if lefts:
            # all are done when the last one is
            parts.append(Part(time_left(max(0.0, max(lefts) - (now - run.seen))), 7))
        if progress[slowest].step < furthest.step:
            behind = short_step(progress[slowest].step, None)
            parts.append(Part(f"rank {slowest} is slowest (step {behind})", 5))
    if run.memory:
        parts.append(Part(size(run.memory), 2))
    if run.findings:
        last = run.findings[-1]
        named = f" ({last})" if last else ""
        parts.append(Part(f"{counted(len(run.findings), 'finding')}{named}", 10, "bad"))
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
    parts = [part for part in _parts_of(run, now) if part.weight != 1]
    if len(parts) > 1 and run.attempt == 0:
        del parts[0]
    return f"{passed(now - run.began)}: {_BETWEEN.join(part.text for part in parts)}"


def status_rows(run: RunStatus, now: float, columns: int, lines: int) -> list[Row]:
    """Return the line below the output that fits a terminal; none where there is no room."""
    if columns < _LEAST_COLUMNS or lines < _LEAST_LINES:
        return []
    parts = _parts_of(run, now)
    parts.insert(0 if run.attempt is None else 1, Part(passed(now - run.began), 8))
    return [tuple(fitted(parts, columns - 1))]
