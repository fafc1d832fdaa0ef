"""A function's return value: left by its worker in the attempt's directory.

``return.json`` holds it where it is JSON and small. Else, or if it would come back as something
else than it is, ``return.pkl`` does, and ``return.meta.json`` its type and size, so that the
launcher can tell of it without unpickling anything.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from lllaunch.errors import NotPicklable, OutputError
from lllaunch.files import replace_file

# Names the file for the return value; set by the launcher. Without it, it is the error file's
# neighbour.
RETURN_FILE = "LLLAUNCH_RETURN_FILE"
# Beside the error file: what a worker's code exited with, and where.
EXIT_FILE = "exit.json"
# What result.json may hold of one value, bytes.
INLINE_LIMIT = 64 * 1024


class _ByValue(pickle.Pickler):
    """Tensors go by value and on the CPU: the launcher has no GPU and may outlive the worker."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(obj, torch.Tensor) or obj.device.type == "cpu":
            return NotImplemented
        return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def dumps(value: object) -> bytes:
    """Pickle a return value."""
    buffer = io.BytesIO()
    _ByValue(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def return_file(environ: Mapping[str, str] = os.environ) -> str:
    """Where this worker's return value goes, or an empty string."""
    path = environ.get(RETURN_FILE, "")
    if path:
        return path
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not error_file or error_file == os.devnull:
        return ""
    return os.path.join(os.path.dirname(error_file), "return.pkl")


def save_return_value(value: object) -> None:
    """Leave a return value where the launcher finds it.

    Raises:
        NotPicklable: it cannot be pickled.
        OutputError: the file cannot be written, and the value is not None.
    """
    path = return_file()
    if not path:
        return
    whose = f"the return value ({type(value).__qualname__}) of worker {os.environ.get('RANK', '?')}"
    try:
        data = dumps(value)
    except Exception as error:
        raise NotPicklable(whose, f"{type(error).__name__}: {error}") from error
    try:
        stem, text = path.removesuffix(".pkl"), _as_json(value)
        # A function that reported a value and returns nothing has said what it has to say.
        if text is not None and not (value is None and os.path.exists(f"{stem}.json")):
            replace_file(f"{stem}.json", text)
        if text is not None and dumps(json.loads(text)) == data:
            return
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        meta = {"type": kind, "size": len(data), "json": text is not None}
        replace_file(f"{stem}.meta.json", json.dumps(meta).encode())
        replace_file(path, data)
    except OSError as error:
        if value is None:
            # Nothing is lost: the function has done its work, whatever the disk has room for.
            return
        raise OutputError(path, f"{whose} cannot be written: {error.strerror}") from error


def _as_json(value: object) -> bytes | None:
    try:
        text = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= INLINE_LIMIT and json.loads(text) == value else None
