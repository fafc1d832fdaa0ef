"""Which lines are shown as one, and when: the decision alone."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.workers.lines import LineCollapser

PATIENCE = 0.1
ROOM = 1_000_000

Shown = list[tuple[int, bytes]]


def ranks(number: int) -> list[int]:
    return [member for member in range(number.bit_length()) if number >> member & 1]


def said(shown: Shown) -> list[str]:
    """What is shown, as ``ranks:line``."""
    return [f"{','.join(map(str, ranks(number)))}:{line.decode()}" for number, line in shown]


def collapsed(*texts: str, members: int = 0) -> list[str]:
    """What is shown of members each of which says the words of a text at the same time."""
    collapser = LineCollapser([range(members or len(texts))], PATIENCE, ROOM)
    for member, text in enumerate(texts):
        collapser.add(member, text.encode().split(), 0.0)
    return said(collapser.take(PATIENCE))


def test_two_lines_of_one_member_are_two() -> None:
    assert collapsed("a a", "a a") == ["0,1:a", "0,1:a"]
    assert collapsed("a a", "a", "a a") == ["0,1,2:a", "0,2:a"]
    assert collapsed("a a a", members=2) == ["0:a"] * 3


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (("a b c", "a b c"), ["0,1:a", "0,1:b", "0,1:c"]),
        # each has a line of its own before one that all have
        (("i0 ready", "i1 ready", "i2 ready"), ["0:i0", "1:i1", "2:i2", "0,1,2:ready"]),
        (("ready", "i1 ready", "i2 ready"), ["1:i1", "2:i2", "0,1,2:ready"]),
        # and some have in common what comes before it
        (("c", "a b c", "b c"), ["1:a", "1,2:b", "0,1,2:c"]),
        (("a b c d", "a x c d"), ["0,1:a", "0:b", "1:x", "0,1:c", "0,1:d"]),
        # in another order: one of the two is said twice
        (("a b", "b a"), ["1:b", "0,1:a", "0:b"]),
        (("a", "b"), ["0:a", "1:b"]),
    ],
)
def test_lines_are_brought_together_where_no_order_stands_against_it(
    texts: tuple[str, ...], shown: list[str]
) -> None:
    assert collapsed(*texts) == shown


def test_a_line_far_behind_others_is_not_waited_for() -> None:
    many = " ".join(f"x{number}" for number in range(100))
    shown = collapsed("ready", f"{many} ready")
    assert shown[0] == "0:ready"
    assert shown[-1] == "1:ready"


def test_a_line_joins_those_of_others_after_what_its_rank_said_before_on_the_other_stream() -> None:
    collapser = LineCollapser([range(2), range(2)], PATIENCE, ROOM)
    collapser.add(0, [b"ready"], 0.0)
    collapser.add(3, [b"warning"], 0.01)
    collapser.add(1, [b"ready"], 0.02)
    assert said(collapser.take(0.02)) == ["3:warning", "0,1:ready"]
    # in another order: one of the two is said twice
    collapser.add(2, [b"warning"], 1.0)
    collapser.add(1, [b"ready"], 1.0)
    collapser.add(0, [b"ready"], 1.01)
    collapser.add(3, [b"warning"], 1.01)
    assert said(collapser.take(1.01)) == ["2:warning", "0,1:ready"]
    assert said(collapser.take(1.01 + PATIENCE)) == ["3:warning"]


@given(
    st.lists(
        st.tuples(
            st.lists(  # what is seen in one turn
                st.tuples(
                    st.integers(0, 4),
                    st.lists(
                        st.sampled_from([b"", b"a", b"b", b"c", b"long" * 50]),
                        min_size=1,
                        max_size=3,
                    ),
                ),
                max_size=4,
            ),
            st.sampled_from([0.001, 0.03, 0.2]),
            st.sampled_from(["", "", "", "flush", "member"]),
        ),
        max_size=25,
    ),
    st.sampled_from([500, ROOM]),
)
def test_lines_of_a_rank_are_shown_as_they_were_seen_over_both_streams(
    turns: list[tuple[list[tuple[int, list[bytes]]], float, str]], room: int
) -> None:
    # the second stream shows two of the three ranks
    whose = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]
    collapser = LineCollapser([[0, 1, 2], [0, 2]], PATIENCE, room)
    held: dict[int, list[tuple[bytes, float]]] = defaultdict(list)
    now = 0.0

    def check(shown: Shown, at: float) -> None:
        for number, line in shown:
            members = ranks(number)
            assert len({whose[member][0] for member in members}) == 1
            firsts = [held[member].pop(0) for member in members]
            for member, (expected, since) in zip(members, firsts, strict=True):
                assert line == expected
                assert at <= since + PATIENCE
                # nothing older of its rank is held
                others = [n for n, (_, rank) in enumerate(whose) if rank == whose[member][1]]
                assert all(since <= early for n in others for _, early in held[n])

    for seen, pause, what in turns:
        now += pause
        while (due := collapser.due) is not None and due <= now:
            check(collapser.take(due), due)
            assert collapser.due is None or collapser.due > due
        for member, lines in seen:
            collapser.add(member, lines, now)
            held[member] += [(line, now) for line in lines]
        if what == "flush":
            check(collapser.take_all(), now)
        elif what == "member":
            check(collapser.take_all(4), now)
            assert not held[2]
            assert not held[4]
        check(collapser.take(now), now)
        assert 0 <= collapser.held <= room
        assert [collapser.holds(member) for member in range(5)] == [bool(held[n]) for n in range(5)]
        assert (collapser.due is None) == (not any(held.values()))
    check(collapser.take_all(), now)
    assert not any(held.values())
    assert collapser.held == 0


@given(
    st.lists(st.sampled_from([b"", b"a", b"b", b"c"]), max_size=12),
    st.permutations(range(4)),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_members_that_say_the_same_are_shown_as_one_however_it_comes(
    lines: list[bytes], order: list[int], cuts: list[int]
) -> None:
    collapser = LineCollapser([range(4)], PATIENCE, ROOM)
    shown = []
    for part, member in itertools.product(range(2), order):
        cut = cuts[member]
        collapser.add(member, lines[:cut] if part == 0 else lines[cut:], 0.0)
        shown += collapser.take(0.0)
    assert shown == [(15, line) for line in lines]
