"""For tests that show what is written to files."""

from __future__ import annotations

import io
import threading
from pathlib import Path

from support.launching import WAIT


class Sink(io.StringIO):
    """A text stream that others can wait on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def write(self, text: str) -> int:
        with self.written:
            count = super().write(text)
            self.written.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        with self.written:
            assert self.written.wait_for(lambda: text in self.getvalue(), timeout=WAIT), text


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)
