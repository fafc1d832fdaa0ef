"""docs/reference/sweep-config.md says what there is, and its examples are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.launcher_schema import LAUNCH_FIELDS, launcher_node
from lllaunch.config.resolve import resolve
from lllaunch.config.sweep import SWEEP_KEYS, SweepSettings, sweep_settings
from lllaunch.spec import Resources
from lllaunch.sweep.pool import need_of

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "sweep-config.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def anchors(page: str) -> set[str]:
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("key", SWEEP_KEYS)
def test_every_setting_has_its_default_and_an_example(key: str) -> None:
    default = yaml.safe_load(yaml.safe_dump(OmegaConf.to_container(launcher_node())[key]))  # type: ignore[call-overload,index]
    (row,) = re.findall(rf"^\| \[`{key}`\]\(#{key}\) \| `(.*)` \|$", PAGE, re.MULTILINE)
    (said,) = re.findall(r"^Default: `(.*)`\.$", section(key), re.MULTILINE)
    assert yaml.safe_load(row) == yaml.safe_load(said) == default
    (example,) = re.findall(r"^```yaml\n(.*?)^```", section(key), re.MULTILINE | re.DOTALL)
    assert key in yaml.safe_load(example)["hydra"]["launcher"]


def test_every_launch_field_is_named_and_described_on_the_other_page() -> None:
    named = re.findall(r"\[`(\w+)`\]\(config\.md#\1\)", section("Launch fields"))
    assert tuple(named) == LAUNCH_FIELDS


def test_every_link_to_a_reference_leads_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]*)#([^)]*)\)", PAGE)
    assert links
    for page, anchor in links:
        text = (REFERENCE / page).read_text(encoding="utf-8") if page else PAGE
        assert anchor in anchors(text), (page, anchor)
    for page in re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", PAGE):
        assert (REFERENCE / page).exists(), page


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
def test_the_examples_are_right(block: str) -> None:
    cfg = OmegaConf.create(block)
    spec = resolve(
        cfg,
        runtime_cwd="/",
        output_dir="/out",
        outer="hydra.launcher",
        entrypoint_required=False,
    )
    changed = sweep_settings(cfg.hydra.launcher) != SweepSettings()
    plain = resolve(
        OmegaConf.create(), runtime_cwd="/", output_dir="/out", entrypoint_required=False
    )
    assert changed or spec != plain


def test_the_table_of_needs_is_what_is_done() -> None:
    rows = re.findall(r"^\| (null|\d) \| (null|\d) \| (.*) \| (.*) \|$", section("Leases"), re.M)
    assert len(rows) == 6
    for gpus, cpus, *said in rows:
        resources = Resources(yaml.safe_load(gpus), yaml.safe_load(cpus))
        for there, text in zip((True, False), said, strict=True):
            need = need_of(1, resources, there, 8)
            if "never fits" in text:
                assert need.gpus
                continue
            found = {what: int(number) for number, what in re.findall(r"(\d) (GPU|CPU)", text)}
            assert (found.get("GPU", 0), found.get("CPU", 0)) == need
