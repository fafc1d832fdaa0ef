"""The private directory of a watched run: the timers' FIFO, heartbeats, the workers' sockets."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time

from lllaunch.errors import OutputError

_PREFIX = "lllaunch-watch-"
# Younger ones may be about to be locked.
_ABANDONED_SECONDS = 60.0


class Scratch:
    """A directory that only this user can enter, under a name that nobody can foresee.

    It is not in the run's directory: that may lie on a file system that knows no FIFOs, or shares
    no memory between processes. It is locked as long as it is used; those that launchers left
    behind when they were killed are removed by the next one.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self) -> None:
        try:
            self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        except OSError as error:
            where = error.filename or "the directory for temporary files"
            raise OutputError(str(where), error.strerror or str(error)) from error
        self._lock = _locked(self.path)
        remove_left()

    def remove(self) -> None:
        """Remove it with all that is in it; idempotent.

        Where no descriptor is left, that of the lock is the one that a list of the files needs.
        """
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _remove(self.path)


def _locked(path: str) -> int:
    """Lock a directory; the descriptor that holds the lock, or -1 if somebody else does."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            return fd
    return -1


def _remove(path: str) -> None:
    """Remove a directory, unless there is something in it that no launcher has made."""
    with contextlib.suppress(OSError):
        names = os.listdir(path)
        if all(name in ("timers", "heartbeats") or name.isdecimal() for name in names):
            for name in names:
                os.unlink(os.path.join(path, name))
            os.rmdir(path)


def remove_left(pid: int | None = None) -> None:
    """Remove what this user's launchers have left behind that were killed.

    ``pid``: of one that has been waited for; None for all that were killed a while ago.
    """
    prefix = _PREFIX if pid is None else f"{_PREFIX}{pid}-"
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            facts = entry.stat(follow_symlinks=False)
            old = pid is not None or time.time() - facts.st_mtime > _ABANDONED_SECONDS
            fd = _locked(entry.path) if old and facts.st_uid == os.getuid() else -1
            if fd >= 0:
                _remove(entry.path)
                os.close(fd)


def remove_abandoned(path: str) -> None:
    """Remove a FIFO that a launcher before this one left behind.

    Raises:
        OSError: somebody reads from it.
    """
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        # nobody reads
        if error.errno == errno.ENXIO:
            os.unlink(path)
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return
        raise
    raise OSError(errno.EBUSY, "another launcher serves it", path)
