"""Tables of the terminal: cells of so many columns, rows of styled text, and their colours."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from lllaunch.text import plain, printable
from lllaunch.words import StyledText
from lllaunch.workers.terminal import moves_cursor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lllaunch.sweep.objective import Objective, Objectives

Row: TypeAlias = tuple[StyledText, ...]
"""One line of the terminal."""

GAP = "  "
"""What stands between two columns."""

_LONGEST = 200  # characters of a job's overrides
_LONGEST_NUMBER = 12
_LONGEST_VALUE = 24  # columns
_MORE = "..."


def cells(text: str) -> int:
    """How many columns a text takes that has no control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """Returns a text of at most so many columns; one that was longer ends in ``...``."""
    if cells(text) <= width:
        return text
    more = _MORE if width > 2 * len(_MORE) else ""
    room = width - len(more)
    if text.isascii():
        return text[: max(0, room)] + more
    kept = []
    for letter in text:
        room -= _cells(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + more


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Returns a text that takes exactly so many columns.

    Args:
        text: the text.
        width: how many.
        right: whether it stands at the right end.
    """
    text = cut(text, width)
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def decoded(line: bytes) -> str:
    """Returns a line that a job printed; of a progress bar what it showed last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")


class Table:
    """Columns of text with titles, from which rows are made."""

    def __init__(self) -> None:
        self._columns: dict[str, list[str]] = {}

    def __contains__(self, title: str) -> bool:
        return title in self._columns

    @property
    def width(self) -> int:
        """How many columns of the terminal it takes, with the gap before another one."""
        return sum(cells(column[0]) + len(GAP) for column in self._columns.values())

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
        """Add a column; none that is empty or has no room.

        Args:
            title: stands above it.
            texts: of its cells.
            least: how wide it is at least.
            most: how wide at most; None for as wide as it needs.
            right: whether its cells stand at the right end.
            at: index among the columns; None for the last one.
        """
        width = max(least, *map(cells, [title, *texts]))
        width = width if most is None else min(width, most)
        if not any(texts) or width <= 0:
            return
        column = [padded(text, width, right=right) for text in [title, *texts]]
        columns = list(self._columns.items())
        columns.insert(len(columns) if at is None else at, (title, column))
        self._columns = dict(columns)

    def remove(self, title: str) -> None:
        """Take a column away."""
        del self._columns[title]

    def rows(self, styles: Sequence[str], styled: str = "", indent: str = "") -> list[Row]:
        """Return the titles and the rows.

        Args:
            styles: of the rows.
            styled: title of the column that has the row's style; empty if the whole row has it.
            indent: stands before each.
        """
        titles, *rows = zip(*self._columns.values(), strict=True)
        at = list(self._columns).index(styled) if styled in self._columns else None
        found: list[Row] = [(StyledText(f"{indent}{GAP.join(titles)}".rstrip(), "faint"),)]
        for texts, style in zip(rows, styles, strict=True):
            if at is None:
                found.append((StyledText(f"{indent}{GAP.join(texts)}".rstrip(), style),))
                continue
            before = "".join(f"{text}{GAP}" for text in texts[:at])
            after = "".join(f"{GAP}{text}" for text in texts[at + 1 :])
            parts = StyledText(f"{indent}{before}"), StyledText(texts[at], style)
            found.append((*parts, StyledText(after.rstrip())))
        return found


def aligned(
    rows: Sequence[Sequence[str]], *, room: int | None = None, shrinks: int = 0, least: int = 24
) -> list[str]:
    """Return the lines of a table without titles.

    Args:
        rows: texts of their cells.
        room: how many columns of the terminal it may take; None for as many as it needs.
        shrinks: index of the column that gives way where there is no room for all.
        least: how wide that column stays in any case, if it was.
    """
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if widths and room is not None:
        too_wide = sum(widths) + len(GAP) * (len(widths) - 1) - room
        widths[shrinks] = min(widths[shrinks], max(least, widths[shrinks] - max(0, too_wide)))
    return [
        GAP.join(padded(text, width) for text, width in zip(texts, widths, strict=True)).rstrip()
        for texts in rows
    ]


def short_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Returns ``lr=0.1 nproc=2`` of ``params.lr=0.1 launch.nproc=2 +exp=resnet``.

    Args:
        overrides: of the job.
        common: those that say nothing, since all jobs have them.
    """
    own = [each for each in overrides if each not in common]
    last = [_last(each) for each in own]
    often = Counter(key for key, _ in last)
    # Two keys with one name are told apart by all of it.
    texts = [
        f"{key}={_short(value)}" if value is not None and often[key] == 1 else each
        for each, (key, value) in zip(own, last, strict=True)
    ]
    return printable(" ".join(texts), _LONGEST)


def _short(value: str) -> str:
    """Returns a value; of a number with more digits than anybody compares, the first ones."""
    if len(value) <= _LONGEST_NUMBER:
        return value
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def _last(override: str) -> tuple[str, str | None]:
    """Returns the last part of an override's key, and its value if it has one."""
    key, equals, value = override.partition("=")
    return re.split(r"[./]", key.lstrip("+"))[-1], value if equals else None


def objective_text(value: Any) -> str:
    """Returns what a job returned; an empty string if that is nothing, or long."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = plain(text)
    return text if cells(text) <= _LONGEST_VALUE else ""


def extremes_text(objectives: Objectives) -> str:
    """Return ``best 0.01 of job 4 (lr=0.1)``, or what is lowest and highest where none is best.

    An empty string if there is nothing to compare.
    """
    found = objectives.extremes
    if objectives.direction is None and len({objective.value for _, objective in found}) < 2:
        return ""
    return ", ".join(f"{what} {_of_job(objective)}" for what, objective in found)


def short_extremes(objectives: Objectives) -> str:
    """Return ``best 0.01 (job 4)``: the same in short, also if there is only one."""
    return ", ".join(
        f"{what} {objective_text(objective.value)} (job {objective.job})"
        for what, objective in objectives.extremes
    )


def _of_job(objective: Objective) -> str:
    name = f" ({objective.name})" if objective.name else ""
    return f"{objective_text(objective.value)} of job {objective.job}{name}"


def counts_text(counts: Iterable[tuple[int, str]]) -> str:
    """Returns ``3 failed, 2 running``; nothing of what is 0."""
    return ", ".join(f"{number} {what}" for number, what in counts if number)


def done_text(counts: Mapping[str, int], states: Iterable[str]) -> str:
    """Return ``12/200 done, 3 failed, 8 running, 177 waiting``, of a sweep that goes on.

    Args:
        counts: the number of its jobs by state.
        states: in which order they are told.
    """
    done = f"{counts.get('succeeded', 0)}/{sum(counts.values())} done"
    others = counts_text(
        (counts.get(state, 0), state.replace("_", "-")) for state in states if state != "succeeded"
    )
    return ", ".join(filter(None, (done, others)))


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
"""What rich calls the styles of `lllaunch.words.StyledText`."""

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
        self._plain = color == "never" or not (forced or (moves_cursor() and is_terminal(stream)))
        grey = color is None and bool(os.environ.get("NO_COLOR"))
        self._codes = {word: _CODES[word] for word in (_CODES if not grey else ("bold", "dim"))}

    def paint(self, rows: Sequence[Row]) -> list[str]:
        """Return each row as text."""
        if self._plain:
            return ["".join(span.text for span in row) for row in rows]
        return ["".join(self._painted(span) for span in row) for row in rows]

    def _painted(self, span: StyledText) -> str:
        words = RICH_STYLES[span.style].split()
        codes = ";".join(self._codes[word] for word in words if word in self._codes)
        return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text


def painted(
    rows: Sequence[Row], stream: TextIO, color: Literal["always", "never"] | None = None
) -> list[str]:
    """Return rows as text; arguments as of `Painter`."""
    return Painter(stream, color).paint(rows)
