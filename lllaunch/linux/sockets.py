"""Addresses of Unix sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def short_address(path: str) -> Iterator[str]:
    """Give another path of a socket that is short enough for its address.

    An address has 107 bytes at most, wherever the socket is. The path is good for this process
    alone, within the context.

    Raises:
        OSError: the directory cannot be opened.
    """
    parent, name = os.path.split(path)
    fd = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
