"""Files that are read and written as a whole, or by lines; small, since workers import it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
import time
from typing import TYPE_CHECKING

from lllaunch.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_BYTES = 256 * 1024 * 1024
"""Of a longer file nothing is read."""
_LOCK_TRIES = 100
_LOCK_PAUSE = 0.01  # between two of these, seconds
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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


def too_many_open(error: OSError) -> str:
    """Return what limits how many files may be open, if it fails for that; else an empty string."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no file can be opened: this process may have {limit} open (ulimit -n)"
    if error.errno == errno.ENFILE:
        return "no file can be opened: this system may have no more of them open (fs.file-max)"
    return ""


@contextlib.contextmanager
def naming(path: str, rank: int | None = None) -> Iterator[None]:
    """Turns an `OSError` of the block into an `OutputError` that names the file, and its rank."""
    try:
        yield
    except OSError as error:
        reason = too_many_open(error) or error.strerror or str(error)
        raise OutputError(path, reason, rank) from error


def write_atomic(path: str, data: bytes) -> None:
    """Make ``path`` hold exactly ``data``, or raise an `OutputError` that names it."""
    with naming(path):
        replace_file(path, data)


def link_atomic(path: str, target: str) -> None:
    """Makes the symbolic link ``path`` point to ``target``; it is there at every moment."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}.tmp")
    with naming(path):
        os.symlink(target, temporary)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


class LineFile:
    """Appends whole lines to a file, for as long as the disk lets it.

    A disk that fails must not end a training run: the first failure goes to ``on_error``, the lines
    meanwhile are lost, and every later line tries again.
    """

    def __init__(self, path: str, on_error: Callable[[OutputError], object]) -> None:
        self.path, self._on_error = path, on_error
        self._reported = self._closed = False
        self._fd = -1
        self.append(b"")

    @property
    def size(self) -> int:
        """Bytes in the file; 0 where that cannot be told."""
        try:
            return 0 if self._fd < 0 else os.fstat(self._fd).st_size
        except OSError:
            # on a network's file system somebody has removed it
            return 0

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Append a line, newline included; never raises for the disk's sake.

        What ends in the middle of a line ends it first. ``sync``: whether it is on the disk when
        this returns.
        """
        if self._closed:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, _APPEND, 0o666)
            size = self.size
            torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
            write_all(self._fd, b"\n" + line if torn else line)
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            self._failed(error)

    def lock(self) -> None:
        """Hold the file against others until it is closed; after a second, go on without.

        Who holds it may have been stopped, or be what a signal has interrupted.
        """
        for _ in range(_LOCK_TRIES):
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE)
            except OSError:  # there are no locks here
                return None
        return None

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Put something else in the place of all that is there, at once; never raises likewise."""
        if self._fd < 0:
            return
        try:
            replace_file(self.path, change(read_bytes(self.path)))
            os.close(self._fd)
            self._fd = -1
            self.append(b"")
        except (OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: OSError | ValueError) -> None:
        if not self._reported:
            self._reported = True
            self._on_error(OutputError(self.path, getattr(error, "strerror", "") or str(error)))

    def close(self) -> None:
        """Close the file; idempotent."""
        self._closed = True
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def working_directory() -> str:
    """Returns where paths are shown relative to; nowhere if that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        # below which there is nothing
        return os.devnull


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or leads into it, as far as their names tell. Pure."""
    top = directory.rstrip("/")
    return path == top or path.startswith(f"{top}/")


def relative_path(path: str, cwd: str) -> str:
    """Returns a path relative to a directory if it is that or below it, else as it is. Pure."""
    whole = os.path.normpath(os.path.join(cwd, path))
    return os.path.relpath(whole, cwd) if is_below(whole, cwd) else path
