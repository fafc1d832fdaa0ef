"""How many rejections are told: who writes garbage without end shall not fill the reports. Pure."""

from __future__ import annotations

from lllaunch.timer.reading import Rejected

_TOLD = 20
_PERIOD = 10.0


class Rejections:
    """Tells at most 20 rejections in 10 seconds one by one, and counts the others."""

    def __init__(self) -> None:
        self._told: list[Rejected] = []
        self._left = _TOLD
        self._others = 0
        self._period_ends = 0.0
        self._counted = False

    @property
    def left(self) -> int:
        """How many would be told one by one now."""
        return self._left

    def add(self, rejected: Rejected) -> None:
        """Takes note of one."""
        if self._left:
            self._left -= 1
            self._told.append(rejected)
        else:
            self._others += 1

    def count(self, number: int) -> None:
        """Takes note of so many that need not be told one by one."""
        self._others += number

    def begin(self, now: float) -> None:
        """Notes that time has passed; to be called before what is found at ``now`` is added.

        Args:
            now: seconds of a clock that never goes back.
        """
        if now >= self._period_ends:
            self._period_ends = now + _PERIOD
            self._left = _TOLD
            self._counted = False

    def take(self) -> list[Rejected]:
        """Returns what is to be told now; the others, twice a period at most, as one."""
        told, self._told = self._told, []
        if self._others and not self._counted:
            requests = "1 more request" if self._others == 1 else f"{self._others} more requests"
            told.append(Rejected(None, f"{requests} for timers could not be accepted", ""))
            self._others = 0
            self._counted = True
        return told
