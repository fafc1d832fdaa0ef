"""What a user calls a run, as its directory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import ClassVar

from lllaunch.errors import LaunchError
from lllaunch.records.find import DEFAULT_ROOTS, Found, look
from lllaunch.records.listing import list_entries

LATEST = "latest"
"""What stands for the run or sweep that was started last."""

# what lies in the directory of a run
_WITHIN = re.compile(r"(?:(.+)/)?(?:(?:attempt_\d+|latest)(?:/\d+)?|\.hydra)(?:/[^/]+\.\w+)?")


@dataclass(eq=False)
class NoSuchRun(LaunchError):
    """There is no run or sweep where somebody looked for one.

    Attributes:
        path: what was given.
        reason: what is there, as the predicate of a sentence.
        hint: what to do, or an empty string.
    """

    path: str
    reason: str
    hint: str = ""
    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.path!r} {self.reason}{hint}"


def locate(name: str, cwd: str | None = None) -> Found:
    """Finds a run or a sweep.

    Args:
        name: its directory, or something in it: its result.json, the directory of an attempt or a
            worker; or ``latest``, for the newest below Hydra's directories.
        cwd: what relative paths count from; the working directory if None.

    Returns:
        its directory, absolute only if ``name`` or ``cwd`` is.

    Raises:
        NoSuchRun: it is not there.
    """
    path = name if cwd is None else os.path.join(cwd, name)
    if name == LATEST and not os.path.exists(path):
        return _latest(cwd)
    if not os.path.exists(path):
        raise NoSuchRun(name, "is not there", _hint(""))
    directory = os.path.normpath(path)
    inside = _WITHIN.fullmatch(directory)
    if inside is not None:
        directory = inside[1] or "."
    elif os.path.isfile(directory):
        directory = os.path.dirname(directory) or "."
    found = look(directory)
    if found is None:
        where = name if os.path.isdir(path) else ""
        raise NoSuchRun(name, "is not the directory of a run or a sweep", _hint(where))
    return found


def _latest(cwd: str | None) -> Found:
    roots = [root if cwd is None else os.path.join(cwd, root) for root in DEFAULT_ROOTS]
    entries = list_entries(roots)
    found = look(entries[0].path) if entries else None
    if found is None:
        raise NoSuchRun(LATEST, f"is none: no run is below {' or '.join(DEFAULT_ROOTS)}")
    return found


def _hint(directory: str) -> str:
    where = f" {directory}" if directory else ""
    return f"'python -m lllaunch ls{where}' lists what is there"
