"""Writing files so that they appear whole or not at all, and errors that name the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from lllaunch.errors import OutputError
from lllaunch.files import read_bytes, replace_file, write_all
from lllaunch.linux.cgroup import shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def naming(path: str, rank: int | None = None) -> Iterator[None]:
    """Turns an `OSError` of the block into an `OutputError` that names the file, and its rank."""
    try:
        yield
    except OSError as error:
        short = shortage(error) if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        raise OutputError(path, short or error.strerror or str(error), rank) from error


def write_atomic(path: str, data: bytes) -> None:
    """Make ``path`` hold exactly ``data``, or raise an `OutputError` that names it."""
    with naming(path):
        replace_file(path, data)


def link_atomic(path: str, target: str) -> None:
    """Makes the symbolic link ``path`` point to ``target``; it is there at every moment."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.tmp")
    with naming(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
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
        self.path = path
        self._on_error = on_error
        self._reported = False
        self._torn = False  # the file ends in the middle of a line
        self._closed = False
        self._fd = -1
        try:
            self._open()
        except OSError as error:
            self._failed(error)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(self.path, flags, 0o666)
        size = self.size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

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

        ``sync``: whether it is on the disk when this returns.
        """
        if self._closed:
            return
        try:
            if self._fd < 0:
                self._open()
            if self._torn:
                write_all(self._fd, b"\n")
                self._torn = False
            written = 0
            try:
                written = os.write(self._fd, line)
                if written < len(line):
                    write_all(self._fd, line[written:])
                if sync:
                    os.fsync(self._fd)
            except OSError:
                self._torn = written > 0
                raise
        except OSError as error:
            self._failed(error)

    def lock(self) -> None:
        """Wait until no other process holds the file, and hold it until it is closed."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Put something else in the place of all that is there, at once; never raises likewise."""
        if self._fd < 0:
            return
        try:
            replace_file(self.path, change(read_bytes(self.path)))
            self._let_go()
            self._open()
        except (OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: OSError | ValueError) -> None:
        if not self._reported:
            self._reported = True
            self._on_error(OutputError(self.path, getattr(error, "strerror", "") or str(error)))

    def close(self) -> None:
        """Close the file; idempotent."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
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
