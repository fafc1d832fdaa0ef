"""The row that tells which job holds which GPU or core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.console.slots import short_names, slots_row
from lllaunch.console.table import cells

EIGHT = [str(number) for number in range(8)]


def shown(names: Sequence[str], holders: Mapping[str, str], width: int = 80) -> str:
    return "".join(part.text for part in slots_row("GPU", names, holders, width))


def test_each_slot_has_a_cell_where_there_is_room() -> None:
    assert shown(EIGHT[:4], {"0": "12", "1": "12", "3": "14"}) == "GPU 0:12 1:12 2:- 3:14"


def test_slots_beside_each_other_share_a_cell_where_there_is_less() -> None:
    holders = dict.fromkeys(EIGHT[:3], "12") | {"5": "7"}
    assert shown(EIGHT, holders, 30) == "GPU 0-2:12 3-4:- 5:7 6-7:-"


def test_of_what_does_not_fit_at_all_the_idle_ones_are_counted() -> None:
    holders = {name: name for name in EIGHT[:7]}
    assert shown(EIGHT, holders, 30) == "GPU 0:0 1:1 ... 1 of 8 idle"
    assert shown(EIGHT, holders, 20) == "GPU ... 1 of 8 idle"
    assert shown(EIGHT, holders, 10) == ""
    assert shown([], {}) == ""


def test_who_works_and_who_does_not_look_different() -> None:
    row = slots_row("GPU", EIGHT[:3], {"1": "4", "2": "other"}, 80)
    assert [(part.text, part.style) for part in row] == [
        ("GPU", "faint"),
        (" 0:-", ""),
        (" 1:4", "busy"),
        (" 2:other", ""),
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0", "1"], ["0", "1"]),
        (["GPU-8932f937-d72c", "GPU-8932f937-e000"], ["8932f937-d", "8932f937-e"]),
        (["GPU-11112222", "MIG-33334444"], ["1111", "3333"]),
        (["a\x1b[2Jb"], ["ab"]),
    ],
)
def test_names_are_as_short_as_tells_them_apart(names: list[str], expected: list[str]) -> None:
    assert list(short_names(names).values()) == expected


@given(
    st.lists(st.text("0123ab漢\x1b[m", min_size=1, max_size=9), unique=True, max_size=40),
    st.lists(st.sampled_from(["-", "1", "1234", "other"]), min_size=40, max_size=40),
    st.integers(0, 100),
)
def test_the_row_always_fits(names: list[str], holders: list[str], width: int) -> None:
    row = shown(names, dict(zip(names, holders, strict=False)), width)
    assert cells(row) <= width
    assert row.isprintable()
