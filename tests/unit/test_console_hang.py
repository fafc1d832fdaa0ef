"""What the user reads of a hang, a time limit or a memory limit: expected texts, from records."""

from __future__ import annotations

import re
import time
from textwrap import dedent

import pytest
from msgspec.structs import replace

from lllaunch.console.report import failure_text, fired_text, frame_text, located_text, report_lines
from lllaunch.events import Exited, Started
from lllaunch.run.excerpts import Excerpt
from lllaunch.run.judge import hang_of, judge_attempt, of_all_nodes, summarize
from lllaunch.run.observer import (
    AttemptRecord,
    SentSignal,
    WorkerError,
    WorkerFiles,
    WorkerRecord,
)
from lllaunch.run.result import Hang, RootCause
from lllaunch.supervisor.machine import GroupStacks
from lllaunch.watchdog.evidence import NOBODY, Blame, Frame, RankStack
from lllaunch.watchdog.findings import (
    Finding,
    HeartbeatLost,
    NotFinite,
    OverMemory,
    Stalled,
    TimedOut,
    TimerExpired,
    Unchanged,
)

S = 1_000_000_000
T0 = 1_700_000_000 * S  # 22:13:20 in UTC
HOME = "/home/ada/net"
RUN = f"{HOME}/run"
TORCH = "/home/ada/net/.venv/lib/python3.11/site-packages/torch/distributed"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


REDUCES = (
    Frame(f"{TORCH}/distributed_c10d.py", 2806, "all_reduce", "work.wait()"),
    Frame(f"{TORCH}/c10d_logger.py", 83, "wrapper"),
    Frame(f"{HOME}/train.py", 41, "sync", "dist.all_reduce(grad)"),
    Frame(f"{HOME}/train.py", 77, "main"),
)
SLEEPS = (
    Frame(f"{HOME}/train.py", 40, "sync", "time.sleep(1000)"),
    Frame(f"{HOME}/train.py", 77, "main"),
)


def stack(rank: int, frames=REDUCES, state="S", wchan="", path=True) -> RankStack:
    return RankStack(
        rank, f"{RUN}/attempt_0/{rank}/stacks.txt" if path else "", frames, state, wchan
    )


def worker(rank: int, exitcode: int | None = -15, **more) -> WorkerRecord:
    path = f"{RUN}/attempt_0/{rank}"
    more.setdefault("files", WorkerFiles(path, stderr=f"{path}/stderr.log"))
    more.setdefault("sent", (SentSignal(15, T0 + 601 * S),))
    exited = None if exitcode is None else Exited(rank, 100 + rank, exitcode, T0 + 602 * S)
    return WorkerRecord(rank, rank, started=Started(rank, 100 + rank, T0), exited=exited, **more)


def hung(finding: Finding, stacks=(), blame: Blame | None = None, *workers: WorkerRecord):
    workers = workers or tuple(worker(rank) for rank in range(4))
    record = AttemptRecord(
        number=0,
        restart_count=0,
        path=f"{RUN}/attempt_0",
        started_ns=T0,
        ended_ns=T0 + 603 * S,
        workers=workers,
    )
    return replace(
        record, hang=hang_of(record, finding, T0 + 600 * S, tuple(stacks), blame or NOBODY)
    )


def shown(record: AttemptRecord, reason="hang", excerpt: Excerpt | None = None, **more) -> str:
    outcome = summarize(
        [judge_attempt(record)],
        directory=RUN,
        run_id="",
        plan_hash="",
        started_ns=T0,
        ended_ns=T0 + 612 * S,
        reason=reason,
        **more,
    )
    outcome = replace(outcome, excerpt=excerpt)
    return "".join(f"{line.text}\n" for line in report_lines(outcome, HOME))


def expected(text: str) -> str:
    return dedent(text).lstrip("\n")


def hang(record: AttemptRecord) -> Hang:
    found = record.hang
    assert found is not None
    return found


STALL = Stalled((0, 1, 2, 3), 600.0)
FOUR = (stack(0), stack(1, SLEEPS), stack(2), stack(3))
ONE = Blame((1,), (0, 2, 3))


# The report


def test_one_of_four_stalled():
    excerpt = Excerpt(f"{RUN}/attempt_0/1/stderr.log", ("epoch 3", "syncing"))
    assert shown(hung(STALL, FOUR, ONE), excerpt=excerpt) == expected(
        """
        lllaunch: FAILED after 10 min 12 s (exit code 4)

          Root cause: rank 1 (attempt 0) stalled: no output, no CPU use and no heartbeat for 10 min (since 22:13:20)

            Rank 1 was here (innermost call first):
              train.py:40 in sync: time.sleep(1000)
              train.py:77 in main
            All ranks, outermost call first (1 more call in run/attempt_0/stacks.txt):
              [0-3] main (train.py:77)
                [0,2-3] sync (train.py:41) → all_reduce (torch/distributed/distributed_c10d.py:2806)
                [1] sync (train.py:40)
            All stacks: run/attempt_0/*/stacks.txt

            All of its stderr, run/attempt_0/1/stderr.log:
            | epoch 3
            | syncing

          The other workers:
            ranks 0, 2-3  only waited for rank 1; ended by the launcher (SIGTERM)

          Logs: run/attempt_0
        """  # noqa: E501 - as it is shown
    )


def test_ranks_of_another_node_have_their_own_numbers_in_the_tree():
    workers = tuple(replace(worker(local), rank=2 + local) for local in (0, 1))
    record = hung(STALL, (stack(0), stack(1, SLEEPS)), Blame((1,), (0,)), *workers)
    group = GroupStacks(Blame((3,), (0, 1, 2)), (stack(0), stack(1), stack(2)), ((3, "node 1"),))
    text = "\n".join(lines_of(replace(record, hang=of_all_nodes(hang(record), group))))
    assert "[0-3] main (train.py:77)" in text
    assert "[0-2] sync (train.py:41)" in text
    assert "[3] sync (train.py:40)" in text


def test_nobody_stands_out():
    stacks = (stack(0), stack(1), stack(2, SLEEPS), stack(3, (), "", ""))
    assert lines_of(hung(STALL, stacks, Blame()))[2:] == [
        "    Nobody stands out. Where the workers were (1 more call in run/attempt_0/stacks.txt):",
        "      [0-2] main (train.py:77)",
        (
            "        [0-1] sync (train.py:41) → all_reduce "
            "(torch/distributed/distributed_c10d.py:2806)"
        ),
        "        [2] sync (train.py:40)",
        "      [3] no Python frames are known",
        "    All stacks: run/attempt_0/*/stacks.txt",
    ]


def lines_of(record: AttemptRecord, **more) -> list[str]:
    """The lines between the root cause and what became of the workers."""
    text = shown(record, **more)
    found = text.partition("Root cause: ")[2]
    return re.split("\n\n  (?! )", found)[0].splitlines()


def test_all_in_the_same_place():
    found = lines_of(hung(STALL, (stack(0), stack(1)), Blame(), worker(0), worker(1)))
    assert found[2:] == [
        "    Ranks 0-1 were here (innermost call first):",
        "      torch/distributed/distributed_c10d.py:2806 in all_reduce",
        "      torch/distributed/c10d_logger.py:83 in wrapper",
        "      train.py:41 in sync: dist.all_reduce(grad)",
        "      train.py:77 in main",
        "    All stacks: run/attempt_0/*/stacks.txt",
    ]


def test_one_in_uninterruptible_sleep_that_does_not_end():
    stacks = (stack(0), stack(1, (), "D", "nfs_wait_bit_killable"))
    stuck = worker(1, None, abandoned=True)
    found = lines_of(hung(Stalled((0, 1), 600.0), stacks, Blame((1,), (0,)), worker(0), stuck))
    assert found[1:5] == [
        "    It was in uninterruptible sleep in the kernel (nfs_wait_bit_killable): a",
        "    file system or a device did not answer.",
        "    It still hangs in the kernel (pid 101): SIGKILL does not end it.",
        "",
    ]
    assert found[6:8] == [
        (
            "      [0] main (train.py:77) → sync (train.py:41) → all_reduce "
            "(torch/distributed/distributed_c10d.py:2806)"
        ),
        "      [1] no Python frames are known (state D in nfs_wait_bit_killable)",
    ]


def test_one_that_was_stopped():
    stacks = (stack(0), stack(1, (), "T", "do_signal_stop"))
    found = lines_of(hung(Stalled((0, 1), 600.0), stacks, Blame((1,), (0,)), worker(0), worker(1)))
    assert found[1:3] == [
        "    It was stopped by a signal (SIGSTOP, Ctrl-Z, a debugger), and nobody let it",
        "    go on (kill -CONT).",
    ]


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (
            TimerExpired(1, 101, f"{HOME}/train.py#40", 10.0, 9),
            "its timer 'train.py#40' ran out after 10 s (set at 22:23:10)",
        ),
        # of those that only waited
        (
            TimerExpired(0, 100, f"{HOME}/train.py#41", 10.0, 9),
            "the timer 'train.py#41' of rank 0 ran out after 10 s (set at 22:23:10)",
        ),
        (
            HeartbeatLost((0, 2, 3), 30.0),
            "no heartbeat of ranks 0, 2-3 for 30 s (since 22:22:50)",
        ),
        (
            Stalled((0,), 86400.0, "rank"),
            (
                "rank 0 stalled: no output, no CPU use and no heartbeat for 24 h"
                " (since 2023-11-13 22:23:20)"
            ),
        ),
    ],
)
def test_who_hung_and_how_that_was_seen(finding, said):
    assert lines_of(hung(finding, FOUR, ONE))[0] == f"rank 1 (attempt 0) hung: {said}"


@pytest.mark.parametrize(("what", "name"), [("attempt", "timeout"), ("run", "run_timeout")])
def test_time_is_over(what, name):
    found = lines_of(hung(TimedOut(3600.0, what), FOUR, ONE), reason="timeout")
    assert found[:4] == [
        f"all workers (attempt 0) took too long: the {what} is limited to 1 h",
        f"    The limit is launch.watchdog.{name}.",
        "",
        "    Rank 1 was here (innermost call first):",
    ]

    found = lines_of(hung(TimedOut(60.0), FOUR, Blame()), reason="timeout")
    assert found[3] == "    Where the workers were (1 more call in run/attempt_0/stacks.txt):"


def test_too_much_memory():
    found = lines_of(hung(OverMemory(1, 9 << 30, 8 << 30), FOUR[:2], Blame((1,))), reason="oom")
    assert found[:7] == [
        "rank 1 (attempt 0) used too much memory: 9.0 GiB, the limit is 8.0 GiB",
        "    The limit is launch.watchdog.memory, for a worker and all processes below it",
        "    together.",
        "",
        "    Rank 1 was here (innermost call first):",
        "      train.py:40 in sync: time.sleep(1000)",
        "      train.py:77 in main",
    ]
    assert "[0] sync (train.py:41) → all_reduce (" in found[9]


def test_one_that_failed_and_then_hung():
    error = WorkerError("ValueError: bad", "Traceback\nValueError: bad", T0 + 5 * S)
    found = shown(hung(STALL, FOUR[:2], Blame((1,), (0,)), worker(0), worker(1, error=error)))
    text = """
  Root cause: rank 1 (attempt 0) raised ValueError: bad

    Traceback
    ValueError: bad

    The watchdog ended the attempt 9 min 55 s later: rank 1 stalled: no output,
    no CPU use and no heartbeat for 10 min

    Rank 1 was here (innermost call first):
"""
    assert text in found
    assert "rank 0  ended by the launcher (SIGTERM) after the root cause" in found


@pytest.mark.parametrize(
    ("finding", "blame", "text"),
    [
        (NotFinite(1, "loss", "nan", 1200.0), None, "rank 1 says that loss is nan at step 1200"),
        (Unchanged("step", 7.0, 30.0), None, "all workers got nowhere: step has been 7 for 30 s"),
        (TimedOut(9.0), ONE, "all workers took too long: the attempt is limited to 9.0 s"),
    ],
)
def test_failure_in_one_line(finding, blame, text):
    root = judge_attempt(hung(finding, (), blame)).root_cause
    assert isinstance(root, RootCause)
    assert failure_text(root, HOME) == text


# During the run


@pytest.mark.parametrize(
    ("stacks", "blame", "text"),
    [
        (
            FOUR,
            ONE,
            (
                "rank 1 is in sync (train.py:40); ranks 0, 2-3 wait for it; "
                "stacks in run/attempt_0/*/stacks.txt"
            ),
        ),
        (
            (stack(0), stack(1, SLEEPS), stack(2, SLEEPS[1:])),
            Blame((1, 2), (0,)),
            "ranks 1-2 hang; rank 0 waits for them; stacks in run/attempt_0/*/stacks.txt",
        ),
        (
            tuple(
                replace(stack(rank), path=f"{RUN}/node_{rank // 2}/attempt_0/{rank % 2}/stacks.txt")
                for rank in range(4)
            ),
            Blame(),
            (
                "all workers are in all_reduce (torch/distributed/distributed_c10d.py:2806), "
                "called at train.py:41; stacks in run/node_*/attempt_0/*/stacks.txt"
            ),
        ),
        (
            (stack(0), stack(1, (), "D", "nfs_wait")),
            Blame((1,), (0,)),
            (
                "rank 1 is in uninterruptible sleep (nfs_wait); rank 0 waits for it; "
                "stacks in run/attempt_0/*/stacks.txt"
            ),
        ),
        ((stack(0), stack(1, SLEEPS)), Blame(), "stacks in run/attempt_0/*/stacks.txt"),
        ((stack(0, (), "", path=False),), Blame(), ""),
    ],
)
def test_where_to_look(stacks, blame, text):
    assert located_text(hang(hung(STALL, stacks, blame)), HOME) == text


def test_what_was_found_does_not_steer_the_terminal():
    finding = TimerExpired(0, 1, "\x1b[2J" + "x" * 4000 + "\n", 10.0, 9)
    found = fired_text(hang(hung(finding)), HOME)
    assert found.isprintable()
    assert found.endswith("ran out after 10 s")
    assert len(found) < 150


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("/usr/lib/python3.11/threading.py", 320, "wait", "x"), "threading.py:320 in wait"),
        (Frame("/x/lib/python3.11/site-packages/n/a.py", 1, "g"), "n/a.py:1 in g"),
        (Frame("/opt/\x1b[2Jb.py", 3, "f\n"), "'/opt/\\x1b[2Jb.py':3 in f\\n"),
        (Frame("/opt/b.py", 3, "f", "a\tb\x07"), "/opt/b.py:3 in f: a b\\x07"),
    ],
)
def test_frames_have_short_paths_and_steer_no_terminal(frame, text):
    assert frame_text(frame, HOME) == text
