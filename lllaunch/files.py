"""Files that are read and written as a whole; small, since workers import it, too."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from _thread import get_native_id

MOST_BYTES = 256 * 1024 * 1024
"""Of a longer file nothing is read."""


def read_bytes(path: str, tail: int = 0) -> bytes:
    """Return what a regular file holds.

    Args:
        path: of the file.
        tail: return so many bytes of its end at most; 0 for all of it.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it is too long; says so.
    """
    # a FIFO is not waited for
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    with open(fd, "rb") as file:
        if tail:
            file.seek(max(0, status.st_size - tail))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"is longer than {MOST_BYTES} bytes")
    return data


def read_text(path: str) -> str | None:
    """Return the text of a file, None if it cannot be read."""
    try:
        return read_bytes(path).decode(errors="backslashreplace")
    except (OSError, ValueError):
        return None


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; a single ``os.write`` may take less than it was given.

    Raises:
        OSError: as ``os.write`` does.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: str, data: bytes) -> None:
    """Make ``path`` hold exactly ``data``: readers see the old file or the new.

    The data is on the disk before the name is: a crash in between leaves the old file.

    Raises:
        OSError: the directory is not writable, the disk is full, ...; nothing else is left there.
    """
    directory, name = os.path.split(path)
    # threads and processes that write the same file are kept apart; the main thread's is the pid
    temporary = os.path.join(directory, f".{name}.{get_native_id()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
