"""``lllaunch.report``: how a script or program's worker hands a value back to its launcher."""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

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
        TypeError: the value cannot be JSON; the message names the type of the part that cannot.
        ValueError: the value contains itself.
        OutputError: the file cannot be written.
    """
    path = os.environ.get(RESULT_FILE, "")
    if not path:
        return False
    data = json.dumps(value, default=_refuse).encode()
    try:
        replace_file(path, data)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    return True


def _refuse(part: object) -> NoReturn:
    kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"lllaunch.report: JSON cannot hold a {kind}; "
        "convert it first (a tensor or array: .item() or .tolist())"
    )
