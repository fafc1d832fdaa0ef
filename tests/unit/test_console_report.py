"""The report at the end of a run, as its user reads it: expected texts, from records to lines."""

from __future__ import annotations

import re
import time
from textwrap import dedent

import pytest
from msgspec.structs import replace

from lllaunch.console.report import failure_text, fired_text, frame_text, located_text, report_lines
from lllaunch.events import Exited, Orphan, Started, StartFailed
from lllaunch.linux.cgroup import Memory
from lllaunch.run.excerpts import Excerpt
from lllaunch.run.judge import hang_of, judge_attempt, of_all_nodes, summarize
from lllaunch.run.observer import (
    AttemptRecord,
    SentSignal,
    WorkerError,
    WorkerFiles,
    WorkerRecord,
)
from lllaunch.run.result import Hang, Reached, RootCause, RunResult
from lllaunch.supervisor.machine import GroupStacks
from lllaunch.text import duration
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
T0 = 1_700_000_000 * S
HOME = "/home/ada/net"
RUN = f"{HOME}/run"
TORCH = f"{HOME}/.venv/lib/python3.11/site-packages/torch/distributed"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def files(rank: int, attempt: int) -> WorkerFiles:
    path = f"{RUN}/attempt_{attempt}/{rank}"
    return WorkerFiles(path, f"{path}/stdout.log", f"{path}/stderr.log", f"{path}/error.json")


def worker(rank: int, exitcode: int | None = None, at: float = 1.0, *, attempt=0, **more):
    exited = None
    if exitcode is not None:
        exited = Exited(rank, 100 + rank, exitcode, T0 + int(at * S), max_rss=5 << 30)
    more.setdefault("files", files(rank, attempt))
    more.setdefault("started", Started(rank, 100 + rank, T0))
    return WorkerRecord(rank, rank, exited=exited, **more)


def sent(signum: int, at: float = 1.1) -> SentSignal:
    return SentSignal(signum, T0 + int(at * S))


def attempt(*workers: WorkerRecord, number: int = 0, **more) -> AttemptRecord:
    path = f"{RUN}/attempt_{number}"
    return AttemptRecord(number, number, path, T0, T0 + 9 * S, tuple(workers), **more)


def outcome(
    *attempts: AttemptRecord, signum: int | None = None, seconds: float = 12.3, **more
) -> RunResult:
    judged = [judge_attempt(each, interrupted=signum is not None) for each in attempts]
    known = {"directory": RUN, "run_id": "", "plan_hash": "", "started_ns": T0, "signum": signum}
    return summarize(judged, **known, ended_ns=T0 + int(seconds * S), **more)


def shown(found: RunResult) -> str:
    return "".join(f"{line.text}\n" for line in report_lines(found, HOME))


def expected(text: str) -> str:
    return dedent(text).lstrip("\n")


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/net/train.py", line 12, in main
    step(batch)
ValueError: bad batch"""
RAISED = WorkerError("ValueError: bad batch", TRACEBACK, T0 + S)


def test_exception_in_one_of_64_workers():
    others = [worker(rank, -15, 1.2, sent=(sent(15),)) for rank in range(2, 63)]
    stubborn = worker(63, -9, 31, sent=(sent(15), sent(9, 31)))
    found = outcome(attempt(worker(0, 0, 0.5), worker(1, 1, error=RAISED), *others, stubborn))
    assert shown(found) == expected(
        """
        lllaunch: FAILED after 12 s (exit code 3)

          Root cause: rank 1 (attempt 0) raised ValueError: bad batch

            Traceback (most recent call last):
              File "/home/ada/net/train.py", line 12, in main
                step(batch)
            ValueError: bad batch

          The other workers:
            rank 0      succeeded
            ranks 2-62  ended by the launcher (SIGTERM) after the root cause
            rank 63     ended by the launcher (SIGTERM then SIGKILL) after the root cause

          Logs: run/attempt_0
        """
    )


def test_exit_status_after_two_attempts_shows_the_end_of_stderr():
    found = outcome(
        attempt(worker(0, 1, error=RAISED)),
        attempt(worker(0, 1, error=RAISED), number=1),
        attempt(worker(0, 2, attempt=2), number=2),
    )
    excerpt = Excerpt(
        f"{RUN}/attempt_2/0/stderr.log", ("loading", "no such option: --lr"), cut=True
    )
    assert shown(replace(found, excerpt=excerpt)) == expected(
        """
        lllaunch: FAILED after 12 s and 3 attempts (exit code 3)

          Root cause: rank 0 (attempt 2) exited with status 2

            The last 2 lines of its stderr, run/attempt_2/0/stderr.log:
            | loading
            | no such option: --lr

          Attempts 0-1 failed: rank 0 raised ValueError: bad batch
          Logs: run/attempt_2
        """
    )


def test_out_of_memory_with_two_victims():
    def lost(rank: int, at: float) -> WorkerRecord:
        message = f"OSError: broken pipe to port {4000 + rank}"
        return worker(rank, 1, 1.6, error=WorkerError(message, "Traceback", T0 + int(at * S)))

    before, after = (Memory(cgroup_kills=kills, limit=8 << 30) for kills in (0, 1))
    killed = worker(0, -9, memory=after)
    found = outcome(attempt(killed, lost(1, 1.03), lost(2, 1.23), memory=before))
    silent = Excerpt(f"{RUN}/attempt_0/0/stderr.log", ())
    assert shown(replace(found, excerpt=silent)) == expected(
        """
        lllaunch: FAILED after 12 s (exit code 3)

          Root cause: rank 0 (attempt 0) died of SIGKILL: out of memory
            Why (certain): The kernel's OOM killer struck in this cgroup during the
            attempt (once). Its peak memory was 5.0 GiB; the cgroup's limit is 8.0 GiB.
            Its stderr is empty: run/attempt_0/0/stderr.log

          The other workers:
            ranks 1-2  failed after the root cause: OSError: broken pipe to port 4001

          Logs: run/attempt_0
        """
    )


def test_stderr_that_is_not_redirected_or_cannot_be_read_is_said_to_be_so():
    found = outcome(attempt(worker(0, -11, files=WorkerFiles(f"{RUN}/attempt_0/0"))))
    assert (
        "    Its stderr went to the console, see above. With launch.redirects set to\n"
        "    'err' or 'all' its last lines would stand here.\n"
    ) in shown(found)
    path = "run/attempt_0/0/stderr.log"
    text = shown(outcome(attempt(worker(0, 1))))
    assert f"    Its stderr cannot be read: {path}\n" in text


def test_program_that_is_not_executable():
    failed = StartFailed(0, "./run.sh", "Permission denied", 13, T0)
    found = outcome(
        attempt(
            worker(0, started=None, start_failed=failed),
            worker(1, -15, sent=(sent(15, 1.0),)),
            worker(2, started=None),
            worker(3, started=None),
        )
    )
    text = shown(found)
    assert "  Root cause: rank 0 (attempt 0) could not be started: './run.sh': Permission" in text
    assert "    ranks 2-3  not started\n" in text


def test_ctrl_c():
    ended = [worker(0, -2, 1.2, sent=(sent(2),)), worker(1, 0, 1.2, sent=(sent(2),))]
    failed = worker(2, 3, 1.2, sent=(sent(2),))
    found = outcome(attempt(*ended, failed), signum=2, seconds=200)
    assert shown(found) == expected(
        """
        lllaunch: ended by SIGINT after 3 min 20 s (exit code 130)

          Workers:
            rank 0  ended by the launcher (SIGINT)
            rank 1  ended by the launcher (SIGINT), cleanly
            rank 2  ended by the launcher (SIGINT), status 3

          Logs: run/attempt_0
        """
    )


def at_step(step: float, total: float | None = None, at: float = 8.9, **metrics: float):
    return {
        "progress": Reached(step, total, T0 + int(at * S), metrics),
    }


VICTIM = worker(0, -15, 1.3, sent=(sent(15),), **at_step(1300))
LONG = {f"{name}/" * 20: 0.5 for name in ("train", "m", "val_loss")}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (
            at_step(1200, 5000, lr=0.1, loss=0.31, val_loss=float("nan"), x=1),
            "It was at step 1200 of 5000 (24 %), loss 0.31, val_loss nan, lr 0.1.",
        ),
        # it is one line
        (at_step(1200, **LONG, lr=0.1), "It was at step 1200, val_loss/v.../val_loss/ 0.5."),
        # of others where its own showed nothing
        ({}, "Rank 0 was at step 1300."),
        (at_step(7, 10, at=-171), "It was at step 7 of 10 (70 %), 3 min before the end."),
    ],
)
def test_a_failure_says_how_far_the_rank_was(progress, text):
    found = shown(outcome(attempt(VICTIM, worker(1, 1, **progress))))
    assert f"  Root cause: rank 1 (attempt 0) exited with status 1\n    {text}\n" in found


def test_a_run_that_a_signal_ended_and_its_attempts_before_say_how_far_they_were():
    first = attempt(worker(0, 1, **at_step(1200, 5000)))
    second = attempt(
        worker(0, -2, 1.3, attempt=1, sent=(sent(2),), **at_step(1500, 5000)), number=1
    )
    found = shown(outcome(first, second, signum=2))
    assert "  Attempt 0 failed: rank 0 exited with status 1, at step 1200 of 5000 (24 %)\n" in found
    assert "  Rank 0 was at step 1500 of 5000 (30 %).\n" in found


def test_success_is_one_line():
    assert shown(outcome(attempt(worker(0, 0)))) == (
        "lllaunch: succeeded in 12 s; results in run\n"
    )
    retried = outcome(attempt(worker(0, 1)), attempt(worker(0, 0), number=1), seconds=0.25)
    assert shown(retried) == ("lllaunch: succeeded in 0.2 s after 1 restart; results in run\n")


def test_processes_left_behind_are_told_of():
    left = tuple(Orphan(500 + each, "sleep 1000", each != 1) for each in range(8))
    assert shown(outcome(attempt(worker(0, 0), leftovers=left))).splitlines()[1:] == [
        *(
            f"  Warning: a worker left process {pid} behind (sleep 1000); it was killed"
            for pid in (500, 502, 503, 504, 505)
        ),
        "  and 2 more processes like that",
    ]


def test_own_error_with_and_without_attempts():
    error = outcome().with_error("'/full/events.jsonl': No space left on device\nmore", 1)
    assert shown(error) == expected(
        """
        lllaunch: '/full/events.jsonl': No space left on device
          more
        """
    )
    error = outcome(attempt(worker(0, -15, sent=(sent(15, 1),)))).with_error("broken", 1)
    assert shown(error).startswith("lllaunch: broken\n\n  Workers:\n    rank 0  ended by")


def test_many_different_fates_are_cut():
    found = outcome(attempt(*(worker(rank, rank + 1, 1 + rank) for rank in range(20))))
    lines = shown(found).splitlines()
    assert (
        lines.index("    and 7 more workers, see result.json")
        == lines.index("    rank 12  failed 12 s after the root cause: exited with status 13") + 1
    )


def test_long_traceback_keeps_its_head_and_its_end():
    text = "\n".join(["Traceback:", *(f"  frame {each}" for each in range(500)), "E: deep"])
    found = outcome(attempt(worker(0, 1, error=WorkerError("E: deep", text))))
    lines = [line.strip() for line in shown(found).splitlines()]
    assert len(lines) < 75
    start = lines.index("Traceback:")
    assert lines[start + 1] == "... (442 more lines in error.json)"
    assert lines[start + 2] == "frame 442"
    assert "E: deep" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.03, "30 ms"),
        (0.0999, "0.1 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_times_are_said_as_people_say_them(seconds, text):
    assert duration(seconds) == text


# A hang, a time limit or a memory limit


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


def asked(rank: int, exitcode: int | None = -15, **more) -> WorkerRecord:
    """A worker that the watchdog has ended."""
    return worker(rank, exitcode, 602, sent=(sent(15, 601),), **more)


def hung(finding: Finding, stacks=(), blame: Blame | None = None, *workers: WorkerRecord):
    record = replace(attempt(*(workers or map(asked, range(4)))), ended_ns=T0 + 603 * S)
    found = hang_of(record, finding, T0 + 600 * S, tuple(stacks), blame or NOBODY)
    return replace(record, hang=found)


def told(record: AttemptRecord, reason="hang", excerpt: Excerpt | None = None, **more) -> str:
    found = outcome(record, seconds=612, reason=reason, **more)
    return shown(replace(found, excerpt=excerpt))


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
    assert told(hung(STALL, FOUR, ONE), excerpt=excerpt) == expected(
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
    workers = tuple(replace(asked(local), rank=2 + local) for local in (0, 1))
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
    text = told(record, **more)
    found = text.partition("Root cause: ")[2]
    return re.split("\n\n  (?! )", found)[0].splitlines()


def test_all_in_the_same_place():
    found = lines_of(hung(STALL, (stack(0), stack(1)), Blame(), asked(0), asked(1)))
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
    stuck = asked(1, None, abandoned=True)
    found = lines_of(hung(Stalled((0, 1), 600.0), stacks, Blame((1,), (0,)), asked(0), stuck))
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
    found = lines_of(hung(Stalled((0, 1), 600.0), stacks, Blame((1,), (0,)), asked(0), asked(1)))
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
    found = told(hung(STALL, FOUR[:2], Blame((1,), (0,)), asked(0), asked(1, error=error)))
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
