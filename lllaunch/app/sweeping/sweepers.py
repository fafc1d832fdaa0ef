"""What the chosen sweeper allows the launcher to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from lllaunch.errors import ConfigError, Problem

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.config.sweep import SweepSettings

_OURS = "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper"
_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_CHOOSE_OURS = "use hydra/sweeper=lllaunch, which runs all jobs as one batch"


def launches_once(config: DictConfig) -> bool:
    """Whether the sweeper asks for all of its jobs at once.

    Args:
        config: what the sweep was composed to.
    """
    return _target(config) == _OURS or (_target(config) == _BASIC and not _batch_size(config))


def check_sweeper(config: DictConfig, settings: SweepSettings) -> None:
    """Checks that the sweeper can do what the launcher is asked for.

    Args:
        config: what the sweep was composed to.
        settings: of the launcher.

    Raises:
        ConfigError: it cannot.
    """
    problems = []
    if settings.resume is not None and not launches_once(config):
        message = "cannot be resumed with a sweeper that chooses jobs by the results of others"
        if _target(config) == _BASIC:
            message = "cannot be resumed in batches (hydra.sweeper.max_batch_size)"
        problem = Problem("hydra.launcher.resume", repr(settings.resume), message, _CHOOSE_OURS)
        problems.append(problem)
    stated = OmegaConf.select(config, "hydra.launcher.on_failure")
    if stated == "continue" and _target(config) == _BASIC and _batch_size(config):
        message = (
            "is not what Hydra's basic sweeper does with hydra.sweeper.max_batch_size: it ends "
            "with the first batch in which a job fails"
        )
        problem = Problem("hydra.launcher.on_failure", "'continue'", message, _CHOOSE_OURS)
        problems.append(problem)
    if problems:
        raise ConfigError(tuple(problems))


def _target(config: DictConfig) -> str:
    return str(OmegaConf.select(config, "hydra.sweeper._target_"))


def _batch_size(config: DictConfig) -> object:
    return OmegaConf.select(config, "hydra.sweeper.max_batch_size")
