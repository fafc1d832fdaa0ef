"""The voice of one job of a sweep: silent where the sweep's launcher speaks of it anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.console.console import Console

if TYPE_CHECKING:
    from lllaunch.run.outcome import RunOutcome


class JobConsole(Console):
    """Says what happens within a job: restarts, hangs, warnings, and the report of a failure."""

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """Nothing: the sweep tells that the job was started."""

    def signalled(self, signum: int, workers: int, grace: float, *, forwarded: bool) -> None:
        """Nothing: the sweep's launcher got the signal first, and said so."""

    def killing(self, signum: int | None, workers: int) -> None:
        """Says that workers are killed because they did not end by themselves."""
        if signum is None:
            super().killing(signum, workers)

    def finished(self, outcome: RunOutcome) -> None:
        """Shows the report of a run that failed by itself."""
        if outcome.exit_code and outcome.state != "signalled":
            super().finished(outcome)
