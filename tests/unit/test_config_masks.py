from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.config.fields import Findings
from lllaunch.config.values import Mask, check_mask, parse_mask, parse_ranks, write_mask
from lllaunch.std import Std
from lllaunch.text import as_ranges, write_range

NONE, OUT, ERR, ALL = Std.NONE, Std.OUT, Std.ERR, Std.ALL


def read(value: Any, nproc: int = 8) -> dict[int, Std]:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    assert findings.problems == []
    assert mask is not None
    return mask.by_rank(nproc)


def complaints(value: Any, nproc: int = 8) -> list[str]:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    check_mask(mask or Mask(), value, "launch.tee", nproc, findings)
    return [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        ("none", NONE),
        ("out", OUT),
        ("err", ERR),
        ("all", ALL),
        (" ALL ", ALL),
        (0, NONE),
        (1, OUT),
        (2, ERR),
        (3, ALL),
        ("3", ALL),
        (False, NONE),
        (None, NONE),
        ("", NONE),
    ],
)
def test_one_mask_is_for_all_ranks(value: Any, streams: Std) -> None:
    assert read(value, 3) == dict.fromkeys(range(3), streams)


@pytest.mark.parametrize(
    "value",
    [
        "0:3,2:1",
        "0:all 2:out",
        "0:all, 2:out",
        "2:out,0:all",
        {0: "all", 2: "out"},
        {"0": 3, "2": 1},
        {"0-0": "all", "1": False, 2: "out"},
    ],
)
def test_ranks_that_are_not_named_have_none(value: Any) -> None:
    assert read(value, 4) == {0: ALL, 1: NONE, 2: OUT, 3: NONE}


def test_ranges_and_ranks_above_nine() -> None:
    assert read("0:all 1-11:err", 12) == {0: ALL, **dict.fromkeys(range(1, 12), ERR)}
    assert read({"0-9": "out", 10: "all", 11: "err"}, 12)[11] == ERR


EXPECTED = "expected a mask (none, out, err, all, 0-3, or by rank as '0:all 1-7:out')"
STREAMS = "a mask of streams (none, out, err, all, 0-3)"
RANKS = "a local rank or a range of them (0, 3, '1-7')"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("al", f"launch.tee: {EXPECTED}, got 'al'; did you mean 'all'?"),
        ("stdout", f"launch.tee: {EXPECTED}, got 'stdout'; did you mean 'out'?"),
        ("both", f"launch.tee: {EXPECTED}, got 'both'; did you mean 'all'?"),
        ("off", f"launch.tee: {EXPECTED}, got 'off'; did you mean 'none'?"),
        (True, f"launch.tee: {EXPECTED}, got true; did you mean 'all'?"),
        (4, f"launch.tee: {EXPECTED}, got 4"),
        (-1, f"launch.tee: {EXPECTED}, got -1"),
        (1.0, f"launch.tee: {EXPECTED}, got 1.0"),
        (float("nan"), f"launch.tee: {EXPECTED}, got nan"),
        (63, f"launch.tee: {EXPECTED}, got 63; YAML reads 1:3 without quotes as 63: quote it"),
        (630, f"launch.tee: {EXPECTED}, got 630; YAML reads 10:30 without quotes as 630: quote it"),
        ([3], f"launch.tee: {EXPECTED}, got [3]"),
        (
            "0:3,1",
            f"launch.tee: {EXPECTED}, got '0:3,1'; '1' has no rank; write it as '0:all 1-7:out'",
        ),
        (
            "0:al",
            f"launch.tee: {EXPECTED}, got '0:al'; 'al' is not {STREAMS}; did you mean 'all'?",
        ),
        ("x:all", f"launch.tee: {EXPECTED}, got 'x:all'; 'x' is not {RANKS}"),
        (
            "7-1:all",
            (
                f"launch.tee: {EXPECTED}, got '7-1:all'; '7-1' is not a range from a lower to a "
                "higher rank; did you mean '1-7'?"
            ),
        ),
        (
            "0:all 0:out",
            "launch.tee: expected each rank at most once, got '0:all 0:out'; 0 and 0 overlap",
        ),
        (
            {0: "all", "0-3": "out"},
            (
                "launch.tee: expected each rank at most once, got {0: 'all', 0-3: 'out'}; "
                "0 and 0-3 overlap"
            ),
        ),
        ({0: "al"}, f"launch.tee.0: expected {STREAMS}, got 'al'; did you mean 'all'?"),
        (
            {0: 63},
            (
                f"launch.tee.0: expected {STREAMS}, got 63; YAML reads 1:3 "
                "without quotes as 63: quote it"
            ),
        ),
        ({0: {1: "all"}}, f"launch.tee.0: expected {STREAMS}, got {{1: 'all'}}"),
        ({1.5: "all"}, f"launch.tee.1.5: expected {RANKS}, got 1.5"),
        ({True: "all"}, f"launch.tee.True: expected {RANKS}, got true"),
        (
            "8:all",
            "launch.tee: expected ranks from 0 to 7, as nproc is 8, got '8:all'; no worker has 8",
        ),
        (
            {"6-9": "all"},
            (
                "launch.tee: expected ranks from 0 to 7, as nproc is 8, got {6-9: 'all'}; "
                "no worker has 6-9"
            ),
        ),
    ],
)
def test_what_is_no_mask_is_explained(value: Any, complaint: str) -> None:
    assert complaints(value) == [complaint]


def test_each_bad_entry_of_a_mapping_is_told() -> None:
    assert len(complaints({0: "al", "x": "all", 2: "out"})) == 2


def test_a_range_without_bounds_costs_nothing() -> None:
    (complaint,) = complaints("0-999999999:all", nproc=1)
    assert complaint.endswith("no worker has 0-999999999")


masks = st.lists(st.sampled_from(list(Std)), min_size=1, max_size=40).map(
    lambda streams: dict(enumerate(streams))
)


@given(masks)
def test_a_written_mask_reads_back(streams: dict[int, Std]) -> None:
    assert read(write_mask(streams), len(streams)) == streams


@given(masks)
def test_all_ways_to_write_a_mask_mean_the_same(streams: dict[int, Std]) -> None:
    numbers = ",".join(f"{rank}:{int(std)}" for rank, std in streams.items())
    named = {
        rank: {NONE: "none", OUT: "out", ERR: "err", ALL: "all"}[std]
        for rank, std in streams.items()
    }
    assert read(numbers, len(streams)) == read(named, len(streams)) == streams


@given(st.integers(0, 10**6), st.integers(0, 50), st.sampled_from(["none", "out", "all", "3"]))
def test_a_range_is_its_ranks(first: int, more: int, streams: str) -> None:
    text = f"{first}-{first + more}"
    (part,) = _parts(f"{text}:{streams}")
    assert list(part[0]) == list(range(first, first + more + 1))
    assert parse_ranks(text) == part[0]


def _parts(value: Any) -> tuple[tuple[range, Std], ...]:
    mask = parse_mask(value, "launch.tee", Findings())
    assert mask is not None
    return mask.parts


@given(st.sets(st.integers(0, 60)))
def test_ranks_are_written_as_the_fewest_ranges(ranks: set[int]) -> None:
    ranges = as_ranges(ranks)
    assert {rank for part in ranges for rank in part} == ranks
    assert {rank for part in ranges for rank in parse_ranks(write_range(part))} == ranks
    gaps = [late.start - early.stop for early, late in itertools.pairwise(ranges)]
    assert all(gap > 0 for gap in gaps)


@given(st.text(max_size=20) | st.integers() | st.floats() | st.none() | st.booleans())
def test_anything_else_is_a_problem_never_an_exception(value: Any) -> None:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    assert (mask is None) == (findings.count > 0)


@given(
    st.dictionaries(
        st.integers() | st.text(max_size=5) | st.booleans() | st.floats(),
        st.text(max_size=5) | st.integers() | st.none() | st.lists(st.integers(), max_size=2),
        max_size=4,
    )
)
def test_any_mapping_is_read_or_a_problem(value: dict[Any, Any]) -> None:
    findings = Findings()
    mask = parse_mask(value, "launch.tee", findings)
    assert (mask is None) == (findings.count > 0)
