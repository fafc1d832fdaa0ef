"""``lllaunch.report``: how a script or program's worker hands a value back to its launcher."""

from __future__ import annotations

import json
import os
from typing import Any

from lllaunch.errors import OutputError
from lllaunch.files import replace_file

RESULT_FILE = "LLLAUNCH_RESULT_FILE"
"""Environment variable that names the file for a worker's value; set by the launcher."""


def report(value: Any) -> bool:
    """Report a worker's result to the launcher, which writes it to result.json.

    A later call replaces an earlier one. Outside of lllaunch it does nothing.

    ``value``: anything that JSON can hold: None, bool, int, float, str, lists, tuples, and mappings
    with keys of these. ``nan`` and infinities are written as Python does. Returns whether the value
    was written; False outside of lllaunch.

    Raises:
        TypeError: the value cannot be JSON; the message names the part and its type.
        ValueError: the value contains itself.
        OutputError: the file cannot be written.
    """
    path = os.environ.get(RESULT_FILE, "")
    if not path:
        return False
    try:
        data = json.dumps(value).encode()
    except TypeError:
        raise _explain(value) from None
    try:
        replace_file(path, data)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    return True


def _explain(value: Any) -> TypeError:
    where, part = _culprit(value, "value") or ("value", value)
    kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    return TypeError(
        f"lllaunch.report: {where} is a {kind}, which JSON cannot hold; "
        "convert it first (a tensor or array: .item() or .tolist())"
    )


def _culprit(value: Any, where: str) -> tuple[str, Any] | None:
    """Returns the first part of ``value`` that JSON cannot hold, and how to reach it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return None
    if isinstance(value, dict):
        for key, item in value.items():
            if not (key is None or isinstance(key, (str, int, float, bool))):
                return f"a key of {where}", key
            found = _culprit(item, f"{where}[{key!r}]")
            if found:
                return found
        return None
    if isinstance(value, (list, tuple)):
        parts = (_culprit(item, f"{where}[{index}]") for index, item in enumerate(value))
        return next(filter(None, parts), None)
    return where, value
