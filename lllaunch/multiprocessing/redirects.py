"""Redirects of this process's own stdout and stderr to files.

A redirect moves the file descriptor, so that what C code and child processes write goes along, and
makes sure that Python's ``sys.stdout`` follows, also where it is no file (a notebook, a test).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["get_std_cm", "redirect", "redirect_stderr", "redirect_stdout"]

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Redirect a standard stream of this process to a file, as torch's function of this name.

    Covers Python's stream, C's ``stdio`` and everything that writes to the descriptor. The file is
    emptied first and then appended to, so that several writers do not overwrite each other.
    Everything is put back at the end, whatever happened inside.

    ``std``: ``stdout`` or ``stderr``. ``to_file``: path of the file; its directory must exist.

    Raises:
        ValueError: ``std`` is neither.
        OSError: the file cannot be opened, or what was still buffered cannot be written to it.
    """
    if std not in _DESCRIPTORS:
        raise ValueError(f"unknown standard stream {std!r}: expected 'stdout' or 'stderr'")
    target, stream = _DESCRIPTORS[std], getattr(sys, std)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(to_file, flags, 0o666)
    with contextlib.ExitStack() as stack:
        # Where a standard stream is closed, its number is the next that is given out.
        opened = _duplicate(descriptor)
        os.close(descriptor)
        assert opened is not None
        stack.callback(os.close, opened)
        saved = _duplicate(target)
        with contextlib.suppress(OSError, ValueError):
            _flush(std)
        os.dup2(opened, target)
        stack.callback(_restore, saved, target)
        if not _writes_to(stream, target):
            replacement = io.TextIOWrapper(
                io.FileIO(target, "w", closefd=False),
                encoding=getattr(stream, "encoding", None) or "utf-8",
                errors="backslashreplace",
                line_buffering=True,
                write_through=True,
            )
            setattr(sys, std, replacement)
            stack.callback(setattr, sys, std, stream)
        try:
            yield
            _flush(std)
        finally:
            # The buffers' remains, if the body failed, belong to the file.
            with contextlib.suppress(OSError, ValueError):
                _flush(std)


redirect_stdout = functools.partial(redirect, "stdout")
redirect_stderr = functools.partial(redirect, "stderr")


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """The redirect to a file, or a context that does nothing where the path is empty."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


def _writes_to(stream: object, descriptor: int) -> bool:
    try:
        return bool(stream.fileno() == descriptor)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False


def _flush(std: str) -> None:
    import ctypes  # noqa: PLC0415 - only redirecting processes need it, and it is slow to import

    stream = getattr(sys, std)
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()
    ctypes.CDLL(None).fflush(None)


def _duplicate(descriptor: int) -> int | None:
    """A copy of the descriptor beyond the standard three; None where it is closed."""
    try:
        os.fstat(descriptor)
    except OSError:
        return None
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _restore(saved: int | None, descriptor: int) -> None:
    if saved is None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return
    os.dup2(saved, descriptor)
    os.close(saved)
