"""Reads how far workers are: what they say in shared memory, and what is new in their output."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from lllaunch.heartbeats import read_progress
from lllaunch.watchdog.bars import OutputParser
from lllaunch.watchdog.progress import ProgressTracker

if TYPE_CHECKING:
    from io import FileIO

_MOST = 256 * 1024
"""Bytes of a file that are read in one look. Of more the last ones are, and nobody waits."""


class GrowingFile:
    """A file that others append to.

    ``path``: of the file; it need not be there yet.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0

    def new(self, most: int = _MOST) -> tuple[bytes, bool]:
        """Return what was written since the last call.

        ``most``: of more than so many bytes the last ones are returned. Returns the bytes, and
        whether there were others before them.
        """
        try:
            size = os.stat(self._path).st_size
            if size == self._read:
                return b"", False
            # the worker has truncated it
            begin = self._read if size > self._read else 0
            start = max(begin, size - most)
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = os.pread(fd, size - start, start)
            finally:
                os.close(fd)
        except OSError:
            return b"", False
        self._read = start + len(data)
        return data, start > begin


class ProgressReader:
    """Reads how far the workers of an attempt are, each time that somebody looks.

    ``memory``: the file that they say it in; None if they cannot. ``outputs``: files of their
    output, by local rank. ``pattern``: what to search in these, a valid regular expression; empty
    for nothing.
    """

    def __init__(
        self, memory: FileIO | None, outputs: Mapping[int, tuple[str, ...]], pattern: str = ""
    ) -> None:
        self._memory = memory
        self._pattern = re.compile(pattern) if pattern else None
        self.tracker = ProgressTracker(captures=bool(pattern))
        self._files: dict[int, list[tuple[GrowingFile, OutputParser]]] = {}
        for rank, paths in outputs.items():
            files = map(GrowingFile, dict.fromkeys(paths))
            self._files[rank] = [(file, OutputParser(self._pattern)) for file in files]

    def look(self, now: float, ranks: Collection[int]) -> None:
        """Take note of what is new."""
        for rank in ranks:
            record = None if self._memory is None else read_progress(self._memory, rank)
            if record is not None:
                self.tracker.say(rank, record, now)
            for stream, (file, parser) in enumerate(self._files.get(rank, ())):
                block, cut = file.new()
                if cut:
                    # it begins within a line
                    self._files[rank][stream] = file, (parser := OutputParser(self._pattern))
                    block = re.split(rb"[\r\n]", block, maxsplit=1)[-1]
                if not block and not cut:
                    continue
                printed = parser.feed(block)
                complete = not cut and not parser.skipped
                if not complete:
                    self.tracker.skip(now)
                self.tracker.show(rank, stream, printed, now, complete=complete)
                self.tracker.redrawn(rank, stream, parser.pending(), now, complete=complete)
