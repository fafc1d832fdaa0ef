"""Keys of a mapping: those that there are, and what the others were probably meant to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lllaunch.config.findings import Findings
from lllaunch.config.suggest import did_you_mean
from lllaunch.config.tree import Tree

# As many as somebody may read; looking for what was meant takes time.
_MOST_UNKNOWN = 20
_NONE: Mapping[str, str] = {}


def known_items(
    node: Mapping[Any, Tree],
    key: str,
    names: Collection[str],
    synonyms: Mapping[str, str],
    findings: Findings,
    explained: Mapping[str, str] = _NONE,
) -> dict[str, Tree]:
    """The items of a mapping that are settings.

    Args:
        node: the mapping.
        key: its dotted key, for messages.
        names: names of the settings.
        synonyms: other words for them.
        findings: takes the items that are no settings.
        explained: of names that others have and that are none here, what to do instead.
    """
    unknown = [name for name in node if name not in names]
    for name in unknown[:_MOST_UNKNOWN]:
        hint = explained.get(str(name)) or _meant(str(name), names, synonyms)
        findings.add_about(f"{key}.{name}", "unknown setting", hint)
    if len(unknown) > _MOST_UNKNOWN:
        more = len(unknown) - _MOST_UNKNOWN
        findings.add_about(key, f"{more} more unknown settings")
    return {name: item for name, item in node.items() if name in names}


def _meant(name: str, names: Collection[str], synonyms: Mapping[str, str]) -> str:
    word = name.lower().replace("-", "_")
    known = word if word in names else synonyms.get(word)
    return f"did you mean {known!r}?" if known else did_you_mean(word, names)
