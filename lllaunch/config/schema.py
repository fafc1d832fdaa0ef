"""The ``launch`` node as Hydra has it; presets, and words that others would use.

The table of settings is in `lllaunch.launch_settings`. Types are checked in
`lllaunch.config.resolve`, all together: for Hydra the node is an untyped mapping, since at a typed
one Hydra itself would stop at the first mistake, with a message of its own.

The presets are what ``watchdog: none``, ``report``, ``default`` and ``strict`` stand for; the docs
read them as well. None of them limits time or memory, which only the user can know. None is called
on, off, yes or no, which YAML takes for booleans.
"""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.launch_settings import KEYS, SETTINGS
from lllaunch.spec import WatchdogPolicy

# What torchrun and submitit call them.
SYNONYMS = {
    "nproc_per_node": "nproc",
    "script": "entrypoint",
    "module": "entrypoint",
    "program": "entrypoint",
    "environment": "env",
    "signals_to_handle": "signals",
    "shutdown_timeout": "grace_period",
    "log_line_prefix_template": "log_line_prefix",
    "num_nodes": "nnodes",
    "nodes": "nnodes",
    "rdzv_backend": "rdzv.backend",
    "rdzv_endpoint": "rdzv.endpoint",
    "rdzv_id": "rdzv.id",
    "rdzv_conf": "rdzv.conf",
    "timeout": "watchdog.timeout",
    "gpus": "resources.gpus_per_proc",
    "cpus": "resources.cpus_per_proc",
    "cpus_per_task": "resources.cpus_per_proc",
    "quiet": "console.quiet",
}

_MEET = "several nodes meet at rdzv.endpoint (host:port)"
EXPLAINED = {
    "standalone": "a run has one node unless nnodes says otherwise: leave it out",
    **dict.fromkeys(
        ("master_port", "port"),
        f"{_MEET}; for the workers of one node the launcher chooses a free port for each attempt",
    ),
    "master_addr": f"{_MEET}; the workers of one node meet on this machine",
    "local_addr": "rdzv.interface names the network interface whose address this node has",
}
"""What torchrun has and a run here has not, with what to do instead."""


# Of a run whose config says nothing of it.
DEFAULT = "report"

PRESETS: dict[str, WatchdogPolicy] = {
    "none": WatchdogPolicy(),
    # ends nothing
    "report": WatchdogPolicy(stall=1800.0, spin=1800.0, report=frozenset({"stall", "spin"})),
    "default": WatchdogPolicy(
        timers=True, stall=1800.0, spin=1800.0, warmup=300.0, report=frozenset({"spin"})
    ),
    "strict": WatchdogPolicy(
        timers=True, stall=300.0, stall_scope="rank", spin=1800.0, warmup=300.0, heartbeat=300.0
    ),
}

PRESET_KEYS = ("launch.watchdog", "hydra.launcher.watchdog")
"""Keys where the name of a preset may stand for a mapping; overrides may change a part of it."""


def defaults() -> dict[str, Any]:
    """Return the defaults as plain data, made anew."""
    return {each.name: copy.deepcopy(each.default) for each in SETTINGS}


def schema_node() -> DictConfig:
    """Return the node for Hydra's ConfigStore, made anew: what it is when nobody has set anything.

    It holds no defaults, so that what is set to a default can be told from what is not set. No leaf
    has a type, and it takes any key, with ``+`` or without: the reader says what is wrong.
    """
    # whoever replaces the name of a preset by a mapping is told
    node = {**dict.fromkeys(KEYS), "watchdog": {"preset": None}}
    return OmegaConf.create(node, flags={"struct": False})


def is_set(value: Any) -> bool:
    """Return whether the plain value of a setting says anything: null and ``{}`` do not."""
    return value is not None and value not in ({}, {"preset": None})
