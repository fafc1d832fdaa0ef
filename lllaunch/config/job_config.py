"""A job's whole config as a journal may keep it."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lllaunch.config.cluster import KEY as CLUSTER
from lllaunch.config.cluster import asks_for_cluster
from lllaunch.config.read import MOST_LEAVES, register_resolvers, watching
from lllaunch.config.secrets import (
    literals,
    mentions_env,
    not_secret,
    redacted_overrides,
    safe_source,
    source_for,
)
from lllaunch.config.tree import value_at
from lllaunch.hydra_compat import own_node
from lllaunch.secret_names import is_secret_name

__all__ = ["public_config", "redacted_overrides", "with_sources"]

_LEFT_OUT = ("hydra", "launch")
# What they give is a secret, or another one each time.
_WATCHED = ("oc.env", "now", "hydra")
_CHANGES = re.compile(r"\$\{\s*(?:now\s*:|hydra\s*[:.])")
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select\s*:)?\s*([^${}:,]+)")
_DEEPEST = 50
_PLAIN = (bool, int, float, str, bytes, enum.Enum, os.PathLike)


def public_config(cfg: DictConfig) -> dict[str, Any]:
    """A job's config as it may be written, without ``hydra``, ``launch`` and ``cluster``.

    A ``cluster`` that is the user's own is no other key.

    Plain data, resolved but for some leaves, of which the config's own text stands there: those
    that come from the environment or from what changes with each composing (``${now:...}``,
    ``${hydra:...}``), by whatever detour; those under a name that says secret, and references to
    them; and those that cannot be resolved. Of literal secrets ``${oc.env:NAME}`` stands there.
    Resolvers of the user's are called; what they raise is ignored.
    """
    register_resolvers()
    root: Any = OmegaConf.to_container(cfg, resolve=False)
    left_out = {*_LEFT_OUT, CLUSTER} if asks_for_cluster(cfg, users_own=True) else {*_LEFT_OUT}
    own = {name: item for name, item in root.items() if name not in left_out}
    with watching(*_WATCHED) as calls:
        config: dict[str, Any] = _Writer(root, calls).container(cfg, own)
    return config


def with_sources(decided: Mapping[str, Any], cfg: DictConfig, *nodes: str) -> dict[str, Any]:
    """Return a decided ``launch`` node that is the same whenever the config is composed.

    Leaves of which `public_config` would leave the config's own text have that text. ``nodes`` are
    the dotted keys that it was read from, the strongest last.
    """
    register_resolvers()
    root: Any = OmegaConf.to_container(cfg, resolve=False)
    found = dict(decided)
    for node in nodes:
        raw = value_at(root, node.split("."))
        if isinstance(raw, dict):
            with watching(*_WATCHED) as calls:
                texts = _Writer(root, calls).container(OmegaConf.select(cfg, node), raw)
            found = {key: _with_text(item, texts.get(key)) for key, item in found.items()}
    return found


def _with_text(decided: Any, text: Any) -> Any:
    if isinstance(decided, dict) and isinstance(text, dict):
        return {key: _with_text(item, text.get(key)) for key, item in decided.items()}
    if isinstance(decided, list) and isinstance(text, list) and len(decided) == len(text):
        return [_with_text(*pair) for pair in zip(decided, text, strict=True)]
    return text if isinstance(text, str) and "${" in text else decided


class _Writer:
    """Walks through a config and its unresolved data side by side."""

    def __init__(self, root: Mapping[Any, Any], calls: list[str]) -> None:
        self._root = root
        self._calls = calls
        written = {name: item for name, item in root.items() if name != "hydra"}
        self._literals = [text for _, _, text in literals(written, allowed=not_secret(root))]
        # of what references to containers may add
        self._left = MOST_LEAVES
        self._open: list[int] = []

    def container(self, node: Any, raw: Any, name: object = "") -> Any:
        """Returns a node as plain data."""
        self._open.append(id(node))
        try:
            if isinstance(raw, list):
                return [self._item(node, index, item, name) for index, item in enumerate(raw)]
            return {key: self._item(node, key, item, key) for key, item in raw.items()}
        finally:
            self._open.pop()

    def _item(self, parent: Any, index: Any, raw: Any, name: object) -> Any:
        if isinstance(raw, (dict, list)):
            return self.container(own_node(parent, index), raw, name)
        if not isinstance(raw, str) or "${" not in raw:
            if self._holds_literal(raw):
                return source_for(str(name))
            return raw if raw is None or isinstance(raw, _PLAIN) else f"<{type(raw).__qualname__}>"
        if is_secret_name(name) or self._stays(raw):
            return safe_source(raw, name)
        del self._calls[:]
        try:
            value = parent[index]
        except Exception:  # noqa: BLE001 - whatever OmegaConf and users' resolvers raise
            return safe_source(raw, name)
        if self._calls:
            return safe_source(raw, name)
        if isinstance(value, (DictConfig, ListConfig)):
            if id(value) in self._open or len(self._open) >= _DEEPEST:
                return raw
            content: Any = OmegaConf.to_container(value, resolve=False)
            self._left -= 1 + _size(content)
            return self.container(value, content, name) if self._left >= 0 else raw
        try:
            return self._plain(value)
        except (ValueError, RecursionError):
            return safe_source(raw, name)

    def _stays(self, raw: str, follow: int = 10) -> bool:
        """Whether a leaf's text says that its value may not be written, as far as one can tell."""
        if mentions_env(raw) or _CHANGES.search(raw):
            return True
        for path in _REFERENCE.findall(raw):
            parts = [part for part in re.split(r"[.\[\]\s]+", path) if part]
            if parts and is_secret_name(parts[-1]):
                return True
            target = None if path.strip().startswith(".") else value_at(self._root, parts)
            if isinstance(target, str) and follow and self._stays(target, follow - 1):
                return True
        return False

    def _plain(self, value: Any) -> Any:
        """What a resolver made, which may be a container that OmegaConf leaves as it is."""
        if isinstance(value, dict):
            return {key: self._plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        if value is not None and (not isinstance(value, _PLAIN) or self._holds_literal(value)):
            raise ValueError
        return value

    def _holds_literal(self, value: object) -> bool:
        return isinstance(value, str) and any(text in value for text in self._literals)


def _size(content: Any) -> int:
    if isinstance(content, dict):
        return sum(1 + _size(item) for item in content.values())
    return sum(1 + _size(item) for item in content) if isinstance(content, list) else 0
