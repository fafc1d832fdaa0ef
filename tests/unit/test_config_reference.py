"""docs/reference/config.md and sweep-config.md: up to date, whole, and with examples that hold."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.app.launcher import SWEEP, SweepSettings, sweep_settings
from lllaunch.config.kinds import RESOURCES, RESTART, WATCHDOG
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import launcher_node
from lllaunch.spec import KEYS, RESTART_CAUSES, WORKER_NAMES, Resources
from lllaunch.sweep.pool import need_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
OF_SWEEPS = (ROOT / "docs/reference/sweep-config.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def examples(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


GENERATOR = runpy.run_path(str(ROOT / "docs/generate_config_reference.py"))


def test_the_page_is_up_to_date() -> None:
    assert GENERATOR["page"]() == PAGE
    assert GENERATOR["page_of_sweeps"]() == OF_SWEEPS


def test_every_setting_and_every_fact_is_described() -> None:
    for key in KEYS:
        assert f"\n## {key}\n\nDefault: " in PAGE
    for title, names in (
        ("Worker's facts", WORKER_NAMES),
        ("Causes of a restart", RESTART_CAUSES),
    ):
        rows = re.findall(r"^\| `(\w+)` \| .+ \|$", section(PAGE, title), re.MULTILINE)
        assert rows == list(names)
    for key in ("preset", *WATCHDOG.fields, *RESTART.fields, *RESOURCES.fields):
        assert f"\n- `{key}`: " in PAGE
    presets = section(PAGE, "Watchdog presets")
    assert "| key | `none` | `report` | `default` | `strict` |" in presets
    assert "| `stall` | null | {action: report, after: 30m} | 30m | 5m |" in presets
    assert "| `timers` | false | false | true | true |" in presets


@pytest.mark.parametrize("block", examples(PAGE))
def test_the_examples_are_right(block: str) -> None:
    resolve(OmegaConf.create(block), HostContext(runtime_cwd=str(ROOT), output_dir="/out"))


# Of sweeps


@pytest.mark.parametrize("key", [key for key in SWEEP if key != "console"])
def test_every_setting_of_a_sweep_has_its_default_and_an_example(key: str) -> None:
    default = yaml.safe_load(yaml.safe_dump(OmegaConf.to_container(launcher_node())[key]))  # type: ignore[call-overload,index]
    (row,) = re.findall(rf"^\| \[`{key}`\]\(#{key}\) \| `(.*)` \|$", OF_SWEEPS, re.MULTILINE)
    (said,) = re.findall(r"^Default: `(.*)`\.$", section(OF_SWEEPS, key), re.MULTILINE)
    assert yaml.safe_load(row) == yaml.safe_load(said) == default
    (example,) = examples(section(OF_SWEEPS, key))
    assert key in yaml.safe_load(example)["hydra"]["launcher"]


@pytest.mark.parametrize("block", examples(OF_SWEEPS))
def test_the_examples_of_sweeps_are_right(block: str) -> None:
    cfg = OmegaConf.create(block)
    options = {"runtime_cwd": "/", "output_dir": "/out", "entrypoint_required": False}
    spec = resolve(cfg, HostContext(outer="hydra.launcher", **options))
    changed = sweep_settings(cfg) != SweepSettings()
    assert changed or spec != resolve(OmegaConf.create(), HostContext(**options))


def test_the_table_of_needs_is_what_is_done() -> None:
    table = section(OF_SWEEPS, "Leases")
    rows = re.findall(r"^\| (null|\d) \| (null|\d) \| (.*) \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == 6
    for gpus, cpus, *said in rows:
        resources = Resources(yaml.safe_load(gpus), yaml.safe_load(cpus))
        for there, text in zip((True, False), said, strict=True):
            need = need_of(1, resources, there, 8)
            if "never fits" in text:
                assert need.gpus
                continue
            found = {what: int(number) for number, what in re.findall(r"(\d) (GPU|CPU)", text)}
            assert (found.get("GPU", 0), found.get("CPU", 0)) == (need.gpus, need.cpus)
