"""Helpers for tests of lllaunch, its plugins and its users: leak checks.

`live_descendants`, `open_fds` and `leaked_fds` find what a test left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from lllaunch.linux import proc

_PAUSE_SECONDS = 0.02


def live_descendants(pid: int, settle: float = 0.0) -> list[proc.ProcessFacts]:
    """Live descendants of a process.

    Args:
        pid: the process.
        settle: seconds to wait for them to end.
    """
    deadline = time.monotonic() + settle
    while True:
        found = proc.descendants(pid)
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(_PAUSE_SECONDS)


def open_fds() -> dict[int, str]:
    """This process's open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # The descriptor of the listing itself.
            continue
    return found


def leaked_fds(before: Mapping[int, str]) -> dict[int, str]:
    """Descriptors that are open now and were not, or were something else."""
    return {fd: what for fd, what in open_fds().items() if before.get(fd) != what}
