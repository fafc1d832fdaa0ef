"""Which collective operation ranks do not agree on: numbers, names, sizes and types."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from lllaunch.documents import as_record
from lllaunch.watchdog.blame import blame, blame_now
from lllaunch.watchdog.collectives import (
    compare,
    last_operation,
    latest,
    read_trace,
    sentence,
    straggler,
    with_aborted,
)
from lllaunch.watchdog.evidence import (
    Call,
    Disagreement,
    Frame,
    GroupTrace,
    RankStack,
    RankTrace,
    Waits,
)
from lllaunch.watchdog.findings import Stalled

T0 = 1_700_000_000 * 10**9
NO, PERHAPS, SURELY = Waits
WORLD = "0"


def call(number: int, operation: str = "all_reduce", *size: int, dtype: str = "float32") -> Call:
    return Call(number, operation, (size or (4,),), (dtype,), T0 + number * 10**9)


def calls(count: int) -> tuple[Call, ...]:
    return tuple(call(number) for number in range(1, count + 1))


def trace(rank: int, *made: Call, ranks: int = 4, states: bool = False) -> RankTrace:
    """A rank that has used the group of all only."""
    group = GroupTrace(WORLD, "default_pg", tuple(range(ranks)), made, states)
    return RankTrace(rank, (group,))


def said(traces: list[RankTrace], waits: dict[int, Waits] | None = None, **places: str) -> str:
    where = {int(name[1:]): place for name, place in places.items()}
    found = compare({each.rank: each for each in traces}, waits, where)
    return "" if found is None else sentence(found)


def at_fault(traces: list[RankTrace], waits: dict[int, Waits] | None = None) -> object:
    found = compare({each.rank: each for each in traces}, waits)
    return found and found.at_fault


def clock(number: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(T0 / 1e9 + number))


def test_who_never_came_is_named_with_the_operation_and_where_all_stand() -> None:
    traces = [trace(rank, *calls(3 if rank == 1 else 4), ranks=8) for rank in range(8)]
    places = {f"r{rank}": f"train.py:{12 if rank == 1 else 13}" for rank in range(8)}
    assert said(traces, **places) == (
        "rank 1 never came to all_reduce #4 of default_pg (float32 [4]), at train.py:12; "
        f"ranks 0, 2-7 wait in it since {clock(4)}, at train.py:13"
    )
    assert at_fault(traces) == (1,)


def test_other_sizes_and_types_are_told_of_the_odd_one() -> None:
    others = [trace(rank, *calls(16), call(17, "all_reduce", 128)) for rank in (0, 1, 2)]
    odd = trace(3, *calls(16), call(17, "all_reduce", 128, 10))
    assert said([*others, odd]) == (
        "rank 3 called all_reduce #17 with [128, 10], the others with [128]"
    )
    assert at_fault([*others, odd]) == (3,)
    odd = trace(3, *calls(16), call(17, "all_reduce", 128, dtype="float64"))
    assert said([*others, odd], r3="a.py:1", r0="a.py:2") == (
        "rank 3 called all_reduce #17 with float64 [128] at a.py:1, "
        "the others with float32 [128] at a.py:2"
    )
    one, two = (trace(rank, call(1, "all_reduce", 4 + rank), ranks=2) for rank in (0, 1))
    assert said([one, two]) == "rank 0 called all_reduce #1 with [4], rank 1 with [5]"
    assert at_fault([one, two]) == ()


def test_other_operations_are_told_in_order_of_the_ranks() -> None:
    half = [trace(rank, *calls(8), call(9, "broadcast"), ranks=8) for rank in range(4)]
    rest = [trace(rank, *calls(8), call(9, "all_gather"), ranks=8) for rank in range(4, 8)]
    assert said(half + rest) == "ranks 0-3 are in broadcast #9, ranks 4-7 in all_gather #9"
    assert at_fault(half + rest) == ()
    assert said(half[:1] + rest) == "rank 0 is in broadcast #9, ranks 4-7 in all_gather #9"
    assert at_fault(half[:1] + rest) == (0,)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call(1, "all_reduce", 4), call(1, "all_reduce", 2, 2)),
        (call(1, "gather", 4), call(1, "gather", 5)),
        (call(1, "_reduce_scatter_base_coalesced", 4), call(1, "_reduce_scatter_base_coalesced")),
    ],
)
def test_what_may_differ_is_no_disagreement(one: Call, other: Call) -> None:
    assert said([trace(0, one), trace(1, other)]) == ""


def test_who_waits_in_a_later_one_is_told_too() -> None:
    root = trace(0, *calls(1), call(2, "broadcast"), call(3))
    member = trace(1, *calls(1), call(2, "broadcast"))
    missing = trace(2, *calls(1))
    waits = {0: SURELY, 1: SURELY, 2: NO}
    first = "rank 2 never came to broadcast #2 of default_pg (float32 [4])"
    assert said([root, member, missing], waits, r0="a.py:9", r1="a.py:8") == (
        f"{first}; rank 1 waits in it since {clock(2)}, at a.py:8; "
        f"rank 0 waits in all_reduce #3 since {clock(3)}, at a.py:9"
    )
    again = trace(3, *calls(1), call(2, "broadcast"), call(3, "broadcast"))
    assert said([member, missing, again], waits | {3: PERHAPS}).endswith(
        f"; rank 3 waits in #3 since {clock(3)}"
    )
    # who works there, or whose last call was in another group, does not wait in it
    assert "#3" not in said([root, member, missing], waits | {0: NO})
    pair = GroupTrace("1", "pair", (0, 3), (later(1),))
    moved = replace(root, groups=(*root.groups, pair))
    assert "#3" not in said([moved, member, missing], waits)


def grouped(rank: int, **groups: tuple[tuple[int, ...], tuple[Call, ...]]) -> RankTrace:
    names = {"g0": "default_pg", "g1": "pair"}
    made = (GroupTrace(name[1:], names[name], *each) for name, each in groups.items())
    return RankTrace(rank, tuple(made))


def later(number: int, seconds: int = 100) -> Call:
    return replace(call(number), created_ns=T0 + seconds * 10**9)


def test_of_several_groups_the_one_that_keeps_the_others_waiting() -> None:
    world, pair = (0, 1, 2, 3), (2, 3)
    traces = [
        grouped(0, g0=(world, calls(7))),
        grouped(1, g0=(world, calls(7))),
        grouped(2, g0=(world, calls(6)), g1=(pair, (later(1), later(2)))),
        grouped(3, g0=(world, calls(6)), g1=(pair, (later(1),))),
    ]
    assert said(traces, {0: SURELY, 1: SURELY, 2: SURELY, 3: NO}).startswith(
        "rank 3 never came to all_reduce #2 of pair of ranks 2-3 (float32 [4]); rank 2 waits in it"
    )
    assert at_fault(traces) == (3,)


def test_groups_that_wait_for_each_other_are_told_and_nobody_is_accused() -> None:
    world, pair = (0, 1), (0, 1)
    traces = [
        grouped(0, g0=(world, (later(1),)), g1=(pair, ())),
        grouped(1, g0=(world, ()), g1=(pair, (later(1),))),
    ]
    waits = {0: SURELY, 1: SURELY}
    assert said(traces, waits) == "rank 0 is in all_reduce #1, rank 1 in all_reduce #1 of pair"
    assert at_fault(traces, waits) == ()


def test_who_leaves_out_a_call_of_its_subgroup_is_told_from_those_who_wait_for_it() -> None:
    world, some = (0, 1, 2, 3), (1, 2, 3)
    traces = [
        grouped(0, g0=(world, calls(2))),
        grouped(1, g0=(world, calls(1)), g1=(some, (later(1),))),
        grouped(2, g0=(world, calls(2)), g1=(some, ())),
        grouped(3, g0=(world, calls(1)), g1=(some, (later(1),))),
    ]
    assert said(traces, dict.fromkeys(range(4), SURELY), r2="train.py:31") == (
        "rank 2 never came to all_reduce #1 of pair of ranks 1-3 (float32 [4]), at train.py:31; "
        f"ranks 1, 3 wait in it since {clock(100)}; "
        "rank 2 waits in all_reduce #2 of default_pg (float32 [4]) instead"
    )
    assert at_fault(traces, dict.fromkeys(range(4), SURELY)) == (2,)


# NCCL, which keeps states and orders more than is done


def test_of_nccl_the_first_that_is_not_over_counts() -> None:
    def ordered(rank: int, done: int, last: int) -> RankTrace:
        made = [replace(each, completed=each.number <= done) for each in calls(last)]
        return trace(rank, *made, states=True)

    traces = [ordered(0, 3, 10), ordered(1, 3, 3), ordered(2, 3, 9)]
    assert said(traces).startswith("rank 1 never came to all_reduce #4 of default_pg")
    assert "ranks 0, 2 wait in it" in said(traces)
    stuck = [ordered(0, 3, 10), ordered(1, 3, 10)]
    assert said(stuck, {0: PERHAPS, 1: PERHAPS}).startswith("ranks 0-1 wait in all_reduce #4 of")


# What torch writes


def entry(number: int, name: str = "gloo:all_reduce", **more: Any) -> dict[str, Any]:
    """As torch 2.13 writes one, without what is not read."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[128, 10]],
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": name,
        "retired": True,
        "state": "scheduled",
        "time_created_ns": T0 + number,
        **more,
    }


def read_of(document: object, rank: int, *, ended: bool = False) -> RankTrace | None:
    return read_trace(json.dumps(document).encode(), rank, ended=ended)


def document(*entries: Any, **more: Any) -> dict[str, Any]:
    return {
        "groups": {"0": [0, 1]},
        "traces": [{"version": "2.10", "entries": list(entries), "pg_config": {}, **more}],
    }


def test_a_trace_of_gloo_is_read() -> None:
    last = entry(2, "gloo:broadcast", input_dtypes=["Long"], retired=False)
    read = read_of(document(entry(1), last), 1)
    made = (
        Call(1, "all_reduce", ((128, 10),), ("float32",), T0 + 1, completed=True),
        Call(2, "broadcast", ((128, 10),), ("int64",), T0 + 2),
    )
    assert read == RankTrace(1, (GroupTrace("0", "default_pg", (0, 1), made, states=True),))
    assert last_operation(read) == "broadcast #2 of default_pg (int64 [128, 10])"


def test_what_gloo_has_retired_is_over_unless_the_worker_was_ending() -> None:
    retired = document(entry(1))
    for ended in (False, True):
        read = read_of(retired, 1, ended=ended)
        assert read is not None
        (group,) = read.groups
        assert (group.states, group.calls[0].completed) == (not ended, not ended)


def test_who_has_finished_a_broadcast_does_not_wait_in_it() -> None:
    """The root of a broadcast in a subgroup goes on to a barrier of all; a member sleeps."""
    some = [1, 2, 3]

    def rank(number: int, *made: Any) -> RankTrace:
        groups = {"groups": {"0": [0, 1, 2, 3]} | ({"1": some} if number else {})}
        read = read_of(document(entry(1), *made) | groups, number)
        assert read is not None
        return read

    barrier = entry(2, "gloo:barrier", retired=False, time_created_ns=T0 + 9)
    cast = entry(1, "gloo:broadcast", process_group=["1", "undefined"], time_created_ns=T0 + 5)
    traces = [
        rank(0, barrier),
        rank(1, cast, barrier),
        rank(2),
        rank(3, cast | {"retired": False}),
    ]
    text = said(traces, {0: SURELY, 1: SURELY, 2: NO, 3: SURELY})
    assert text.startswith("rank 2 never came to broadcast #1 of a group of ranks 1-3")
    assert "; rank 3 waits in it" in text


def test_a_trace_of_nccl_is_read_after_that_of_gloo() -> None:
    """The form is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10."""
    nccl = {
        "version": "2.10",
        "nccl_version": "2.27.5",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "5": {"name": "5", "desc": "tensor", "ranks": "[2, 3]"},
        },
        "entries": [
            entry(1, "nccl:all_reduce", state="completed", retired=True),
            entry(2, "nccl:_all_gather_base", state="started", retired=False),
            entry(1, "nccl:send 2->3", is_p2p=True, p2p_seq_id=1, collective_seq_id=0),
        ],
    }
    read = read_of({"groups": {}, "traces": [document()["traces"][0], nccl]}, 2)
    assert read is not None
    world, tensor = read.groups
    assert world.ranks == (0, 1, 2, 3)
    assert [made.operation for made in world.calls] == ["all_reduce", "_all_gather_base"]
    assert (world.last, world.open, world.states) == (2, 2, True)
    assert (tensor.name, tensor.ranks, tensor.calls) == ("5", (2, 3), ())


def test_of_several_groups_that_had_one_name_the_last_counts() -> None:
    def made(*entries: Any) -> list[list[tuple[int, str]]]:
        read = read_of(document(*entries), 0)
        assert read is not None
        return [[(each.number, each.operation) for each in group.calls] for group in read.groups]

    old = [entry(number) for number in range(1, 6)]
    new = [entry(number, "gloo:broadcast") for number in (1, 2)]
    assert made(*old, *new) == [[(1, "broadcast"), (2, "broadcast")]]
    # one call each, of different operations
    assert made(old[0], new[0]) == [[(1, "broadcast")]]
    # of the last one the record may begin where it likes
    assert made(entry(1999), entry(2000)) == [[(1999, "all_reduce"), (2000, "all_reduce")]]
    # calls in another group between them change nothing
    pair = [each | {"process_group": ["1", "pair"]} for each in old[:2]]
    both = [[(1, "all_reduce"), (2, "all_reduce")]] * 2
    assert made(old[0], pair[0], old[1], pair[1]) == both


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*entry(1), "other"]), anything), anything, anything)
def test_whatever_a_trace_holds_it_is_read_and_compared(
    changes: dict[str, Any], groups: Any, config: Any
) -> None:
    made = document(entry(1), entry(2) | changes, changes, pg_config=config) | {"groups": groups}
    read, good = read_of(made, 0), read_of(document(entry(1)), 1)
    assert good is not None
    found = compare({1: good} if read is None else {0: read, 1: good})
    assert found is None or sentence(found).isprintable()


# What travels


def test_a_trace_travels_as_json() -> None:
    sent = grouped(3, g0=((0, 3), calls(9)), g1=((3, 4), calls(2)))
    assert as_record(json.loads(json.dumps(to_builtins(sent))), RankTrace) == sent
    cut = latest(sent, 8)
    assert [[made.number for made in group.calls] for group in cut.groups] == [[6, 7, 8, 9], [1, 2]]


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=6),
    st.lists(st.sampled_from([(4,), (8,), (2, 2)]), min_size=6, max_size=6),
    st.lists(st.sampled_from(list(Waits)), min_size=6, max_size=6),
)
def test_no_verdict_is_beyond_its_evidence(
    counts: list[int], sizes: list[tuple[int, ...]], waits: list[Waits]
) -> None:
    traces = {
        rank: trace(
            rank,
            *calls(max(0, count - 1)),
            *([call(count, "all_reduce", *sizes[rank])] if count else []),
            ranks=len(counts),
        )
        for rank, count in enumerate(counts)
    }
    found = compare(traces, dict(enumerate(waits[: len(counts)])))
    if found is None:
        return
    named = [rank for party in found.parties for rank in party.ranks]
    assert len(named) == len(set(named)), "nobody is on two sides"
    assert set(found.at_fault) <= {*named}
    assert len(found.at_fault) < len(traces)
    if found.kind == "absent":
        missed = found.parties[0].collective.number
        assert {r for r, count in enumerate(counts) if count < missed} == {*found.parties[0].ranks}
    assert as_record(json.loads(json.dumps(to_builtins(found))), Disagreement) == found


# A rank that gloo has aborted


@pytest.mark.parametrize(
    ("late", "often", "expected"),
    [
        (0.9, 10, (1, 10, 10, 0.9)),
        (0.9, 8, (1, 8, 10, 0.9)),
        # each is last now and then; or nobody waits long
        (0.9, 5, None),
        (0.1, 10, None),
    ],
)
def test_who_comes_last_nearly_always_is_slow(late: float, often: int, expected: object) -> None:
    def came(rank: int, number: int) -> Call:
        behind = late if (rank == 1) == (number > 10 - often) else 0.0
        return replace(call(number), created_ns=T0 + round((number + rank / 1e6 + behind) * 1e9))

    traces = {
        rank: trace(rank, *(came(rank, number) for number in range(1, 11)), ranks=2)
        for rank in range(2)
    }
    found = straggler(traces)
    assert (found and (*found[:3], round(found[3], 1))) == expected
    # of one that has told nothing, nobody knows how late it was
    assert straggler({**traces, 2: RankTrace(2)}) is None


def test_an_aborted_rank_differs_only_where_all_others_agree() -> None:
    def others(odd: Call) -> dict[int, RankTrace]:
        return {rank: trace(rank, *calls(3), odd if rank == 2 else call(4)) for rank in (0, 2, 3)}

    # gloo aborts who receives more than it expects, whoever is wrong
    found = compare(with_aborted(others(call(4, dtype="float64")), 1))
    assert found is not None
    assert sentence(found) == (
        "rank 2 called all_reduce #4 with float64 [4], the others with float32 [4]"
    )
    assert found.at_fault == (2,)
    found = compare(with_aborted(others(call(4)), 1))
    assert found is not None
    assert sentence(found) == (
        "rank 1 called all_reduce #4 with another size or type, the others with float32 [4]"
    )
    assert found.at_fault == (1,)


# Beside the stacks

TRAIN = Frame("/home/u/train.py", 12, "step", "x")
C10D = Frame("/env/lib/python3.11/site-packages/torch/distributed/c10d.py", 3, "all_reduce")
STALLED = Stalled((0, 1, 2), 60.0)


def stack(rank: int, made: int, *frames: Frame, **more: Any) -> RankStack:
    return RankStack(rank, "", frames, trace=trace(rank, *calls(made), ranks=3), **more)


def test_what_is_recorded_is_stronger_than_where_ranks_stand() -> None:
    # by their stacks the one outside hangs; but it had called what the others wait in
    stacks = [stack(0, 4, C10D, TRAIN), stack(1, 3, TRAIN), stack(2, 4, TRAIN)]
    found = blame(stacks, STALLED)
    assert found.hung == (1,)
    assert found.waiting == (0,)
    assert found.collectives is not None
    assert sentence(found.collectives) == (
        "rank 1 never came to all_reduce #4 of default_pg (float32 [4]), at /home/u/train.py:12; "
        f"ranks 0, 2 wait in it since {clock(4)}, at /home/u/train.py:12"
    )


WAITS = Frame("/home/u/train.py", 8, "step", "handle.wait()")


def test_a_rank_that_waits_for_a_message_of_one_that_works_does_not_hang() -> None:
    # ranks 0 and 1 share a group; rank 1 waits for rank 2, which is in no group with them
    traces = [grouped(rank, g1=((0, 1), calls(1 - rank))) for rank in (0, 1)]
    pair = [
        RankStack(0, "", (C10D, TRAIN), trace=traces[0]),
        RankStack(1, "", (WAITS,), trace=traces[1]),
    ]
    for idle in (RankStack(2, "", (TRAIN,), trace=RankTrace(2)), RankStack(2, "", (TRAIN,))):
        found = blame([*pair, idle], STALLED)
        assert (found.hung, found.waiting) == ((2,), (0, 1))
        assert found.collectives is not None
        assert sentence(found.collectives).startswith("rank 1 never came to all_reduce #1")
        assert found.collectives.at_fault == ()
    # nobody else may be at fault
    assert blame(pair, STALLED).hung == (1,)


def test_in_a_look_at_a_run_that_goes_on_only_waits_of_seconds_are_told() -> None:
    stacks = [stack(0, 4, C10D, TRAIN), stack(1, 3, TRAIN), stack(2, 4, C10D, TRAIN)]
    called_ns = calls(4)[-1].created_ns
    found = blame_now(stacks, called_ns + 5 * 10**9)
    assert found.collectives is not None
    assert sentence(found.collectives, so_far=True).startswith(
        "rank 1 has not come to all_reduce #4 of default_pg (float32 [4]), at "
    )
    assert (found.hung, found.waiting) == ((1,), (0, 2))
    # the call may even have come after the others were asked
    for moment in (called_ns + 10**9, called_ns - 10**9):
        found = blame_now(stacks, moment)
        assert found.collectives is None
        assert (found.hung, found.waiting) == ((1,), (0, 2)), "by their stacks"


def test_who_computes_after_a_collective_does_not_wait_in_it_for_all_that_is_known() -> None:
    # the root of a broadcast goes on; gloo does not tell that it has
    # unless its backend tells it, as NCCL does
    for states in (False, True):
        traces = [trace(rank, *calls(4 - rank), ranks=2, states=states) for rank in (0, 1)]
        stacks = [RankStack(each.rank, "", (TRAIN,), trace=each) for each in traces]
        assert bool(blame_now(stacks, T0 + 10**12).collectives) is states


def test_ranks_of_this_node_are_accused_by_their_local_numbers() -> None:
    traces = [trace(4 + local, *calls(4 - local), ranks=8) for local in (0, 1)]
    stacks = [RankStack(local, "", (TRAIN,), trace=each) for local, each in enumerate(traces)]
    found = blame(stacks, STALLED)
    assert found.hung == (1,)
    assert found.collectives is not None
    assert found.collectives.at_fault == (5,)
