"""Carries a composed config from the launcher into the workers of a user's own app.

The config travels as it is, with its interpolations, so that ``${oc.env:LOCAL_RANK}`` is resolved
where it means something. What must be equal in all ranks is settled before: every interpolation is
resolved once in the launcher, so that resolvers with a cache (``${now:...}`` is one) put their
values into the config's own cache, which travels with it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, setup_globals
from omegaconf import DictConfig, OmegaConf

from lllaunch.config.read import register_resolvers
from lllaunch.errors import NotPicklable

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
    state = {"job": cfg, "whole": whole, "name": JobRuntime.instance().get("name")}
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise NotPicklable("the config", f"{type(error).__name__}: {error}") from error


def unpack(data: bytes) -> DictConfig:
    """Sets Hydra's state in this process as it was where `pack` was called.

    Resolvers cannot be pickled: those of the user's script are there because it was imported.

    Returns:
        The job's config.
    """
    setup_globals()
    register_resolvers()
    state = pickle.loads(data)  # noqa: S301 - made by `pack`
    JobRuntime.instance().set("name", state["name"])
    HydraConfig.instance().set_config(state["whole"])
    job: DictConfig = state["job"]
    return job
