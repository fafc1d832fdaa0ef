"""Writing stacks.txt."""

from __future__ import annotations

import os
from collections.abc import Callable

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Writer:
    """Appends to files; the first error is kept, and no more is written to that file.

    What an earlier finding of the same attempt left there stays.

    Args:
        hide: applied to all that is written; command lines may hold secrets.

    Attributes:
        problem: the first error, as ``path: reason``; empty if there was none.
    """

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self.problem = ""
        self._hide = hide
        self._bad: set[str] = set()

    def append(self, path: str, text: str) -> bool:
        """Append to a file at once; False if not all of it could be written."""
        if not path or not text or path in self._bad:
            return False
        data = memoryview(self._hide(text).encode(errors="replace"))
        try:
            fd = os.open(path, _FLAGS, 0o666)
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
        except OSError as error:
            self._bad.add(path)
            self.problem = self.problem or f"{path}: {error.strerror or error}"
            return False
        return True
