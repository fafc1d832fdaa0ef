"""Writing files so that they appear whole or not at all, and errors that name the file."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from lllaunch.errors import OutputError
from lllaunch.files import replace_file
from lllaunch.linux.cgroup import shortage

if TYPE_CHECKING:
    from collections.abc import Iterator


_OPEN_FILES = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def naming(path: str, rank: int | None = None) -> Iterator[None]:
    """Turns an `OSError` of the block into an error that names the file.

    Args:
        path: the file or directory that the block works on.
        rank: local rank of the worker that it belongs to, None for the run's own files.

    Raises:
        OutputError: with ``path``, what the system said, and ``rank``.
    """
    try:
        yield
    except OSError as error:
        short = shortage(error) if error.errno in _OPEN_FILES else ""
        raise OutputError(path, short or error.strerror or str(error), rank) from error


def write_atomic(path: str, data: bytes) -> None:
    """Make ``path`` hold exactly ``data``, as `lllaunch.files.replace_file` does.

    Raises:
        OutputError: if the directory is not writable, the disk is full, ...; names ``path``.
    """
    with naming(path):
        replace_file(path, data)


def link_atomic(path: str, target: str) -> None:
    """Makes the symbolic link ``path`` point to ``target``; it is there at every moment.

    Raises:
        OutputError: names ``path``.
    """
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
    """Returns a path relative to a directory if it is that or below it, else as it is. Pure.

    Args:
        path: a relative one counts from ``cwd``.
        cwd: the directory, absolute.
    """
    whole, top = os.path.normpath(os.path.join(cwd, path)), cwd.rstrip("/")
    if whole == top:
        return os.curdir
    return whole[len(top) + 1 :] if whole.startswith(f"{top}/") else path
