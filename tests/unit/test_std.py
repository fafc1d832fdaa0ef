from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.std import Std, to_map

masks = st.sampled_from([Std.NONE, Std.OUT, Std.ERR, Std.ALL])


@pytest.mark.parametrize(("text", "mask"), [("0", Std.NONE), ("1", Std.OUT), ("3", Std.ALL)])
def test_one_digit_is_the_mask_of_all_ranks(text: str, mask: Std) -> None:
    assert Std.from_str(text) is mask


def test_a_mapping_reads_ranks_of_two_digits() -> None:
    assert Std.from_str("0:3,9:0,10:1,137:2") == {
        0: Std.ALL,
        9: Std.NONE,
        10: Std.OUT,
        137: Std.ERR,
    }


@given(st.dictionaries(st.integers(0, 5000), masks, min_size=1))
def test_any_mapping_is_read_back(mapping: dict[int, Std]) -> None:
    text = ",".join(f"{rank}:{int(mask)}" for rank, mask in mapping.items())
    assert Std.from_str(text) == mapping


@pytest.mark.parametrize(
    "text", ["", "4", "-1", "3\n", "0:4", "0:3,", ",0:3", "0:3, 1:1", "0:3\n", "a:1", "٣", "٣:1"]
)
def test_anything_else_is_refused_with_the_text_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a mask") as caught:
        Std.from_str(text)
    assert repr(text) in str(caught.value)


def test_one_mask_becomes_a_map_of_all_ranks() -> None:
    assert to_map(Std.OUT, 3) == {0: Std.OUT, 1: Std.OUT, 2: Std.OUT}


@given(st.dictionaries(st.integers(0, 20), masks), st.integers(0, 20))
def test_a_map_is_completed_with_none_and_cut_to_the_ranks(
    mapping: dict[int, Std], nprocs: int
) -> None:
    full = to_map(mapping, nprocs)
    assert list(full) == list(range(nprocs))
    assert all(mask == mapping.get(rank, Std.NONE) for rank, mask in full.items())
