"""The nodes ``launch`` and ``hydra.launcher`` as Hydra has them, and words that others would use.

The table of settings is in `lllaunch.spec`. Types are checked in
`lllaunch.config.resolve` and `lllaunch.app.launcher`, all together: for Hydra the nodes are untyped
mappings, since at a typed one Hydra itself would stop at the first mistake, with a message of its
own. They take any key, so that mappings can be extended on a command line.

Every Hydra app of the machine reads this when it starts: nothing is imported here that Hydra has
not.
"""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.spec import KEYS, LAUNCH_FIELDS, SETTINGS

# What torchrun and submitit call them.
SYNONYMS = {
    "nproc_per_node": "nproc",
    "module": "entrypoint",
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
    "cpus_per_task": "resources.cpus_per_proc",
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


DEFAULT_PRESET = "report"
"""Of a run whose config says nothing of its watchdog."""

PRESET_NAMES = ("none", "report", "default", "strict")
"""Names of policies of the watchdog; none is a word that YAML takes for a boolean."""

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


TARGET = "hydra_plugins.lllaunch_launcher.launcher.LllaunchLauncher"
"""What Hydra makes for ``hydra/launcher=lllaunch``."""


def launcher_node() -> DictConfig:
    """Return ``hydra.launcher`` for Hydra's ConfigStore, with its defaults, made anew."""
    node = {
        "_target_": TARGET,
        # Hydra makes nothing of what the keys hold.
        "_recursive_": False,
        "max_parallel": None,
        "gpus": None,
        "cpus": None,
        "pin_cpus": False,
        "on_failure": None,
        "retries": {"failure": 0, "oom": 0, "hang": 1, "signal": 2, "timeout": 0},
        "retry_delay": "0s",
        "direction": None,
        "resume": None,
        "cluster": None,
        "snapshot": None,
        **dict.fromkeys(LAUNCH_FIELDS),
        # As in the launch node: whoever replaces the name of a preset by a mapping is told.
        "watchdog": {"preset": None},
    }
    return OmegaConf.create(node, flags={"struct": False})


def slurm_launcher_node() -> DictConfig:
    """Return the same for jobs that go to Slurm, with the keys of submitit's launcher."""
    node = launcher_node()
    node.cluster = {"backend": "slurm"}
    return node
