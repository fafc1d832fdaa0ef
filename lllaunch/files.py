"""Files that are read and written as a whole; small, since workers import it, too."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

MOST_BYTES = 256 * 1024 * 1024
"""Of a longer file nothing is read."""


def have_room() -> None:
    """Have a descriptor for what tells a worker's end, if the user's code has used up all."""
    try:
        os.close(os.dup(0))
    except OSError as error:
        if error.errno == errno.EMFILE:
            # nothing reads its standard input any more
            os.close(0)


def own_file(path: str) -> str:
    """Return where a file of a run is: of several nodes, the run's directory has links to node 0's.

    No other link is followed.
    """
    with contextlib.suppress(OSError):
        target = os.path.join(os.path.dirname(path), os.readlink(path))
        node = os.path.dirname(target)
        is_of_node = os.path.dirname(node) == os.path.dirname(path)
        if is_of_node and os.path.basename(node).startswith("node_") and not os.path.islink(node):
            return target
    return path


def open_file(path: str) -> int:
    """Open a file of a run or a sweep, which anybody may have made, and return its descriptor.

    Raises:
        OSError: it cannot be read, is no regular file, or is a link that is none of lllaunch's.
    """
    # a FIFO is not waited for
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        fd = os.open(own_file(path), flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "is a link, which is not followed", path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def within(directory: str, name: str) -> str | None:
    """Return a path that is resolved; None if it is no regular file in a directory."""
    try:
        root, path = os.path.realpath(directory), os.path.realpath(name)
        inside = os.path.commonpath((root, path)) == root
        return path if inside and stat.S_ISREG(os.stat(path).st_mode) else None
    except (OSError, ValueError):
        return None


def read_bytes(path: str, tail: int = 0) -> bytes:
    """Return what a file holds that `open_file` opens, or so many bytes of its ``tail``.

    Raises:
        OSError: as `open_file` has it.
        ValueError: it is too long; says so.
    """
    with open(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES and not tail:
            raise ValueError(f"is longer than {MOST_BYTES} bytes")
        file.seek(max(0, size - tail) if tail else 0)
        return file.read(min(size, tail or MOST_BYTES))


def read_text(path: str, tail: int = 0) -> str | None:
    """Return the text of a file, or of its end, None if it cannot be read."""
    try:
        return read_bytes(path, tail).decode(errors="backslashreplace")
    except (OSError, ValueError):
        return None


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; a single ``os.write`` may take less than it was given."""
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
    # nobody can have put a file or a link there
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
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
