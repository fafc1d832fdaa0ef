"""Reading requests: blocks of bytes in, requests and rejections out. Pure.

The form is torch's (``torch.distributed.elastic.timer``, version 1): one JSON object a line, of at
most PIPE_BUF bytes with its newline, so that requests of several writers are never mixed.
"""

from __future__ import annotations

import json
import math
import re
import select
from collections.abc import Callable
from typing import Any, NamedTuple

from lllaunch.timer.request import FileTimerRequest

_TEXT = 120
_MAX_PID = 2**31 - 1
_MAX_SIGNAL = 64

# What both clients write, unless the scope has other characters than these: four times as fast as
# a JSON parser. What does not match is parsed as JSON.
_USUAL = re.compile(
    rb'\{"version": 1, "pid": ([1-9][0-9]{0,8}), "scope_id": "([ !#-\[\]-~]*)", '
    rb'"expiration_time": (-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?), '
    rb'"signal": (0|[1-9]|[1-5][0-9]|6[0-4])\}'
).fullmatch
_START = b'{"version"'


class Rejected(NamedTuple):
    """A request that was not understood or not allowed.

    Attributes:
        pid: the process that it says it comes from; None if it does not say.
        reason: what is wrong with it, as a clause.
        text: what was read, shortened and printable; empty if the reason says it all.
    """

    pid: int | None
    reason: str
    text: str


class RequestReader:
    """Splits what is read into lines and understands them."""

    def __init__(self) -> None:
        self._rest = b""
        self._overlong = False

    def feed(self, block: bytes) -> tuple[list[FileTimerRequest], list[Rejected]]:
        """Takes the next bytes.

        Args:
            block: they; any length. The end of the last line may come with a later block.

        Returns:
            The requests of the lines that are complete, in order, and what was wrong with others.
        """
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        requests: list[FileTimerRequest] = []
        rejected: list[Rejected] = []
        if self._overlong and lines:
            # It was reported when it grew too long. Its end may be another's request.
            self._overlong = False
            requests += _rescued(lines.pop(0))
        for line in lines:
            found = parse(line)
            if isinstance(found, FileTimerRequest):
                requests.append(found)
            elif found is not None:
                rejected.append(found)
                requests += _rescued(line)
        if len(self._rest) >= select.PIPE_BUF:
            if not self._overlong:
                rejected.append(_too_long(self._rest))
            self._overlong = True
            self._rest = self._rest[-select.PIPE_BUF :]
        return requests, rejected


def _rescued(line: bytes) -> list[FileTimerRequest]:
    """The request at the end of a bad line, if there is one.

    Somebody wrote less than a line, or more than the kernel keeps together, and a good request of
    another process came to stand right behind. ``{"version"`` cannot stand inside of a JSON string.
    """
    start = line.rfind(_START)
    found = parse(line[start:]) if start >= 0 else None
    return [found] if isinstance(found, FileTimerRequest) else []


def parse(line: bytes) -> FileTimerRequest | Rejected | None:
    """Understands a line.

    Args:
        line: without its newline.

    Returns:
        The request, or what is wrong with it; None for a blank line.
    """
    usual = _USUAL(line)
    if usual is not None and len(line) < select.PIPE_BUF:
        pid, scope, expiration, signum = usual.groups()
        return FileTimerRequest(int(pid), scope.decode(), float(expiration), int(signum))
    if not line.strip():
        return None
    return _too_long(line) if len(line) >= select.PIPE_BUF else _parse_json(line)


def _parse_json(line: bytes) -> FileTimerRequest | Rejected:
    try:
        fields = json.loads(line.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        return Rejected(None, f"it is not JSON ({reason})", shortened(line))
    if not isinstance(fields, dict):
        return Rejected(None, "it is not a JSON object", shortened(line))
    reason = _wrong_with(fields)
    if reason:
        pid = fields.get("pid")
        return Rejected(pid if _is_pid(pid) else None, reason, shortened(line))
    # A lone surrogate can neither be written nor shown.
    scope = fields["scope_id"].encode(errors="backslashreplace").decode()
    return FileTimerRequest(
        fields["pid"], scope, float(fields["expiration_time"]), fields["signal"]
    )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pid(value: Any) -> bool:
    return _is_whole(value) and 0 < value <= _MAX_PID


def _is_time(value: Any) -> bool:
    try:
        return (_is_whole(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:
        return False


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("version", lambda value: _is_whole(value) and value == 1, "is not 1"),
    ("pid", _is_pid, "is no process id"),
    ("scope_id", lambda value: isinstance(value, str), "is no string"),
    ("expiration_time", _is_time, "is no finite number"),
    ("signal", lambda value: _is_whole(value) and value <= _MAX_SIGNAL, "is no signal"),
)


def _wrong_with(fields: dict[str, Any]) -> str:
    """What is wrong with the fields of a request, or an empty string."""
    # torch's server does not ask for the version, so something else than a client may leave it out.
    fields = {"version": 1, **fields}
    missing = [name for name, _, _ in _CHECKS if name not in fields]
    if missing:
        return f"it has no {', '.join(missing)}"
    for name, fine, what in _CHECKS:
        if not fine(fields[name]):
            return f"its {name} {what}"
    return ""


def _too_long(line: bytes) -> Rejected:
    return Rejected(None, f"it is longer than {select.PIPE_BUF} bytes", shortened(line))


def shortened(line: bytes) -> str:
    """Returns the first part of a line in printable characters."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in line[:_TEXT].decode(errors="backslashreplace")
    )
    return text if len(line) <= _TEXT else f"{text}..."
