"""The config of a job of a sweep, composed by Hydra, and the run that it asks for."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override, setup_globals
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch.app.gate import expect_own_environment
from lllaunch.app.planning import Whereabouts, plan_job, whereabouts
from lllaunch.cluster.address import format_nnodes
from lllaunch.config.read import cluster_key
from lllaunch.config.schema import TARGET
from lllaunch.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    from hydra.types import HydraContext

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.spec import LaunchSpec

LAUNCHER = "hydra.launcher"
"""The node of a sweep's settings."""


class JobConfig(NamedTuple):
    """What Hydra composed for a job."""

    whole: DictConfig
    where: Whereabouts
    sweep_dir: str

    def own(self) -> DictConfig:
        """The config without Hydra's node, as a task function gets it; a copy."""
        cfg = copy.deepcopy(self.whole)
        with read_write(cfg), open_dict(cfg):
            del cfg["hydra"]
        return cfg


@dataclass(eq=False)
class Composer:
    """Composes the jobs of one sweep."""

    context: HydraContext
    master: DictConfig
    user: UserFunction | None
    # whether the app is a user's own that knows nothing of lllaunch
    users_own: bool = False
    # the sweep's directory, absolute; empty for where the config says
    sweep_dir: str = ""

    def __post_init__(self) -> None:
        self.for_cluster = self.goes_to_cluster(self.master)

    def goes_to_cluster(self, config: DictConfig) -> bool:
        """Return whether the job of a config goes to a cluster, of its own or the launcher's."""
        return bool(cluster_key(config, users_own=self.users_own, outer=LAUNCHER))

    def compose(
        self, overrides: Sequence[str], number: int, directory: str | None = None
    ) -> JobConfig:
        """Composes a job's config and makes it Hydra's config of this process.

        ``directory``: where its result.json shall be, absolute; None or empty for where its config
        says.

        Raises:
            Exception: whatever Hydra, OmegaConf and resolvers raise.
        """
        setup_globals()
        loader = self.context.config_loader
        config = loader.load_sweep_config(self.master, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        # not by set_config, which copies Hydra's own node: run_job does so twice afterwards
        hydra: Any = HydraConfig.instance()
        hydra.cfg = config
        # a run that says itself where its files go has other directories than Hydra
        if OmegaConf.select(config, "launch.log_dir") is not None:
            directory = None
        sweep_dir = self.sweep_dir or os.path.abspath(str(config.hydra.sweep.dir))
        output_dir = os.path.abspath(os.path.join(sweep_dir, str(config.hydra.sweep.subdir)))
        with read_write(config.hydra), open_dict(config.hydra):
            if sweep_dir != os.path.abspath(str(config.hydra.sweep.dir)):
                config.hydra.sweep.dir = sweep_dir
            if directory and directory != output_dir:
                # a name that is another one each time, such as that of a moment
                config.hydra.sweep.dir, config.hydra.sweep.subdir = os.path.split(directory)
            config.hydra.runtime.output_dir = directory or output_dir
        OmegaConf.set_readonly(config.hydra, True)
        return JobConfig(config, whereabouts(), sweep_dir)

    def plan(
        self, job: JobConfig, environ: Mapping[str, str] | None = None, *, here: bool = True
    ) -> LaunchSpec:
        """Decides what the run of a job is.

        ``environ``: variables on top of this process's for those that look for GPUs.

        Raises:
            ConfigError: something is wrong with it.
        """
        expect_own_environment(job.whole)
        with env_override(job.whole.hydra.job.env_set):
            around = {**os.environ, **(environ or {})}
            spec = plan_job(
                job.whole,
                self.user,
                outer=LAUNCHER,
                users_own=self.users_own,
                environ=around,
                here=here,
            )
        if job.whole.hydra.launcher.get("_target_") == TARGET and spec.cluster is None:
            _expect_one_node(spec)
        if here:
            return spec
        from lllaunch.review.allow import with_hydra  # noqa: PLC0415 - for reviewers

        return with_hydra(spec, job.whole)


def _expect_one_node(spec: LaunchSpec) -> None:
    """Raise if a run needs more than the one machine that a sweep has."""
    nodes = spec.nodes
    if nodes is None:
        return
    written = spec.sources.get(("nnodes",), format_nnodes(nodes.min_nodes, nodes.max_nodes))
    message = "asks for several machines, and the jobs of a sweep run on this one"
    hint = "start it by itself, without -m"
    raise ConfigError((Diagnostic("nodes", "launch.nnodes", repr(written), message, hint),))
