"""Hydra's and OmegaConf's global state, put back after what a test does with it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.version import VersionBase
from omegaconf.basecontainer import BaseContainer


@contextlib.contextmanager
def hydra_put_back() -> Iterator[None]:
    """Leave Hydra as it was: what is stored, which plugins and resolvers there are, what runs.

    Hydra's own fixture, `hydra_restore_singletons`, copies all of it, which takes 70 ms.
    """
    _make_singletons()
    singletons = dict(Singleton._instances)
    before = {one: _copied(vars(one)) for one in singletons.values()}
    resolvers = dict(BaseContainer._resolvers)
    try:
        yield
    finally:
        # `initialize_config_dir` and its like replace one by a copy
        Singleton._instances = singletons
        for one, state in before.items():
            vars(one).clear()
            vars(one).update(state)
        BaseContainer._resolvers = resolvers
        root = ConfigStore.instance().repo["hydra"]["config.yaml"]
        if len(root.node.defaults) != len(_own_defaults()):
            # lllaunch adds its schema in place
            root.node.defaults = deepcopy(_own_defaults())


@functools.cache
def _make_singletons() -> None:
    """What is made during a test would be nobody's to put back."""
    for kind in (ConfigStore, GlobalHydra, HydraConfig, Plugins, VersionBase):
        kind.instance()


@functools.cache
def _own_defaults() -> Any:
    return HydraConf().defaults


def _copied(state: Any) -> Any:
    """Return a copy of dictionaries and lists, down to what is in them."""
    if isinstance(state, dict):
        made = copy(state)
        for key, value in state.items():
            made[key] = _copied(value)
        return made
    return list(state) if isinstance(state, list) else state
