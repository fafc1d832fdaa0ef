"""What workers returned, found as files: nothing here unpickles anything.

A function's worker leaves ``return.pkl`` (the value), ``return.meta.json`` (its type and size) and,
where the value is JSON and small, ``return.json``. A script or program that calls `lllaunch.report`
leaves ``return.json`` alone.
"""

from __future__ import annotations

import json
import os
from typing import Any

from lllaunch.run.outcome import ReturnValue

RETURN_JSON = "return.json"
RETURN_PICKLE = "return.pkl"
RETURN_META = "return.meta.json"

INLINE_LIMIT = 64 * 1024
"""Largest value that result.json holds itself, bytes of JSON."""


def find_return_value(directory: str) -> ReturnValue | None:
    """Returns what the worker of a directory returned or reported, None if it did neither.

    Args:
        directory: attempt_N/R, absolute.
    """
    pickled = _size(os.path.join(directory, RETURN_PICKLE))
    plain = _size(os.path.join(directory, RETURN_JSON))
    text = _inline(os.path.join(directory, RETURN_JSON), plain)
    if pickled is not None:
        path = os.path.join(directory, RETURN_PICKLE)
        type_name = _type_name(os.path.join(directory, RETURN_META))
        return ReturnValue(path, pickled, type_name, text)
    if plain is not None:
        return ReturnValue(os.path.join(directory, RETURN_JSON), plain, "json", text)
    return None


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _inline(path: str, size: int | None) -> str | None:
    """Returns the file's text if it is short and strictly JSON, None otherwise.

    ``NaN`` and ``Infinity``, which Python writes, are no JSON: other readers of result.json would
    stumble over them.
    """
    if size is None or size > INLINE_LIMIT:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(INLINE_LIMIT + 1)
        json.loads(text, parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return text


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _type_name(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["type"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return found if isinstance(found, str) else "unknown"
