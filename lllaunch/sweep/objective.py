"""The objective of a sweep: what rank 0 of a job returned, where that is a number. Pure.

Which of two objectives is the better one nobody can tell without the sweep's direction. Where that
is not known, the lowest and the highest are told, and none is called best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

Direction: TypeAlias = Literal["minimize", "maximize"]
"""Whether lower objectives are better, or higher ones."""

DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")


def as_direction(value: object) -> Direction | None:
    """Return a direction as a sweeper, a journal or a user has it; None if it is none.

    ``value``: its name in any case, or an enum's member of that name. A list, as sweepers of
    several objectives have it, is none.
    """
    name = str(getattr(value, "name", value)).lower()
    return name if name in DIRECTIONS else None


def objective_of(value: Any) -> float | None:
    """Return what a job returned as an objective; None if that is no finite number.

    ``value``: whatever was returned. Truth values and numbers written as text are none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # whole numbers have no limit in JSON
        return None
    return number if math.isfinite(number) else None


class Objective(NamedTuple):
    """What a job yielded."""

    value: float
    job: int
    name: str = ""


class Objectives:
    """The best objective so far; the lowest and the highest where no direction is known.

    Of equal ones the first counts.
    """

    def __init__(self, direction: Direction | None = None, known: Iterable[Objective] = ()) -> None:
        self.direction = direction
        self.lowest: Objective | None = None
        self.highest: Objective | None = None
        for each in known:
            self.add(each)

    def add(self, objective: Objective) -> bool:
        """Take note of another one; return whether `extremes` has changed."""
        before = self.extremes
        if self.lowest is None or objective.value < self.lowest.value:
            self.lowest = objective
        if self.highest is None or objective.value > self.highest.value:
            self.highest = objective
        return self.extremes != before

    @property
    def best(self) -> Objective | None:
        """The best one; None if there is none, or nobody knows which is."""
        if self.direction is None:
            return None
        return self.lowest if self.direction == "minimize" else self.highest

    @property
    def extremes(self) -> tuple[tuple[str, Objective], ...]:
        """What is to be shown, each with what it is: ``best``, or ``lowest`` and ``highest``.

        Where no direction is known and there is only one, it is an ``objective``.
        """
        if self.lowest is None or self.highest is None:
            return ()
        if self.best is not None:
            return (("best", self.best),)
        if self.lowest == self.highest:
            return (("objective", self.lowest),)
        return (("lowest", self.lowest), ("highest", self.highest))


def improvements(
    found: Iterable[tuple[int, Objective]], direction: Direction
) -> Iterator[tuple[int, Objective]]:
    """Yield the objectives that were the best so far when they came."""
    objectives = Objectives(direction)
    for time, objective in sorted(found):
        if objectives.add(objective):
            yield time, objective
