"""Where all ranks stand as one tree: what it holds, whole, folded and cut."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from lllaunch.watchdog.stacks.frames import Frame, RankStack, Thread, named_threads
from lllaunch.watchdog.stacks.merged import (
    MOST_LINES,
    Call,
    StackBranch,
    count_calls,
    folded_text,
    label,
    merged,
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
    lines = ["[0-1] main", "  [0] in no further call", "  [1] step"]
    assert shown(short_tree(stacks)) == lines
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
    assert count_calls(whole_tree([stack(0, *calls)])) == len(calls)
    # the line of what is innermost tells, not that of a call that goes on
    assert [call.line for call in roots[0].calls if isinstance(call, Frame)] == [1, 0, 1, 0, 77]


def test_code_of_the_users_that_is_installed_is_not_lost_among_libraries() -> None:
    calls = [
        own("<module>"),
        *(lib("train", "net/a.py"), lib("step", "net/b.py"), lib("load", "net/c.py", 5)),
        *(lib("__next__", "torch/d.py"), lib("next", "torch/d.py"), lib("get", "torch/d.py")),
        Frame("/usr/lib/python3.11/queue.py", 171, "get"),
        Frame("/usr/lib/python3.11/threading.py", 320, "wait"),
    ]
    (line,) = shown(short_tree([stack(0, *calls)]))
    assert line == "[0] <module> → train → ... → __next__ → ... → get → get → wait"
    roots = short_tree([stack(0, *calls), stack(1, *calls[:3], lib("save", "net/c.py", 9))])
    assert shown(roots) == [
        "[0-1] <module> → train → ...",
        "  [0] load → __next__ → ... → get → get → wait",
        "  [1] save",
    ]


def test_another_line_of_a_library_is_no_other_way() -> None:
    stacks = [
        stack(rank, own("step"), lib("get", line=rank), lib("wait", "queue.py", 5))
        for rank in range(3)
    ]
    assert shown(short_tree(stacks)) == ["[0-2] step → get → wait"]
    assert len(whole_tree(stacks)[0].below) == 3


def test_a_worker_that_is_in_libraries_only() -> None:
    roots = short_tree([stack(0, lib("a"), lib("b"), lib("c"))])
    assert shown(roots) == ["[0] a → ... → c"]


def test_a_worker_without_frames_has_words() -> None:
    stacks = [RankStack(0, state="D", wchan="nfs_wait"), RankStack(1), RankStack(2)]
    assert shown(short_tree(stacks)) == [
        "[0] no Python frames are known (state D in nfs_wait)",
        "[1-2] no Python frames are known",
    ]


def test_long_chains_keep_their_ends() -> None:
    calls = [own("recurse", line) for line in range(40)]
    (line,) = shown(short_tree([stack(0, *calls)]))
    assert line.count("→") == 7
    assert line.startswith("[0] recurse → recurse → ... → recurse")


def test_what_parts_most_is_cut_first() -> None:
    stacks = [stack(rank, own("main"), own("loop"), own("work", rank)) for rank in range(30)]
    stacks += [stack(30, own("main"), own("save"))]
    assert shown(short_tree(stacks)) == [
        "[0-30] main",
        "  [0-29] loop → 30 places",
        "  [30] save",
    ]


def test_more_beginnings_than_lines() -> None:
    stacks = [stack(rank, own("main", rank)) for rank in range(20)]
    stacks += [stack(20, own("main", 19))]
    lines = shown(short_tree(stacks))
    assert len(lines) == MOST_LINES
    assert lines[-2:] == ["[19-20] main", "[10-18] at 9 other places"]


def test_labels() -> None:
    assert label([0, 1, 2, 5, 7, 8]) == "[0-2,5,7-8]"


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


@given(STACKS)
def test_the_text_of_the_whole_tree_has_a_line_for_each_of_its_calls(
    stacks: list[RankStack],
) -> None:
    text = whole_text(stacks)
    calls = re.findall(r"\w+ \(.+:\d+\)$", text, re.MULTILINE)
    assert len(calls) == count_calls(whole_tree(stacks))


@given(STACKS, st.integers(1, 14))
def test_the_short_tree_has_all_ranks_in_few_lines(stacks: list[RankStack], most: int) -> None:
    roots = short_tree(stacks, most)
    check(roots, stacks)
    assert len(shown(roots)) <= max(most, 1)
    # ranks may part a call sooner than in the whole tree, but none has calls that it is not in
    assert count_calls(roots) <= sum(len(stack.frames) for stack in stacks)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from("abc"), min_size=1)))
def test_words_are_merged_as_calls_are(chains: dict[int, list[str]]) -> None:
    ends = {rank: branch for branch in walked(merged(chains)) for rank in branch.ends}
    assert {rank: branch.calls[-1] for rank, branch in ends.items()} == {
        rank: chain[-1] for rank, chain in chains.items()
    }


# Folded stacks


def thread(name: str, *calls: Frame) -> Thread:
    return Thread(name, current=False, frames=[*reversed(calls)])


def test_folded_stacks_count_threads() -> None:
    main = thread("MainThread", own("main"), own("step", 4))
    text = folded_text([main, main, thread("loader;1", own("run"), own("a b", 2)), thread("no")])
    assert text == (
        f"MainThread;main ({HOME}/train.py:1);step ({HOME}/train.py:4) 2\n"
        f"loader:1;run ({HOME}/train.py:1);a b ({HOME}/train.py:2) 1\n"
    )


NAMES = st.text(max_size=8)
THREADS = st.lists(
    st.builds(
        Thread,
        NAMES,
        st.booleans(),
        st.lists(st.builds(Frame, NAMES, st.integers(0, 99), NAMES), max_size=4),
    )
)


@given(THREADS)
def test_folded_stacks_of_any_names_can_be_read_again(threads: list[Thread]) -> None:
    lines = folded_text(threads).splitlines()
    read = [re.fullmatch(r"(.*) (\d+)", line) for line in lines]
    assert all(read)
    assert sum(int(each[2]) for each in read if each) == sum(bool(t.frames) for t in threads)
    depths: Counter[int] = Counter()
    for each in read:
        if each:
            depths[each[1].count(";")] += int(each[2])
    assert depths == Counter(len(each.frames) for each in threads if each.frames)


DUMP = """\
Thread 0x1 [loader] (most recent call first):
  File "/t/d.py", line 2 in deep

Thread 0x2 (most recent call first):
  <no Python frame>

Current thread 0x3 (most recent call first):
  File "/t/d.py", line 5 in main
"""
SPY = """\
Process 5: python h.py

Thread 7 (idle): "other"
    deep (/t/h.py:2)
Thread 5 (active): "MainThread"
    main (/t/h.py:4)
"""


def test_threads_of_a_dump_have_names_and_the_main_one_is_first() -> None:
    found = named_threads(DUMP, "faulthandler")
    assert [(each.name, each.frames[0].function) for each in found] == [
        ("MainThread", "main"),
        ("loader", "deep"),
    ]
    found = named_threads(SPY, "py-spy")
    assert [(each.name, each.frames[0].line) for each in found] == [("MainThread", 4), ("other", 2)]
    # of Python 3.10 py-spy does not know which one it is
    nameless = (
        SPY.replace('"other"', "").replace('"MainThread"', "").replace("Thread 5", "Thread 6")
    )
    nameless = nameless.replace(': "MainThread"', "")
    assert [each.name for each in named_threads(nameless, "py-spy")] == ["another thread"] * 2
