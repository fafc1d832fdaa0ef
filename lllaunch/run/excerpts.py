"""Reading what workers left in their directories, for people: bounded, and never raising.

A worker may have written anything: gigabytes, half a character, terminal escapes, no JSON at all.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from lllaunch.error_file import read_error_file
from lllaunch.run.outcome import Excerpt
from lllaunch.run.records import ExitCall, WorkerError
from lllaunch.spawner.dump import CRASH
from lllaunch.spawner.values import EXIT_FILE
from lllaunch.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LINES = 20
_TAIL_BYTES = 64 * 1024
_LINE_CHARACTERS = 400
_ERROR_BYTES = 16 * 1024 * 1024
# faulthandler's words
_FATAL = "Fatal Python error: "
_DUMPED = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*:$|Extension modules: ")


def clean_lines(text: str) -> tuple[str, ...]:
    r"""Returns the lines of ``text`` as a terminal would show them at the end.

    Of a line that was drawn over with ``\r`` (a progress bar) the last drawing counts; trailing
    blank lines are dropped, very long lines shortened.
    """
    lines = [_line(line) for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(lines)


def _line(line: str) -> str:
    drawings = [part for part in line.split("\r") if part]
    text = clean(drawings[-1] if drawings else "").rstrip()
    if len(text) <= _LINE_CHARACTERS:
        return text
    return f"{text[:_LINE_CHARACTERS]}... ({len(text) - _LINE_CHARACTERS} more characters)"


def tail(path: str, lines: int = LINES, hide: Callable[[str], str] = str) -> Excerpt | None:
    """Returns the last lines of a log, None if it cannot be read.

    Shows at most 64 KiB, from the end, however long the file is; as much before that is read, so
    that a secret of several lines is seen as one.

    Args:
        path: the log.
        lines: how many lines at most.
        hide: applied to what it says, to take secrets out.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - 2 * _TAIL_BYTES)
            file.seek(start)
            data = file.read(2 * _TAIL_BYTES)
    except OSError:
        return None
    text = hide(data.decode("utf-8", errors="replace"))
    cut = bool(start) or len(text) > _TAIL_BYTES
    found = clean_lines(text[-_TAIL_BYTES:])
    if cut and len(found) > 1:
        found = found[1:]  # its beginning is before what is shown
    return Excerpt(path, found[-lines:], cut=cut or len(found) > lines)


def read_crash(directory: str, stderr: str, hide: Callable[[str], str] = str) -> str:
    """Returns what Python wrote when a fatal signal ended a worker, an empty string if nothing.

    Args:
        directory: the worker's.
        stderr: the file of its standard error, where its own faulthandler writes; or empty.
        hide: applied to what it says, to take secrets out.
    """
    for path in (os.path.join(directory, CRASH), stderr):
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
        except OSError:
            continue
        found = text.rfind(_FATAL)
        if found >= 0:
            return clean_text(hide(text[found:]))
    return ""


def without_dump(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns lines of a log without the stacks that faulthandler wrote there."""
    kept: list[str] = []
    inside = False
    for line in lines:
        if _DUMPED.match(line):
            inside = True
        elif not (inside and (line.startswith("  ") or not line.strip())):
            inside = False
            kept.append(line)
    return tuple(kept)


def read_error(path: str, hide: Callable[[str], str] = str) -> WorkerError | None:
    """Reads a worker's error.json, ours or torch's; None if it is not there or makes no sense.

    Args:
        path: the file.
        hide: applied to what it says, to take secrets out.
    """
    try:
        if not 0 < os.stat(path).st_size <= _ERROR_BYTES:
            return None
    except OSError:
        return None
    record = read_error_file(path)
    if record.problem:
        return None
    if isinstance(record.message, str):
        return WorkerError(clean_text(hide(record.message)), "", record.time_ns)
    text, extra = record.message.get("message"), record.message.get("extraInfo")
    if not isinstance(text, str):
        return None
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    return WorkerError(
        message=clean_text(hide(text)),
        traceback=clean_text(hide(traceback)) if isinstance(traceback, str) else "",
        time_ns=record.time_ns,
    )


def read_exit_call(error_file: str, hide: Callable[[str], str] = str) -> ExitCall | None:
    """Reads a worker's exit.json; None if it is not there or makes no sense.

    Args:
        error_file: the worker's error.json, which it lies beside.
        hide: applied to the text that the worker exited with, to take secrets out.
    """
    try:
        with open(os.path.join(os.path.dirname(error_file), EXIT_FILE), encoding="utf-8") as file:
            data = json.loads(file.read(_ERROR_BYTES))
        code = data["code"]
        return ExitCall(
            code=code if isinstance(code, int) else clean_text(hide(str(code))),
            file=clean(str(data["file"])),
            line=int(data["line"]),
            function=clean(str(data["function"])),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def clean_text(text: str) -> str:
    """Returns ``text`` with each of its lines cleaned."""
    return "\n".join(clean_lines(text))
