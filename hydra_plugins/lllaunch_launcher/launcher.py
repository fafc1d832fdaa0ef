"""The launcher, as Hydra sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher

from lllaunch.config.launcher_schema import launcher_node, slurm_launcher_node

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.launcher import HydraSweep

for _name, _node in (("lllaunch", launcher_node()), ("lllaunch_slurm", slurm_launcher_node())):
    ConfigStore.instance().store(
        group="hydra/launcher", name=_name, node=_node, provider="lllaunch"
    )


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
        from lllaunch.app.sweeping.launcher import launch  # noqa: PLC0415 - heavy

        return launch(self, job_overrides, initial_job_idx)
