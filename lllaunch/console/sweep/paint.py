"""Colours for a terminal, and plain text for all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.console.sweep.table import Row

# What rich calls the styles of `lllaunch.console.wording` and of the table.
_STYLES = {
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


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream says that it is one."""
    try:
        return stream.isatty()
    except (AttributeError, OSError, ValueError):  # somebody's own object, or closed
        return False


def painted(rows: Sequence[Row], stream: TextIO) -> list[str]:
    """Returns rows as text, with colours if the stream is a terminal that has some."""
    if not is_terminal(stream) or not any(span.style for row in rows for span in row):
        return ["".join(span.text for span in row) for row in rows]
    # 50 ms to import, and needed only where there is a terminal to colour
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, soft_wrap=True, highlight=False)
    text = Text()
    for row in rows:
        for span in row:
            text.append(span.text, style=_STYLES[span.style])
        text.append("\n")
    with console.capture() as capture:
        console.print(text, end="")
    return capture.get().split("\n")[: len(rows)]
