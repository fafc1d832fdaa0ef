"""Who hangs and who only waits, judged by frames."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lllaunch.watchdog.blame import blame, waits
from lllaunch.watchdog.evidence import (
    Blame,
    Call,
    Frame,
    GroupTrace,
    RankStack,
    RankTrace,
    Waits,
)
from lllaunch.watchdog.findings import (
    Finding,
    HeartbeatLost,
    OverMemory,
    Stalled,
    TimedOut,
    TimerExpired,
)

LIB = "/env/lib/python3.11/site-packages"
C10D = f"{LIB}/torch/distributed/distributed_c10d.py"

MAIN = Frame("/home/u/train.py", 40, "<module>")
LOGGER = Frame(f"{LIB}/torch/distributed/c10d_logger.py", 83, "wrapper")


def user(line: int, code: str = "") -> Frame:
    return Frame("/home/u/train.py", line, "step", code)


# Where workers stand, innermost first; the letter by which the tables below name it.
PLACES: dict[str, tuple[Frame, ...]] = {
    "s": (user(7, "time.sleep(1000)"), MAIN),
    "S": (user(9, "data = queue_of_c.take()"), MAIN),
    "a": (Frame(C10D, 3252, "all_reduce"), LOGGER, user(12), MAIN),
    "b": (Frame(C10D, 5356, "barrier"), LOGGER, user(13), MAIN),
    "B": (Frame(C10D, 5356, "barrier"), LOGGER, user(14), MAIN),
    "i": (Frame(f"{LIB}/torch/distributed/rendezvous.py", 199, "_create_c10d_store"), MAIN),
    "f": (
        Frame(f"{LIB}/torch/_ops.py", 1279, "__call__"),
        Frame(f"{LIB}/torch/distributed/_functional_collectives.py", 142, "wait_tensor"),
        user(15),
        MAIN,
    ),
    "d": (
        Frame(f"{LIB}/torch/autograd/graph.py", 979, "_engine_run_backward"),
        Frame(f"{LIB}/torch/autograd/__init__.py", 395, "backward"),
        Frame(f"{LIB}/torch/_tensor.py", 623, "backward"),
        user(16),
        MAIN,
    ),
    "w": (user(17, "work.wait()"), MAIN),
    "m": (user(18, "total = loss.item()"), MAIN),
    # A hook of the user's, called by DDP from within its own frames.
    "h": (user(19, "time.sleep(1000)"), Frame(f"{LIB}/torch/nn/parallel/distributed.py", 1, "x")),
    "?": (),
}
STALLED = Stalled((0, 1, 2), 600.0)
ONE = Stalled((1,), 600.0, "rank")


def timer(rank: int) -> TimerExpired:
    return TimerExpired(rank, 100, "step", 60.0, 9)


def stacks(places: str, states: str = "") -> tuple[RankStack, ...]:
    return tuple(
        RankStack(rank, frames=PLACES[letter], state=(states or "S" * len(places))[rank])
        for rank, letter in enumerate(places)
    )


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((), Waits.NO),
        ((Frame(f"{LIB}/torch/distributed/elastic/agent/server/api.py", 1, "run"),), Waits.NO),
        ((Frame(f"{LIB}/horovod/torch/mpi_ops.py", 1, "synchronize"),), Waits.SURELY),
        ((Frame(f"{LIB}/jax/experimental/multihost_utils.py", 1, "sync"),), Waits.SURELY),
        ((Frame(f"{LIB}/torch/cuda/__init__.py", 1, "synchronize"),), Waits.PERHAPS),
        # As py-spy writes it.
        ((Frame(f"{LIB}/torch/_tensor.py", 1, "Tensor.backward"),), Waits.PERHAPS),
        ((Frame("/home/u/mpi.py", 1, "main", "comm.Barrier()"),), Waits.PERHAPS),
        ((Frame("/home/u/mpi.py", 1, "main", "comm.allreduce(x)"),), Waits.PERHAPS),
        ((Frame("/home/u/mpi.py", 1, "main", "x = await_it()"),), Waits.NO),
        ((Frame("/usr/lib/python3.11/threading.py", 1, "wait", "waiter.acquire()"),), Waits.NO),
    ],
)
def test_what_frames_say(frames: tuple[Frame, ...], expected: Waits) -> None:
    assert waits((*frames, MAIN)) is expected


@pytest.mark.parametrize(
    ("places", "finding", "hung", "waiting"),
    [
        # One that is in no collective hangs, the others wait for it.
        ("sa", STALLED, (0,), (1,)),
        ("asa", STALLED, (1,), (0, 2)),
        ("aSsa", STALLED, (1, 2), (0, 3)),
        ("sii", STALLED, (0,), (1, 2)),
        ("sdd", STALLED, (0,), (1, 2)),
        ("wsw", STALLED, (1,), (0, 2)),
        # Backward alone may be computing: it hangs where all others surely wait.
        ("aad", STALLED, (2,), (0, 1)),
        # Whatever the finding names, frames are stronger.
        ("asa", Stalled((2,), 9.0, "rank"), (1,), (0, 2)),
        ("asa", TimedOut(9.0), (1,), (0, 2)),
        # All are at the same place: nobody, but for those that the finding names.
        ("aaa", STALLED, (), ()),
        ("aaa", ONE, (1,), (0, 2)),
        # All are in collectives, at different places: the minority.
        ("aab", STALLED, (2,), (0, 1)),
        ("bBb", STALLED, (1,), (0, 2)),
        ("aaabi", STALLED, (3, 4), (0, 1, 2)),
        ("ab", STALLED, (), ()),
        # None is in a collective.
        ("sss", STALLED, (), ()),
        ("sSs", STALLED, (1,), ()),
        ("sss", HeartbeatLost((0, 2), 9.0), (0, 2), ()),
        # Of those without frames only the finding can tell.
        ("???", ONE, (1,), ()),
        ("?sa", STALLED, (1,), (2,)),
        ("a?a", STALLED, (), ()),
        ("a?a", ONE, (1,), (0, 2)),
        ("?", Stalled((0,), 9.0), (), ()),
        # An expired timer names its rank unless it waits.
        ("ssa", timer(0), (0,), (2,)),
        ("???", timer(2), (2,), ()),
        # It only waited for another, whose timer is later or missing.
        ("asa", timer(2), (1,), (0, 2)),
        ("ada", timer(2), (1,), (0, 2)),
        # It was perhaps waiting, and its timer ran out for sure.
        ("wsw", timer(2), (2,), (0,)),
    ],
)
def test_blame_by_frames(
    places: str, finding: Finding, hung: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    assert blame(stacks(places), finding) == Blame(hung, waiting)


@pytest.mark.parametrize(
    ("places", "states", "finding", "hung", "waiting"),
    [
        ("aaa", "STS", STALLED, (1,), (0, 2)),
        ("a?a", "StS", STALLED, (1,), (0, 2)),
        ("sas", "STS", STALLED, (1,), ()),
        ("saa", "SDT", TimedOut(9.0), (1, 2), ()),
        ("sss", "DDD", STALLED, (0, 1, 2), ()),
        ("aaa", "SST", timer(0), (2,), (0, 1)),
        ("ssa", "STS", timer(0), (0,), (2,)),
    ],
)
def test_those_that_cannot_run_hang(
    places: str, states: str, finding: Finding, hung: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    assert blame(stacks(places, states), finding) == Blame(hung, waiting)


def test_memory_names_its_rank_and_nobody_waits() -> None:
    assert blame(stacks("asa", "SST"), OverMemory(0, 2, 1)) == Blame((0,), ())


# What holds for any evidence


def _trace(rank: int, ranks: int, last: int) -> RankTrace:
    calls = tuple(Call(number, "all_reduce") for number in range(1, last + 1))
    return RankTrace(rank, (GroupTrace("0", "default_pg", tuple(range(ranks)), calls),))


@st.composite
def evidence(draw: st.DrawFn, places: str = "sSabdw?") -> list[RankStack]:
    """Ranks that stand anywhere, and may have told how many collectives they have called."""
    ranks = draw(st.integers(2, 6))
    found = []
    for rank in range(ranks):
        last = draw(st.none() | st.integers(0, 3))
        frames = PLACES[draw(st.sampled_from(places))]
        told = None if last is None else _trace(rank, ranks, last)
        found.append(RankStack(rank, frames=frames, state="S", trace=told))
    return found


def _moved(stack: RankStack, to: int) -> RankStack:
    told = stack.trace and replace(stack.trace, rank=to)
    return replace(stack, rank=to, trace=told)


@given(evidence(), st.randoms())
def test_who_is_called_what_makes_no_difference(stacks: list[RankStack], random: Random) -> None:
    names = list(range(len(stacks)))
    random.shuffle(names)
    moved = [_moved(stack, names[stack.rank]) for stack in stacks]
    everybody = Stalled(tuple(range(len(stacks))), 600.0)
    before, after = blame(stacks, everybody), blame(moved, everybody)
    assert {names[rank] for rank in before.hung} == {*after.hung}
    assert {names[rank] for rank in before.waiting} == {*after.waiting}


@st.composite
def hang(draw: st.DrawFn) -> tuple[list[RankStack], int]:
    """One rank that is elsewhere, for which all others wait in a collective operation."""
    ranks, number = draw(st.integers(3, 6)), draw(st.integers(1, 4))
    culprit = draw(st.integers(0, ranks - 1))
    stacks = [
        RankStack(
            rank,
            frames=PLACES["s" if rank == culprit else "a"],
            state="S",
            trace=_trace(rank, ranks, number - (rank == culprit)),
        )
        for rank in range(ranks)
    ]
    return stacks, culprit


@given(hang(), st.data())
def test_less_evidence_makes_it_less_sure_and_never_wrong(
    made: tuple[list[RankStack], int], data: st.DataObject
) -> None:
    stacks, culprit = made
    everybody = Stalled(tuple(range(len(stacks))), 600.0)
    found = blame(stacks, everybody)
    assert found.hung == (culprit,)
    assert found.collectives is not None
    assert found.collectives.at_fault == (culprit,)
    known = st.sampled_from([{}, {"frames": ()}, {"trace": None}, {"frames": (), "trace": None}])
    less = blame([replace(stack, **data.draw(known)) for stack in stacks], everybody)
    assert {*less.hung} <= {culprit}
    # one more that waits as the others do
    waiting = next(stack for stack in stacks if stack.rank != culprit)
    more = blame([*stacks, _moved(waiting, len(stacks))], everybody)
    assert more.hung == found.hung
    assert more.waiting == (*found.waiting, len(stacks))
