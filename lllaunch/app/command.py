"""The Hydra app of ``python -m lllaunch``."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import hydra
from hydra.core.plugins import Plugins

from lllaunch.app import search_path
from lllaunch.app.job import Jobs
from lllaunch.app.returned import plain
from lllaunch.app.schema_store import install
from lllaunch.app.search_path import BASE, MODULE, PACKAGED, PRIMARY, with_config_path
from lllaunch.app.sweeping.resume import completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

    from lllaunch.app.submitting import SubmittedFunction
    from lllaunch.run.submission import BatchJob
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec


def run(
    spawner: Spawner | None,
    config_name: str = PRIMARY,
    expect: Callable[[LaunchSpec], None] | None = None,
    batch: BatchJob | None = None,
    submitted: SubmittedFunction | None = None,
    *,
    quiet: bool = False,
) -> int:
    """Run the app on ``sys.argv`` and return the exit code.

    The caller closes ``spawner``. ``expect`` is called with what is about to be run, and raises
    `LaunchError` if that is not right. The other arguments are as for `lllaunch.app.job.Jobs`.
    """
    install()
    search_path.ConfDirectories.config_dir = search_path.config_dir_of(sys.argv[1:])
    Plugins.instance().register(search_path.ConfDirectories)
    jobs = Jobs(spawner, expect, batch=batch, submitted=submitted, quiet=quiet)

    def task(cfg: DictConfig) -> object:
        gc.enable()
        return plain(jobs.run(cfg).return_values.get(0))

    # Hydra names the job after the task's module, and finds relative paths from it
    task.__module__ = MODULE
    jobs.mark(task)
    sys.argv[1:] = with_config_path(completed(sys.argv[1:]))
    app = hydra.main(config_path=PACKAGED, config_name=config_name, version_base=BASE)(task)
    return jobs.run_app(app) or 0
