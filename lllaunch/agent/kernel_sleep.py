"""Workers that hang in the kernel: uninterruptible sleep, state ``D``, which no signal ends."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from lllaunch.linux import proc

logger = logging.getLogger(__name__)

TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_MAX_INTERVAL = 5.0


def _state(pid: int) -> str:
    facts = proc.facts(pid)
    return facts.state if facts is not None else ""


class KernelSleep:
    """Remembers since when processes are in uninterruptible sleep.

    Args:
        timeout: seconds after which one counts as stuck.
        clock: tells the time in seconds.
        state: tells the state letter of a process.
    """

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str] = _state,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._state = state
        self._since: dict[int, float] = {}

    @classmethod
    def configured(cls, timeout: float | None) -> KernelSleep | None:
        """One with the given timeout, or the environment's; None if it is 0 or no number."""
        if timeout is None:
            text = os.environ.get(TIMEOUT_VARIABLE, "0")
            try:
                timeout = float(text)
            except ValueError:
                logger.warning("%s: %r is not a number of seconds", TIMEOUT_VARIABLE, text)
                return None
        return cls(timeout) if timeout > 0 else None

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(_MAX_INTERVAL, self._timeout / 4)

    def stuck(self, pids: Mapping[int, int]) -> dict[int, float]:
        """Look at processes; those that sleep for too long, with the seconds.

        Args:
            pids: process ids, by local rank.
        """
        now = self._clock()
        asleep = {pid for pid in pids.values() if self._state(pid) == "D"}
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            pid: now - since for pid, since in self._since.items() if now - since >= self._timeout
        }
