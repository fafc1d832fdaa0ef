"""The launch node put together: defaults, then ``hydra.launcher`` of a sweep, then the job's own.

Hydra composes the job's node over one in which nothing is set (`lllaunch.config.schema`), so what
is not null there somebody has set, to the default or not.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.keys import known_items
from lllaunch.config.launcher_schema import LAUNCH_FIELDS
from lllaunch.config.read import Reader
from lllaunch.config.restart import with_on
from lllaunch.config.schema import KEYS, defaults, is_set
from lllaunch.config.synonyms import EXPLAINED, SYNONYMS
from lllaunch.config.tree import Tree, reveal
from lllaunch.config.watchdog import check_replaced


class Layers:
    """Where the settings of a run come from.

    Args:
        key: dotted key of the launch node.
        outer: dotted key of a node that is weaker, or None.
    """

    def __init__(self, key: str, outer: str | None = None) -> None:
        self.key = key
        self.outer = outer

    def read(
        self, cfg: DictConfig, reader: Reader, findings: Findings
    ) -> tuple[dict[str, Tree], dict[str, str]]:
        """Reads all settings.

        Args:
            cfg: the config that both nodes are in.
            reader: of that config.
            findings: takes what is wrong.

        Returns:
            The value of each key of the schema, and the dotted key that it stands under.

        Raises:
            ConfigError: the launch node is not a mapping.
        """
        own = self._own(cfg, reader, findings)
        weaker = self._outer(cfg, reader, findings)
        tree = {**defaults(), **weaker, **own}
        tree["restart"] = with_on(tree["restart"])
        inherited = weaker.keys() - own.keys()
        keys = {name: f"{self.outer if name in inherited else self.key}.{name}" for name in KEYS}
        return tree, keys

    def _own(self, cfg: DictConfig, reader: Reader, findings: Findings) -> dict[str, Tree]:
        node = reader.read(cfg, self.key)
        if node is not None and not isinstance(node, dict):
            expected = "a mapping of settings (entrypoint, nproc, ...)"
            findings.add(self.key, node, Unfit(expected))
            findings.raise_if_any()
        items = known_items(node or {}, self.key, KEYS, SYNONYMS, findings, EXPLAINED)
        if items.keys() == set(KEYS):
            # Hydra has composed it over the schema
            check_replaced(items["watchdog"], f"{self.key}.watchdog", findings)
        return _set_ones(items)

    def _outer(self, cfg: DictConfig, reader: Reader, findings: Findings) -> dict[str, Tree]:
        node = node_at(cfg, self.outer) if self.outer else None
        if not isinstance(node, DictConfig) or self.outer is None:
            return {}
        items = reader.read_items(node, self.outer, LAUNCH_FIELDS)
        if items.keys() == set(LAUNCH_FIELDS):
            check_replaced(items["watchdog"], f"{self.outer}.watchdog", findings)
        return _set_ones(items)


def _set_ones(items: dict[str, Tree]) -> dict[str, Tree]:
    return {name: value for name, value in items.items() if is_set(reveal(value))}


def node_at(cfg: DictConfig, key: str) -> Any:
    """What stands under a dotted key, None if there is nothing that can be read."""
    try:
        return OmegaConf.select(cfg, key)
    except OmegaConfBaseException:
        return None
