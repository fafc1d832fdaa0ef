"""A wall clock that nobody can set. Pure but for the clocks it is given."""

from __future__ import annotations

import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable

# Clocks that are adjusted slowly drift apart by less than this in the life of most timers.
_TOLERANCE = 0.001


class SteadyTime:
    """Goes on from what the wall clock showed when this was made, as the monotonic clock goes.

    Args:
        clock: the monotonic clock, seconds.
        wall_clock: the wall clock, seconds since the epoch; somebody may set it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._offset = wall_clock() - clock()

    def now(self) -> float:
        """Returns what the wall clock would show had nobody set it, seconds since the epoch."""
        return self._clock() + self._offset

    def correction(self) -> float:
        """Returns seconds to add to a moment of the wall clock for the same moment here.

        0 as long as the two agree.
        """
        difference = self.now() - self._wall_clock()
        return difference if abs(difference) >= _TOLERANCE else 0.0
