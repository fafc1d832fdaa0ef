"""Where workers are: dumps of several versions, processes, and all ranks as one tree."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.linux.proc import ProcessFacts
from lllaunch.watchdog.collector import Process, StackCollector, Written, as_dump, complaint, survey
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.frames import (
    MAX_FRAMES,
    Call,
    StackBranch,
    count_calls,
    main_frames,
    quoted,
    short_tree,
    threads_of,
    tree_lines,
    users_part,
    whole_text,
    whole_tree,
    with_code,
)


def written(text: str) -> tuple[Frame, ...]:
    return main_frames(threads_of(text))


def spied(*threads: tuple[int, str | None, list[tuple[str, str, int]]]) -> tuple[Frame, ...]:
    """The main thread of what py-spy tells of process 5676: numbers, names, frames."""
    told = [
        {
            "pid": 5676,
            "os_thread_id": number,
            "thread_name": name,
            "frames": [
                {"name": function, "filename": file, "line": line, "is_entry": False}
                for function, file, line in frames
            ],
        }
        for number, name, frames in threads
    ]
    return main_frames(threads_of(as_dump(json.dumps(told).encode())))


# Python 3.10 to 3.12.
OLDER = """\
Thread 0x00007f29870a16c0 (most recent call first):
  File "/t/d.py", line 2 in deep
  File "/usr/lib/python3.10/threading.py", line 953 in run

Current thread 0x00007f29879b9b80 (most recent call first):
  File "/t/d.py", line 5 in main
  File "/t/d.py", line 6 in <module>
"""
# Python 3.13 and 3.14 name the threads.
NEWER = """\
Thread 0x00007ff8b7fbb6c0 [pin: memory] (most recent call first):
  Garbage-collecting
  File "/t/d.py", line 2 in deep

Current thread 0x00007ff8b8a41b80 [python] (most recent call first):
  File "/t/d.py", line 5 in main
"""


def test_the_main_thread_is_the_last_one() -> None:
    assert written(OLDER) == (
        Frame("/t/d.py", 5, "main"),
        Frame("/t/d.py", 6, "<module>"),
    )
    assert written(NEWER) == (Frame("/t/d.py", 5, "main"),)
    # more frames than are listed do not mean more threads
    text = OLDER.replace('  File "/usr', '  ...\n  File "/usr')
    assert written(text)[0].function == "main"
    bare = OLDER.partition('  File "/t/d.py", line 5')[0] + "  <no Python frame>\n"
    assert written(bare) == ()


def test_the_current_thread_counts_where_not_all_are_listed() -> None:
    other, current = OLDER.split("\n\n")
    assert written(f"{current}\n{other}\n\n...\n")[0].function == "main"
    assert written(f"{other}\n\n{other}\n\n...\n") == ()


def test_the_c_stack_of_newer_versions_is_not_a_thread() -> None:
    text = f"""{NEWER}
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x48 [0x6a1c9e]
  <truncated rest of calls>
"""
    assert written(text) == (Frame("/t/d.py", 5, "main"),)


def test_escapes_and_unknown_lines() -> None:
    text = (
        "Current thread 0x1f (most recent call first):\n"
        '  File "/home/jos\\xe9/\\u4f60 "x", line 1 in y.py", line ??? in f\\x0a\n'
    )
    assert written(text) == (Frame('/home/josé/你 "x", line 1 in y.py', 0, "f\\x0a"),)


def test_pyspy() -> None:
    deep, inner = [("deep", "/t/h.py", 2)], [("inner", "/t/inner.py", 4)]
    main = [("main", "/t/a (b):c.py", 4), ("<module>", "/t/h.py", 5)]
    found = (Frame("/t/a (b):c.py", 4, "main"), Frame("/t/h.py", 5, "<module>"))
    assert spied((5679, "my (odd): thread", deep), (5676, "MainThread", main)) == found
    # In another PID namespace the numbers differ; the name is left.
    assert spied((7, "other", deep), (5, "MainThread", main), (9, None, deep)) == found
    # one that bears no name is the main one if it is the only one
    assert spied((1, None, inner)) == (Frame("/t/inner.py", 4, "inner"),)
    assert spied((1, None, inner), (2, None, inner)) == ()
    assert spied() == ()
    with pytest.raises(ValueError, match="malformed"):
        as_dump(b"Error: Permission Denied")


LINES = st.sampled_from([*OLDER.splitlines(), *NEWER.splitlines(), "  ..."])


@given(st.lists(LINES | st.text(max_size=8)).map("\n".join))
def test_garbage_hurts_nobody(text: str) -> None:
    frames = written(text)
    assert len(frames) <= MAX_FRAMES
    assert all(isinstance(frame, Frame) for frame in frames)


def test_what_pyspy_complains_of_fits_a_line() -> None:
    failed = "Error: Failed\n\nCaused by:\n    0: no\n\nStack backtrace:\n  0: x"
    assert complaint(failed, 1) == "Error: Failed Caused by: 0: no"
    assert complaint("", 2) == "exit status 2"
    assert complaint("", -9) == "it ended by SIGKILL"
    denied = "Permission Denied: Try running again with elevated permissions by going 'sudo !!'"
    assert complaint(denied, 1).startswith("permission denied")
    assert "sudo" not in complaint(denied, 1)


def test_the_frames_that_call_a_users_function_are_left_out() -> None:
    mine = [Frame("/home/me/app.py", 7, "step"), Frame("/home/me/app.py", 9, "main")]
    ours = [
        Frame("/x/lllaunch/app/own_worker.py", 84, "run_in_worker"),
        # the script that has called its app, in whose place the function runs
        Frame("/x/lllaunch/app/own_worker.py", 80, "call_in_worker"),
        Frame("/home/me/app.py", 20, "<module>"),
        Frame("/x/lllaunch/failure.py", 5, "wrapper"),
        Frame("/x/lllaunch/spawner/worker.py", 103, "_call"),
    ]
    assert users_part([*mine, *ours]) == tuple(mine)
    assert users_part([*mine, *ours[3:]]) == tuple(mine)
    assert users_part(ours) == tuple(ours)


def test_a_section_tells_what_is_known_and_what_is_not() -> None:
    process = Process(facts(os.getpid(), 6, 7))
    assert process.section("worker").endswith("it was gone, or no time was left for it\n")
    process.examine()
    assert process.python
    process.tell("faulthandler", "", "it is stopped")
    process.tell("py-spy", "Current thread\n  File\n")
    text = process.section("worker")
    assert text.startswith(f"\nworker: process {os.getpid()} (parent 6): ")
    assert "\n  State: R (running)\n" in text
    assert text.endswith(
        "  Python stacks, written by itself: none, it is stopped\n"
        "  Python stacks, read by py-spy:\n"
        "\nCurrent thread\n  File\n"
    )


def test_a_full_disk_is_one_problem_of_its_file_alone(tmp_path: Path) -> None:
    collector = StackCollector({}, Written("why\n", {}))
    good = tmp_path / "stacks.txt"
    assert not collector._append("/dev/full", "text")
    assert not collector._append(str(tmp_path / "no" / "directory"), "text")
    assert collector._append(str(good), "one\n")
    assert collector._append(str(good), "\udcff two\n")
    assert not collector._append("", "text")
    assert collector.problem == "/dev/full: No space left on device"
    assert good.read_text() == "one\n? two\n"
    collector.close()


def facts(pid: int, ppid: int, session: int) -> ProcessFacts:
    return ProcessFacts(pid, ppid, "S", session, 1)


def test_only_processes_below_us_that_lead_a_session_are_workers() -> None:
    me = os.getpid()
    everything = [
        facts(me, 1, me),
        facts(10, me, 10),
        facts(11, 10, 10),
        # Its parent died, and its session tells whose it was.
        facts(12, 1, 10),
        facts(20, me, me),
        facts(30, 1, 30),
    ]
    workers = {0: 10, 1: 20, 2: 30, 3: 40, 4: me}
    (case,) = survey(workers, lambda: everything)
    assert (case.rank, case.worker.facts.pid) == (0, 10)
    assert [process.facts.pid for process in case.below] == [11, 12]


def test_lines_of_code_are_read_only_from_what_the_worker_runs(tmp_path: Path) -> None:
    script, later = tmp_path / "a.py", tmp_path / "later.py"
    script.write_text("first\n  second = 2  \n")
    later.write_text("changed\n")
    os.utime(later, (2000, 2000))
    os.utime(script, (900, 900))
    os.mkfifo(tmp_path / "fifo.py")
    os.utime(tmp_path / "fifo.py", (900, 900))

    def line(path: str, number: int) -> str:
        return quoted(Frame(path, number, "f"), 1000.0).code

    assert line(str(script), 2) == "second = 2"
    assert line(str(script), 1) == "first"
    assert [line(str(script), number) for number in (0, -1, 3)] == [""] * 3
    for path in (str(later), str(tmp_path / "fifo.py"), "a.py", "<string>", "/no.py", "/\0.py"):
        assert line(path, 1) == ""
    (stack,) = with_code([RankStack(0, frames=(Frame(str(script), 2, "f"),))], 1000.0)
    assert stack.frames == (Frame(str(script), 2, "f", "second = 2"),)


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
