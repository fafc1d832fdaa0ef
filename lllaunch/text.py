"""Time spans, sizes, ranges of numbers and texts as people read them. Pure.

Whatever comes from elsewhere is made harmless by one function here before it is shown: `visible` in
messages, `printable` in one line of them, `plain` where a worker's output is shown, `coloured`
where its colours are kept, `clean` in files.
"""

from __future__ import annotations

import re

# Type checkers know this name; importing it from typing takes longer than all that is here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable


def duration(seconds: float) -> str:
    """Returns a time span as people say it: ``30 ms``, ``0.3 s``, ``3 min 20 s``, ``1 h``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest:02d} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def size(count: int) -> str:
    """Returns a number of bytes as people read it: ``512 KiB``, ``1.5 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: float) -> str:
    """Returns a number as people read it: ``1200``, ``12,000``, ``0.31``, ``nan``."""
    if number == number // 1 and abs(number) < 1e15:
        return f"{number:.0f}" if abs(number) < 10_000 else f"{number:,.0f}"
    return f"{number:.4g}"


def times(number: int) -> str:
    """Returns how often something was: ``once``, ``2 times``."""
    return "once" if number == 1 else f"{number} times"


def as_ranges(numbers: Iterable[int]) -> list[range]:
    """Returns numbers as the fewest ranges, in order."""
    ranges: list[range] = []
    for number in sorted(set(numbers)):
        follows = bool(ranges) and ranges[-1].stop == number
        start = ranges.pop().start if follows else number
        ranges.append(range(start, number + 1))
    return ranges


def write_range(numbers: range) -> str:
    """Returns ``3`` or ``1-7``."""
    return f"{numbers.start}" if len(numbers) == 1 else f"{numbers.start}-{numbers.stop - 1}"


def spans(numbers: Iterable[int]) -> str:
    """Returns numbers as text: ``0-3, 7``."""
    return ", ".join(map(write_range, as_ranges(numbers)))


# What a terminal obeys and does not show (ECMA-48: CSI, OSC, escapes of two characters).
_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
# Of these colours and the like, which move nothing.
_COLOUR = r"\x1b\[[0-9;:]*m"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"
# What turns the direction of the text that follows: a name could read as another one.
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")
# What UTF-8 or XML cannot hold.
_NEVER = "[\ud800-\udfff\ufffe\uffff]"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """Return a text with what a terminal obeys or hides escaped, but for line breaks and tabs."""
    return text if text.isprintable() else _escaped(text, "\n\t")


def printable(text: str, most: int) -> str:
    """Return a text on one line with what a terminal obeys or hides escaped, and not too long."""
    text = text if text.isprintable() else _escaped(text.replace("\t", " "))
    return shorten_middle(text, most)


def plain(text: str) -> str:
    """Return a text on one line without what a terminal obeys; other characters are escaped."""
    if text.isprintable():
        return text
    return _escaped(re.sub(_SEQUENCE, "", text).replace("\t", " "))


def coloured(text: str) -> str:
    """Return the same with its colours and tabs; colours end with it."""
    if text.isprintable():
        return text
    # every other part is a colour
    parts = re.split(f"({_COLOUR})", text)
    parts[::2] = [_escaped(re.sub(_SEQUENCE, "", part), "\t") for part in parts[::2]]
    return "".join([*parts, "\x1b[0m" if len(parts) > 1 else ""])


def clean(text: str) -> str:
    """Return a text of several lines as a file in UTF-8 and an XML document can hold it.

    Without what would move a cursor, or change colours or the direction; line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    text = re.sub(_CONTROL, _REPLACEMENT, re.sub(_SEQUENCE, "", text))
    text = _TURNING.sub(lambda found: ascii(found[0])[1:-1], text)
    return re.sub(_NEVER, _REPLACEMENT, text)


def _escaped(text: str, kept: str = "") -> str:
    return "".join(
        char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text
    )


def first_line(text: str, most: int = 300) -> str:
    """Return the first line of a text that says something, shortened."""
    return shorten(next((line for line in text.splitlines() if line.strip()), "").strip(), most)


def shorten(text: str, most: int = 400) -> str:
    """Return a text of at most so many characters, by default what a message can bear."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shorten_middle(text: str, most: int) -> str:
    """Return a text of at most so many characters, without its middle if need be."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
