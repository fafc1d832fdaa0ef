"""Verbs that look at configs, called in the test's own process as their user calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lllaunch.app.search_path import ConfDirectories

if TYPE_CHECKING:
    import pytest


class Ended(NamedTuple):
    """What a verb has left."""

    code: int
    out: str
    err: str


def call(
    verb: Callable[[Sequence[str]], int], argv: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> Ended:
    capsys.readouterr()
    code = verb(argv)
    return Ended(code, *capsys.readouterr())


@contextlib.contextmanager
def hydra_put_back() -> Iterator[None]:
    """What an app of ours tells Hydra is for its own process, and this one runs other tests."""
    store, plugins = ConfigStore.instance(), Plugins.instance()
    root = deepcopy(store.repo["hydra"]["config.yaml"])
    known = list(plugins.plugin_type_to_subclass_list[SearchPathPlugin])
    try:
        yield
    finally:
        store.repo["hydra"]["config.yaml"] = root
        for name in ("_lllaunch_schema.yaml", "_lllaunch_again.yaml"):
            store.repo.pop(name, None)
        plugins.plugin_type_to_subclass_list[SearchPathPlugin][:] = known
        name = f"{ConfDirectories.__module__}.{ConfDirectories.__name__}"
        plugins.class_name_to_class.pop(name, None)
        GlobalHydra.instance().clear()


def listing(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory: files with what is in them."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }
