"""The time of day for what happens in one run, from a clock that nobody sets."""

from __future__ import annotations

import time

# Also counts while the machine is suspended, and is the same in every process.
_SINCE_BOOT = time.CLOCK_BOOTTIME
_BOOT_NS = time.time_ns() - time.clock_gettime_ns(_SINCE_BOOT)


def now_ns() -> int:
    """Return the time in nanoseconds since the epoch.

    As the wall clock would tell it if nobody had set that since the launcher began: what happened
    later has a later time, whatever NTP does in between.
    """
    return _BOOT_NS + since_boot_ns()


def since_boot_ns() -> int:
    """Return nanoseconds since the machine was started; what processes tell each other."""
    return time.clock_gettime_ns(_SINCE_BOOT)


def from_boot(ns: int) -> int:
    """Return what `now_ns` was when `since_boot_ns` was ``ns``, in another process too."""
    return _BOOT_NS + ns
