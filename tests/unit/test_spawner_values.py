"""What a function returned, and whether it could be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from lllaunch.errors import OutputError
from lllaunch.spawner.values import RETURN_FILE, save_return_value


def test_only_a_value_that_is_lost_makes_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    # nothing can be written there, as on a full disk
    monkeypatch.setenv(RETURN_FILE, str(tmp_path / "file/return.pkl"))
    save_return_value(None)
    with pytest.raises(OutputError, match="cannot be written"):
        save_return_value(5)
