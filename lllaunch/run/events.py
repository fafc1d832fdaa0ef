"""events.jsonl: every event and action of a run, one JSON object a line.

Each line holds ``time`` (ISO 8601, UTC), ``time_ns`` (nanoseconds since the epoch), ``type`` (the
name of the event or action) and its fields. Values of environment variables and arguments of
workers are left out: they may be secret, and plan.yaml has what may be shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lllaunch.clock import now_ns
from lllaunch.errors import OutputError
from lllaunch.files import read_text
from lllaunch.run.files import LineFile

if TYPE_CHECKING:
    from lllaunch.supervisor.machine import RestartHistory

# Fields that may hold secrets, or megabytes.
_HIDDEN = frozenset(
    {"argv", "args", "kwargs", "call", "payload", "env", "envs", "environ", "trace", "times_ns"}
)
_DEEPEST = 8


def isoformat(time_ns: int) -> str:
    """Returns a time as ISO 8601 in UTC with microseconds: ``2024-01-31T12:00:00.000000Z``."""
    # not by float division: a double holds nanoseconds since the epoch to some 200 ns only
    seconds, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def encode(event: object, time_ns: int, redact: Callable[[str], str] = str) -> bytes:
    """Returns an event as one line of JSON, newline included.

    Args:
        event: an event or action, a dataclass or a named tuple.
        time_ns: when it was seen; a ``time_ns`` of the event's own is stronger.
        redact: applied to every text in it.
    """
    fields = _plain(event, redact, 0)
    if not isinstance(fields, dict):
        fields = {"value": fields}
    at = fields.pop("time_ns", None)
    at = at if isinstance(at, int) and at > 0 else time_ns
    line = {"time": isoformat(at), "time_ns": at, "type": type(event).__name__, **fields}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", errors="backslashreplace") + b"\n"


def _plain(value: Any, redact: Callable[[str], str], depth: int) -> Any:
    """Returns ``value`` as what JSON knows."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return redact(value)
    if depth >= _DEEPEST:
        return "..."
    return _plain_container(value, redact, depth + 1)


def _plain_container(value: Any, redact: Callable[[str], str], depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _field(field.name, getattr(value, field.name, None), redact, depth)
            for field in dataclasses.fields(value)
        }
        # within an event the kind of a nested decision or target would be lost otherwise
        return fields if depth == 1 else {"type": type(value).__name__, **fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {
            str(_plain(key, redact, depth)): _field(str(key), item, redact, depth)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        ordered = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(item, redact, depth) for item in ordered]
    return _described(value, redact)


def _described(value: Any, redact: Callable[[str], str]) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if isinstance(value, BaseException):
        return redact(f"{type(value).__name__}: {value}")
    return f"<{type(value).__qualname__}>"


def _field(name: str, value: Any, redact: Callable[[str], str], depth: int) -> Any:
    if name in _HIDDEN and value is not None:
        count = len(value) if hasattr(value, "__len__") else 1
        return f"<{count} not shown>"
    return _plain(value, redact, depth)


def read_history(path: str) -> RestartHistory | None:
    """Return what became of the attempts of an earlier batch job of the same run.

    Restarts count in their own batch job only, so there is nothing in it of when they were.

    Args:
        path: of the run's events.jsonl.

    Returns:
        None if the file does not say.
    """
    # few runs go on where a batch job has ended
    from lllaunch.documents import Fields  # noqa: PLC0415
    from lllaunch.supervisor.machine import RestartHistory  # noqa: PLC0415

    for line in reversed((read_text(path) or "").split("\n")):
        if '"history": {' not in line:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            history = Fields(json.loads(line)).inner("history")
            ended_at = history.value("ended_at")
            if isinstance(ended_at, list) and all(map(_is_step, ended_at)):
                return RestartHistory((), history.number("step"), tuple(ended_at))
    return None


def _is_step(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


class EventLog:
    """Appends events to a file, one line each, as `lllaunch.run.files.LineFile` has it.

    Args:
        path: the file; what is there is kept.
        on_error: told once of the first failure.
        redact: applied to every text written.
    """

    def __init__(
        self,
        path: str,
        on_error: Callable[[OutputError], None],
        redact: Callable[[str], str] = str,
    ) -> None:
        self._redact = redact
        self._file = LineFile(path, on_error)

    def write(self, event: object) -> None:
        """Appends an event; never raises for the disk's sake."""
        self._file.append(encode(event, now_ns(), self._redact))

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._file.close()
