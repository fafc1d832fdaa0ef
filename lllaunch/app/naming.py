"""What runs are called in review, and the words that compose them again."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.app.search_path import AGAIN, DIRECTORY, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import ListConfig

EXPERIMENTS = "exp"
"""The config group whose choice names a lock."""


def experiment_name(config: DictConfig) -> str:
    """Returns what a run is called in review: its choice of `EXPERIMENTS`, or its primary config.

    An empty string if there is neither.
    """
    choices: Any = OmegaConf.select(config, "hydra.runtime.choices")
    choice = choices.get(EXPERIMENTS) if isinstance(choices, DictConfig) else None
    if isinstance(choice, str) and choice:
        return choice
    name = OmegaConf.select(config, "hydra.job.config_name")
    return "" if name in {None, PRIMARY, AGAIN} else str(name)


def is_of_a_moment(node: DictConfig) -> bool:
    """Return whether a directory is named after the moment, and so is to be a new one."""
    raw: Any = OmegaConf.to_container(node, resolve=False)
    return "${now:" in str(raw["dir"])


def as_file_name(text: str) -> str:
    """Return a text as the name of one file or directory."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "run"


def job_name(overrides: Sequence[str]) -> str:
    """Returns what the lock of a sweep calls a job."""
    from lllaunch.config.secrets import redacted_overrides  # noqa: PLC0415 - most runs need it not

    return shlex.join(redacted_overrides(overrides))


def words_of(config: DictConfig) -> tuple[str, ...]:
    """Returns flags and overrides that compose a config again, without secrets and locks."""
    from lllaunch.config.secrets import redacted_overrides  # noqa: PLC0415 - most runs need it not

    node: Any = config.hydra
    given = [*as_written(node.overrides.hydra), *as_written(node.overrides.task)]
    name = node.job.config_name
    flags = [] if name in {None, PRIMARY, AGAIN} else ["--config-name", str(name)]
    for source in node.runtime.config_sources:
        if source.provider == "command-line" and source.schema == "file":
            path = os.path.relpath(source.path, node.runtime.cwd)
            flags[:0] = ["--config-dir", path] if path != DIRECTORY else []
    return (*dict.fromkeys(flags), *unlocked(redacted_overrides(given)))


def as_written(overrides: ListConfig) -> list[str]:
    """Returns overrides with their interpolations, which a config that holds them would resolve."""
    found: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(map(str, found))


def unlocked(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Returns overrides without those that do not bear on the plan: whether and where it runs."""
    keys = ("launch.locked", "hydra.mode", "hydra.launcher.resume")
    return tuple(
        text
        for text in overrides
        if text.lstrip("+~").partition("=")[0] not in keys
        and not text.lstrip("+~").startswith(("hydra.run.", "hydra.sweep."))
    )
