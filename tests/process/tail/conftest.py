from __future__ import annotations

from pathlib import Path

import pytest
from support.tails import Sink


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


@pytest.fixture
def sink() -> Sink:
    return Sink()
