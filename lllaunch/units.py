"""Time spans, sizes, ranges of numbers and texts as people read them. Pure."""

from __future__ import annotations

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


def as_ranges(numbers: Iterable[int]) -> list[range]:
    """Returns numbers as the fewest ranges, in order."""
    ranges: list[range] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def write_range(numbers: range) -> str:
    """Returns ``3`` or ``1-7``."""
    return f"{numbers.start}" if len(numbers) == 1 else f"{numbers.start}-{numbers.stop - 1}"


def spans(numbers: Iterable[int]) -> str:
    """Returns numbers as text: ``0-3, 7``."""
    return ", ".join(map(write_range, as_ranges(numbers)))


def visible(text: str) -> str:
    """Returns a text with what a terminal obeys or hides escaped, but for line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def first_line(text: str, most: int = 300) -> str:
    """Return the first line of a text that says something, shortened to ``most`` characters."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return line if len(line) <= most else f"{line[: most - 3]}..."
