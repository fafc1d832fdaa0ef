from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lllaunch.app.rerun import read_again
from lllaunch.errors import ConfigError


def left(run: Path, config: str) -> Path:
    (run / ".hydra").mkdir()
    (run / "plan.yaml").write_text("launch: {entrypoint: env}\n")
    (run / ".hydra" / "config.yaml").write_text(config)
    return run


def test_a_config_with_tags_that_omegaconf_writes_is_run_again(tmp_path: Path) -> None:
    text = OmegaConf.to_yaml({"data": Path("/data/set"), "raw": b"ab"})
    assert "!!" in text

    again = read_again(str(left(tmp_path, text)))

    assert again.config["data"] == Path("/data/set")
    assert again.config["raw"] == b"ab"


def test_a_config_with_tags_that_run_something_is_not(tmp_path: Path) -> None:
    text = "a: !!python/object/apply:os.system [touch here]\n"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_again(str(left(tmp_path, text)))
