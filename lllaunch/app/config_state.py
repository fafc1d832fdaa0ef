"""Carries a composed config from the launcher into the workers of a user's own app.

The config travels as it is, with its interpolations, so that ``${oc.env:LOCAL_RANK}`` is resolved
where it means something. What must be equal in all ranks is settled before: every interpolation is
resolved once in the launcher, so that resolvers with a cache (``${now:...}`` is one) put their
values into the config's own cache, which travels with it.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.user_script import reach_of
from lllaunch.config.read import register_resolvers
from lllaunch.errors import NotPicklable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydra.core.config_search_path import SearchPathElement

# a resolver's call without another interpolation in its arguments
_CALL = re.compile(r"\$\{[^${}:]+:[^${}]*\}")


def settle(cfg: DictConfig) -> None:
    """Resolves every interpolation of a config once, and forgets the values.

    What cannot be resolved here, such as a variable that only workers have, is left to the workers.
    """
    for node, key, text in _texts(cfg, OmegaConf.to_container(cfg, resolve=False)):
        if _resolves(node, key):
            continue
        # a part that only workers can resolve hides the others: try them alone
        for call in _CALL.findall(text):
            _resolves(OmegaConf.create({"call": call}, parent=node), "call")


def _texts(node: Any, plain: Any) -> Iterator[tuple[Any, Any, str]]:
    """All texts with an interpolation: the container, the key in it, the text as written."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from _texts(node[key], value)
        elif isinstance(value, str) and "${" in value:
            yield node, key, value


def _resolves(node: Any, key: Any) -> bool:
    try:
        node[key]
    except Exception:  # noqa: BLE001 - resolvers are the user's code; the worker meets it again
        return False
    return True


class _WorkerHydra(Hydra):
    """Hydra's state of a worker, for `hydra.compose`; loads nothing before that is called.

    Args:
        name: of the job.
        search_path: the app's, from `ConfigSearchPath.get_path`.
    """

    def __init__(self, name: str, search_path: list[SearchPathElement]) -> None:
        self._search_path = search_path
        setup_globals()
        JobRuntime.instance().set("name", name)

    @functools.cached_property
    def config_loader(self) -> ConfigLoaderImpl:  # type: ignore[override]
        """Finds configs where the app does."""
        # looks for plugins, which sources of configs are
        Plugins.instance()
        search_path = ConfigSearchPathImpl()
        search_path.config_search_path = list(self._search_path)
        return ConfigLoaderImpl(config_search_path=search_path)


def pack(cfg: DictConfig) -> bytes:
    """Returns a job's config and Hydra's own, as bytes for `unpack`.

    Raises:
        NotPicklable: the config holds an object that cannot be pickled.
    """
    # Hydra's node hangs under the whole config of the job, its interpolations reach into it
    node: Any = HydraConfig.get()
    whole = node._get_root()
    settle(whole)
    settle(cfg)
    app = GlobalHydra.instance().hydra
    state = {
        "job": cfg,
        "whole": whole,
        "name": JobRuntime.instance().get("name"),
        "search_path": None if app is None else app.config_loader.get_search_path().get_path(),
    }
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - it runs code of the config's classes
        return _by_value(state)


def _by_value(state: object) -> bytes:
    """Pickles with their code what no import finds: classes made in a function, what caches hold.

    Raises:
        NotPicklable: there is something else in it that cannot be pickled.
    """
    # seldom needed: imported in 10 ms
    import cloudpickle  # noqa: PLC0415

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # by itself it would take all of __main__ by value, which the workers have as well
            if isinstance(obj, (type, FunctionType)) and reach_of(obj) == _direct(obj):
                return NotImplemented
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    try:
        Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(state)
    except Exception as error:
        raise NotPicklable("the config", f"{type(error).__name__}: {error}") from error
    return buffer.getvalue()


def _direct(obj: Callable[..., Any]) -> tuple[str, str, int]:
    """How an object is reached that stands under its own name."""
    return (obj.__module__, obj.__qualname__, 0)


def unpack(data: bytes) -> DictConfig:
    """Sets Hydra's state in this process as it was where `pack` was called.

    Resolvers cannot be pickled: those of the user's script are there because it has run.

    Returns:
        The job's config.
    """
    setup_globals()
    register_resolvers()
    state = pickle.loads(data)  # noqa: S301 - made by `pack`
    GlobalHydra.instance().clear()
    if state["search_path"] is not None:
        GlobalHydra.instance().initialize(_WorkerHydra(state["name"], state["search_path"]))
    JobRuntime.instance().set("name", state["name"])
    HydraConfig.instance().set_config(state["whole"])
    job: DictConfig = state["job"]
    return job
