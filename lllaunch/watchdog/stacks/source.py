"""The text of the lines that frames are at, for the report and for telling what they wait for."""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from collections.abc import Iterable

from msgspec.structs import replace

from lllaunch.watchdog.stacks.frames import LIBRARY, Frame, LockWait, RankStack, is_own

_MAX_BYTES = 4 << 20
_MAX_WIDTH = 200
# A script may be written and started in the same clock tick; seconds.
_SLACK = 1.0
# Frames of which the lines are read, also in libraries.
_INNERMOST = 12


def started_at(ticks: int) -> float:
    """When a process started, in seconds since the epoch."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


class Sources:
    """Reads source files, each once.

    ``before``: files that were changed after this time (seconds since the epoch) are not those that
    the process runs.
    """

    def __init__(self, before: float) -> None:
        self._before = before
        self._files: dict[str, list[str]] = {}

    def line(self, path: str, number: int) -> str:
        """A line of a file without blanks around it; empty if it cannot be told."""
        lines = self._files.get(path)
        if lines is None:
            lines = self._files[path] = self._read(path)
        return lines[number - 1].strip()[:_MAX_WIDTH] if 0 < number <= len(lines) else ""

    def filled(self, frame: Frame) -> Frame:
        """A frame with the text of its line."""
        return replace(frame, code=self.line(frame.file, frame.line))

    def _read(self, path: str) -> list[str]:
        # `<string>`, `<frozen runpy>`, or relative to a directory that is not known here.
        if not path.endswith(".py") or not os.path.isabs(path):
            return []
        try:
            found = os.stat(path)
            good = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES
            if not good or found.st_mtime > self._before + _SLACK:
                return []
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().splitlines()
        except (OSError, ValueError):
            return []


# A lock is taken in C, so a thread that waits for one stands in the line that takes it. What is
# called in a `with` may be anything, and would have a frame of its own if it were Python's.
_TAKES_LOCK = re.compile(r"(?:async )?with [^()]+:|.*\.acquire\(")


def lock_waits(threads: Iterable[tuple[str, Frame]], sources: Sources) -> tuple[LockWait, ...]:
    """Which threads of a process wait for locks; none if fewer than two do."""
    found = []
    for name, frame in threads:
        code = sources.line(frame.file, frame.line)
        if _TAKES_LOCK.match(code) and not LIBRARY.match(frame.file):
            found.append(LockWait(name, replace(frame, code=code)))
    return tuple(found) if len(found) > 1 else ()


def with_code(stacks: Iterable[RankStack], sources: Sources) -> tuple[RankStack, ...]:
    """The same stacks, the innermost of their frames and the user's own with the text of lines."""

    def quoted(number: int, frame: Frame) -> Frame:
        return sources.filled(frame) if number < _INNERMOST or is_own(frame) else frame

    return tuple(
        replace(stack, frames=tuple(itertools.starmap(quoted, enumerate(stack.frames))))
        for stack in stacks
    )
