"""The task function of a job, as Hydra calls it in the job's launcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lllaunch.app.ending import JobEnded
from lllaunch.app.planning import perform
from lllaunch.app.returned import load, plain
from lllaunch.console.job import JobConsole, Reported

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.composing import Composer
    from lllaunch.run.outcome import RunOutcome
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec


class JobTask:
    """The task function that Hydra calls for a job: launches its workers and waits for them.

    Args:
        spec: the run.
        composer: knows what the workers run.
        spawner: a warm one, or None.
        build: what the code is that they run, or None.
        reported: the failures that other jobs have reported.

    Attributes:
        outcome: what became of the run; None if it could not be started.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        composer: Composer,
        spawner: Spawner | None,
        build: Mapping[str, Any] | None,
        reported: Reported,
    ) -> None:
        self._reported = reported
        self._spec = spec
        self._build = build
        self._composer = composer
        self._spawner = spawner
        self.outcome: RunOutcome | None = None

    def __call__(self, cfg: DictConfig) -> Any:
        """Runs the job, and returns what rank 0 returned.

        Raises:
            JobEnded: it did not succeed.
        """
        user = self._composer.user
        build = None if self._build is None else lambda: self._build or {}
        outcome = perform(self._spec, cfg, user, JobConsole(self._reported), self._spawner, build)
        self.outcome = outcome
        if outcome.exit_code:
            raise JobEnded(outcome.exit_code, f"the run in {outcome.directory} failed")
        value = outcome.return_values.get(0)
        return plain(value) if user is None else load(value)
