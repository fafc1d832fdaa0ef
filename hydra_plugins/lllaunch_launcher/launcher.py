"""The launcher, as Hydra sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydra.plugins.launcher import Launcher

from lllaunch.hydra_compat import store_deferred

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from lllaunch.app.launcher import HydraSweep


def _node() -> DictConfig:
    from lllaunch.config.schema import launcher_node  # noqa: PLC0415 - if it is chosen

    return launcher_node()


def _slurm_node() -> DictConfig:
    from lllaunch.config.schema import slurm_launcher_node  # noqa: PLC0415 - as above

    return slurm_launcher_node()


store_deferred("lllaunch", _node, "hydra/launcher")
store_deferred("lllaunch_slurm", _slurm_node, "hydra/launcher")


class LllaunchLauncher(Launcher):
    """Runs the jobs of a sweep side by side, each with as many workers as it asks for.

    The settings of the node ``hydra.launcher`` are read from each job's config instead, where all
    that is wrong with them is told at once.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ARG002 - see above
        super().__init__()
        self.sweep: HydraSweep | None = None
        self.exit_code = 0
        self.on_begin: Callable[[bool], None] | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what `launch` needs; called by Hydra."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run jobs to their ends; values and configs of the results are looked up when asked for.

        Raises:
            SystemExit: nothing was started, since something is wrong with the config; or a signal
                ended the sweep. The exit codes are those of a run.
        """
        from lllaunch.app.launcher import launch  # noqa: PLC0415 - heavy

        return launch(self, job_overrides, initial_job_idx)
