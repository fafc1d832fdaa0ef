"""How long a sweep will take until all its jobs are over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Of the time that a job takes.
_PRECISION = 1 / 64


class Durations(NamedTuple):
    """The number of some attempts, and how long they took together, seconds."""

    number: int = 0
    seconds: float = 0.0

    def with_one(self, seconds: float) -> Durations:
        """Return the same and another one."""
        return Durations(self.number + 1, self.seconds + seconds)


def expected_left(
    running: Sequence[tuple[float, float | None]],
    waiting: int,
    succeeded: Durations,
    ended: Durations,
) -> float | None:
    """Return how long a sweep will take until all its jobs are over, seconds; None if unknown.

    A job that reports its progress takes as long as it says. The others take as long as those that
    succeeded and those that report it. As many run side by side as now.

    ``running``: for each running job, how long it has run, and how long it says it will go on;
    seconds, None if it does not say. ``waiting``: how many jobs wait. ``succeeded``: how long jobs
    took that succeeded. ``ended``: how long all ended jobs took; used while nothing better is
    known.
    """
    # those that will succeed, as far as anybody knows
    thought = [ran + left for ran, left in running if left is not None]
    known = succeeded if succeeded.number or thought else ended
    count = known.number + len(thought)
    if not running or not count:
        return None
    each = (known.seconds + sum(thought)) / count
    ends = [max(0.0, each - ran) if left is None else left for ran, left in running]
    last = max(ends)
    if not waiting or each <= 0:
        return last

    def begun_by(moment: float) -> int:
        # a waiting job takes the place of the one that ends next
        return sum(int((moment - end) / each) for end in ends if end < moment)

    # no sooner than if jobs could be cut in pieces, and at most one job later
    low = max(last, (sum(ends) + waiting * each) / len(ends)) - each
    high = low + 2 * each
    while high - low > each * _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if begun_by(middle) >= waiting else (middle, high)
    return max(last, high)
