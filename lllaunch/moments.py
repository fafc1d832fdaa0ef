"""The time of day for what happens in one run, from a clock that nobody sets."""

from __future__ import annotations

import time

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
