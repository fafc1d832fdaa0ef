"""Durations and sizes, as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from lllaunch.config.findings import Unfit

_DURATION = "a duration (90, 90s, 10m, 1h30m, 1d)"
_MORE_THAN_0 = "a duration of more than 0"
_SIZE = "a size (1048576, 512MiB, 16GB)"

# Longest first, as they must be written.
_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_PARTS = re.compile(
    r"(?:(\d+(?:\.\d+)?)\s*d)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*h)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*m)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*s)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*ms)?",
    re.ASCII,
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_DAYS = 10_000
# What is written has to be short enough to be read again.
_SHORTEST = Decimal("1e-9")
_LONGEST_TEXT = 60

_BYTES: dict[str, int] = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}
_SIZED = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_LARGEST_SIZE = 2**63 - 1


def parse_duration(value: object, *, zero: bool = True) -> float:
    """Reads a duration.

    Args:
        value: seconds as a number, or text: a number of seconds, or parts with units ``d``, ``h``,
            ``m``, ``s``, ``ms``, largest first, each at most once.
        zero: whether nothing at all is a sensible duration here.

    Returns:
        Seconds.

    Raises:
        Unfit: it is no duration, is negative, is shorter than a nanosecond, or is longer than
            10,000 days.
    """
    seconds = _seconds(value)
    if seconds < 0:
        raise Unfit("a duration of 0 or more" if zero else _MORE_THAN_0)
    if seconds == 0 and not zero:
        raise Unfit(_MORE_THAN_0)
    if 0 < seconds < _SHORTEST:
        raise Unfit("a duration of a nanosecond or more")
    if seconds > _LONGEST_DAYS * _SECONDS["d"]:
        raise Unfit(f"a duration of {_LONGEST_DAYS} days at most")
    return float(seconds)


def _seconds(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise Unfit(_DURATION)
    if not isinstance(value, str):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not number.is_finite():
            raise Unfit(_DURATION, detail="a duration has an end")
        return number
    text = value.strip()
    if len(text) > _LONGEST_TEXT:
        raise Unfit(_DURATION)
    if ":" in text:
        raise Unfit(_DURATION, _without_colons(text), "colons could mean hours or minutes")
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    parts = _PARTS.fullmatch(text.lower())
    if not parts or not any(parts.groups()):
        raise Unfit(_DURATION)
    pairs = zip(parts.groups(), _SECONDS.values(), strict=True)
    return sum((Decimal(part) * unit for part, unit in pairs if part), Decimal(0))


def _without_colons(text: str) -> str:
    fields = text.split(":")
    if not all(re.fullmatch(r"\d{1,9}", field, re.ASCII) for field in fields):
        return "write 1h30m"
    numbers = [int(field) for field in fields]
    if len(numbers) == 3:
        parts = "".join(f"{n}{unit}" for n, unit in zip(numbers, "hms", strict=True) if n)
        return f"write {parts or '0s'}"
    if len(numbers) == 2:
        first, second = numbers
        return f"write {first}h{second}m or {first}m{second}s"
    return "write 1h30m"


def format_duration(seconds: float) -> str:
    """Writes a duration so that `parse_duration` gives the same number of seconds again.

    Args:
        seconds: 0 or more, finite.

    Returns:
        Such as ``30s``, ``1h30m``, ``1d``, ``1m0.5s``.
    """
    rest = Decimal(repr(float(seconds)))
    text = ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        text += f"{int(count)}{unit}" if count else ""
    if rest or not text:
        digits = f"{rest:f}"
        text += f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}s"
    return text


def parse_size(value: object) -> int:
    """Reads a size.

    Args:
        value: bytes as a number, or text: a number and a unit (``B``, ``kB`` … ``PB`` are powers
            of 1000, ``KiB`` … ``PiB`` powers of 1024; capitals do not matter).

    Returns:
        Bytes.

    Raises:
        Unfit: it is no size, is negative, or is no whole number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Unfit(_SIZE)
    size = Decimal(value) if isinstance(value, int) else _sized(value.strip())
    if size < 0:
        raise Unfit("a size of 0 or more")
    if size != size.to_integral_value():
        raise Unfit("a whole number of bytes")
    if size > _LARGEST_SIZE:
        raise Unfit("a size of less than 8 EiB")
    return int(size)


def _sized(text: str) -> Decimal:
    match = _SIZED.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if not match:
        raise Unfit(_SIZE)
    number, unit = match[1], match[2].lower()
    if not unit:
        unit = "b"
    if unit not in _BYTES:
        letter = unit[0].upper()
        meant = unit in {"k", "m", "g", "t", "p", "ki", "mi", "gi", "ti", "pi"}
        hint = f"write {number}{letter}B (powers of 1000) or {number}{letter}iB" if meant else ""
        raise Unfit(_SIZE, hint)
    return Decimal(number) * _BYTES[unit]


def format_size(size: int) -> str:
    """Writes a size so that `parse_size` gives the same number of bytes again.

    Args:
        size: bytes, 0 or more.

    Returns:
        A whole number of the largest unit that divides it, such as ``512MiB``, ``16GB``, ``7B``.
    """
    fitting = [(n, unit) for unit, n in _BYTES.items() if size and size % n == 0]
    factor, unit = max(fitting, default=(1, "b"))
    return f"{size // factor}{_written(unit)}"


def _written(unit: str) -> str:
    if unit == "kb":
        return "kB"
    return unit[0].upper() + unit[1:].replace("b", "B")
