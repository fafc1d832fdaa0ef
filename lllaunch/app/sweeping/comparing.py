"""Composes the jobs of a resumed sweep that have finished, to see whether they are the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lllaunch.app.reasons import reason_of
from lllaunch.app.sweeping.aside import aside_each
from lllaunch.app.sweeping.labels import Labels
from lllaunch.app.variables import without_variables
from lllaunch.errors import ConfigError, LaunchError, Problem
from lllaunch.sweep.fingerprint import job_key
from lllaunch.sweep.resume import NewJob

if TYPE_CHECKING:
    from collections.abc import Generator

    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.sweep.session import Asked


class Comparing:
    """Composes as many jobs at once as there are cores; `close` it.

    Args:
        jobs: composes them.
        overrides: of all jobs.
        sweep_dir: the sweep's directory, absolute.
    """

    def __init__(self, jobs: SweepJobs, overrides: Sequence[Sequence[str]], sweep_dir: str) -> None:
        self._jobs = jobs
        self._overrides = overrides
        self._sweep_dir = sweep_dir
        self._composed: Generator[NewJob, None, None] | None = None

    def expect(self, asked: Sequence[Asked]) -> None:
        """Takes note of what `compose` will be called with, in order."""
        processes = max(1, len(os.sched_getaffinity(0)))
        self._composed = aside_each(self._compose, asked, processes)

    def compose(self, index: int, number: int, directory: str) -> NewJob:  # noqa: ARG002 - expected
        """Returns what the next of the expected jobs is now.

        Raises:
            LaunchError: it cannot be composed.
        """
        assert self._composed is not None
        return next(self._composed)

    def close(self) -> None:
        """Composes no more; idempotent."""
        if self._composed is not None:
            self._composed.close()

    def _compose(self, asked: Asked) -> NewJob:
        index, number, directory = asked
        label = Labels(self._overrides, marks=self._jobs.composer.users_own)[index]
        try:
            planned = self._jobs.plan(
                self._overrides[index], number, os.path.join(self._sweep_dir, directory)
            )
        except LaunchError:
            raise
        except Exception as error:
            name = f"job {number} ({' '.join(label)})"
            reason = without_variables(reason_of(error))
            problem = Problem(name, "", f"cannot be composed any more: {reason}")
            raise ConfigError((problem,)) from error
        former = job_key(planned.former())
        return NewJob(label, job_key(planned.identity), planned.identity, former)
