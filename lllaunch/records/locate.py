"""What a user calls a run, as its directory."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import ClassVar

from lllaunch.errors import LaunchError
from lllaunch.records.find import DEFAULT_ROOTS, Found, find, look
from lllaunch.records.index import used_from
from lllaunch.records.listing import newest
from lllaunch.run.files import relative_path

LATEST = "latest"
"""What stands for the run or sweep that was started last."""

_NEAR = 8
_MOST_NAMED = 5
# what lies in the directory of a run
_WITHIN = re.compile(r"(?:(.+)/)?(?:(?:attempt_\d+|latest)(?:/\d+)?|\.hydra)(?:/[^/]+\.\w+)?")


@dataclass(eq=False)
class NoSuchRun(LaunchError):
    """There is no run or sweep where somebody looked for one.

    Attributes:
        path: what was given; empty if that was nothing in particular.
        reason: what is there, as the predicate of a sentence.
        hint: what to do, or an empty string.
    """

    path: str
    reason: str
    hint: str = ""
    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        path = f"{self.path!r} " if self.path else ""
        return f"{path}{self.reason}{hint}"


def locate(name: str, cwd: str | None = None) -> Found:
    """Finds a run or a sweep.

    Args:
        name: its directory, or something in it: its result.json, the directory of an attempt or a
            worker; the end of its path; or ``latest``, for the newest of this directory.
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
        return _named(name, cwd)
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


def roots_of(cwd: str | None = None) -> list[str]:
    """Return where the runs are that were started in a directory.

    Args:
        cwd: the directory; None for the working directory.
    """
    roots = [root if cwd is None else os.path.join(cwd, root) for root in DEFAULT_ROOTS]
    here = os.path.realpath(cwd or os.getcwd())
    used = used_from(here, os.environ)
    # as the user would type them
    return roots + [path if cwd else relative_path(path, here) for path in used]


def _latest(cwd: str | None) -> Found:
    # the times of files tell nearly who began last
    entries = itertools.islice(newest(roots_of(cwd)), _NEAR)
    last = max(entries, key=lambda entry: entry.started_ns or 0, default=None)
    found = look(last.path) if last else None
    if found is None:
        raise NoSuchRun("", f"no runs found in {' or '.join(f'{root}/' for root in DEFAULT_ROOTS)}")
    return found


def _named(name: str, cwd: str | None) -> Found:
    """Find the run or sweep whose path ends with a name.

    Raises:
        NoSuchRun: there is none, or there are several.
    """
    found = {
        os.path.realpath(each.path): each
        for root in roots_of(cwd)
        for each in find(root)
        if each.path.endswith(f"/{name.rstrip('/')}")
    }
    if not found:
        raise NoSuchRun(name, "does not exist", _hint(""))
    first, *others = found.values()
    if others:
        paths = ", ".join(sorted(each.path for each in found.values())[:_MOST_NAMED])
        raise NoSuchRun(name, f"names {len(found)} runs: {paths}", "say which one")
    return first


def _hint(directory: str) -> str:
    where = f" {directory}" if directory else ""
    return f"'python -m lllaunch ls{where}' lists what is there"
