from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.app.rerun import PlanChanged, read_again
from lllaunch.config import plan
from lllaunch.config.resolve import resolve
from lllaunch.errors import ConfigError
from lllaunch.spec import LaunchSpec


def test_a_new_setting_with_a_default_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = OmegaConf.create({"launch": {"entrypoint": "env"}})
    spec = resolve(cfg, runtime_cwd=str(tmp_path), output_dir="/out")
    again = read_again(str(left(tmp_path, "{}\n")))
    make = plan.plan_node

    def newer(spec: LaunchSpec) -> dict[str, Any]:
        return {"launch": {**make(spec)["launch"], "brand_new": brand_new}}

    monkeypatch.setattr(plan, "_DEFAULTS", {**plan._DEFAULTS, "brand_new": False})
    monkeypatch.setattr(plan, "plan_node", newer)
    brand_new = False
    again.expect(spec)
    brand_new = True
    with pytest.raises(PlanChanged, match=r"launch\.brand_new: false -> true"):
        again.expect(spec)


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
