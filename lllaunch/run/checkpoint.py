"""Whether a checkpoint was written: what is below its path is compared with what was.

Times are not compared with this machine's clock: a file server has its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import deque
from itertools import islice
from typing import NamedTuple

# The launcher waits while it looks, so that there are bounds: of files and directories, and seconds
# where a file server is slow.
MOST_ENTRIES = 10_000
_SECONDS = 0.5


class _File(NamedTuple):
    """What changes when a file is written, replaced, or when a link leads elsewhere."""

    identity: tuple[int, int]
    size: int
    mtime_ns: int
    target: str


class Checkpoint:
    """The path that an experiment saves its state under: a file or a directory, or nothing yet."""

    def __init__(self, path: str, most: int | None = None) -> None:
        self._path = path
        self._most = MOST_ENTRIES if most is None else most
        self._before: dict[str, _File] = {}
        self._whole = True

    def look(self) -> None:
        """Take note of what is there."""
        self._before, self._whole = self._now()

    def has_changed(self) -> bool | None:
        """Return whether a file has come or was written since; None if there is too much to tell.

        What has gone is no change: old checkpoints are removed, and what was left half written.
        """
        newest = max((each.mtime_ns for each in self._before.values()), default=0)
        now, whole = self._now()
        for path, file in now.items():
            known = self._before.get(path)
            if known is None and not self._whole and file.mtime_ns <= newest:
                # it may have been there, beyond those that were looked at
                continue
            if known != file:
                return True
        return False if self._whole and whole else None

    def _now(self) -> tuple[dict[str, _File], bool]:
        """Return the files that there are, by path, and whether these are all."""
        files: dict[str, _File] = {}
        waiting, seen, end = deque([self._path]), 0, time.monotonic() + _SECONDS
        while waiting:
            if seen >= self._most or time.monotonic() > end:
                return files, False
            path, seen = waiting.popleft(), seen + 1
            try:
                link = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(link.st_mode) else ""
                found = os.stat(path) if target else link
            except OSError:
                # it has gone meanwhile, or leads nowhere
                continue
            is_directory = stat.S_ISDIR(found.st_mode)
            if is_directory and (not target or path == self._path):
                # of a link to a directory, below the path, only where it leads is of interest
                with contextlib.suppress(OSError), os.scandir(path) as entries:
                    waiting.extend(each.path for each in islice(entries, self._most))
                if not target:
                    continue
            size, mtime = (0, 0) if is_directory else (found.st_size, found.st_mtime_ns)
            files[path] = _File((found.st_dev, found.st_ino), size, mtime, target)
        return files, True
