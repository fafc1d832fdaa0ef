"""Writes what follows from the tables of settings into two pages of docs/reference.

Of config.md the list of settings, the default of each, and the presets of the watchdog; of
sweep-config.md the list of launch fields. The rest of both is written by hand.

Run it as ``python docs/generate_config_reference.py`` after a change there; a test compares.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import yaml

from lllaunch.config.kinds import PRESETS, WATCHDOG, written_policy
from lllaunch.spec import LAUNCH_FIELDS, SETTINGS

PAGE = Path(__file__).parent / "reference" / "config.md"
OF_SWEEPS = PAGE.with_name("sweep-config.md")


def page() -> str:
    """The page of the launch node."""
    text = PAGE.read_text(encoding="utf-8")
    defaults = {each.name: f"`{_yaml(each.default)}`" for each in SETTINGS}
    for key, default in defaults.items():
        text = _replaced(rf"(?<=\n## {key}\n\n).*", f"Default: {default}.", text)
    rows = [f"| [`{key}`](#{key}) | {default} |" for key, default in defaults.items()]
    text = _replaced(r"(?<=\n\| key \| default \|\n\|---\|---\|\n)(\|.*\n)+", _lines(rows), text)
    said = [written_policy(policy) for policy in PRESETS.values()]
    heads = ["| key |" + "".join(f" `{name}` |" for name in PRESETS), "|---|" + "---|" * len(said)]
    presets = [
        f"| `{key}` |" + "".join(f" {_yaml(each[key])} |" for each in said)
        for key in WATCHDOG.fields
    ]
    return _replaced(r"\| key \| `.*\n(\|.*\n)+", _lines([*heads, *presets]), text)


def page_of_sweeps() -> str:
    """The page of ``hydra.launcher``."""
    names = (f"[`{name}`](config.md#{name})" for name in LAUNCH_FIELDS)
    listed = textwrap.fill(", ".join(names) + ".", 100)
    text = OF_SWEEPS.read_text(encoding="utf-8")
    return _replaced(r"(?<=\n\n)\[`nproc`\].*(\n.+)*", listed, text)


def _replaced(pattern: str, by: str, text: str) -> str:
    text, count = re.subn(pattern, lambda _: by, text)
    assert count == 1, f"{pattern} is there {count} times"
    return text


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _yaml(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    OF_SWEEPS.write_text(page_of_sweeps(), encoding="utf-8")
