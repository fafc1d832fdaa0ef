"""The voice of one job of a sweep: silent where the sweep's launcher speaks of it anyway."""

from __future__ import annotations

import hashlib
import mmap
from typing import TYPE_CHECKING

from lllaunch.console.console import Console

if TYPE_CHECKING:
    from lllaunch.run.outcome import RunOutcome


# Bytes of what stands for a failure, and how many there may be: later ones are all reported.
_DIGEST = 8
_MOST = 512


class Reported:
    """The failures that jobs have reported, shared by all processes that are forked later."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _DIGEST * _MOST)

    def is_new(self, text: str) -> bool:
        """Return whether nobody has reported this before; two at the same moment both may."""
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=_DIGEST).digest()
        for at in range(0, _DIGEST * _MOST, _DIGEST):
            seen = self._memory[at : at + _DIGEST]
            if seen == digest:
                return False
            if not any(seen):
                self._memory[at : at + _DIGEST] = digest
                return True
        return True


class JobConsole(Console):
    """Says what happens within a job: restarts, hangs, warnings, and the report of a failure.

    Args:
        reported: what other jobs have reported. Of a failure like one of these the sweep's launcher
            says in one line which job it was, and that is enough.
    """

    def __init__(self, reported: Reported) -> None:
        super().__init__()
        self._reported = reported

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """Nothing: the sweep tells that the job was started."""

    def signalled(self, signum: int, workers: int, grace: float, *, forwarded: bool) -> None:
        """Nothing: the sweep's launcher got the signal first, and said so."""

    def killing(self, signum: int | None, workers: int) -> None:
        """Says that workers are killed because they did not end by themselves."""
        if signum is None:
            super().killing(signum, workers)

    def finished(self, outcome: RunOutcome) -> None:
        """Shows the report of a run that failed by itself, in a way that no other has."""
        if not outcome.exit_code or outcome.state == "signalled":
            return
        if self._reported.is_new(f"{outcome.state}: {_cause(outcome)}"):
            super().finished(outcome)


def _cause(outcome: RunOutcome) -> str:
    root = outcome.root_cause
    return outcome.error or (f"{root.cause} {root.traceback}" if root else str(outcome.limit))
