"""Which followed files have changed: inotify where it works, a look every second elsewhere."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import time
from typing import TYPE_CHECKING

from lllaunch.linux.inotify import Inotify, open_inotify

if TYPE_CHECKING:
    from lllaunch.multiprocessing.followed import FollowedFile

logger = logging.getLogger(__name__)

# What stops a file from being opened now but not for ever.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Watching:
    """The files of one thread that follows them, and what it sleeps on.

    Args:
        wake: an eventfd that ends a wait; not closed here.
        poll_interval: seconds between looks at files that inotify cannot watch.
    """

    def __init__(self, wake: int, poll_interval: float) -> None:
        self._wake = wake
        self._poll_interval = poll_interval
        self._warned = False
        self._changed: dict[FollowedFile, None] = {}
        self._polled: set[FollowedFile] = set()
        self._next_look = 0.0
        # Files by the number of the watch that tells of them; and the numbers on directories,
        # which end when the file is there.
        self._watched: dict[int, set[FollowedFile]] = {}
        self._directories: set[int] = set()
        self._poll_wake = select.poll()
        self._poll_wake.register(wake, select.POLLIN)
        self._poll_all = select.poll()
        self._poll_all.register(wake, select.POLLIN)
        opened = open_inotify()
        self._inotify: Inotify | None = None
        if isinstance(opened, Inotify):
            self._inotify = opened
            self._poll_all.register(opened.fileno(), select.POLLIN)
        else:
            self._reason = opened.reason

    def close(self) -> None:
        """Ends all watches."""
        if self._inotify is not None:
            self._inotify.close()

    def add(self, file: FollowedFile) -> None:
        """Takes in a file, whether it is there or not."""
        try:
            opened = file.open()
        except OSError as error:
            if error.errno in _PASSING:
                self._poll(file, f"{file.path}: {error.strerror}")
            else:
                self.drop(file, error)
            return
        if self._inotify is None:
            self._poll(file, self._reason)
        elif opened:
            self._watch(file, self._inotify)
        else:
            self._await(file, self._inotify)
        if opened:
            self._changed[file] = None

    def more(self, file: FollowedFile) -> None:
        """Says that a file is to be looked at again at once."""
        self._changed[file] = None

    def drop(self, file: FollowedFile, error: OSError) -> None:
        """Gives a file up, with a message."""
        logger.error("%s cannot be followed: %s", file.path, error.strerror or error)
        file.dropped = True
        self._changed.pop(file, None)
        self._polled.discard(file)

    def changed(self) -> list[FollowedFile]:
        """The files that have changed since the last call."""
        files = [file for file in self._changed if not file.dropped]
        self._changed.clear()
        return files

    def wait(self, due: float | None, gather_ms: int) -> None:
        """Sleeps until a file changes, the eventfd is written to, or a time has come.

        Args:
            due: latest end, by `time.monotonic`; None for none.
            gather_ms: milliseconds in which changes are not looked at, but only the eventfd.
        """
        if not self._changed and gather_ms and self._poll_wake.poll(gather_ms):
            self._clear_wake()
            return
        for descriptor, _ in self._poll_all.poll(self._timeout_ms(due)):
            if descriptor == self._wake:
                self._clear_wake()
            else:
                self._take_changes()
        if self._polled and time.monotonic() >= self._next_look:
            self._look_at_polled()

    def _timeout_ms(self, due: float | None) -> int | None:
        if self._changed:
            return 0
        times = [] if due is None else [due]
        if self._polled:
            times.append(self._next_look)
        if not times:
            return None
        # Rounded up: waking before the time would only mean waking twice.
        return max(0, math.ceil((min(times) - time.monotonic()) * 1000))

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _take_changes(self) -> None:
        assert self._inotify is not None
        changes = self._inotify.read()
        numbers = set(self._watched) if changes.overflow else changes.watches
        for number in numbers:
            files = self._watched.get(number, set())
            if number in self._directories:
                # What was waited for may be there, or one step nearer.
                for file in tuple(files):
                    self._forget(number, file)
                    self.add(file)
            else:
                self._changed.update(dict.fromkeys(files))

    def _look_at_polled(self) -> None:
        self._next_look = time.monotonic() + self._poll_interval
        for file in tuple(self._polled):
            if file.is_open:
                self._changed[file] = None
            else:
                self._polled.discard(file)
                self.add(file)

    def _poll(self, file: FollowedFile, reason: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "output is looked for every %g s, since the kernel cannot tell of it: %s",
                self._poll_interval,
                reason,
            )
        if not self._polled:
            self._next_look = time.monotonic() + self._poll_interval
        self._polled.add(file)

    def _watch(self, file: FollowedFile, inotify: Inotify) -> None:
        try:
            number = inotify.watch_file(file.path)
        except OSError as error:
            self._poll(file, f"{file.path}: {error.strerror}")
            return
        self._watched.setdefault(number, set()).add(file)

    def _await(self, file: FollowedFile, inotify: Inotify) -> None:
        """Watches the directory in which the file, or the next directory on its path, appears."""
        directory = _nearest_directory(file.path)
        try:
            number = inotify.watch_directory(directory)
        except OSError as error:
            self._poll(file, f"{directory}: {error.strerror}")
            return
        self._directories.add(number)
        self._watched.setdefault(number, set()).add(file)
        if os.path.lexists(file.path) or _nearest_directory(file.path) != directory:
            # It came between the look and the watch: there will be no event.
            self._forget(number, file)
            self.add(file)

    def _forget(self, number: int, file: FollowedFile) -> None:
        files = self._watched[number]
        files.discard(file)
        if not files:
            del self._watched[number]
            self._directories.discard(number)
            if self._inotify is not None:
                self._inotify.unwatch(number)


def _nearest_directory(path: str) -> str:
    """The deepest directory on the way to a file that exists."""
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(directory) and directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
    return directory
