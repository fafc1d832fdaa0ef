"""The launch node put together: schema, then ``hydra.launcher`` of a sweep, then the job's own.

Hydra has usually composed the schema's defaults into the job's node, where they look like values
that somebody gave. So a value there that equals its default counts as not given if the weaker node
gives one, unless the command line names its key.
"""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.config.findings import Findings
from lllaunch.config.keys import known_items
from lllaunch.config.launcher_schema import LAUNCH_FIELDS
from lllaunch.config.read import Reader
from lllaunch.config.restart import with_on
from lllaunch.config.schema import KEYS, defaults
from lllaunch.config.synonyms import SYNONYMS
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.watchdog import check_replaced

# Mappings of the weaker node that say nothing.
_SAYING_NOTHING: tuple[dict[str, None], ...] = ({}, {"preset": None})


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
        known = defaults()
        own = self._own(cfg, reader, findings)
        given = own
        if own.keys() == known.keys():
            # Hydra has composed it over the schema.
            check_replaced(own["watchdog"], f"{self.key}.watchdog", findings)
            named = _named_on_command_line(cfg, self.key) if self.outer else set()
            given = {
                name: value
                for name, value in own.items()
                if name in named or not _same(value, known[name])
            }
        outer = self._outer(cfg, reader, findings)
        weaker = {name: value for name, value in outer.items() if name not in given}
        tree = {**known, **own, **weaker}
        tree["restart"] = with_on(tree["restart"])
        keys = {name: f"{self.outer if name in weaker else self.key}.{name}" for name in KEYS}
        return tree, keys

    def _own(self, cfg: DictConfig, reader: Reader, findings: Findings) -> dict[str, Tree]:
        node = reader.read(cfg, self.key)
        if node is not None and not isinstance(node, dict):
            findings.add(self.key, node, "is not a mapping of settings (entrypoint, nproc, ...)")
            findings.raise_if_any()
        return known_items(node or {}, self.key, KEYS, SYNONYMS, findings, owner="lllaunch")

    def _outer(self, cfg: DictConfig, reader: Reader, findings: Findings) -> dict[str, Tree]:
        node = node_at(cfg, self.outer) if self.outer else None
        if not isinstance(node, DictConfig) or self.outer is None:
            return {}
        items = reader.read_items(node, self.outer, LAUNCH_FIELDS)
        given = {name: value for name, value in items.items() if _says_something(value)}
        if items.keys() == set(LAUNCH_FIELDS) and "watchdog" in given:
            check_replaced(given["watchdog"], f"{self.outer}.watchdog", findings)
        return given


def node_at(cfg: DictConfig, key: str) -> Any:
    """What stands under a dotted key, None if there is nothing that can be read."""
    try:
        return OmegaConf.select(cfg, key)
    except OmegaConfBaseException:
        return None


def _says_something(value: Tree) -> bool:
    plain = reveal(value)
    return plain is not None and plain not in _SAYING_NOTHING


def _same(value: Tree, default: Any) -> bool:
    # True is not 1 here: it is wrong where a number is wanted, and should be told.
    return value is not BROKEN and type(value) is type(default) and value == default


def _named_on_command_line(cfg: DictConfig, key: str) -> set[str]:
    """Settings that an override of the job names: ``launch.nproc=1`` means 1."""
    node = node_at(cfg, "hydra.overrides.task")
    # as they were written: an interpolation in one need not resolve here
    overrides: Any = OmegaConf.to_container(node, resolve=False) if node is not None else ()
    paths = (re.split(r"[.@]", str(text).lstrip("+~").partition("=")[0]) for text in overrides)
    return {path[1].strip() for path in paths if len(path) > 1 and path[0] == key}
