"""Configs and overrides laid over each other as OmegaConf merges them, with who gave what.

The values are needed while the layers are put on, to check at the end that the result is what Hydra
composed: where it is not, the origin is unknown rather than wrong. Then they are dropped.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lllaunch.config.origin import UNKNOWN, Entry, Origin, Origins, dotted, parts_of, references
from lllaunch.config.origin_lines import NO_LINES, Lines

_MISSING = "???"


@dataclass(frozen=True)
class Layer:
    """One config or override.

    Attributes:
        origin: what its values get as their origin, but for the line.
        lines: those of its file.
        replaces: whether ``???`` in it replaces a value, as on the command line.
    """

    origin: Origin
    lines: Lines = NO_LINES
    replaces: bool = False


class _Node:
    """A key: a leaf with a value, or a container with children."""

    __slots__ = ("children", "is_list", "marks", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.children: dict[object, _Node] | None = None
        self.is_list = False
        # who gave it a value, weakest first
        self.marks: list[Origin] = []

    @property
    def is_mapping(self) -> bool:
        return self.children is not None and not self.is_list

    def empty(self, *, is_list: bool) -> dict[object, _Node]:
        """Makes it a container without anything in it, and returns its children."""
        self.value, self.is_list = None, is_list
        self.children = {}
        return self.children

    def mapping(self) -> dict[object, _Node]:
        """Makes it a mapping unless it is one, and returns its children."""
        if self.is_list or self.children is None:
            return self.empty(is_list=False)
        return self.children

    def copy(self) -> _Node:
        """Another node with the same content."""
        other = _Node()
        other.value, other.is_list, other.marks = self.value, self.is_list, list(self.marks)
        if self.children is not None:
            other.children = {key: child.copy() for key, child in self.children.items()}
        return other


class OriginTree:
    """What the layers put so far result in."""

    def __init__(self) -> None:
        self._root = _Node()
        self._root.empty(is_list=False)

    def lay(self, package: str, content: Any, layer: Layer) -> None:
        """Merges a config into a package.

        Args:
            package: dotted key; empty is the root.
            content: the config as plain data, unresolved.
            layer: what it is.
        """
        self._lay(parts_of(package), content, layer)

    def override(self, key: str, value: Any, layer: Layer) -> None:
        """Sets a key; a mapping is merged into one."""
        self._lay(parts_of(key), value, layer)

    def delete(self, key: str) -> None:
        """Takes a key out."""
        *above, last = parts_of(key)
        node = self._at(above)
        if node is not None and node.children is not None:
            node.children.pop(_index(node, last), None)

    def name_preset(self, key: str, names: Container[object]) -> None:
        """Make a mapping with the key ``preset`` of the name of one, as Hydra's loader does."""
        node = self._at(parts_of(key))
        if node is not None and node.children is None and node.value in names:
            preset = node.copy()
            node.empty(is_list=False)["preset"] = preset

    def origins(self, composed: Any) -> Origins:
        """What is known of each key.

        Args:
            composed: what Hydra composed of the layers, as plain data, unresolved.
        """
        entries: dict[str, Entry] = {}
        _collect(self._root, composed, (), entries)
        entries.pop("", None)
        return Origins(entries)

    def _lay(self, path: Sequence[str], content: Any, layer: Layer) -> None:
        node = self._root
        for part in path:
            if node.children is None:
                node.mapping()
                node.marks.append(layer.origin)
            children = node.children or node.mapping()
            node = children.setdefault(_index(node, part), _Node())
        self._put(node, tuple(path), content, layer, layer.lines)

    def _put(
        self, node: _Node, path: tuple[object, ...], value: Any, layer: Layer, lines: Lines
    ) -> None:
        if not layer.replaces:
            self._expand(node, path)
        inner = replace(layer, replaces=False) if layer.replaces else layer
        if isinstance(value, dict):
            # an empty mapping changes nothing in another one
            says_something = bool(value) or not (node.is_mapping and node.children)
            children = node.mapping()
            for key, item in value.items():
                child = children.setdefault(key, _Node())
                self._put(child, (*path, key), item, inner, lines.below(key))
            if not says_something:
                return
        elif isinstance(value, list):
            children = node.empty(is_list=True)
            for index, item in enumerate(value):
                child = children[index] = _Node()
                self._put(child, (*path, index), item, inner, lines.below(index))
        elif node.marks and value == _MISSING and not layer.replaces:
            return
        else:
            node.children, node.is_list, node.value = None, False, value
        node.marks.append(replace(layer.origin, line=lines.line))

    def _expand(self, node: _Node, path: tuple[object, ...]) -> None:
        """What OmegaConf merges into a reference to a container it merges into a copy of that."""
        keys, whole = references(node.value, path)
        target = self._at(parts_of(keys[0])) if whole else None
        if target is not None and target.children is not None:
            copy = target.copy()
            node.value, node.children, node.is_list = None, copy.children, copy.is_list

    def _at(self, parts: Iterable[str]) -> _Node | None:
        node: _Node | None = self._root
        for part in parts:
            if node is None or node.children is None:
                return None
            node = node.children.get(_index(node, part))
        return node


def _index(node: _Node, part: str) -> object:
    return int(part) if node.is_list and part.isdecimal() else part


def _collect(
    node: _Node | None, composed: Any, path: tuple[object, ...], entries: dict[str, Entry]
) -> None:
    """Compares a node with what was composed, and notes what is known of it and all below."""
    children: dict[object, _Node] = {}
    if node is not None and _is_alike(node, composed):
        *before, last = node.marks or [UNKNOWN]
        origin = replace(last, overridden=tuple(before)) if before else last
        children = node.children or {}
    else:
        origin = UNKNOWN
    key = dotted(path)
    # two keys with the same dotted name: one of them has a dot in itself
    origin = UNKNOWN if key in entries else origin
    entries[key] = Entry(origin, *references(composed, path))
    if isinstance(composed, dict):
        for name, item in composed.items():
            _collect(children.get(name), item, (*path, name), entries)
    elif isinstance(composed, list):
        for index, item in enumerate(composed):
            _collect(children.get(index), item, (*path, index), entries)


def _is_alike(node: _Node, composed: Any) -> bool:
    if isinstance(composed, dict):
        return node.is_mapping
    if isinstance(composed, list):
        return node.is_list and len(node.children or ()) == len(composed)
    if node.children is not None:
        return False
    return _is_same(node.value, composed)


def _is_same(given: Any, composed: Any) -> bool:
    """Whether a value is the one that was given, perhaps converted to the type of its node."""
    if given is None or composed is None:
        return given is composed
    if str(given) == str(composed) or (type(given) is type(composed) and given == composed):
        return True
    if isinstance(composed, Enum):
        return str(given).rpartition(".")[2] == composed.name or given == composed.value
    if isinstance(composed, bool):
        return str(given).lower() in _TRUTHS[composed]
    try:
        return isinstance(composed, float) and float(given) == composed
    except (TypeError, ValueError):
        return False


_TRUTHS = {True: {"true", "yes", "on", "y", "1"}, False: {"false", "no", "off", "n", "0"}}
