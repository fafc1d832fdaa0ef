from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl

from lllaunch.app.search_path import PACKAGED, ConfDirectories, with_config_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ConfDirectories, "config_dir", None)
    return tmp_path


def searched(main: str = PACKAGED) -> list[str]:
    """What Hydra searches, with the plugin called where Hydra calls it."""
    search_path = ConfigSearchPathImpl()
    search_path.append("hydra", "pkg://hydra.conf")
    search_path.append("main", main)
    ConfDirectories().manipulate_search_path(search_path)
    return [element.path for element in search_path.get_path()]


def test_without_directories_only_the_package_is_searched(here: Path) -> None:
    assert searched() == ["pkg://hydra.conf", PACKAGED]


def test_config_dir_precedes_conf_and_conf_precedes_the_package(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "conf").mkdir()
    (here / "other dir").mkdir()
    monkeypatch.setattr(ConfDirectories, "config_dir", "other dir")
    expected = [f"file://{here}/other dir", f"file://{here}/conf", PACKAGED]
    assert searched() == ["pkg://hydra.conf", *expected]


def test_a_config_dir_that_is_not_there_is_left_to_hydra(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfDirectories, "config_dir", "nowhere")
    assert searched() == ["pkg://hydra.conf", PACKAGED]


def test_config_path_replaces_the_package_as_the_first_place(here: Path) -> None:
    (here / "conf").mkdir()
    expected = ["pkg://hydra.conf", "file:///mine", f"file://{here}/conf", PACKAGED]
    assert searched("file:///mine") == expected


def test_config_path_counts_from_where_the_command_was_given(here: Path) -> None:
    (here / "mine").mkdir()
    mine = str(here / "mine")
    assert with_config_path(["--config-path", "mine", "a=1"]) == ["--config-path", mine, "a=1"]
    assert with_config_path(["-cp=mine"]) == [f"-cp={mine}"]
    for other in ("pkg://mine", "nowhere", "a=1"):
        assert with_config_path(["-cp", other]) == ["-cp", other]
