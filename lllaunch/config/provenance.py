"""Finds out where each value of a composed config came from.

Hydra forgets it while it composes. So its steps are repeated one by one, with its own functions:
the defaults list, the configs in it, each laid over the others at its package, the overrides. What
comes out is compared with what Hydra composes: where it is not that, the origin is unknown rather
than wrong. See docs/design/provenance.md.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Any

from hydra.core.default_element import DefaultsTreeNode, GroupDefault, InputDefault, ResultDefault
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.types import RunMode
from omegaconf import Container, OmegaConf

from lllaunch.config.document import NO_LINES, Lines, lines_of
from lllaunch.config.origin import (
    UNKNOWN,
    KeyOrigin,
    Kind,
    Link,
    Origin,
    Origins,
    dotted,
    parts_of,
    references,
)
from lllaunch.config.schema import PRESET_KEYS, PRESETS
from lllaunch.config.secrets import redacted_overrides
from lllaunch.config.tree import shown_path
from lllaunch.hydra_compat import (
    apply_overrides,
    default_of,
    file_name,
    keeps_defaults_list,
    merge_files,
    read_defaults,
    walk_defaults,
)

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from lllaunch.hydra_compat import ConfigLoaderImpl, DefaultsList, IConfigRepository


_MISSING = "???"


@dataclass(frozen=True)
class Layer:
    """A config or override, with the origin of its values; ``replaces`` if ``???`` in it counts."""

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
        """Merge a config, plain and unresolved, into a package; the empty one is the root."""
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

    def name_preset(self, key: str, names: Collection[str]) -> None:
        """Make a mapping with the key ``preset`` of the name of one, as Hydra's loader does."""
        node = self._at(parts_of(key))
        if node is not None and node.children is None and node.value in names:
            preset = node.copy()
            node.empty(is_list=False)["preset"] = preset

    def origins(self, composed: Any) -> Origins:
        """Return what is known of each key of a config, composed of the layers."""
        entries: dict[str, KeyOrigin] = {}
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
            # what OmegaConf merges into a reference to a container it merges into a copy of that
            keys, whole = references(node.value, path)
            target = self._at(parts_of(keys[0])) if whole else None
            if target is not None and target.children is not None:
                copy = target.copy()
                node.value, node.children, node.is_list = None, copy.children, copy.is_list
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
    node: _Node | None, composed: Any, path: tuple[object, ...], entries: dict[str, KeyOrigin]
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
    entries[key] = KeyOrigin(origin, *references(composed, path))
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
    # the same value, perhaps converted to the type of its node
    given = node.value
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


__all__ = ["Link", "Origin", "Origins", "origins"]


def origins(
    loader: ConfigLoaderImpl,
    config_name: str | None,
    overrides: Sequence[str],
    run_mode: RunMode = RunMode.RUN,
) -> Origins:
    """Tells where the values of a config came from.

    Composes once more, which takes about as long as the first time; reads config files and changes
    nothing. It imports no more than composing does.

    ``overrides`` are those of the command line; for a job of a sweep with those of the job, as
    `ConfigLoaderImpl.load_sweep_config` puts them together. Under MULTIRUN what is swept keeps its
    other origin.

    Raises:
        HydraException, OmegaConfBaseException: the config cannot be composed.
    """
    tree = OriginTree()
    with warnings.catch_warnings():
        # whoever composed the config has seen them
        warnings.simplefilter("ignore")
        sweep = run_mode == RunMode.MULTIRUN
        found, repo = read_defaults(loader, config_name, overrides, sweep=sweep)
        configs = _Configs(repo)
        for default, group in _with_groups(found):
            # before Hydra merges: its merging changes configs that it has loaded
            configs.lay(default, group, tree)
        for key in PRESET_KEYS:
            tree.name_preset(key, PRESETS)
        for override in found.config_overrides:
            _lay_override(override, tree)
        cfg = merge_files(loader, found, repo)
        OmegaConf.set_struct(cfg, True)
        OmegaConf.set_readonly(cfg.hydra, False)
        apply_overrides(loader, found, cfg)
    return tree.origins(_plain(cfg))


def origins_of_one(repo: IConfigRepository, name: str) -> Origins:
    """Tells where the values of a single config came from, before anything is composed.

    Raises:
        HydraException, OmegaConfBaseException: it is not there, or cannot be read.
    """
    tree = OriginTree()
    _Configs(repo).lay(ResultDefault(config_path=name, package=""), "", tree)
    loaded = repo.load_config(name)
    return tree.origins(_content(loaded.config) if loaded is not None else {})


def _with_groups(found: DefaultsList) -> Iterator[tuple[ResultDefault, str]]:
    """The configs in the order of merging, each with the choice that brought it."""
    groups: list[tuple[ResultDefault, str]] = []

    def note(parent: DefaultsTreeNode | None, node: InputDefault) -> None:
        if node.is_deleted() or node.is_missing():
            return
        default = default_of(parent, node)
        if default is not None:
            groups.append((default, _group(node, parent)))

    walk_defaults(found, note)
    if [default for default, _ in groups] != found.defaults:
        # not walked as Hydra did; the choices are only for reading
        return iter([(default, "") for default in found.defaults])
    return iter(groups)


def _group(node: InputDefault, parent: DefaultsTreeNode | None) -> str:
    """The nearest choice of a group, this one or that of a config which names this one."""
    current: InputDefault | None = node
    while current is not None:
        if isinstance(current, GroupDefault) and not current.is_self():
            return f"{current.get_override_key()}={current.get_name()}"
        current, parent = (parent.node, parent.parent) if parent is not None else (None, None)
    return ""


class _Configs:
    """Reads the configs of a defaults list once more."""

    def __init__(self, repo: IConfigRepository) -> None:
        self._repo = repo
        self._lines: dict[str, Lines] = {}

    def lay(self, default: ResultDefault, group: str, tree: OriginTree) -> None:
        """Puts a config onto a tree, at its package."""
        path = default.config_path
        loaded = self._repo.load_config(path) if path is not None else None
        if path is None or loaded is None:
            return
        package = default.package if default.package is not None else loaded.header["package"]
        schema = None
        if not loaded.is_schema_source:
            # a stored config with the same name, which Hydra puts below a file (deprecated there)
            with contextlib.suppress(ConfigLoadError):
                schema = self._repo.get_schema_source().load_config(file_name(path))
        for each in (schema, loaded):
            if each is not None:
                origin = _origin(each, path, group)
                lines = self._lines_of(each, path)
                tree.lay(package or "", _content(each.config), Layer(origin, lines))

    def _lines_of(self, loaded: ConfigResult, path: str) -> Lines:
        scheme, _, place = loaded.path.partition("://")
        if scheme not in {"file", "pkg"}:
            return NO_LINES
        # by name alone, as the repository keeps them
        if path not in self._lines:
            self._lines[path] = NO_LINES
            directory: Any = resources.files(place) if scheme == "pkg" else pathlib.Path(place)
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = directory.joinpath(file_name(path)).read_text(encoding="utf-8")
                self._lines[path] = lines_of(text)
        return self._lines[path]


def _origin(loaded: ConfigResult, path: str, group: str) -> Origin:
    scheme, _, place = loaded.path.partition("://")
    kind: Kind = "package" if scheme == "pkg" else "schema" if scheme == "structured" else "file"
    if loaded.provider == "hydra":
        kind = "hydra"
    if scheme == "structured":
        return Origin(kind, f"{scheme}://{path}", group=group)
    name = file_name(path)
    if scheme != "file":
        return Origin(kind, f"{loaded.path}/{name}", group=group)
    return Origin(kind, shown_path(os.path.join(place, name)), group=group)


def _content(config: Container) -> Any:
    content = _plain(config)
    if isinstance(content, dict) and keeps_defaults_list(config):
        # a dataclass keeps its defaults list until all is merged
        content.pop("defaults", None)
    return content


def _plain(config: Container) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def _lay_override(override: Override, tree: OriginTree) -> None:
    if override.is_delete():
        tree.delete(override.key_or_group)
        return
    (text,) = redacted_overrides([override.input_line or override.get_key_element()])
    layer = Layer(Origin("override", text), replaces=True)
    tree.override(override.key_or_group, override.value(), layer)
