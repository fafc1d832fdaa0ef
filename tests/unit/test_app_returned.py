from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lllaunch.app.returned import load, plain
from lllaunch.errors import OutputError
from lllaunch.run.outcome import ReturnValue


def test_nothing_returned_is_none() -> None:
    assert plain(None) is None
    assert load(None) is None


def test_small_json_is_read_from_the_outcome() -> None:
    value = ReturnValue("/nowhere/return.pkl", 10, "dict", '{"loss": 0.5}')
    assert plain(value) == load(value) == {"loss": 0.5}


def test_what_is_no_json_is_unpickled_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "return.pkl"
    path.write_bytes(pickle.dumps({1, 2}))
    value = ReturnValue(str(path), 10, "set")
    assert plain(value) is None
    assert load(value) == {1, 2}


def test_large_json_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "return.json"
    path.write_text("[1, 2]")
    assert load(ReturnValue(str(path), 10, "json")) == [1, 2]


@pytest.mark.parametrize("content", [None, b"no pickle"])
def test_what_cannot_be_loaded_names_its_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "return.pkl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OutputError, match=r"return\.pkl"):
        load(ReturnValue(str(path), 10, "set"))
