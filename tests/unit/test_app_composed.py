"""Composing without running: what `python -m lllaunch` would compose, and nothing beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launching import Project

from lllaunch.app.compose import Composition, ConfigRequest

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files of the project, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path).write


# ---------------------------------------------------------------- the command line

words = st.text("ab=+~{}[],'\" -$", min_size=1, max_size=8).filter(
    lambda text: not text.startswith("-")
)
names = st.none() | st.text("ab/._", min_size=1, max_size=6)


@given(
    st.builds(ConfigRequest, st.lists(words, max_size=4).map(tuple), st.booleans(), *[names] * 3)
)
def test_a_command_comes_back_from_its_words(command: ConfigRequest) -> None:
    assert ConfigRequest.parse(command.words) == command


# ---------------------------------------------------------------- composing


def test_directories_come_in_the_order_of_a_run(write: Write) -> None:
    for place, value in (("conf", 1), ("mine", 2), ("primary", 3)):
        write(f"{place}/which/a.yaml", f"value: {value}\n")
    write("conf/which/only.yaml", "value: 4\n")
    write("primary/main.yaml", "defaults: [which: a]\nmade: here\n")

    def composed(*overrides: str, **flags: str) -> Any:
        found = Composition(ConfigRequest(overrides, **flags))  # type: ignore[arg-type]
        return found.compose()

    assert composed("+which=a").which.value == 1
    assert composed("+which=a", config_dir="mine").which.value == 2
    assert composed("+which=only", config_dir="mine").which.value == 4
    path = os.path.abspath("primary")
    found = composed(config_path=path, config_name="main")
    assert (found.which.value, found.made) == (3, "here")
    assert composed("which=only", config_path=path, config_name="main").which.value == 4
    assert found.launch.nproc is None  # the schema is under any primary config


def test_locks_are_no_group_to_choose_from(write: Write) -> None:
    write("conf/exp/a.yaml", "x: 1\n")
    write("conf/locks/a.yaml", "lock: 1\n")
    write("conf/exp/locks/b.yaml", "x: 1\n")
    composed = Composition(ConfigRequest())
    assert "exp" in composed.loader.list_groups("")
    assert "locks" not in composed.loader.list_groups("")
    assert composed.loader.list_groups("exp") == ["locks"]
