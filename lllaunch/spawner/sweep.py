"""Ending what workers left behind, after their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from lllaunch.linux import proc
from lllaunch.spawner.tree import kill_with_below

# Some processes that a worker leaves behind (multiprocessing's resource tracker, torch's shared
# memory manager) end by themselves when they see that it is gone, and clean up. They get this long.
SETTLE_SECONDS = 0.5
# Between two rounds of killing: the first when new processes keep appearing; up to the last while
# those that are there do not end (uninterruptible sleep, another user's).
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Pauses:
    """How long to wait between rounds of killing: ever longer while nothing new appears.

    Args:
        clock: tells the time, seconds of the monotonic clock.

    Attributes:
        seconds: how long to wait now.
        changed: when a process was last seen that had not been seen before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: set[int] = set()
        self.seconds = _SHORTEST_PAUSE
        self.changed = clock()

    def note(self, alive: Collection[int]) -> None:
        """Take note of the processes that a round has killed, or tried to."""
        if self._seen.issuperset(alive):
            self.seconds = min(self.seconds * 2, _LONGEST_PAUSE)
            return
        self._seen.update(alive)
        self.seconds, self.changed = _SHORTEST_PAUSE, self._clock()


class Sweep:
    """One sweep: waits a moment for leftovers to end, then kills them until none is left.

    Args:
        number: identifies it.
        settle: seconds that leftovers get to end by themselves.
    """

    def __init__(self, number: int = 0, settle: float = SETTLE_SECONDS) -> None:
        self.number = number
        self._deadline = time.monotonic() + settle
        self._pauses = Pauses()
        self._seen: dict[int, str] = {}
        self._killed: set[int] = set()

    def next_in(self) -> float:
        """Return in how many seconds the next step is due, if no child ends before."""
        return max(self._deadline - time.monotonic(), self._pauses.seconds)

    def stuck_for(self) -> float:
        """Return for how many seconds nothing new has appeared."""
        return time.monotonic() - self._pauses.changed

    def go_on(self, orphans: Collection[int]) -> bool:
        """Take one step; True when nothing is left.

        Args:
            orphans: children of this process that are no workers, also those that have ended
                since the last step.
        """
        alive = self._alive(orphans)
        if not alive:
            # What was below one that has just ended is an orphan only now.
            return not orphans
        for process in alive:
            self._seen.setdefault(process.pid, proc.command(process.pid))
        if time.monotonic() >= self._deadline:
            kill_with_below(orphans)
            self._killed.update(process.pid for process in alive)
            self._pauses.note([process.pid for process in alive])
        return False

    @staticmethod
    def _alive(orphans: Collection[int]) -> list[proc.ProcessFacts]:
        if not orphans:
            return []
        everything = proc.processes()
        own = [found for found in everything if found.pid in orphans and found.state not in "ZX"]
        return own + [below for pid in orphans for below in proc.descendants(pid, everything)]

    def leftovers(self) -> list[tuple[int, str, bool]]:
        """What was found: process id, command line, whether it was killed."""
        return [(pid, text, pid in self._killed) for pid, text in self._seen.items()]
