"""Which objective of a sweep is the best, and what is none."""

from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.sweep.objective import (
    Direction,
    Objective,
    Objectives,
    as_direction,
    improvements,
    objective_of,
)


class Goal(Enum):
    """As Optuna's sweeper has it."""

    minimize = 1
    maximize = 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("minimize", "minimize"),
        ("MAXIMIZE", "maximize"),
        (Goal.maximize, "maximize"),
        (["minimize"], None),
        (["minimize", "maximize"], None),
        ("lower", None),
        (None, None),
        (1, None),
    ],
)
def test_a_direction_is_known_by_its_name(value: object, expected: str | None) -> None:
    assert as_direction(value) == expected


@pytest.mark.parametrize("value", [1, -2.5, 0, 1e300, 10**15])
def test_numbers_are_objectives(value: float) -> None:
    assert objective_of(value) == value


@pytest.mark.parametrize(
    "value",
    [True, None, "1.5", [1.0], {"loss": 1.0}, float("nan"), float("inf"), -float("inf"), 10**400],
)
def test_what_is_no_finite_number_is_no_objective(value: object) -> None:
    assert objective_of(value) is None


def test_without_a_direction_none_is_best() -> None:
    objectives = Objectives(None, [Objective(2.0, 0), Objective(1.0, 1), Objective(3.0, 2)])
    assert objectives.best is None
    told = (("lowest", Objective(1.0, 1)), ("highest", Objective(3.0, 2)))
    assert objectives.extremes == told


def test_one_alone_is_neither_low_nor_high() -> None:
    objectives = Objectives(None, [Objective(2.0, 0)])
    assert objectives.extremes == (("objective", Objective(2.0, 0)),)
    objectives.add(Objective(2.0, 1))
    assert len(objectives.extremes) == 1


@pytest.mark.parametrize(("direction", "job"), [("minimize", 1), ("maximize", 2)])
def test_the_direction_says_which_is_best(direction: Direction, job: int) -> None:
    objectives = Objectives(direction)
    assert objectives.extremes == ()
    assert objectives.best is None
    for number, value in enumerate([2.0, 1.0, 3.0]):
        objectives.add(Objective(value, number))
    best = objectives.best
    assert best is not None
    assert best.job == job
    assert objectives.extremes == (("best", best),)


def test_of_equal_ones_the_first_counts() -> None:
    objectives = Objectives("minimize")
    assert objectives.add(Objective(1.0, 7))
    assert not objectives.add(Objective(1.0, 3))
    assert not objectives.add(Objective(5.0, 4))
    assert objectives.extremes == (("best", Objective(1.0, 7)),)


VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False))


@given(VALUES, st.sampled_from(["minimize", "maximize"]))
def test_what_improves_gets_ever_better_and_ends_with_the_best(
    values: list[float], direction: Direction
) -> None:
    found = [(time, Objective(value, time)) for time, value in enumerate(values)]
    steps = list(improvements(reversed(found), direction))
    assert [time for time, _ in steps] == sorted(time for time, _ in steps)
    best = [each.value for _, each in steps]
    ordered = sorted(set(best), reverse=direction == "minimize")
    assert best == ordered
    if values:
        assert steps[0] == found[0]
        assert best[-1] == (min(values) if direction == "minimize" else max(values))
