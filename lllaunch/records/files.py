"""Reading small files that may be missing, half written or anything at all."""

from __future__ import annotations

import json
import os
import re
import stat
from datetime import datetime
from typing import Any

from lllaunch.config.overrides import redacted_overrides

_MOST = 64 * 1024 * 1024  # bytes
_LONGEST = 1e10  # seconds; three centuries
_TAIL = 16 * 1024  # bytes
# What Hydra writes, where YAML cannot mean anything but the text itself.
_PLAIN = re.compile(r"- ([A-Za-z0-9_+~][\w+~./@,-]*=[\w+~./@,=-]*)")


def _read(path: str, tail: int = 0) -> bytes | None:
    """Returns what a regular file holds, of a long one the end; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with open(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return None
            if tail:
                file.seek(max(0, found.st_size - tail))
            data = file.read(_MOST + 1)
    except OSError:
        return None
    return data if len(data) <= _MOST else None


def read_json(path: str) -> dict[str, Any] | None:
    """Returns the object that a file holds; None if it holds none, or cannot be read."""
    data = _read(path)
    return None if data is None else _object(data)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        # NaN and Infinity are not JSON
        found = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_text(path: str) -> str | None:
    """Returns the text of a file, None if it cannot be read."""
    data = _read(path)
    return None if data is None else data.decode(errors="backslashreplace")


def read_overrides(directory: str) -> tuple[str, ...]:
    """Return the overrides of a run without secrets; none if they cannot be read.

    Args:
        directory: of the run.
    """
    text = read_text(os.path.join(directory, ".hydra", "overrides.yaml"))
    if not text:
        return ()
    lines = text.splitlines()
    plain = [_PLAIN.fullmatch(line) for line in lines]
    found = [match[1] for match in plain if match]
    return redacted_overrides(found if len(found) == len(lines) else _from_yaml(text))


def _from_yaml(text: str) -> tuple[str, ...]:
    # 15 ms to import, and most overrides are plain
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - PyYAML ships no types

    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    except (yaml.YAMLError, ValueError, RecursionError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def last_event(directory: str) -> dict[str, Any] | None:
    """Returns the last whole line of a run's events.jsonl, None if there is none.

    Args:
        directory: of the run.
    """
    lines = (_read(os.path.join(directory, "events.jsonl"), _TAIL) or b"").split(b"\n")
    return next((found for line in reversed(lines[:-1]) if (found := _object(line))), None)


def nanoseconds(moment: object) -> int | None:
    """Returns an ISO 8601 time in UTC as nanoseconds since the epoch, None if it is none."""
    if not isinstance(moment, str) or not moment.endswith("Z"):
        return None
    try:
        found = datetime.fromisoformat(f"{moment[:-1]}+00:00")
    except ValueError:
        return None
    return int(found.timestamp()) * 1_000_000_000 + found.microsecond * 1000


def finite(number: object) -> float | None:
    """Returns a number that a time span can be, None for anything else."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if 0 <= number < _LONGEST else None
