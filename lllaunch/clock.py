"""Named deadlines on the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class RunClock:
    """The monotonic clock, less the time for which all was stopped."""

    def __init__(self) -> None:
        self._stopped = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return time.monotonic() - self._stopped

    def leave_out(self, seconds: float) -> None:
        """Leave a time out that has just passed."""
        self._stopped += seconds


class Deadlines:
    """Deadlines by name.

    Args:
        clock: tells the time in seconds; never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def start(self, name: str, seconds: float) -> None:
        """Set a deadline, unless it is set."""
        self._at.setdefault(name, self._clock() + seconds)

    def restart(self, name: str, seconds: float) -> None:
        """Set a deadline, also if it is set."""
        self._at[name] = self._clock() + seconds

    def clear(self) -> None:
        """Take back all of them."""
        self._at.clear()

    def next_in(self) -> float | None:
        """Seconds until the next one, 0 if it is over, None if there is none."""
        return max(0.0, min(self._at.values()) - self._clock()) if self._at else None

    def passed(self) -> list[str]:
        """The names of those that are over, the earliest first; each is told once."""
        now = self._clock()
        over = sorted((at, name) for name, at in self._at.items() if at <= now)
        for _, name in over:
            del self._at[name]
        return [name for _, name in over]
