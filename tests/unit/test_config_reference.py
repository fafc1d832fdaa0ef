"""docs/reference/config.md is the one that the schema makes, and its examples are right."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from lllaunch.config.resolve import resolve
from lllaunch.config.resources import RESOURCE_KEYS
from lllaunch.config.restart import RESTART_KEYS
from lllaunch.config.schema import KEYS, defaults, schema_node
from lllaunch.config.watchdog import WATCHDOG_KEYS
from lllaunch.macros import WORKER_NAMES
from lllaunch.spec import RESTART_CAUSES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "config.md"


def generator() -> ModuleType:
    path = ROOT / "docs" / "generate_config_reference.py"
    spec = importlib.util.spec_from_file_location("generate_config_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == generator().page()


def test_every_setting_and_every_fact_is_described() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for key in KEYS:
        assert f"\n## {key}\n\nDefault: " in page
    assert list(generator().FACTS) == list(WORKER_NAMES)
    assert list(generator().CAUSES) == list(RESTART_CAUSES)


def test_every_preset_and_every_key_of_a_mapping_is_described() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for key in ("preset", *WATCHDOG_KEYS, *RESTART_KEYS, *RESOURCE_KEYS):
        assert f"\n- `{key}`: " in page
    presets = page.partition("## Watchdog presets\n")[2].partition("\n## ")[0]
    assert "| key | `none` | `report` | `default` | `strict` |" in presets
    assert "| `stall` | null | {action: report, after: 30m} | 30m | 5m |" in presets
    assert "| `timers` | false | false | true | true |" in presets


def test_every_link_within_the_page_leads_somewhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = set(re.findall(r"\]\(#([^)]*)\)", page))
    assert links
    assert links <= anchors


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S))
def test_the_examples_are_right(block: str) -> None:
    resolve(OmegaConf.create(block), runtime_cwd=str(ROOT), output_dir="/out")


def test_the_schema_is_made_anew_each_time() -> None:
    defaults()["env"]["A"] = 1
    assert defaults()["env"] == {}
    schema_node()["watchdog"]["preset"] = "strict"
    assert schema_node() == {**dict.fromkeys(KEYS), "watchdog": {"preset": None}}
