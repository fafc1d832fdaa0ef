"""What a run needs of whoever talks to the user; `lllaunch.console.console.Console` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.run.outcome import RootCause, RunOutcome


class Speaker(Protocol):
    """Tells the user what happens; none of its methods raises for the stream's sake."""

    def hide(self, redact: Callable[[str], str]) -> None:
        """Applies ``redact`` to everything from now on."""

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """An attempt begins."""

    def restarting(
        self, attempt: int, root: RootCause | None, restart: int, of: int | None
    ) -> None:
        """A failed attempt is followed by another one."""

    def signalled(self, signum: int, workers: int, grace: float, *, forwarded: bool) -> None:
        """A signal came; the workers get it, and SIGKILL after ``grace`` seconds."""

    def killing(self, signum: int | None, workers: int) -> None:
        """Workers are killed: a second signal came, or the grace period is over."""

    def warning(self, text: str) -> None:
        """Something went wrong that does not end the run."""

    def finished(self, outcome: RunOutcome) -> None:
        """The run is over."""
