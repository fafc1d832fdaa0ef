"""Where all ranks stand as one tree: what it holds, whole, folded and cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.frames import (
    Call,
    StackBranch,
    count_calls,
    short_tree,
    tree_lines,
    whole_text,
    whole_tree,
)

LIB = "/home/ada/.venv/lib/python3.11/site-packages"
HOME = "/home/ada/net"


def own(function: str, line: int = 1) -> Frame:
    return Frame(f"{HOME}/train.py", line, function)


def lib(function: str, file: str = "torch/x.py", line: int = 1) -> Frame:
    return Frame(f"{LIB}/{file}", line, function)


def stack(rank: int, *calls: Frame) -> RankStack:
    """A worker in some calls, outermost first."""
    return RankStack(rank, "", tuple(reversed(calls)), "S", "futex")


def name(call: Call) -> str:
    return call if isinstance(call, str) else call.function


def shown(roots: Iterable[StackBranch]) -> list[str]:
    return [*tree_lines(roots, name)]


def rank_of_issue(rank: int) -> RankStack:
    if rank == 6:
        return stack(rank, own("main"), own("step", 40), own("load_next_shard", 9))
    return stack(rank, own("main"), own("step", 41), lib("all_reduce"))


def test_ranks_part_where_their_calls_do() -> None:
    assert shown(short_tree(map(rank_of_issue, range(8)))) == [
        "[0-7] main",
        "  [0-5,7] step → all_reduce",
        "  [6] step → load_next_shard",
    ]


def test_a_rank_may_end_where_others_go_on() -> None:
    stacks = [stack(0, own("main")), stack(1, own("main"), own("step"))]
    assert whole_text(stacks) == (
        f"[0-1] main ({HOME}/train.py:1)\n"
        "  [0] in no further call\n"
        f"  [1] step ({HOME}/train.py:1)\n"
    )


def test_calls_inside_libraries_are_folded_and_counted() -> None:
    wrapper = lib("wrapper", "torch/distributed/c10d_logger.py")
    calls = [
        own("main"),
        *(lib("fit", "lightning/trainer.py"), lib("run"), lib("advance")),
        own("training_step"),
        *(wrapper, lib("all_reduce"), lib("inner"), lib("wait", line=77)),
    ]
    roots = short_tree([stack(0, *calls)])
    assert shown(roots) == ["[0] main → fit → ... → training_step → all_reduce → ... → wait"]
    assert count_calls(roots) == 5
    # the line of what is innermost tells, not that of a call that goes on
    assert [call.line for call in roots[0].calls if isinstance(call, Frame)] == [1, 0, 1, 0, 77]
    # code of the user's that is installed is not lost among libraries
    calls = [own("<module>"), lib("train", "net/a.py"), lib("step", "net/b.py")]
    stacks = [
        stack(0, *calls, lib("load", "net/c.py", 5), lib("next", "torch/d.py"), lib("get")),
        stack(1, *calls, lib("save", "net/c.py", 9)),
    ]
    lines = ["[0-1] <module> → train → ...", "  [0] load → next → get", "  [1] save"]
    assert shown(short_tree(stacks)) == lines


def test_a_worker_without_frames_has_words() -> None:
    stacks = [RankStack(0, state="D", wchan="nfs_wait"), RankStack(1), RankStack(2)]
    assert shown(short_tree(stacks)) == [
        "[0] no Python frames are known (state D in nfs_wait)",
        "[1-2] no Python frames are known",
    ]


def test_what_parts_most_is_cut_first() -> None:
    stacks = [stack(rank, own("main"), own("loop"), own("work", rank)) for rank in range(30)]
    stacks += [stack(30, own("main"), own("save"))]
    assert shown(short_tree(stacks)) == [
        "[0-30] main",
        "  [0-29] loop → 30 places",
        "  [30] save",
    ]


# Whatever the stacks are

CALLS = st.builds(
    Frame,
    st.sampled_from([f"{HOME}/a.py", f"{HOME}/b.py", f"{LIB}/torch/x.py", "<frozen runpy>"]),
    st.integers(1, 3),
    st.sampled_from(["f", "g", "wrapper"]),
)
STACKS = st.dictionaries(st.integers(0, 40), st.lists(CALLS, max_size=12), max_size=24).map(
    lambda chains: [stack(rank, *calls) for rank, calls in chains.items()]
)


def walked(roots: Iterable[StackBranch]) -> list[StackBranch]:
    return [branch for root in roots for branch in root.walk()]


def check(roots: Sequence[StackBranch], stacks: Sequence[RankStack]) -> None:
    """Every rank is in one of the outermost branches, and ends in one."""
    ranks = sorted(each.rank for each in stacks)
    assert sorted(rank for root in roots for rank in root.ranks) == ranks
    assert sorted(rank for each in walked(roots) for rank in each.ends) == ranks
    for branch in walked(roots):
        below = [rank for each in branch.below for rank in each.ranks]
        assert sorted([*below, *branch.ends]) == [*branch.ranks]
        assert branch.ranks


@given(STACKS)
def test_the_whole_tree_loses_nothing(stacks: list[RankStack]) -> None:
    roots = whole_tree(stacks)
    check(roots, stacks)
    found: dict[int, list[Call]] = {}

    def go(branch: StackBranch, above: list[Call]) -> None:
        calls = [*above, *branch.calls]
        found.update(dict.fromkeys(branch.ends, calls))
        for each in branch.below:
            go(each, calls)

    for root in roots:
        go(root, [])
    for each in stacks:
        if each.frames:
            assert found[each.rank] == [*reversed(each.frames)]
    # no chain could be joined with what is below it, and no two branches be one
    for branch in walked(roots):
        assert len(branch.below) + bool(branch.ends) != 1 or branch.ends
        assert len({each.calls[0] for each in branch.below}) == len(branch.below)


@given(STACKS, st.integers(1, 14))
def test_the_short_tree_has_all_ranks_in_few_lines(stacks: list[RankStack], most: int) -> None:
    roots = short_tree(stacks, most)
    check(roots, stacks)
    assert len(shown(roots)) <= max(most, 1)
    # ranks may part a call sooner than in the whole tree, but none has calls that it is not in
    assert count_calls(roots) <= sum(len(stack.frames) for stack in stacks)
