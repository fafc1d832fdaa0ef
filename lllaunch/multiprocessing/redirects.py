"""Redirects of this process's own stdout and stderr to files.

A redirect moves the file descriptor, so that what C code and child processes write goes along, and
makes sure that Python's ``sys.stdout`` follows, also where it is no file (a notebook, a test).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from lllaunch.linux.process import flush_c_streams, hold_standard_fds

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
    # where one is closed, its number would be the next that is given out
    hold_standard_fds()
    with contextlib.ExitStack() as stack:
        opened = os.open(to_file, flags, 0o666)
        stack.callback(os.close, opened)
        saved = os.dup(target)
        stack.callback(os.close, saved)
        with contextlib.suppress(OSError, ValueError):
            _flush(std)
        os.dup2(opened, target)
        stack.callback(os.dup2, saved, target)
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
    stream = getattr(sys, std)
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()
    flush_c_streams()
