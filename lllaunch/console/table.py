"""Tables of the terminal: cells of so many columns, rows of styled text, and their colours.

rich draws such tables, too, but takes some fifty times as long. A sweep draws its table up to ten
times a second, and ``ls`` one of a thousand rows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from lllaunch.words import StyledText
from lllaunch.workers.terminal import cells, cut, moves_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

Row: TypeAlias = tuple[StyledText, ...]
"""One line of the terminal."""

GAP = "  "
"""Separates two columns."""


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text that takes exactly so many columns, at the left or right end of them."""
    text = cut(text, width)
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def decoded(line: bytes) -> str:
    """Return a line that a job printed; of a progress bar the last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")


class Table:
    """Columns of text, from which rows are made.

    Attributes:
        columns: the cells by title; the title is the first cell, and all are equally wide.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[str]] = {}

    @property
    def width(self) -> int:
        """How many columns of the terminal it takes, with the gap before another column."""
        return sum(cells(column[0]) + len(GAP) for column in self.columns.values())

    def add(
        self,
        title: str,
        texts: Sequence[str],
        *,
        least: int = 0,
        most: int | None = None,
        right: bool = False,
        at: int | None = None,
    ) -> None:
        """Add a column, unless it is empty or has no room.

        Args:
            title: its title.
            texts: its cells.
            least: its least width.
            most: its greatest width; None for as wide as it needs.
            right: whether cells are aligned to the right.
            at: its index; None for the last one.
        """
        width = max(least, *map(cells, [title, *texts]))
        width = width if most is None else min(width, most)
        if any(texts) and width > 0:
            columns = list(self.columns.items())
            column = [padded(text, width, right=right) for text in [title, *texts]]
            columns.insert(len(columns) if at is None else at, (title, column))
            self.columns = dict(columns)

    def rows(self, styles: Sequence[str], styled: str = "", indent: str = "") -> list[Row]:
        """Return the titles and the rows.

        Args:
            styles: the style of each row.
            styled: title of the column that has it; empty for the whole row.
            indent: precedes each row.
        """
        titles, *rows = zip(*self.columns.values(), strict=True)
        found: list[Row] = [(StyledText(f"{indent}{GAP.join(titles)}".rstrip(), "faint"),)]
        first = list(self.columns).index(styled) if styled in self.columns else 0
        last = first + 1 if styled in self.columns else len(self.columns)
        for texts, style in zip(rows, styles, strict=True):
            before = indent + "".join(text + GAP for text in texts[:first])
            after = "".join(GAP + text for text in texts[last:]).rstrip()
            middle = GAP.join(texts[first:last])
            middle = middle if after or styled in self.columns else middle.rstrip()
            parts = StyledText(before), StyledText(middle, style), StyledText(after)
            found.append(tuple(part for part in parts if part.text))
        return found


def aligned(
    rows: Sequence[Sequence[str]], *, room: int | None = None, shrinks: int = 0, least: int = 24
) -> list[str]:
    """Return the lines of a table without titles.

    Args:
        rows: the cells of each.
        room: how many columns of the terminal it may take; None for as many as it needs.
        shrinks: index of the column that gets narrower where there is no room for all.
        least: how narrow that column gets at most.
    """
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if widths and room is not None:
        too_wide = sum(widths) + len(GAP) * (len(widths) - 1) - room
        widths[shrinks] = min(widths[shrinks], max(least, widths[shrinks] - max(0, too_wide)))
    return [GAP.join(map(padded, texts, widths)).rstrip() for texts in rows]


RICH_STYLES = {
    "": "",
    "title": "bold",
    "error": "bold red",
    "cause": "bold",
    "good": "green",
    "bad": "red",
    "busy": "cyan",
    "quote": "",
    "faint": "dim",
}
"""The names of the styles of `lllaunch.words.StyledText` in rich."""

# what a terminal calls the words of these styles (ECMA-48, SGR)
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream says that it is one."""
    try:
        return stream.isatty()
    except (AttributeError, OSError, ValueError):  # somebody's own object, or closed
        return False


class Painter:
    """Makes text of rows, with colours if a stream is a terminal that has some.

    Args:
        stream: where the rows go.
        color: whether there are colours; None for what the stream, NO_COLOR and FORCE_COLOR say.
    """

    def __init__(self, stream: TextIO, color: Literal["always", "never"] | None = None) -> None:
        forced = color == "always" or (color is None and bool(os.environ.get("FORCE_COLOR")))
        colours = forced or (color is None and moves_cursor() and is_terminal(stream))
        grey = color is None and bool(os.environ.get("NO_COLOR"))
        self._codes = {
            word: code
            for word, code in _CODES.items()
            if colours and (not grey or word in {"bold", "dim"})
        }

    def paint(self, rows: Sequence[Row]) -> list[str]:
        """Return each row as text."""
        return ["".join(map(self._painted, row)) for row in rows]

    def _painted(self, span: StyledText) -> str:
        words = RICH_STYLES[span.style].split() if self._codes else ()
        codes = ";".join(self._codes[word] for word in words if word in self._codes)
        return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text
