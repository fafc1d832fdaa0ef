from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore

from lllaunch.app.planning import install


@pytest.fixture(autouse=True)
def store() -> ConfigStore:
    install()
    return ConfigStore.instance()


def composed(directory: Path, name: str | None, *overrides: str) -> Any:
    with initialize_config_dir(str(directory), version_base="1.3"):
        return compose(name, list(overrides), return_hydra_config=True)


def test_launch_is_there_under_any_primary_config_and_none(tmp_path: Path) -> None:
    assert composed(tmp_path, None, "launch.nproc=3").launch.nproc == 3
    (tmp_path / "mine.yaml").write_text(
        "defaults: [override hydra/launcher: basic, _self_]\nlaunch: {nproc: 4, tee: none}\n"
    )
    cfg = composed(tmp_path, "mine", "launch.tee=all")
    # the user's values win over the schema's
    assert (cfg.launch.nproc, cfg.launch.tee, cfg.launch.role) == (4, "all", None)
    # and another launcher may be chosen
    assert cfg.hydra.runtime.choices["hydra/launcher"] == "basic"
    assert cfg.hydra.runtime.choices["hydra/sweeper"] == "lllaunch"
    cfg = composed(tmp_path, "mine", "hydra/launcher=lllaunch")
    assert cfg.hydra.runtime.choices["hydra/launcher"] == "lllaunch"


def test_what_others_added_to_hydras_root_stays(store: ConfigStore, tmp_path: Path) -> None:
    root = store.load("hydra/config.yaml")
    store.store(name="_others", node={"others": 1})
    root.node.defaults.append("/_others@_global_")
    store.store(group="hydra", name="config", node=root.node, provider="hydra")
    install()
    cfg = composed(tmp_path, None)
    assert cfg.others == 1
    assert "nproc" in cfg.launch
