"""Tables of the terminal: cells of so many columns, rows of styled text, and their colours.

rich draws such tables, too, but takes some fifty times as long. A sweep draws its table up to ten
times a second, and ``ls`` one of a thousand rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, TypeAlias

from lllaunch.words import StyledText
from lllaunch.workers.terminal import cells, cut, moves_cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


class Column(NamedTuple):
    """A column of a table of runs, jobs or ranks.

    Rows are sorted by its `key`, a number or a text, None for the last ones, and show it as a text
    unless that takes more of the row (`of`). One whose texts may be cut says how (`cut`).
    """

    title: str
    key: Callable[[Any], float | str | None]
    show: Callable[[Any], str] = str
    of: Callable[[Any], str] | None = None
    right: bool = True
    most: int = 0  # how wide it is at most; 0 for as wide as it needs
    cut: Callable[[str, int], str] | None = None

    def text(self, row: object) -> str:
        """Return the text of a cell."""
        if self.of is not None:
            return self.of(row)
        value = self.key(row)
        return "" if value is None else self.show(value)


# What is left out first where a terminal is narrow.
_SPARE = (
    *("cores", "pid", "gpu mem", "rate", "tries", "metrics", "slow", "mem", "gpu", "cpu", "idle"),
    "time",
)
_LEAST_TEXT, _WANTED_TEXT = 10, 24
_LEAST_NAME, _WANTED_NAME = 12, 24


def fitting(
    columns: Sequence[Column], rows: Sequence[object], width: int, spare: Sequence[str] = _SPARE
) -> list[tuple[Column, list[str]]]:
    """Return the columns that have something to show and fit, each with the texts of its cells.

    Those that are not `spare` are there in any case. The last one, if its texts may be cut, gets
    the room that is left. Another one whose texts may be cut gives way to it.
    """
    found = {}
    for column in columns:
        texts = [column.text(row) for row in rows]
        if any(texts):
            texts = [cut(text, column.most) for text in texts] if column.most else texts
            found[column.title] = column, texts
    if not width:
        return [*found.values()]
    last = found.pop(columns[-1].title, None) if columns[-1].cut is not None else None
    widths = {
        title: max(map(cells, [title, *texts])) + len(GAP) for title, (_, texts) in found.items()
    }
    longest = 0 if last is None else max(map(cells, last[1]))
    wanted = min(_WANTED_TEXT, longest)
    name = next((title for title, (column, _) in found.items() if column.cut is not None), "")
    rest = max(0, widths.get(name, 0) - len(GAP) - _WANTED_NAME)
    for title in spare:
        if title in found and width - sum(widths.values()) + rest < wanted:
            del found[title], widths[title]
    over = sum(widths.values()) + (wanted or -len(GAP)) - width
    if name and over > 0:
        column, texts = found[name]
        room = max(_LEAST_NAME, widths[name] - len(GAP) - over)
        texts = [column.cut(text, room) for text in texts if column.cut is not None]
        found[name] = column, texts
        widths[name] = max(map(cells, [name, *texts])) + len(GAP)
    room = width - sum(widths.values())
    if last is not None and room >= min(_LEAST_TEXT, longest):
        found[last[0].title] = last[0], [cut(text, room) for text in last[1]]
    return [*found.values()]


def rows_of(
    columns: Sequence[Column],
    rows: Sequence[object],
    styles: Sequence[str],
    width: int,
    *,
    spare: Sequence[str] = _SPARE,
) -> list[Row]:
    """Return the titles and a row of the terminal for each row.

    `width` is that of the terminal; 0 if nothing is to be cut or left out. The style of a row is
    that of its column ``state``.
    """
    chosen = fitting(columns, rows, width, spare)
    told = [
        [padded(text, wide, right=column.right) for text in (column.title, *texts)]
        for column, texts in chosen
        for wide in [max(map(cells, [column.title, *texts]))]
    ]
    at = [column.title for column, _ in chosen].index("state")
    titles, *told_rows = zip(*told, strict=True)
    found: list[Row] = [(StyledText(GAP.join(titles).rstrip(), "faint"),)]
    for texts, style in zip(told_rows, styles, strict=True):
        before = "".join(text + GAP for text in texts[:at])
        after = "".join(GAP + text for text in texts[at + 1 :]).rstrip()
        parts = StyledText(before), StyledText(texts[at], style), StyledText(after)
        found.append(tuple(part for part in parts if part.text))
    return [_cut_row(row, width) for row in found] if width else found


def end_of(path: str, width: int) -> str:
    """Return the end of a path: that is where those of one directory differ."""
    if cells(path) <= width:
        return path
    while cells(path) > width - 3:
        path = path[1:]
    return f"...{path}"


def _cut_row(row: Row, width: int) -> Row:
    """Return a row of at most so many columns."""
    parts = []
    for span in row:
        text = cut(span.text, width) if width > 0 else ""
        parts.append(StyledText(text, span.style))
        width -= cells(text)
    return tuple(parts)


def aligned(
    rows: Sequence[Sequence[str]], *, room: int | None = None, shrinks: int = 0
) -> list[str]:
    """Return the lines of a table without titles; without `room` it is as wide as it needs.

    Column `shrinks` gets narrower where there is no room for all.
    """
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if widths and room is not None:
        own, others = widths[shrinks], sum(widths) - widths[shrinks] + len(GAP) * (len(widths) - 1)
        widths[shrinks] = min(own, max(_WANTED_TEXT, room - others))
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


def painter(
    stream: TextIO, color: Literal["always", "never"] | None = None
) -> Callable[[Sequence[Row]], list[str]]:
    """Return what makes text of rows, with colours if a stream is a terminal that has some.

    ``color``: whether there are colours; None for what the stream, NO_COLOR and FORCE_COLOR say.
    """
    forced = color == "always" or (color is None and bool(os.environ.get("FORCE_COLOR")))
    colours = forced or (color is None and moves_cursor() and is_terminal(stream))
    grey = color is None and bool(os.environ.get("NO_COLOR"))
    known = {
        word: code
        for word, code in _CODES.items()
        if colours and (not grey or word in {"bold", "dim"})
    }

    def painted(span: StyledText) -> str:
        words = RICH_STYLES[span.style].split() if known else ()
        codes = ";".join(known[word] for word in words if word in known)
        return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text

    return lambda rows: ["".join(map(painted, row)) for row in rows]
