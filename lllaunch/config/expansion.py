"""How much a text of a config comes to when its references are followed, told beforehand. Pure.

``a1: ${a0}${a0}``, ``a2: ${a1}${a1}`` and so on: thirty short lines come to 10 GB, and resolving
them cannot be interrupted. OmegaConf follows each reference each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lllaunch.config.tree import leaf_items, value_at

MOST_STEPS = 20_000
"""References that one value may come to, those within references counted each time."""

_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select\s*:\s*)?(\.*)([A-Za-z_][\w.\[\]]*)\s*[},]")
_PARTS = re.compile(r"[.\[\]]+")

Path = tuple[str, ...]


def endless(root: Mapping[Any, Any]) -> Iterator[str]:
    """Returns the dotted keys of values that come to too much.

    Args:
        root: a whole config: plain data, unresolved.
    """
    steps = _Steps(root)
    for place, text in leaf_items(root):
        path = tuple(map(str, place))
        if isinstance(text, str) and "${" in text and steps.of(path, text) > MOST_STEPS:
            yield ".".join(path)


class _Steps:
    def __init__(self, root: Mapping[Any, Any]) -> None:
        self._root = root
        self._known: dict[Path, int] = {}

    def of(self, path: Path, text: str) -> int:
        """Steps that resolving a text takes, or a number beyond `MOST_STEPS`."""
        waiting = [(path, text)]
        while waiting:
            path, text = waiting[-1]
            # a cycle, which OmegaConf notices, counts as one step until all of it is known
            self._known.setdefault(path, 1)
            targets = list(self._targets(path, text))
            unknown = [(to, below) for to, below in targets if to not in self._known]
            if unknown:
                waiting.append(unknown[0])
                continue
            total = 1 + sum(self._known[to] for to, _ in targets)
            self._known[path] = min(total, MOST_STEPS + 1)
            waiting.pop()
        return self._known[path]

    def _targets(self, path: Path, text: str) -> Iterator[tuple[Path, str]]:
        for dots, name in _REFERENCE.findall(text):
            parts = tuple(part for part in _PARTS.split(name) if part)
            to = (*path[: len(path) - len(dots)], *parts) if dots else parts
            target = value_at(self._root, to)
            if isinstance(target, str) and "${" in target:
                yield to, target
