from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lllaunch.app.planning import load, plain
from lllaunch.errors import OutputError
from lllaunch.run.result import ReturnValue


def test_values_are_read_from_the_outcome_or_from_their_files(tmp_path: Path) -> None:
    assert plain(None) is load(None) is None
    small = ReturnValue("/nowhere/return.pkl", 10, "dict", '{"loss": 0.5}')
    assert plain(small) == load(small) == {"loss": 0.5}
    (tmp_path / "return.pkl").write_bytes(pickle.dumps({1, 2}))
    pickled = ReturnValue(str(tmp_path / "return.pkl"), 10, "set")
    # unpickled only on demand
    assert plain(pickled) is None
    assert load(pickled) == {1, 2}
    (tmp_path / "return.json").write_text("[1, 2]")
    assert load(ReturnValue(str(tmp_path / "return.json"), 10, "json")) == [1, 2]


@pytest.mark.parametrize("content", [None, b"no pickle"])
def test_what_cannot_be_loaded_names_its_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "return.pkl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OutputError, match=r"return\.pkl"):
        load(ReturnValue(str(path), 10, "set"))
