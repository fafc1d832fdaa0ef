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
# No request has fewer bytes: spaces and the version may be left out, nothing else.
_SHORTEST = len('{"pid":1,"scope_id":"","expiration_time":0,"signal":0}')


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


class Fault(NamedTuple):
    """What is wrong with a line; the attributes are those of `Rejected`."""

    pid: int | None
    reason: str


_TOO_LONG = Fault(None, f"it is longer than {select.PIPE_BUF} bytes")
_NO_OBJECT = Fault(None, "it is not a JSON object")


class Read(NamedTuple):
    """What was in a block of bytes.

    Attributes:
        requests: in order.
        rejected: what was wrong with other lines.
        others: how many more lines were wrong.
    """

    requests: list[FileTimerRequest]
    rejected: list[Rejected]
    others: int


class RequestReader:
    """Splits what is read into lines and understands them."""

    def __init__(self) -> None:
        self._rest = b""
        self._overlong = False

    def feed(self, block: bytes, tell: int) -> Read:
        """Takes the next bytes.

        Lines that are no requests cost little, most of all when no more of them are to be told.

        Args:
            block: they; any length. The end of the last line may come with a later block.
            tell: how many rejections are wanted, at most; others are counted.

        Returns:
            What was in the lines that are complete.
        """
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        requests: list[FileTimerRequest] = []
        rejected: list[Rejected] = []
        wrong = 0
        if self._overlong and lines:
            # It was reported when it grew too long. Its end may be another's request.
            self._overlong = False
            requests += _rescued(lines.pop(0))
        for line in filter(None, lines):
            if wrong >= tell and len(line) < _SHORTEST:
                wrong += not line.isspace()
                continue
            found = parse(line)
            if isinstance(found, FileTimerRequest):
                requests.append(found)
            elif found is not None:
                wrong += 1
                requests += _rescued(line)
                if wrong <= tell:
                    rejected.append(Rejected(*found, shortened(line)))
        if len(self._rest) >= select.PIPE_BUF:
            if not self._overlong:
                wrong += 1
                if wrong <= tell:
                    rejected.append(Rejected(*_TOO_LONG, shortened(self._rest)))
            self._overlong = True
            self._rest = self._rest[-select.PIPE_BUF :]
        return Read(requests, rejected, wrong - len(rejected))


def _rescued(line: bytes) -> list[FileTimerRequest]:
    """The request at the end of a bad line, if there is one.

    Somebody wrote less than a line, or more than the kernel keeps together, and a good request of
    another process came to stand right behind. ``{"version"`` cannot stand inside of a JSON string.
    """
    start = line.rfind(_START)
    # The whole line has been tried, unless it is too long.
    found = parse(line[start:]) if start > 0 else None
    return [found] if isinstance(found, FileTimerRequest) else []


def parse(line: bytes) -> FileTimerRequest | Fault | None:
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
    text = line.strip()
    if not text:
        return None
    if len(line) >= select.PIPE_BUF:
        return _TOO_LONG
    if not (text.startswith(b"{") and text.endswith(b"}")):
        # Told without a parser, which takes its time.
        return _NO_OBJECT
    return _parse_json(line)


def _parse_json(line: bytes) -> FileTimerRequest | Fault:
    try:
        fields = json.loads(line.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        return Fault(None, f"it is not JSON ({reason})")
    if not isinstance(fields, dict):
        return _NO_OBJECT
    reason = _wrong_with(fields)
    if reason:
        pid = fields.get("pid")
        return Fault(pid if _is_pid(pid) else None, reason)
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


def shortened(line: bytes) -> str:
    """Returns the first part of a line in printable characters."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in line[:_TEXT].decode(errors="backslashreplace")
    )
    return text if len(line) <= _TEXT else f"{text}..."
