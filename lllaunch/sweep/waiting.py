"""The jobs that wait for slots, and which of them is next. Pure.

In order: first those that are tried again, then by number. The first that fits is next, so that no
slot is idle while a waiting job fits it. That alone would let a large job wait as long as smaller
ones come. So jobs that start from behind it are counted, and when there were enough of them, the
slots that come free are kept for it: others get only what it does not need. From then on it waits
at the longest until the attempts that run now have ended.

Nothing is kept for a job that other launchers leave too few slots for: waiting for ours would not
help it.
"""

from __future__ import annotations

from bisect import insort

from lllaunch.policies import RESTART_CAUSES, RestartCause
from lllaunch.sweep.policy import Retries
from lllaunch.sweep.pool import fits, without
from lllaunch.sweep.resources import Lease, Need

_NOTHING = Lease()


class Job:
    """A job that is not over.

    Args:
        number: its number.
        need: what it needs.
        retries: how often it is tried again.

    Attributes:
        attempts: how many attempts of it have ended.
        lease: what it holds while it runs.
        exit_code: of its last attempt, or None.
        why: what that failed of, or empty.
        overtaken: how many jobs behind it started while it waited for its first or next attempt.
    """

    __slots__ = ("_left", "attempts", "exit_code", "lease", "need", "number", "overtaken", "why")

    def __init__(self, number: int, need: Need, retries: Retries) -> None:
        self.number = number
        self.need = need
        self.attempts = 0
        self.lease = _NOTHING
        self.exit_code: int | None = None
        self.why = ""
        self.overtaken = 0
        self._left: dict[RestartCause, int] = {}
        for cause in RESTART_CAUSES:
            self._left[cause] = retries.of(cause)

    def take_chance(self, cause: RestartCause | None) -> bool:
        """Whether it is tried again for a cause; that leaves one chance less."""
        if cause is None or self._left[cause] <= 0:
            return False
        self._left[cause] -= 1
        return True

    def rank(self) -> tuple[bool, int]:
        """Its place in the order: the smaller, the sooner."""
        return (self.attempts == 0, self.number)


class Waiting:
    """The jobs that wait, in order.

    Args:
        patience: how many jobs may overtake one before slots are kept for it.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return any(job.number == number for job in self._jobs)

    def add(self, job: Job) -> None:
        """A job waits."""
        insort(self._jobs, job, key=Job.rank)

    def clear(self) -> list[Job]:
        """Nobody waits any longer; those who did."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def starving(self, ours: Need) -> Job | None:
        """Returns the job that slots are kept for, if there is one.

        Args:
            ours: the slots that no other launcher holds.
        """
        for job in self._jobs:
            if job.overtaken >= self._patience and fits(job.need, ours):
                return job
        return None

    def room(self, free: Need, ours: Need) -> Need:
        """Returns the free slots that are not kept for anybody.

        Args:
            free: slots that nobody holds.
            ours: slots that no other launcher holds.
        """
        first = self.starving(ours)
        return free if first is None else without(free, first.need)

    def take(self, free: Need, ours: Need) -> Job | None:
        """Returns the next job to start, which waits no longer; None if none fits.

        Args:
            free: slots that nobody holds.
            ours: slots that no other launcher holds.
        """
        first = self.starving(ours)
        if first is not None and fits(first.need, free):
            return self._remove(self._jobs.index(first))
        room = free if first is None else without(free, first.need)
        # Most jobs of a sweep need the same.
        misfits: set[Need] = set()
        for place, job in enumerate(self._jobs):
            if job is first or job.need in misfits:
                continue
            if fits(job.need, room):
                return self._remove(place)
            misfits.add(job.need)
        return None

    def _remove(self, place: int) -> Job:
        """Let the job at a place start, and so overtake those before it."""
        job = self._jobs.pop(place)
        for other in self._jobs[:place]:
            other.overtaken += 1
        return job
