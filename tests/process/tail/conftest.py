from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
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


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def append() -> Callable[[Path, bytes], None]:
    def write(path: Path, data: bytes) -> None:
        with open(path, "ab", buffering=0) as file:
            file.write(data)

    return write
