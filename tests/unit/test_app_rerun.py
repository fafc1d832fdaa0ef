from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from lllaunch.app.app import read_again


def test_a_config_with_tags_that_omegaconf_writes_is_run_again(tmp_path: Path) -> None:
    text = OmegaConf.to_yaml({"data": Path("/data/set"), "raw": b"ab"})
    assert "!!" in text
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "plan.yaml").write_text("launch: {entrypoint: env}\n")
    (tmp_path / ".hydra" / "config.yaml").write_text(text)

    again = read_again(str(tmp_path))

    assert again.config["data"] == Path("/data/set")
    assert again.config["raw"] == b"ab"
