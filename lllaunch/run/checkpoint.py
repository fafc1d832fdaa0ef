"""Whether a checkpoint was written: what is below its path is compared with what was.

Times are not compared with this machine's clock: a file server has its own.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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


class _Look(NamedTuple):
    """The files that there are, by path, and whether these are all."""

    files: dict[str, _File]
    whole: bool

    @property
    def newest(self) -> int:
        return max((each.mtime_ns for each in self.files.values()), default=0)


class Checkpoint:
    """The path that an experiment saves its state under: a file or a directory, or nothing yet."""

    def __init__(
        self,
        path: str,
        most: int | None = None,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._most = MOST_ENTRIES if most is None else most
        self._seconds = seconds
        self._clock = clock
        self._before = _Look({}, whole=True)

    def look(self) -> None:
        """Take note of what is there."""
        self._before = self._now()

    def has_changed(self) -> bool | None:
        """Return whether a file has come or was written since; None if there is too much to tell.

        What has gone is no change: old checkpoints are removed, and what was left half written.
        """
        before, now = self._before, self._now()
        for path, file in now.files.items():
            known = before.files.get(path)
            if known is None and not before.whole and file.mtime_ns <= before.newest:
                # it may have been there, beyond those that were looked at
                continue
            if known != file:
                return True
        return False if before.whole and now.whole else None

    def _now(self) -> _Look:
        files: dict[str, _File] = {}
        waiting, known, whole = deque([self._path]), 1, True
        end = self._clock() + self._seconds
        while waiting:
            if self._clock() > end:
                return _Look(files, whole=False)
            path = waiting.popleft()
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
                if whole:
                    entries = self._entries(path, self._most - known + 1, end)
                    known += len(entries)
                    # one more, so that it is seen that these are not all
                    whole = known <= self._most
                    waiting.extend(entries if whole else entries[:-1])
                if not target:
                    continue
            size, mtime = (0, 0) if is_directory else (found.st_size, found.st_mtime_ns)
            files[path] = _File((found.st_dev, found.st_ino), size, mtime, target)
        return _Look(files, whole and self._clock() <= end)

    def _entries(self, path: str, most: int, end: float) -> list[str]:
        try:
            with os.scandir(path) as entries:
                in_time = takewhile(lambda _: self._clock() <= end, entries)
                return [each.path for each in islice(in_time, most)]
        except OSError:
            return []
