"""What a run needs of whoever talks to the user; `lllaunch.console.console.Console` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.run.hang import Hang
    from lllaunch.run.outcome import RootCause, RunOutcome


class Speaker(Protocol):
    """Tells the user what happens; none of its methods raises for the stream's sake."""

    def hide(self, redact: Callable[[str], str]) -> None:
        """Applies ``redact`` to everything from now on."""

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """An attempt begins."""

    def restarting(
        self, attempt: int, root: RootCause | None, restart: int, of: int | None, wait: float = 0.0
    ) -> None:
        """A failed attempt is followed by another one, after ``wait`` seconds."""

    def signalled(self, signum: int, workers: int, grace: float, *, forwarded: bool) -> None:
        """A signal came; the workers get it, and SIGKILL after ``grace`` seconds."""

    def killing(self, signum: int | None, workers: int) -> None:
        """Workers are killed: a second signal came, or the grace period is over."""

    def fired(self, hang: Hang) -> None:
        """The watchdog found something; now it is looked where the workers stand."""

    def looking(self, signum: int, silent: float | None) -> None:
        """A signal came to a run that showed no sign of life: its workers get it after a look."""

    def stacks_shown(self, hang: Hang) -> None:
        """It was seen where the workers stand, and the run goes on."""

    def stacks_taken(self, hang: Hang) -> None:
        """It was written down where the workers stand."""

    def process_signalled(self, rank: int, pid: int, signum: int) -> None:
        """A process gets the signal that its timer asks for."""

    def ending(self, signum: int, workers: int, grace: float) -> None:
        """The workers are asked to end for what the watchdog found, and killed after ``grace``."""

    def warning(self, text: str) -> None:
        """Something went wrong that does not end the run."""

    def finished(self, outcome: RunOutcome) -> None:
        """The run is over."""
