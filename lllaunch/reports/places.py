"""Where in the user's own code something happened, as tracebacks tell. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Python's tracebacks (of exception groups, too), and what faulthandler writes
_FRAME = re.compile(r'^[ |+]*File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?P<python>,|$)?', re.M)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d[^/]*/|/\.(?:venv|tox|nox)/")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Place(NamedTuple):
    """A line of a source file.

    Attributes:
        file: its path, relative to one of the tree's roots.
        line: counted from 1.
    """

    file: str
    line: int


class Tree:
    """The user's own source files: all below some directories, but for installed libraries.

    Args:
        roots: the directories, absolute; the first one that a file is below of counts.
        not_below: directories whose files are never the user's; by default lllaunch's own.
    """

    def __init__(self, roots: Iterable[str], not_below: Iterable[str] = (_OURS,)) -> None:
        self._roots = [_prefix(root) for root in roots if os.path.isabs(root)]
        self._others = tuple(map(_prefix, not_below))

    def relative(self, file: str) -> str | None:
        """Returns the path of a file relative to its root, None if it is not the user's.

        Args:
            file: a path as a traceback has it; a relative one is taken as relative to the roots.
        """
        if file.startswith("<") or not file.isprintable() or _LIBRARY.search(file):
            return None
        path = os.path.normpath(file)
        if not os.path.isabs(path):
            return None if path.split(os.sep)[0] == os.pardir else path
        if path.startswith(self._others):
            return None
        return next((path[len(root) :] for root in self._roots if path.startswith(root)), None)

    def place(self, frames: Iterable[Place]) -> Place | None:
        """Returns the first of the frames that is in the user's code, None if none is."""
        for file, line in frames:
            known = self.relative(file)
            if known is not None and line > 0:
                return Place(known, line)
        return None


def _prefix(directory: str) -> str:
    return os.path.normpath(directory).rstrip("/") + "/"


def frames_of(text: str) -> Iterator[Place]:
    """Yields the frames of a traceback, innermost first; their files as they stand there.

    Args:
        text: what Python wrote for an exception (the innermost frame last), or faulthandler for
            a crash (``File "x.py", line 3 in f``, the innermost frame first).
    """
    found = list(_FRAME.finditer(text))
    if found and found[0]["python"] is not None:
        found.reverse()
    for frame in found:
        yield Place(frame["file"], int(frame["line"][-9:]))


def without_ours(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines of a log, those together in which faulthandler tells of lllaunch's own frames.

    Args:
        lines: of a log. Where a worker crashed in native code, each of its frames is one of them.
    """
    ours = 0
    for line in (*lines, None):
        frame = None if line is None else _FRAME.match(line)
        if frame is not None and frame["python"] is None and _is_ours(frame["file"]):
            ours += 1
            continue
        if ours:
            yield f"  ... ({ours} frames of lllaunch)" if ours > 1 else "  ... (lllaunch)"
            ours = 0
        if line is not None:
            yield line


def _is_ours(file: str) -> bool:
    return file.startswith(_prefix(_OURS)) or file == "<string>"
