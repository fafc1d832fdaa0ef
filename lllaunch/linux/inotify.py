"""inotify(7): being woken when a file is written to or appears. All its system calls are here."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

_IN_MODIFY = 0x2
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_ONLYDIR = 0x0100_0000
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
# Room for hundreds of events; the kernel refuses to read into less than one with a longest name.
_BUFFER_BYTES = 64 * 1024
_READS = 8


@dataclass(frozen=True)
class Unavailable:
    """inotify cannot be had here."""

    reason: str


@dataclass(frozen=True)
class Changes:
    """What has changed since the last call."""

    # numbers of the watches that saw something, in the order in which each did first
    watches: tuple[int, ...] = ()
    overflow: bool = False


class Inotify:
    """One inotify instance; made by `open_inotify`. Not shared between threads."""

    def __init__(self, libc: ctypes.CDLL, descriptor: int) -> None:
        self._libc = libc
        self._fd = descriptor

    def fileno(self) -> int:
        """The descriptor that is readable when something has changed."""
        return self._fd

    def watch_file(self, path: str) -> int:
        """Watches what is written to a file and when it is truncated.

        Raises:
            OSError: it cannot be watched: it does not exist, the user's watches are used up
                (ENOSPC), ...
        """
        return self._watch(path, _IN_MODIFY)

    def watch_directory(self, path: str) -> int:
        """Watches for entries that appear in a directory.

        Raises:
            OSError: as for `watch_file`.
        """
        return self._watch(path, _IN_CREATE | _IN_MOVED_TO | _IN_ONLYDIR)

    def _watch(self, path: str, mask: int) -> int:
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return int(number)

    def unwatch(self, number: int) -> None:
        """Ends a watch. One that is gone already, with its file, is no error."""
        self._libc.inotify_rm_watch(self._fd, number)

    def read(self) -> Changes:
        """What has changed; never blocks."""
        watches: dict[int, None] = {}
        overflow = False
        # Some at a time: a writer that is faster than this loop must not keep us in it.
        for _ in range(_READS):
            try:
                data = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                number, mask, _cookie, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                overflow = overflow or bool(mask & _IN_Q_OVERFLOW)
                watches[number] = None
        return Changes(tuple(watches), overflow)

    def close(self) -> None:
        """Ends all watches."""
        os.close(self._fd)


def open_inotify() -> Inotify | Unavailable:
    """A new instance, or the reason why there is none (no such call, the user's limit reached)."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        start = libc.inotify_init1
    except (OSError, AttributeError) as error:
        return Unavailable(str(error))
    descriptor = start(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return Unavailable(os.strerror(ctypes.get_errno()))
    return Inotify(libc, int(descriptor))
