"""Puts the ``launch`` node under every primary config, before the user's own values.

``--config-name`` replaces a primary config together with its defaults list, so the schema cannot
hang on ours. It hangs on Hydra's own root instead, which Hydra composes first for every primary
config: ``launch.nproc=2`` and ``-m launch.nproc=1,2`` need no ``+`` in any app, and whatever the
user's files say about ``launch`` wins over the schema's defaults.
"""

from __future__ import annotations

from omegaconf import DictConfig

from lllaunch.config.read import register_resolvers
from lllaunch.config.schema import schema_node
from lllaunch.hydra_compat import root_defaults, store_deferred

_NAME = "_lllaunch_schema"
_ENTRY = f"/{_NAME}@_global_"
# What runs the jobs of ``--multirun``.
_OURS = ("launcher", "sweeper")


def install() -> None:
    """Stores the schema, makes Hydra's root name it, and teaches OmegaConf ``${worker:...}``.

    The launcher and the sweeper of the app are lllaunch's from then on, if none is chosen.

    Idempotent.
    """
    register_resolvers()
    store_deferred(_NAME, lambda: {"launch": schema_node()})
    # What is stored now, not a fresh HydraConf: another library may have added to it. In place:
    # loading and storing would copy it twice, which takes 8 ms.
    defaults = root_defaults()
    if _ENTRY in defaults:
        return
    defaults.append(_ENTRY)
    for entry in defaults:
        # unless the command line or a primary config names another one
        for group in _OURS:
            if isinstance(entry, DictConfig) and entry.get(group) == "basic":
                entry[group] = "lllaunch"
