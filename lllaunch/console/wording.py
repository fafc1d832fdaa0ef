"""Lines of text for people: how ranks, times and paths read in a sentence. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple

from lllaunch.run.files import relative_path
from lllaunch.units import spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Style = Literal["", "title", "good", "cause", "quote", "faint"]


class Line(NamedTuple):
    """One line.

    Attributes:
        text: what it says, without a newline.
        style: how it looks on a terminal.
    """

    text: str
    style: Style = ""


_WIDTH = 76


def ranks(numbers: Iterable[int]) -> str:
    """Returns ``rank 3`` or ``ranks 0-2, 5``."""
    known = set(numbers)
    return f"{'rank' if len(known) == 1 else 'ranks'} {spans(known)}"


def counted(number: int, noun: str) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def capitalised(text: str) -> str:
    """Returns a text as it stands at the beginning of a sentence; names keep their capitals."""
    return f"{text[:1].upper()}{text[1:]}"


def shown_path(path: str, cwd: str) -> str:
    """Returns a path as the user would type it: relative where it lies below ``cwd``.

    A path that holds what a terminal cannot show in one line comes quoted.
    """
    shown = relative_path(path, cwd)
    return shown if shown.isprintable() else repr(shown)


def wrapped(text: str) -> Iterator[Line]:
    """Yields a text as lines of the report, indented and of bounded width; none if it is empty."""
    for part in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
        yield Line(f"    {part}")
