"""The private place of an attempt's FIFO and heartbeats."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time

from lllaunch.errors import OutputError

_PREFIX = "lllaunch-watch-"
# What a launcher makes in one. Nothing else is ever removed from a directory that was only found.
FILES = ("timers", "heartbeats")
# Younger ones may be about to be locked.
_ABANDONED_SECONDS = 60.0


class Scratch:
    """A directory that only this user can enter, under a name that nobody can foresee.

    It is not in the run's directory: that may lie on a file system that knows no FIFOs, or shares
    no memory between processes. It is locked as long as it is used; those that launchers left
    behind when they were killed are removed by the next one.

    Attributes:
        path: the directory, absolute.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self) -> None:
        import tempfile  # noqa: PLC0415 - only a watched run needs it

        self._lock = -1
        try:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
        except OSError as error:
            where = error.filename or "the directory for temporary files"
            raise OutputError(str(where), error.strerror or str(error)) from error
        self._lock = _locked(self.path)
        _remove_others(os.path.dirname(self.path))

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove it with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(path: str) -> int:
    """Lock a directory; the descriptor that holds the lock, or -1 if somebody else does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _remove_others(directory: str) -> None:
    """Remove this user's that nobody holds."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_old(entry):
                _remove_unheld(entry.path)


def _remove_unheld(path: str) -> None:
    fd = _locked(path)
    if fd < 0:
        return
    with contextlib.suppress(OSError):
        if set(os.listdir(path)) <= set(FILES):
            shutil.rmtree(path)
    os.close(fd)


def _is_old(entry: os.DirEntry[str]) -> bool:
    facts = entry.stat(follow_symlinks=False)
    ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return ours and time.time() - facts.st_mtime > _ABANDONED_SECONDS


def remove_abandoned(path: str) -> None:
    """Remove a FIFO that a launcher before this one left behind.

    Raises:
        OSError: somebody reads from it.
    """
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # Nobody reads.
        os.unlink(path)
        return
    raise OSError(errno.EBUSY, "another launcher serves it", path)
