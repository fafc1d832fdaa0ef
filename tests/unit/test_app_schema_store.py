from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from lllaunch.app.schema_store import install


@pytest.fixture(autouse=True)
def store() -> ConfigStore:
    install()
    return ConfigStore.instance()


def launch(directory: Path, name: str | None, *overrides: str) -> dict[str, object]:
    with initialize_config_dir(str(directory), version_base="1.3"):
        cfg = compose(name, list(overrides))
    found = OmegaConf.to_container(cfg.launch)
    assert isinstance(found, dict)
    return found


def test_launch_is_there_under_any_primary_config_and_none(tmp_path: Path) -> None:
    assert launch(tmp_path, None, "launch.nproc=3")["nproc"] == 3
    (tmp_path / "mine.yaml").write_text("launch: {nproc: 4, tee: none}\n")
    found = launch(tmp_path, "mine", "launch.tee=all")
    # the user's values win over the schema's
    assert (found["nproc"], found["tee"], found["role"]) == (4, "all", None)


def test_installing_twice_names_the_schema_once(store: ConfigStore) -> None:
    install()
    defaults = store.load("hydra/config.yaml").node.defaults
    assert [entry for entry in defaults if "lllaunch" in str(entry)] == [
        {"launcher": "lllaunch"},
        {"sweeper": "lllaunch"},
        "/_lllaunch_schema@_global_",
    ]


def test_another_launcher_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [override hydra/launcher: basic, _self_]\n")
    for overrides in ((), ("hydra/launcher=lllaunch",)):
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            cfg = compose("mine", list(overrides), return_hydra_config=True)
        assert cfg.hydra.runtime.choices["hydra/launcher"] == ("lllaunch" if overrides else "basic")
        assert cfg.hydra.runtime.choices["hydra/sweeper"] == "lllaunch"


def test_what_others_added_to_hydras_root_stays(store: ConfigStore, tmp_path: Path) -> None:
    root = store.load("hydra/config.yaml")
    store.store(name="_others", node={"others": 1})
    root.node.defaults.append("/_others@_global_")
    store.store(group="hydra", name="config", node=root.node, provider="hydra")
    install()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        cfg = compose(None)
    assert cfg.others == 1
    assert "nproc" in cfg.launch
