"""The report at the end of a run, as its user reads it: expected texts, from records to lines."""

from __future__ import annotations

from textwrap import dedent

import pytest
from msgspec.structs import replace

from lllaunch.console.report import report_lines
from lllaunch.events import Exited, Orphan, Started, StartFailed
from lllaunch.linux.cgroup import Memory
from lllaunch.run.excerpts import Excerpt
from lllaunch.run.judge import judge_attempt, summarize
from lllaunch.run.observer import (
    AttemptRecord,
    SentSignal,
    WorkerError,
    WorkerFiles,
    WorkerRecord,
)
from lllaunch.run.result import Reached, RunResult
from lllaunch.text import duration

S = 1_000_000_000
T0 = 1_700_000_000 * S
HOME = "/home/ada/net"
RUN = f"{HOME}/outputs/2024-05-01/12-00-00"


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
    *attempts: AttemptRecord, signum: int | None = None, seconds: float = 12.3
) -> RunResult:
    judged = [judge_attempt(each, interrupted=signum is not None) for each in attempts]
    ended = T0 + int(seconds * S)
    return summarize(
        judged,
        directory=RUN,
        run_id="",
        plan_hash="",
        started_ns=T0,
        ended_ns=ended,
        signum=signum,
    )


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

          Logs: outputs/2024-05-01/12-00-00/attempt_0
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

            The last 2 lines of its stderr, outputs/2024-05-01/12-00-00/attempt_2/0/stderr.log:
            | loading
            | no such option: --lr

          Attempts 0-1 failed: rank 0 raised ValueError: bad batch
          Logs: outputs/2024-05-01/12-00-00/attempt_2
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
            Its stderr is empty: outputs/2024-05-01/12-00-00/attempt_0/0/stderr.log

          The other workers:
            ranks 1-2  failed after the root cause: OSError: broken pipe to port 4001

          Logs: outputs/2024-05-01/12-00-00/attempt_0
        """
    )


def test_stderr_that_is_not_redirected_or_cannot_be_read_is_said_to_be_so():
    found = outcome(attempt(worker(0, -11, files=WorkerFiles(f"{RUN}/attempt_0/0"))))
    assert (
        "    Its stderr went to the console, see above. With launch.redirects set to\n"
        "    'err' or 'all' its last lines would stand here.\n"
    ) in shown(found)
    path = "outputs/2024-05-01/12-00-00/attempt_0/0/stderr.log"
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

          Logs: outputs/2024-05-01/12-00-00/attempt_0
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
        "lllaunch: succeeded in 12 s; results in outputs/2024-05-01/12-00-00\n"
    )
    retried = outcome(attempt(worker(0, 1)), attempt(worker(0, 0), number=1), seconds=0.25)
    assert shown(retried) == (
        "lllaunch: succeeded in 0.2 s after 1 restart; results in outputs/2024-05-01/12-00-00\n"
    )


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
