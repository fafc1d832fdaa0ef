"""One Hydra job is one run: from the composed config to the run's outcome."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from lllaunch.app.ending import JobEnded, Ledger
from lllaunch.errors import LaunchError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.hydra_worker import HydraCall
    from lllaunch.run.outcome import RunOutcome
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec


class Jobs:
    """Runs the jobs of one Hydra app, one after another, with one spawner.

    Attributes:
        ledger: what they ended with.
        spawner: started early, or None.
    """

    def __init__(self, spawner: Spawner | None) -> None:
        self.ledger = Ledger()
        self.spawner = spawner

    def run(self, cfg: DictConfig, call: Callable[[], HydraCall] | None = None) -> RunOutcome:
        """Runs one job; to be called by the task function, while Hydra's config of the job is set.

        Args:
            cfg: the job's config.
            call: makes what the workers run instead of the configured entrypoint, or None.

        Raises:
            JobEnded: it did not succeed.
            SystemExit: a signal ended it; a sweep ends with it, as with Ctrl-C in any Hydra app.
        """
        self.ledger.begin()
        with self.reporting():
            outcome = self._execute(cfg, call)
        if outcome.state == "signalled":
            raise SystemExit(outcome.exit_code)
        if outcome.exit_code:
            text = (
                f"lllaunch: the run in {outcome.directory} failed (exit code {outcome.exit_code})"
            )
            raise self._failed(JobEnded(outcome.exit_code, text))
        return outcome

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Ends the job with a `JobEnded` when the block raises a `LaunchError`."""
        try:
            yield
        except LaunchError as error:
            raise self._failed(JobEnded(error.exit_code, str(error), error)) from error

    def _execute(self, cfg: DictConfig, call: Callable[[], HydraCall] | None) -> RunOutcome:
        # what only a run needs; --cfg and --help do without
        from lllaunch.config.plan import plan_hash, plan_text  # noqa: PLC0415
        from lllaunch.config.resolve import resolve  # noqa: PLC0415
        from lllaunch.console.console import Console  # noqa: PLC0415
        from lllaunch.run.execute import execute  # noqa: PLC0415

        runtime = HydraConfig.get().runtime
        spec = resolve(
            cfg,
            runtime_cwd=runtime.cwd,
            output_dir=runtime.output_dir,
            searched=_searched(),
            entrypoint_required=call is None,
        )
        if OmegaConf.select(cfg, "launch.cwd") is None:
            # where hydra.job.chdir has moved this process, if it is set
            cwd = os.getcwd()
            spec = replace(spec, cwd=cwd, redacted={**spec.redacted, "cwd": cwd})
        spec = importing_from_runtime_cwd(spec, os.environ)
        targets = None
        if call is not None:
            made = call()
            target = made.target()
            # imported once, in the spawner, instead of in every worker
            preload = (*spec.preload, target.module)
            spec = replace(spec, entrypoint=made.entrypoint(), preload=preload)
            targets = lambda facts: target  # noqa: E731, ARG005 - all workers run the same
        return execute(
            spec,
            plan_text=plan_text(spec),
            plan_hash=plan_hash(spec),
            console=Console(),
            spawner=self.spawner,
            targets=targets,
        )

    def _failed(self, ended: JobEnded) -> JobEnded:
        return self.ledger.note(ended, last=HydraConfig.get().mode == RunMode.RUN)


def importing_from_runtime_cwd(spec: LaunchSpec, environ: Mapping[str, str]) -> LaunchSpec:
    """Lets workers import from the directory of the command when they work in another one.

    Args:
        spec: the run.
        environ: the launcher's environment.
    """
    imports = spec.preload or spec.entrypoint.form in {"function", "module"}
    if spec.cwd == spec.runtime_cwd or not imports:
        return spec
    paths = [spec.runtime_cwd, spec.env.get("PYTHONPATH") or environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return replace(spec, env={**spec.env, "PYTHONPATH": path})


def _searched() -> list[str]:
    """Where Hydra looked for the user's configs, in order; ./conf even if it is not there."""
    runtime = HydraConfig.get().runtime
    found = [source.path for source in runtime.config_sources if source.schema == "file"]
    conf = os.path.join(runtime.cwd, "conf")
    return found if conf in found else [*found, f"{conf} (not there)"]
