"""The error file of a worker: read in whatever state it is, written whole or not at all.

The format is that of ``torch.distributed.elastic.multiprocessing.errors``: a JSON object whose
``message`` is either text or ``{"message", "extraInfo": {"py_callstack", "timestamp"}}``, the
timestamp in whole seconds since the epoch, as text. Ours adds to ``extraInfo`` the nanoseconds, as
``timestamp_ns``, and the same on a clock that nobody sets, as ``since_boot_ns`` of a ``boot_id``.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from lllaunch.moments import boot_id, from_boot, since_boot_ns

_NS = 1_000_000_000
# Later than any clock of a machine that runs this; what is beyond cannot be shown as a date.
_LATEST_S = 1 << 34
# A timestamp in whole seconds and the file's own time belong together within this many seconds.
_SETTLING_S = 5


@dataclass(frozen=True)
class ErrorRecord:
    """What an error file says.

    Attributes:
        data: the whole JSON object.
        message: text, or the mapping under ``message``.
        time_ns: when the error happened, nanoseconds since the epoch; on the scale of
            `lllaunch.moments.now_ns` if the file tells.
        problem: why the file could not be read, or an empty string; the other fields are then
            placeholders, except ``time_ns``, which is still the best that is known.
    """

    message: str | dict[str, Any]
    time_ns: int
    data: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_error_file(path: str) -> ErrorRecord:
    """Reads an error file written by us or by torch; never raises for what is in it.

    Args:
        path: the file; it should exist.

    Returns:
        What it says, or a record whose ``problem`` tells why that is not known.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            changed_ns = os.fstat(file.fileno()).st_mtime_ns
            text = file.read()
    except (OSError, MemoryError) as error:
        return ErrorRecord("", time.time_ns(), problem=f"{type(error).__name__}: {error}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "it is empty" if not text.strip() else f"it is no whole JSON document: {error}"
        return ErrorRecord("", changed_ns, problem=kind)
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, (str, dict)):
        return ErrorRecord("", changed_ns, problem="it holds no 'message' in the expected form")
    return ErrorRecord(message, _time_of(data, message, changed_ns), data)


def _time_of(data: dict[str, Any], message: str | dict[str, Any], changed_ns: int) -> int:
    """When the error happened, as exactly as the file allows."""
    extra = message.get("extraInfo") if isinstance(message, dict) else data
    if not isinstance(extra, dict):
        return changed_ns
    # Two workers that failed one after the other may have a step of the wall clock between them.
    moment = _whole_number(extra.get("since_boot_ns"), since_boot_ns())
    if moment is not None and extra.get("boot_id") == boot_id():
        return from_boot(moment)
    exact = _whole_number(extra.get("timestamp_ns"), _LATEST_S * _NS)
    if exact is not None:
        return exact
    seconds = _whole_number(extra.get("timestamp"), _LATEST_S)
    if seconds is None:
        return changed_ns
    # Torch knows whole seconds only; the file was written right after the error, so its own time
    # says which of two failures within one second was first. A copied file is recognised by a gap.
    if 0 <= changed_ns - seconds * _NS < _SETTLING_S * _NS:
        return changed_ns
    return seconds * _NS


def _whole_number(value: object, limit: int) -> int | None:
    if not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < limit else None


def write_error_file(path: str, text: str) -> None:
    """Writes an error file so that a reader sees all of it or what was there before.

    A target that is no regular file (a pipe, ``/dev/null``) is written to in place, and so is a
    file whose directory takes no new ones.

    Args:
        path: the file; its directory must exist.
        text: its new contents.

    Raises:
        OSError: it cannot be written, for instance because the disk is full.
    """
    contents = text.encode("utf-8", "surrogatepass")
    target = os.path.realpath(path)
    if not _is_replaceable(target):
        _write_in_place(target, contents)
        return
    temporary = f"{target}.{os.getpid()}.{time.time_ns()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except PermissionError:
        _write_in_place(target, contents)
        return
    try:
        _write_and_close(descriptor, contents, sync=True)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_replaceable(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


def _write_in_place(path: str, contents: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    _write_and_close(os.open(path, flags, 0o666), contents, sync=False)


def _write_and_close(descriptor: int, contents: bytes, *, sync: bool) -> None:
    try:
        view = memoryview(contents)
        while view:
            view = view[os.write(descriptor, view) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
