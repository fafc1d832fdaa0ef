"""What a sweep's config says of the sweep itself, checked whole before anything else is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import OmegaConf

from lllaunch.app.sweeping.composing import LAUNCHER
from lllaunch.app.sweeping.resume import check
from lllaunch.app.sweeping.sweepers import check_sweeper
from lllaunch.config.sweep import SweepSettings, sweep_settings
from lllaunch.errors import ConfigError, Problem
from lllaunch.sweep.machine import Machine, find_machine

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")


def read_settings(config: DictConfig) -> tuple[SweepSettings, Machine]:
    """Returns the launcher's settings, and what they let it lease.

    Args:
        config: what the sweep itself was composed to.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
    """
    problems: dict[str, Problem] = {}

    def attempt(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem.key, problem)
            return None

    settings = attempt(lambda: sweep_settings(config.hydra.launcher, LAUNCHER))
    # of settings that are wrong, what the machine has to do with can be looked at all the same
    raw: Any = settings or OmegaConf.to_container(config.hydra.launcher)
    gpus, cpus = (_of(raw, name) for name in ("gpus", "cpus"))
    machine = attempt(lambda: find_machine(os.environ, gpus, cpus, key=LAUNCHER))
    if settings is not None:
        found = settings
        sweep_dir, cwd = str(config.hydra.sweep.dir), config.hydra.runtime.cwd
        attempt(lambda: check(found.resume, sweep_dir, cwd))
        attempt(lambda: check_sweeper(config, found))
    if problems:
        raise ConfigError(tuple(problems.values()))
    assert settings is not None
    assert machine is not None
    return settings, machine


def _of(settings: Any, name: str) -> Any:
    return getattr(settings, name) if isinstance(settings, SweepSettings) else settings.get(name)
