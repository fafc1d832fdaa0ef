"""Reading documents that anybody may have written: each field has its type or its default. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lllaunch.run.excerpts import clean

# what UTF-8 or XML cannot hold
_NEVER = re.compile("[\ud800-\udfff\ufffe\uffff]")
_NOTHING: Mapping[str, Any] = {}


def tidy(text: str) -> str:
    """Returns a text that a terminal, a file in UTF-8 and an XML document can hold."""
    return _NEVER.sub("\N{REPLACEMENT CHARACTER}", clean(text))


def text(fields: Mapping[str, Any], name: str) -> str:
    """Returns a text, tidy; an empty one if it is left out or of another type."""
    value = fields.get(name)
    return tidy(value) if isinstance(value, str) else ""


def whole(fields: Mapping[str, Any], name: str) -> int | None:
    """Returns a whole number, None if it is left out or of another type."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(fields: Mapping[str, Any], name: str) -> float | None:
    """Returns a finite number, None if it is left out or of another type."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def inner(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns an object within, an empty one if it is left out or of another type."""
    value = fields.get(name)
    return value if isinstance(value, Mapping) else _NOTHING


def objects(fields: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Yields the objects of a list; none if it is left out or of another type."""
    value = fields.get(name)
    for each in value if isinstance(value, list) else ():
        if isinstance(each, Mapping):
            yield each


def texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Returns the texts of a list, tidy; none if it is left out or of another type."""
    value = fields.get(name)
    found = value if isinstance(value, list) else ()
    return tuple(tidy(each) for each in found if isinstance(each, str))


def numbers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Returns the whole numbers of a list; none if it is left out or of another type."""
    value = fields.get(name)
    found = value if isinstance(value, list) else ()
    return tuple(each for each in found if isinstance(each, int) and not isinstance(each, bool))


def first_line(words: str, longest: int = 300) -> str:
    """Returns the first line of a text that says something, shortened."""
    line = next((line for line in words.splitlines() if line.strip()), "").strip()
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
