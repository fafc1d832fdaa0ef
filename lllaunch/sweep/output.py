"""What a job prints, read line by line, so that the output of parallel jobs never mixes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

_BLOCK = 1 << 16
# A longer line is told in parts: the launcher's memory stays bounded.
LONGEST = 16 << 20


class JobPrinted(NamedTuple):
    """A job wrote a line. Told to the observer only.

    Attributes:
        number: of the job.
        stream: 1 for standard output, 2 for standard error.
        line: without its newline.
    """

    number: int
    stream: int
    line: bytes


class Stopping(NamedTuple):
    """The launcher is about to be stopped (Ctrl-Z): until it goes on, the terminal is a shell's.

    Told to the observer only.
    """


class Tick(NamedTuple):
    """All that has happened by now was told; after as long as ``ticks`` says at the latest.

    Told to the observer only.
    """


class OutputPipe:
    """A pipe that a job writes to, at the launcher's end.

    Args:
        number: of the job.
        stream: 1 for standard output, 2 for standard error.
    """

    def __init__(self, number: int, stream: int) -> None:
        self.number, self.stream = number, stream
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._line = bytearray()

    def fileno(self) -> int:
        """The descriptor to read from; -1 when nobody writes any more."""
        return self._read

    def close_write_end(self) -> None:
        """Closes the job's end, in the launcher; idempotent."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def read(self, tell: Callable[[JobPrinted], None]) -> bool:
        """Tells the lines that are there; whether something was."""
        if self._read < 0:
            return False
        try:
            block = os.read(self._read, _BLOCK)
        except BlockingIOError:
            return False
        if not block:
            self.close()
            return False
        *lines, rest = block.split(b"\n")
        for line in lines:
            tell(JobPrinted(self.number, self.stream, bytes(self._line + line)))
            self._line.clear()
        self._line += rest
        if len(self._line) >= LONGEST:
            self._tell_rest(tell)
        return True

    def finish(self, tell: Callable[[JobPrinted], None]) -> None:
        """Tells all that is there, with a last line that has no newline, and closes.

        What still has the pipe open, a process that the job left behind, is not waited for.
        """
        # As much as a pipe holds: somebody may write for ever.
        for _ in range(LONGEST // _BLOCK):
            if not self.read(tell):
                break
        if self._line:
            self._tell_rest(tell)
        self.close()

    def _tell_rest(self, tell: Callable[[JobPrinted], None]) -> None:
        tell(JobPrinted(self.number, self.stream, bytes(self._line)))
        self._line.clear()

    def close(self) -> None:
        """Closes both ends; idempotent."""
        self.close_write_end()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1
