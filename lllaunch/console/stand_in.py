"""A standard error for those who would wait for ever at the real one, or need that there is one."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from lllaunch.console.outlet import Outlet

# As for a message of ours during a run, seconds.
_PATIENCE_S = 0.2


class StandIn(io.TextIOBase):
    """Takes text for a stream and leaves out what that does not take in time.

    Args:
        stream: the stream, or None for nowhere (``2>&-``).
        patience: a call waits at most so many seconds.
    """

    def __init__(self, stream: TextIO | None, patience: float = _PATIENCE_S) -> None:
        self._stream = stream
        self._outlet = None if stream is None else Outlet(stream)
        self._patience = patience

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """As the stream says."""
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor.

        Raises:
            OSError: it has none.
        """
        return super().fileno() if self._stream is None else self._stream.fileno()

    def write(self, text: str) -> int:
        """Takes text; it is written at once, or never.

        Returns:
            How many characters were given.
        """
        if self._outlet is not None:
            with contextlib.suppress(OSError, ValueError):
                self._outlet.write(text, self._patience)
        return len(text)


@contextlib.contextmanager
def patient_stderr() -> Iterator[None]:
    """While it lasts, nobody who writes to ``sys.stderr`` waits long or fails for its sake."""
    real = sys.stderr
    stand_in = sys.stderr = StandIn(real)
    try:
        yield
    finally:
        if sys.stderr is stand_in:
            sys.stderr = real
