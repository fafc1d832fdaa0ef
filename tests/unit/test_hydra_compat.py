"""Private names of Hydra's and OmegaConf's: all in one module, and all there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lllaunch import hydra_compat
from lllaunch.hydra_compat import Seam, replaced

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "lllaunch" / "hydra_compat.py"

# Modules and what is imported of them.
IMPORTED = {
    "hydra._internal.callbacks:Callbacks",
    "hydra._internal.config_loader_impl:ConfigLoaderImpl",
    "hydra._internal.config_repository:ConfigRepository",
    "hydra._internal.config_repository:IConfigRepository",
    "hydra._internal.config_search_path_impl:ConfigSearchPathImpl",
    "hydra._internal.core_plugins.basic_sweeper:BasicSweeper",
    "hydra._internal.defaults_list:DefaultsList",
    "hydra._internal.defaults_list:_create_result_default",
    "hydra._internal.defaults_list:_dfs_walk",
    "hydra._internal.defaults_list:create_defaults_list",
    "hydra._internal.hydra:Hydra",
    "hydra._internal.utils:create_automatic_config_search_path",
    "omegaconf.basecontainer:BaseContainer",
}
# Globals that others stand in for, and targets that configs name.
NAMED = {
    "hydra._internal.core_plugins.basic_launcher:BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper:BasicSweeper",
    "hydra._internal.hydra:Callbacks",
    "hydra._internal.hydra:ConfigLoaderImpl",
    "hydra._internal.hydra:run_job",
    "hydra._internal.logging_config:configure_logging",
    "hydra._internal.utils:_run_hydra",
    "hydra._internal.utils:run_and_report",
    "hydra.core.utils:JobReturn",
    "hydra.main:_get_rerun_conf",
    "hydra.main:_run_hydra",
}
# Attributes with an underscore, and a class that has them.
ATTRIBUTES = {
    "_apply_overrides_to_config": "hydra._internal.config_loader_impl:ConfigLoaderImpl",
    "_compose_config_from_defaults_list": "hydra._internal.config_loader_impl:ConfigLoaderImpl",
    "_find_object_source": "hydra._internal.config_repository:ConfigRepository",
    "_get_flag": "omegaconf.base:Node",
    "_get_node": "omegaconf:DictConfig",
    "_get_root": "omegaconf.base:Node",
    "_normalize_file_name": "hydra.plugins.config_source:ConfigSource",
    "_parse_overrides_and_create_caching_repo": (
        "hydra._internal.config_loader_impl:ConfigLoaderImpl"
    ),
    "_process_config_searchpath": "hydra._internal.config_loader_impl:ConfigLoaderImpl",
    "_resolvers": "omegaconf.basecontainer:BaseContainer",
    "_return_value": "hydra.core.utils:JobReturn",
    "_value": "omegaconf.base:Node",
}
PRIVATE_MODULE = re.compile(r"hydra\._|omegaconf\._|omegaconf\.basecontainer")


def look_up(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.name}:" for alias in node.names)


def own_names(tree: ast.AST) -> set[str]:
    """Names with an underscore that a module makes itself."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def attributes_of(tree: ast.AST) -> set[str]:
    """Names with one underscore that are looked up in an object."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr)
    }


def test_the_lists_are_what_the_module_uses() -> None:
    tree = ast.parse(COMPAT.read_text())
    imported = {name for name in imports_of(tree) if PRIVATE_MODULE.match(name)}
    assert imported == IMPORTED
    seams = {":".join(seam.value) for seam in Seam}
    targets = (hydra_compat.BASIC_LAUNCHER, hydra_compat.BASIC_SWEEPER)
    assert seams | {":".join(text.rpartition(".")[::2]) for text in targets} == NAMED
    assert attributes_of(tree) - {"_expect"} == ATTRIBUTES.keys()


@pytest.mark.parametrize("name", sorted(IMPORTED | NAMED))
def test_each_is_there(name: str) -> None:
    assert look_up(name) is not None


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_each_attribute_is_there(name: str) -> None:
    assert hasattr(look_up(ATTRIBUTES[name]), name)


def test_methods_that_are_overridden_take_what_hydra_gives_them() -> None:
    own = hydra_compat.WatchedLoader._process_config_searchpath
    theirs = hydra_compat.ConfigLoaderImpl._process_config_searchpath
    assert [*inspect.signature(own).parameters] == [*inspect.signature(theirs).parameters]


def test_no_other_module_uses_one() -> None:
    theirs = ATTRIBUTES.keys() | {name.partition(":")[2] for name in IMPORTED | NAMED}
    wrong = []
    for package in ("lllaunch", "hydra_plugins"):
        for path in (ROOT / package).rglob("*.py"):
            if path == COMPAT:
                continue
            text = path.read_text()
            tree = ast.parse(text)
            used = {name for name in imports_of(tree) if PRIVATE_MODULE.match(name)}
            if "hydra" in text or "omegaconf" in text:
                private = {name for name in theirs if name.startswith("_")}
                used |= attributes_of(tree) & private - own_names(tree)
            used |= set(re.findall(r"""["']hydra\._[\w.]*""", text))
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(used)]
    assert wrong == []


def test_others_stand_in_hydras_place_in_the_block_and_not_after_it() -> None:
    import hydra.core.utils

    own = hydra.core.utils.JobReturn

    class Other(own):  # type: ignore[valid-type, misc]
        pass

    def fail() -> None:
        with replaced({Seam.RETURN: lambda _: Other}):
            assert hydra.core.utils.JobReturn is Other
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert hydra.core.utils.JobReturn is own
