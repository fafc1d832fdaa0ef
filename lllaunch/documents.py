"""JSON files of any make: half written, of another version, or somebody else's.

A file is read whole or not at all, and `Fields` gives what an object has of the expected type. What
is decided from that is in `lllaunch.run.result` for result.json and `lllaunch.sweep.history` for
sweep.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from lllaunch.files import read_bytes

_MOST_SECONDS = 1e10  # three centuries
_MOST_WHOLE = 2**63


def load_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object that a file holds, None if there is no such file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else; says what.
    """
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = _loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - of what was read
    return document


def read_json(path: str) -> dict[str, Any] | None:
    """Return the same; None also if the file cannot be read or holds something else."""
    try:
        return load_json(path)
    except (OSError, ValueError):
        return None


def last_record(path: str, window: int) -> dict[str, Any] | None:
    """Return the last whole line of a file of JSON lines that is an object, None without one.

    Args:
        path: of the file.
        window: how many bytes at its end are looked at.
    """
    try:
        lines = read_bytes(path, window).split(b"\n")
    except (OSError, ValueError):
        return None
    for line in reversed(lines[:-1]):
        try:
            record = _loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return None


def _loads(data: bytes) -> Any:
    # NaN and Infinity are not JSON
    return json.loads(data, parse_constant=lambda _: None)


def nanoseconds(moment: object) -> int | None:
    """Return an ISO 8601 time in UTC as nanoseconds since the epoch, None if it is none."""
    from datetime import datetime  # noqa: PLC0415 - not every reader wants a time

    if not isinstance(moment, str) or not moment.endswith("Z"):
        return None
    try:
        time = datetime.fromisoformat(f"{moment[:-1]}+00:00")
    except ValueError:
        return None
    return int(time.timestamp()) * 1_000_000_000 + time.microsecond * 1000


class Fields:
    """A JSON object of any make: what it lacks, or has of another type, is None or empty.

    Args:
        value: the object; anything else has no fields.
    """

    __slots__ = ("document",)

    def __init__(self, value: object = None) -> None:
        self.document: Mapping[str, Any] = value if isinstance(value, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self.document)

    def __contains__(self, name: str) -> bool:
        return name in self.document

    def value(self, name: str) -> Any:
        """Return whatever a field holds."""
        return self.document.get(name)

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.document.get(name)
        return value if isinstance(value, str) else ""

    def integer(self, name: str) -> int | None:
        """Return a whole number of at most 64 bits."""
        return _integer(self.document.get(name))

    def number(self, name: str) -> float | None:
        """Return a finite number."""
        value = self.document.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if abs(value) < _MOST_WHOLE and math.isfinite(value) else None

    def seconds(self, name: str) -> float | None:
        """Return a number that a time span can be."""
        value = self.number(name)
        return value if value is not None and 0 <= value < _MOST_SECONDS else None

    def flag(self, name: str) -> bool | None:
        """Return a truth value."""
        value = self.document.get(name)
        return value if isinstance(value, bool) else None

    def time_ns(self, name: str) -> int | None:
        """Return a time in nanoseconds since the epoch."""
        return nanoseconds(self.document.get(name))

    def inner(self, name: str) -> Fields:
        """Return an object within."""
        return Fields(self.document.get(name))

    def objects(self, name: str) -> list[Fields]:
        """Return the objects of a list."""
        return [Fields(each) for each in self._list(name) if isinstance(each, Mapping)]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(each for each in self._list(name) if isinstance(each, str))

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return the whole numbers of a list."""
        return tuple(each for each in self._list(name) if _integer(each) is not None)

    def _list(self, name: str) -> list[Any]:
        value = self.document.get(name)
        return value if isinstance(value, list) else []


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < _MOST_WHOLE else None
