"""What stays at the bottom of a terminal: the line of a run, the table of a sweep or of ``top``."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple, TextIO

from lllaunch.console.stream import showing
from lllaunch.workers.terminal import screen_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.console.stream import Outlet
    from lllaunch.console.table import Row


class Size(NamedTuple):
    """Of a terminal, in characters; all 0 if it cannot be found."""

    columns: int = 0
    lines: int = 0


def size_of(stream: TextIO) -> Size:
    """Return the size of the terminal that a stream is."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return Size(*os.get_terminal_size(stream.fileno()))
    return Size()


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
        self._paint, self._rows = paint, rows
        # what all who write to the terminal share; it lives as long as somebody has it
        self._screen = screen_of(flow.stream)
        self._held: list[str] = []
        self._drawn_for = Size()
        # other threads draw them again with each line that they write
        self._painted: tuple[tuple[int, int], list[str]] | None = None
        self._broken = False
        # the screen keeps none alive
        self._asked = weakref.WeakMethod(self._texts)

    def _texts(self, columns: int, lines: int) -> list[str]:
        size = columns, lines
        if self._painted is None or self._painted[0] != size:
            self._painted = size, []
            if not self._broken:
                self._broken = True
                with showing("live view"):
                    self._painted = size, self._paint(self._rows(columns, lines))
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
        asked = self._asked
        self._screen.status = lambda *size: texts(*size) if (texts := asked()) else ()
        self._painted = None
        self._drawn_for = size_of(self._flow.stream)
        return self._show(patience)

    def hide(self, patience: float) -> None:
        """Take it away until the next drawing."""
        # first of all: other threads write to the terminal meanwhile
        self._screen.hidden = True
        self._show(patience)

    def end(self, patience: float, *, leave: bool = False) -> None:
        """Show the last lines, and take the rows away for good, or leave them as lines."""
        self._screen.hidden = False
        self._screen.status = None
        if leave:
            self._held += self._texts(*size_of(self._flow.stream))
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
