"""Which timers run, and which is over first. Pure: moments are arguments."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")

# The heap is cleaned when it is this much longer than what runs.
_SLACK = 64


class Timer(NamedTuple):
    """A timer that runs.

    Attributes:
        worker: who has set it.
        scope: its name, one of each for a worker.
        deadline: when it is over, seconds of a clock that never goes back.
        since: when it was set, by that clock.
        request: what set it.
    """

    worker: Any
    scope: str
    deadline: float
    since: float
    request: Any


class TimerRegistry(Generic[R]):
    """Timers by worker and name. Each operation takes logarithmic time, amortised."""

    def __init__(self) -> None:
        self._timers: dict[Hashable, dict[str, Timer]] = {}
        self._count = 0
        # (deadline, number, timer), with timers that run no more among them. The number decides
        # between equal deadlines, as workers need have no order.
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: tuple[Hashable, str]) -> bool:
        worker, scope = key
        return scope in self._timers.get(worker, ())

    def count(self, worker: Hashable) -> int:
        """Returns how many timers a worker has."""
        return len(self._timers.get(worker, ()))

    def workers(self) -> set[Hashable]:
        """Returns those that have timers."""
        return set(self._timers)

    def acquire(
        self, worker: Hashable, scope: str, deadline: float, since: float, request: R
    ) -> None:
        """Sets a timer, in place of the one of that name if there is one."""
        timer = Timer(worker, scope, deadline, since, request)
        scopes = self._timers.setdefault(worker, {})
        self._count += scope not in scopes
        scopes[scope] = timer
        self._number += 1
        heappush(self._heap, (deadline, self._number, timer))
        if len(self._heap) > 2 * self._count + _SLACK:
            self._heap = [entry for entry in self._heap if self._runs(entry[2])]
            heapify(self._heap)

    def release(self, worker: Hashable, scope: str) -> None:
        """Takes a timer back; one that does not run is no error."""
        scopes = self._timers.get(worker)
        if scopes is not None and scopes.pop(scope, None) is not None:
            self._count -= 1
            if not scopes:
                del self._timers[worker]

    def drop(self, worker: Hashable) -> None:
        """Takes back all timers of a worker."""
        self._count -= len(self._timers.pop(worker, ()))

    def _runs(self, timer: Timer) -> bool:
        return self._timers.get(timer.worker, {}).get(timer.scope) is timer

    def next_deadline(self) -> float | None:
        """Returns when the next timer is over, or None if none runs."""
        while self._heap and not self._runs(self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(self, now: float) -> dict[Any, list[Timer]]:
        """Returns the timers that are over at ``now``, by worker, the earliest first."""
        next_deadline = self.next_deadline()
        if next_deadline is None or next_deadline > now:
            return {}
        timers = (timer for scopes in self._timers.values() for timer in scopes.values())
        found: dict[Any, list[Timer]] = {}
        for timer in sorted(
            (timer for timer in timers if timer.deadline <= now), key=lambda timer: timer.deadline
        ):
            found.setdefault(timer.worker, []).append(timer)
        return found

    def take_expired(self, now: float) -> dict[Any, list[Timer]]:
        """As `over`; takes back all timers of the workers that it returns, also those not over."""
        found = self.over(now)
        for worker in found:
            self.drop(worker)
        return found
