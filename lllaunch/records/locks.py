"""Whether a launcher holds a directory, found out without getting into its way."""

from __future__ import annotations

import errno
import fcntl
import os

from lllaunch.records.files import read_text
from lllaunch.run.lock import SIGNED, launcher_is_dead

_HELD = {errno.EWOULDBLOCK, errno.EACCES}


def is_held(lock: str) -> bool | None:
    """Whether somebody holds a lock as `lllaunch.run.lock.lock_directory` takes it.

    Who signed it is looked at first: a lock whose launcher is gone is not touched. One that is
    tried is nearly always held, which changes nothing; else it is given back at once.

    Args:
        lock: the lock's file.

    Returns:
        None if that cannot be found out: it is another user's, or the file system has no locks.
    """
    if launcher_is_dead(lock):
        return False
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in _HELD else None
    else:
        return False
    finally:
        os.close(fd)


def holder(lock: str) -> str:
    """Return who holds a lock that is held, as ``pid 1 on host``; an empty string if unknown."""
    text = read_text(lock) or ""
    return text.rstrip("\n") if SIGNED.fullmatch(text) else ""


def state_of(lock: str) -> str:
    """Return what a run or a sweep that has not ended does, as ``ls`` and ``show`` have it."""
    return {True: "running", False: "died", None: "unknown"}[is_held(lock)]
