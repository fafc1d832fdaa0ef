"""The private place of an attempt's FIFO and heartbeats."""

from __future__ import annotations

import contextlib
import os

from lllaunch.errors import OutputError


class Scratch:
    """A directory that only this user can enter, under a name that nobody can foresee.

    It is not in the run's directory: that may lie on a file system that knows no FIFOs, or shares
    no memory between processes.

    Attributes:
        path: the directory, absolute.

    Raises:
        OutputError: it cannot be made.
    """

    def __init__(self) -> None:
        import tempfile  # noqa: PLC0415 - only a watched run needs it

        try:
            self.path = tempfile.mkdtemp(prefix="lllaunch-")
        except OSError as error:
            where = error.filename or tempfile.gettempdir()
            raise OutputError(str(where), error.strerror or str(error)) from error

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove it with all files in it; idempotent."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                os.unlink(self.file(name))
            os.rmdir(self.path)
