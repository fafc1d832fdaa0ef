"""A line of what the launcher says."""

from __future__ import annotations

from typing import Literal, NamedTuple

Style = Literal["", "title", "good", "cause", "quote", "faint"]


class Line(NamedTuple):
    """One line.

    Attributes:
        text: what it says, without a newline.
        style: how it looks on a terminal.
    """

    text: str
    style: Style = ""
