"""The ``hydra.launcher`` node of a sweep, for Hydra's ConfigStore.

Every Hydra app of the machine reads this when it starts: nothing is imported here that Hydra has
not. What the keys mean is said in docs/reference/sweep-config.md and checked in
`lllaunch.config.sweep` and `lllaunch.config.resolve`.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from lllaunch.launch_settings import LAUNCH_FIELDS

TARGET = "hydra_plugins.lllaunch_launcher.launcher.LllaunchLauncher"
"""What Hydra makes for ``hydra/launcher=lllaunch``."""


def launcher_node() -> DictConfig:
    """Returns the defaults, made anew.

    No leaf has a type, and the node takes any key: what is wrong is told by lllaunch, all together,
    and mappings can be extended on a command line (``hydra.launcher.env.A=b``).
    """
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
