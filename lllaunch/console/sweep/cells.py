"""How much room text takes on a terminal, and how it is made to fit. Pure."""

from __future__ import annotations

import re
import unicodedata

# Colours and the like; they move nothing.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
# Other sequences that a terminal obeys: they are dropped as a whole.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
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


def harmless(text: str) -> str:
    """Returns a text that may have colours and cannot move the cursor."""
    if text.isprintable():
        return text
    found, end = [], 0
    for match in _COLOURS.finditer(text):
        found += [_plain(text[end : match.start()], tab="\t"), match[0]]
        end = match.end()
    return "".join([*found, _plain(text[end:], tab="\t"), "\x1b[0m" if end else ""])


def plain(text: str) -> str:
    """Returns a text without anything that is not shown, for a cell of a table."""
    return text if text.isprintable() else _plain(_COLOURS.sub("", text), tab=" ")


def _plain(text: str, tab: str) -> str:
    text = _SEQUENCES.sub("", text)
    return "".join(
        each if each.isprintable() else tab if each == "\t" else _named(each) for each in text
    )


def _named(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
