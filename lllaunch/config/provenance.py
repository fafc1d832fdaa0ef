"""Finds out where each value of a composed config came from.

Hydra forgets it while it composes. So its steps are repeated one by one, with its own functions:
the defaults list, the configs in it, each laid over the others at its package, the overrides. What
comes out is compared with what Hydra composes. See docs/design/provenance.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from hydra._internal.defaults_list import (
    DefaultsList,
    _create_result_default,
    _dfs_walk,
    create_defaults_list,
)
from hydra.core.default_element import DefaultsTreeNode, GroupDefault, InputDefault, ResultDefault
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import Container, OmegaConf

from lllaunch.config.origin import Kind, Link, Origin, Origins
from lllaunch.config.origin_lines import NO_LINES, Lines, lines_of
from lllaunch.config.origin_tree import Layer, OriginTree
from lllaunch.config.overrides import redacted_overrides
from lllaunch.config.presets import PRESET_KEYS, PRESETS
from lllaunch.config.tree import shown_path

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import IConfigRepository
    from hydra.core.override_parser.types import Override

__all__ = ["Link", "Origin", "Origins", "origins"]

_STRIPPED = "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"


def origins(
    loader: ConfigLoaderImpl,
    config_name: str | None,
    overrides: Sequence[str],
    run_mode: RunMode = RunMode.RUN,
) -> Origins:
    """Tells where the values of a config came from.

    Composes once more, which takes about as long as the first time; reads config files and changes
    nothing. It imports no more than composing does.

    Args:
        loader: the one that the config was composed with; it is left as it is.
        config_name: name of the primary config.
        overrides: those of the command line; for a job of a sweep with those of the job, as
            `ConfigLoaderImpl.load_sweep_config` puts them together.
        run_mode: that of the composing. Under MULTIRUN what is swept keeps its other origin.

    Raises:
        HydraException, OmegaConfBaseException: the config cannot be composed.
    """
    tree = OriginTree()
    with warnings.catch_warnings():
        # whoever composed the config has seen them
        warnings.simplefilter("ignore")
        parsed, repo = loader._parse_overrides_and_create_caching_repo(config_name, list(overrides))
        found = create_defaults_list(
            repo=repo,
            config_name=config_name,
            overrides_list=parsed,
            prepend_hydra=True,
            skip_missing=run_mode == RunMode.MULTIRUN,
        )
        configs = _Configs(repo)
        for default, group in _with_groups(found):
            # before Hydra merges: its merging changes configs that it has loaded
            configs.lay(default, group, tree)
        for key in PRESET_KEYS:
            tree.name_preset(key, PRESETS)
        for override in found.config_overrides:
            _lay_override(override, tree)
        cfg = loader._compose_config_from_defaults_list(found.defaults, repo)
        OmegaConf.set_struct(cfg, True)
        OmegaConf.set_readonly(cfg.hydra, False)
        loader._apply_overrides_to_config(found.config_overrides, cfg)
    return tree.origins(_plain(cfg))


def origins_of_one(repo: IConfigRepository, name: str) -> Origins:
    """Tells where the values of a single config came from, before anything is composed.

    Args:
        repo: where it is.
        name: of the config, such as the primary one.

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
        default = _create_result_default(parent, node)
        if default is not None:
            groups.append((default, _group(node, parent)))

    _dfs_walk(found.defaults_tree, note)
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
    """Reads the configs of a defaults list once more.

    Args:
        repo: where they are.
    """

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
        schema = None if loaded.is_schema_source else self._schema(path)
        for each in (schema, loaded):
            if each is not None:
                origin = _origin(each, path, group)
                lines = self._lines_of(each, path)
                tree.lay(package or "", _content(each.config), Layer(origin, lines))

    def _schema(self, path: str) -> ConfigResult | None:
        """A stored config with the same name, which Hydra puts below a file (deprecated there)."""
        try:
            source = self._repo.get_schema_source()
            return source.load_config(ConfigSource._normalize_file_name(path))
        except ConfigLoadError:
            return None

    def _lines_of(self, loaded: ConfigResult, path: str) -> Lines:
        # by name alone, as the repository keeps them
        if _scheme(loaded) not in {"file", "pkg"}:
            return NO_LINES
        if path not in self._lines:
            self._lines[path] = _read_lines(loaded, path)
        return self._lines[path]


def _origin(loaded: ConfigResult, path: str, group: str) -> Origin:
    scheme = _scheme(loaded)
    kind: Kind = "package" if scheme == "pkg" else "schema" if scheme == "structured" else "file"
    if loaded.provider == "hydra":
        kind = "hydra"
    if scheme == "structured":
        return Origin(kind, f"{scheme}://{path}", group=group)
    name = ConfigSource._normalize_file_name(path)
    if scheme != "file":
        return Origin(kind, f"{loaded.path}/{name}", group=group)
    return Origin(kind, shown_path(_file(loaded, name)), group=group)


def _scheme(loaded: ConfigResult) -> str:
    return loaded.path.partition("://")[0]


def _file(loaded: ConfigResult, name: str) -> str:
    return os.path.join(loaded.path.removeprefix("file://"), name)


def _read_lines(loaded: ConfigResult, path: str) -> Lines:
    name = ConfigSource._normalize_file_name(path)
    try:
        if _scheme(loaded) == "pkg":
            package = resources.files(loaded.path.removeprefix("pkg://"))
            return lines_of(package.joinpath(name).read_text(encoding="utf-8"))
        with open(_file(loaded, name), encoding="utf-8") as file:
            return lines_of(file.read())
    except (OSError, UnicodeDecodeError):
        return NO_LINES


def _content(config: Container) -> Any:
    content = _plain(config)
    if isinstance(content, dict) and config._get_flag(_STRIPPED):
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
