"""Ending what workers left behind, after their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from lllaunch.linux import proc
from lllaunch.spawner.tree import kill_below

# Some processes that a worker leaves behind (multiprocessing's resource tracker, torch's shared
# memory manager) end by themselves when they see that it is gone, and clean up. They get this long.
SETTLE_SECONDS = 0.5
# Between two rounds of killing, when new processes keep appearing.
PAUSE_SECONDS = 0.02


def kill_orphans(orphans: Iterable[int]) -> None:
    """SIGKILL children that this process has not waited for, and all below them."""
    chosen = list(orphans)
    kill_below(chosen)
    for pid in chosen:
        # Not waited for: the number is still its own.
        os.kill(pid, signal.SIGKILL)


class Sweep:
    """One sweep: waits a moment for leftovers to end, then kills them until none is left.

    Attributes:
        deadline: monotonic time from which on leftovers are killed.
    """

    def __init__(self) -> None:
        self.deadline = time.monotonic() + SETTLE_SECONDS
        self._seen: dict[int, str] = {}
        self._killed: set[int] = set()

    def go_on(self, orphans: list[int]) -> bool:
        """Take one step; True when nothing is left.

        Args:
            orphans: children of this process that are no workers.
        """
        alive = self._alive(orphans)
        if not alive:
            return True
        for process in alive:
            self._seen.setdefault(process.pid, proc.command(process.pid))
        if time.monotonic() >= self.deadline:
            kill_orphans(orphans)
            self._killed.update(process.pid for process in alive)
        return False

    @staticmethod
    def _alive(orphans: list[int]) -> list[proc.ProcessFacts]:
        if not orphans:
            return []
        everything = proc.processes()
        own = [found for found in everything if found.pid in orphans and found.state not in "ZX"]
        return own + [below for pid in orphans for below in proc.descendants(pid, everything)]

    def leftovers(self) -> list[tuple[int, str, bool]]:
        """What was found: process id, command line, whether it was killed."""
        return [(pid, text, pid in self._killed) for pid, text in self._seen.items()]
