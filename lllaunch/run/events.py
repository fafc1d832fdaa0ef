"""events.jsonl: every event and action of a run, one JSON object a line.

Each line holds ``time`` (ISO 8601, UTC), ``time_ns`` (nanoseconds since the epoch), ``type`` (the
name of the event or action) and its fields. Values of environment variables and arguments of
workers are left out: they may be secret, and plan.yaml has what may be shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.documents import Plain, Record, decode_record, isoformat
from lllaunch.errors import OutputError
from lllaunch.files import read_text
from lllaunch.run.files import LineFile
from lllaunch.supervisor.machine import RestartHistory

# Fields that may hold secrets, or megabytes.
_HIDDEN = frozenset(
    {"argv", "args", "kwargs", "call", "payload", "env", "envs", "environ", "trace", "times_ns"}
)


def encode(event: object, time_ns: int, redact: Callable[[str], str] = str) -> bytes:
    """Return an event as one line of JSON; a ``time_ns`` of its own overrides the argument."""
    fields: dict[str, Any] = Plain(redact, hidden=_HIDDEN, named=True)(event)
    at = fields.pop("time_ns", None)
    at = at if isinstance(at, int) and at > 0 else time_ns
    line = {"time": isoformat(at), "time_ns": at, "type": type(event).__name__, **fields}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", errors="backslashreplace") + b"\n"


class _Ended(Record, frozen=True):
    finding: Raw = Raw(b"null")


class EventLine(Record, frozen=True):
    """A line of events.jsonl, as far as anybody looks at it who shows a run.

    The types of the events say what each field is; an event has some of them.
    """

    time_ns: int | None = None
    type: str = ""
    attempt: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    base_rank: int = 0
    pid: int | None = None
    exitcode: int | None = None
    signum: int | None = None
    seconds: float | None = None
    reason: str | None = None
    state: str | None = None
    module: str = ""
    restart: int | None = None
    restarts: int | None = None
    preflight: bool = False
    ends: bool = True
    stacks: tuple[Raw, ...] = ()
    finding: Raw = Raw(b"null")
    ended: _Ended = _Ended()
    history: RestartHistory | None = None


def decode(line: bytes) -> EventLine | None:
    """Return what a line says, None if it is torn, or is none of ours."""
    try:
        event = decode_record(line, EventLine)
    except (ValueError, RecursionError):
        return None
    # a finding that is an event by itself
    return replace(event, finding=Raw(line)) if event.type == "NotFinite" else event


def read_history(path: str) -> RestartHistory | None:
    """Return what became of the attempts of an earlier batch job of the same run.

    None if the file does not say. Restarts count in their own batch job only, so there is nothing
    in it of when they were.
    """
    for line in reversed((read_text(path) or "").split("\n")):
        event = decode(line.encode()) if '"history": {' in line else None
        if event is not None and event.history is not None:
            return replace(event.history, times_ns=())
    return None


class EventLog(LineFile):
    """Appends events to a file, one line each."""

    def __init__(
        self,
        path: str,
        on_error: Callable[[OutputError], None],
        redact: Callable[[str], str] = str,
    ) -> None:
        super().__init__(path, on_error)
        self._redact = redact

    def write(self, event: object) -> None:
        """Append an event; never raises for the disk's sake."""
        self.append(encode(event, now_ns(), self._redact))
