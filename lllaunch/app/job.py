"""One Hydra job is one run: from the composed config to the run's outcome."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from lllaunch.app.ci import tell_ci
from lllaunch.app.ending import JobEnded, Ledger
from lllaunch.app.gate import admit
from lllaunch.app.planning import Whereabouts, modules_of, perform, plan_job
from lllaunch.errors import ConfigError, LaunchError, Problem

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.user_function import UserFunction
    from lllaunch.run.outcome import RunOutcome
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec


class Jobs:
    """Runs the jobs of one Hydra app, one after another, with one spawner.

    Args:
        spawner: started early, or None.
        expect: called with each run before it starts; raises `LaunchError` if it must not.

    Attributes:
        ledger: what they ended with.
        spawner: started early, or None.
    """

    def __init__(
        self, spawner: Spawner | None, expect: Callable[[LaunchSpec], None] | None = None
    ) -> None:
        self.ledger = Ledger()
        self.spawner = spawner
        self._expect = expect

    def run(self, cfg: DictConfig, user: UserFunction | None = None) -> RunOutcome:
        """Runs one job; to be called by the task function, while Hydra's config of the job is set.

        Args:
            cfg: the job's config.
            user: what the workers run instead of the configured entrypoint, or None.

        Raises:
            JobEnded: it did not succeed.
            SystemExit: a signal ended it; a sweep ends with it, as with Ctrl-C in any Hydra app.
        """
        with self.reporting():
            _refuse_resume()
            outcome = self._execute(cfg, user)
        if outcome.state == "signalled":
            raise SystemExit(outcome.exit_code)
        if outcome.exit_code:
            text = (
                f"lllaunch: the run in {outcome.directory} failed (exit code {outcome.exit_code})"
            )
            raise self.ledger.note(JobEnded(outcome.exit_code, text))
        return outcome

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Ends the job with a `JobEnded` when the block raises a `LaunchError`."""
        try:
            yield
        except LaunchError as error:
            raise self.ledger.note(JobEnded(error.exit_code, str(error), error)) from error

    def _execute(self, cfg: DictConfig, user: UserFunction | None) -> RunOutcome:
        # --cfg and --help say nothing
        from lllaunch.console.console import Console  # noqa: PLC0415
        from lllaunch.run.build import BuildQuery  # noqa: PLC0415

        runtime = HydraConfig.get().runtime
        # where hydra.job.chdir has moved this process, if it is set
        where = Whereabouts(runtime.cwd, runtime.output_dir, os.getcwd())
        spec = plan_job(cfg, where, user)
        if self._expect is not None:
            self._expect(spec)
        node: Any = HydraConfig.get()
        admit(spec, node._get_root(), users_own=user is not None)
        query = BuildQuery.start(runtime.cwd)
        try:
            outcome = perform(
                *(spec, cfg, user, Console(), self.spawner),
                build=lambda: query.result(modules=modules_of(spec), own=[spec.log_dir]),
            )
        finally:
            query.close()
        tell_ci(outcome.directory)
        return outcome


def _refuse_resume() -> None:
    """A run is not a sweep.

    Raises:
        ConfigError: it is to resume one.
    """
    hydra: Any = HydraConfig.get()
    resume = OmegaConf.select(hydra, "launcher.resume")
    if hydra.mode == RunMode.RUN and resume is not None:
        problem = Problem(
            "hydra.launcher.resume", repr(resume), "is for sweeps, and this is a run", "add -m"
        )
        raise ConfigError((problem,))
