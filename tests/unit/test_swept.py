"""What the jobs of a sweep differ in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.pages.sweep_page import swept_parameters


def named(*jobs: str) -> dict[str, tuple[str | None, ...]]:
    found = swept_parameters([job.split() for job in jobs])
    return {each.name: each.values for each in found}


def test_what_all_jobs_share_is_not_swept() -> None:
    assert named("+exp=a lr=1", "+exp=a lr=2") == {"lr": ("1", "2")}
    assert named("+exp=a lr=1") == {}
    assert named() == {}
    # the last of several counts
    assert named("x=1 x=3", "x=2") == {"x": ("3", "2")}


def test_a_key_is_the_same_however_it_is_added() -> None:
    assert named("+params.lr=1 seed=3", "++params.lr=2 seed=3") == {"lr": ("1", "2")}
    assert named("model/size@net=big", "model/size@net=small") == {"size": ("big", "small")}
    # names that two keys share are whole
    assert set(named("a.lr=1 b.lr=1 c.x=1", "a.lr=2 b.lr=3 c.x=2")) == {"a.lr", "b.lr", "x"}


def test_a_job_without_the_key_has_no_value() -> None:
    assert named("x=1", "x=2 y=3", "~y x=2") == {
        "x": ("1", "2", "2"),
        "y": (None, "3", "(removed)"),
    }


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("'a b'", "a b"),
        (r"'it\'s'", "it's"),
        (r'"a\"b"', 'a"b'),
        ("''", "''"),
        ("[1,2]", "[1,2]"),
        ("'a','b'", "'a','b'"),
    ],
)
def test_values_are_shown_without_quotes(written: str, shown: str) -> None:
    (found,) = swept_parameters([[f"x={written}"], ["x=other"]])
    assert found.values[0] == shown
    assert found.numbers == ()


def test_numbers_are_told_from_texts() -> None:
    def numbers(*values: str) -> tuple[float | None, ...]:
        (found,) = swept_parameters([[f"x={value}"] for value in values])
        return found.numbers

    assert numbers("1", "0.5", "1e-3", "-2", ".5", "1_000") == (1, 0.5, 1e-3, -2, 0.5, 1000)
    for other in ("true", "null", "'1'", "1 2", "nan", "inf", "1e999", "0x10", "_"):
        assert numbers("1", other) == (), other
    (found,) = swept_parameters([["x=1", "y=2"], ["x=2"]])[:1]
    assert found.numbers == (1, 2)
    assert swept_parameters([["y=2"], []])[0].numbers == (2, None)


@given(st.lists(st.lists(st.text("ab=.+~'\"\\1e@/ \n", max_size=8), max_size=3), max_size=5))
def test_whatever_overrides_hold_there_is_a_value_for_each_job(jobs: list[list[str]]) -> None:
    for each in swept_parameters(jobs):
        assert len(each.values) == len(jobs)
        assert len(each.numbers) in {0, len(jobs)}
        assert each.name
