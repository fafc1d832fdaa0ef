"""The monotonic clock with named deadlines, and the time of day.

What happens in one run is dated by a clock that nobody sets.
"""

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
    """Deadlines by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def start(self, name: str, seconds: float) -> None:
        """Set a deadline, unless it is set."""
        self._at.setdefault(name, self._clock() + seconds)

    def restart(self, name: str, seconds: float) -> None:
        """Set a deadline, also if it is set."""
        self._at[name] = self._clock() + seconds

    def is_set(self, name: str) -> bool:
        """Whether a deadline is set, and was not told to be over."""
        return name in self._at

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


# Also counts while the machine is suspended, and is the same in every process.
_SINCE_BOOT = time.CLOCK_BOOTTIME
# The most of several: who is kept from running between the two clocks gets less.
_BOOT_NS = max(time.time_ns() - time.clock_gettime_ns(_SINCE_BOOT) for _ in range(3))
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def now_ns() -> int:
    """Return the time in nanoseconds since the epoch.

    As the wall clock would tell it if nobody had set that since the launcher began: what happened
    later has a later time, whatever NTP does in between.
    """
    return _BOOT_NS + since_boot_ns()


def since_boot_ns() -> int:
    """Return nanoseconds since the machine was started; what processes tell each other."""
    return time.clock_gettime_ns(_SINCE_BOOT)


def boot_id() -> str:
    """Return what names the start of this machine that `since_boot_ns` counts from, or nothing."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def from_boot(ns: int) -> int:
    """Return what `now_ns` was when `since_boot_ns` was ``ns``, in another process too."""
    return _BOOT_NS + ns
