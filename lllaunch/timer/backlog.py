"""How far a FIFO has been read that others write at the same time. Pure: moments are arguments."""

from __future__ import annotations

import math


class Backlog:
    """Tells up to which moment everything that was written has been read.

    A timer that is over may have been taken back in a part that is still to be read.
    """

    def __init__(self) -> None:
        self._until = -math.inf
        self._behind = False
        # When what is to be read now had been written, and how much is left of it.
        self._began = -math.inf
        self._left = 0

    @property
    def until(self) -> float:
        """The moment; at least until then all has been read."""
        return self._until

    @property
    def behind(self) -> bool:
        """Whether there was more at the last reading."""
        return self._behind

    def note(self, now: float, got: int, waiting: int) -> None:
        """Takes note of a reading.

        Args:
            now: when it began, seconds of a clock that never goes back.
            got: bytes that were read.
            waiting: bytes that were there after it.
        """
        self._behind = waiting > 0
        self._left -= got
        if not waiting:
            self._until = self._began = now
            self._left = 0
        elif self._left <= 0:
            # All that was there when `_left` was set has been read; what is there now is next.
            self._until = self._began
            self._began, self._left = now, waiting
