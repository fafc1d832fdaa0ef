"""What a sweep's console knows and says of it, from the scheduler's facts and decisions."""

from __future__ import annotations

from typing import Any

import pytest

import lllaunch.sweep.schedule as v
from lllaunch.console.sweep import Board, view_of
from lllaunch.console.views import view_rows
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import (
    JobPrinted,
    JobProgressed,
)
from lllaunch.sweep.schedule import Retries, SweepPolicy
from lllaunch.words import short_overrides

J = v.JobState
GPU = Lease(("0",), ())
LRS = [0.1, 0.01, 0.001]


def overrides(number: int) -> list[str]:
    return ["+exp=resnet", f"params.lr={LRS[number % 3]}", f"seed={number}"]


def board(total: int = 3, **policy: object) -> Board:
    shared, settings = {"+exp=resnet"}, SweepPolicy(**policy)  # type: ignore[arg-type]
    return Board("multirun/1", total, overrides, common=shared, policy=settings)


def said(of: Board, *events: object, now: float = 0.0) -> list[str]:
    messages = [message for event in events for message in of.take(event, now)]
    return [line.text for message in messages for line in message.lines]


def composed(number: int) -> list[object]:
    return [v.JobComposed(number, Need(1), tuple(overrides(number)), str(number))]


def begun(of: Board, number: int, *, now: float = 0.0, lease: Lease = GPU) -> list[str]:
    return said(of, *composed(number), v.StartJob(number, lease), now=now)


def ends(number: int, code: int = 0, attempts: int = 1, **more: Any) -> list[object]:
    """A job ends for good."""
    state = J.FAILED if code else J.SUCCEEDED
    return [v.JobEnded(number, code, **more), v.Settle(number, state, attempts, exit_code=code)]


def shown(of: Board, columns: int = 100, lines: int = 30, now: float = 0.0) -> list[str]:
    rows = view_rows(view_of(of, now), columns, lines, "/")
    return ["".join(part.text for part in row).rstrip() for row in rows]


# What is said


def test_each_change_of_a_job_is_a_line() -> None:
    of = board()
    assert begun(of, 1, now=2.0) == ["job 1 started (lr=0.01 seed=1) on GPU 0"]
    assert said(of, *ends(1), now=14.5) == ["job 1 succeeded in 12 s"]
    assert not of.jobs
    begun(of, 2)
    why = "rank 1: raised ValueError: no\nmore"
    text = "job 2 failed after 3.2 s: exit code 3: rank 1: raised ValueError: no"
    told = said(of, *ends(2, 3, cause="failure", why=why), now=3.2)
    assert told == [f"{text}; logs in multirun/1/2"]
    begun(of, 0)
    text = "job 0 failed after 1.0 s in attempt 2: SIGKILL (exit code 137)"
    told = said(of, *ends(0, 137, attempts=3, cause="signal"), now=1.0)
    assert told == [f"{text}; logs in multirun/1/0"]


def test_a_retry_is_counted_by_cause() -> None:
    of = board(retries=Retries(hang=1, signal=2))
    begun(of, 0)
    again = [v.JobEnded(0, 4, "hang"), v.Retry(0, 1, "hang", at=15.0)]
    hung = "job 0: attempt 0 hung after 10 s: exit code 4; trying again in 5.0 s (1 of 1)"
    assert said(of, *again, now=10.0) == [hung]
    of.take(v.RetryDue(0), 15.0)
    start = v.StartJob(0, GPU, attempt=1)
    text = "job 0 started (lr=0.1 seed=0) on GPU 0, attempt 1"
    assert said(of, start, now=15.0) == [text]
    again = [v.JobEnded(0, 139, "signal"), v.Retry(0, 2, "signal")]
    ended = "job 0: attempt 1 was ended by a signal after 2.0 s: SIGSEGV (exit code 139)"
    assert said(of, *again, now=17.0) == [f"{ended}; trying again (1 of 2)"]


def test_a_job_that_cannot_run_says_why_in_all_its_lines() -> None:
    of = board()
    why = "the config is wrong\nlaunch.nproc: -1\nlaunch.tee: \x1b[2J"
    broken = v.JobBroken(1, 2, why, tuple(overrides(1)), "1")
    end = v.Settle(1, J.FAILED, 0, exit_code=2, why=why)
    assert said(of, broken, end) == [
        "job 1 (lr=0.01 seed=1) cannot run (exit code 2): the config is wrong",
        "  launch.nproc: -1",
        "  launch.tee: \\x1b[2J",
    ]


def test_slots_that_others_hold_are_named_once_and_no_start_is_told() -> None:
    of = board()
    said(of, *composed(0))
    lease = Lease(("0", "1"), (4, 5, 6))
    refused = v.JobNotStarted(0, Lease(("1",), (4, 5)))
    held = "job 0 waits for GPU 1, cores 4-5: held by another launcher"
    assert said(of, refused) == [held]
    assert of.running == 0
    assert said(of, v.SlotsFreed(Lease(("1",), (4, 5))), refused) == []
    started = "job 0 started (lr=0.1 seed=0) on GPU 0,1, cores 4-6"
    assert said(of, v.StartJob(0, lease)) == [started]


@pytest.mark.parametrize(
    ("running", "then"),
    [(0, ""), (1, "; forwarded to 1 running job; SIGKILL follows")],
)
def test_a_signal_and_another(running: int, then: str) -> None:
    of = board()
    for number in range(running):
        begun(of, number)
    (first,) = said(of, v.SweepSignalled(2))
    assert first.startswith(f"SIGINT received: no new jobs start{then}")
    again = [v.SweepSignalled(2), v.SignalJobs(9)]
    jobs = f"{running} running job{'s' * (running != 1)}"
    assert said(of, *again) == [f"SIGINT received again: {jobs} killed"]
    assert said(of, *again) == []


def test_a_cancelled_job_is_known_as_such() -> None:
    of = board()
    begun(of, 0)
    of.take(v.SweepSignalled(2), 1.0)
    assert shown(of)[:2] == [
        "multirun/1: running, 0/3 done, 1 running, 2 waiting, 0 s",
        "no new jobs start",
    ]
    cancelled = [v.JobEnded(0, 130, "signal"), v.Settle(0, J.CANCELLED, 1, exit_code=130)]
    assert said(of, *cancelled, now=2.0) == ["job 0 was cancelled after 2.0 s"]
    assert of.cancelled == {0}


def test_enough_failures_stop_the_sweep() -> None:
    of = board(5, max_failures=2)
    for number in range(4):
        begun(of, number)
    first, second, third = (said(of, *ends(number, 3)) for number in range(3))
    assert len(first) == len(third) == 1
    assert second[1:] == ["2 failed jobs: no more are started, 2 still running"]
    # that of the last job stops nothing
    of = board(1, max_failures=1)
    begun(of, 0)
    assert len(said(of, *ends(0, 3))) == 1


def test_what_keeps_jobs_from_starting_is_said_and_that_it_is_over() -> None:
    of = board(4)
    begun(of, 0)
    blocked = v.Blocked("'/s/sweep.jsonl': no space")
    said_then = "no job is started until that works again, those that run go on"
    assert said(of, *composed(1), blocked, v.JobNotStarted(1)) == [f"{blocked.why}; {said_then}"]
    assert of.jobs[1].state is J.WAITING
    assert said(of, v.Unblocked()) == ["what failed works again: jobs are started"]


# Names


@pytest.mark.parametrize(
    ("given_overrides", "expected"),
    [
        (["params.lr=0.1", "launch.nproc=2", "+exp=a"], "lr=0.1 nproc=2 exp=a"),
        (["a.lr=1", "b.lr=2", "c=3"], "a.lr=1 b.lr=2 c=3"),
        (["model/size=big", "path=a/b=c.d"], "size=big path=a/b=c.d"),
        (["~db", "x='a b'"], "~db x='a b'"),
        (["x=\x1b[2J\n"], "x=\\x1b[2J\\n"),
        (["params.x=0.0012345678901234567"], "x=0.00123457"),
        # what all jobs share is not shown
        (["all=1", "b.lr=2"], "lr=2"),
    ],
)
def test_overrides_are_shown_by_the_end_of_their_keys(
    given_overrides: list[str], expected: str
) -> None:
    assert short_overrides(given_overrides, {"all=1"}) == expected


# The table


def test_the_table_of_a_sweep_in_the_middle() -> None:
    of = board(9)
    for number in range(4):
        begun(of, number, lease=Lease((str(number),)))
    said(of, *ends(2, 3, why="rank 0: ValueError: no"), now=7.0)
    said(of, *ends(1), *composed(4), now=8.0)
    of.take(JobPrinted(0, 1, b"\rstep 1\rstep 2 \x1b[31mred\x1b[0m\r"), 8.0)
    head, *rows = shown(of, now=70.2)
    assert head == (
        "multirun/1: running, 1/9 done, 1 failed, 2 running, 5 waiting, 1 min 10 s, about 24 s left"
    )
    assert rows == [
        "job  overrides        state            time  gpu  what",
        "  0  lr=0.1 seed=0    running    1 min 10 s  0    step 2 red",
        "  3  lr=0.1 seed=3    running    1 min 10 s  3",
        "  2  lr=0.001 seed=2  failed            7 s       rank 0: ValueError: no",
        "  4  lr=0.01 seed=4   waiting",
        "  1  lr=0.01 seed=1   succeeded         8 s",
        "and 4 more waiting",
    ]


def test_how_far_the_jobs_are_that_run() -> None:
    of = board()
    begun(of, 0)
    begun(of, 1)
    said(of, JobProgressed(0, 1200, 5000, 1900.0), now=10.0)
    said(of, JobProgressed(1, 70), JobProgressed(7, 1), now=20.0)
    titles, first, second = shown(of, now=30.0)[1:4]
    assert {"step", "left"} <= set(titles.split())
    assert "1200/5000" in first
    assert "31 min 20 s" in first
    assert " 70 " in f"{second} "
    assert said(of, v.JobEnded(0, 1, "no")) == []
    begun(of, 0, now=40.0)
    assert "1200" not in "".join(shown(of, now=41.0))


def test_how_long_it_will_take_is_told_when_a_job_has_ended() -> None:
    of = board(5)
    begun(of, 0)
    begun(of, 1)
    assert of.left(5.0) is None
    said(of, *ends(0), now=10.0)
    # 5 s of the one that runs, and three of 10 s after it
    assert of.left(15.0) == 30.0
    assert "about 30 s left" in shown(of, now=15.0)[0]
    # of one that takes longer than others nobody knows, unless it says so itself
    assert of.left(50.0) == 30.0
    said(of, JobProgressed(1, 1, 2, 90.0), now=20.0)
    assert of.left(30.0) == 80.0 + 3 * (10.0 + 110.0) / 2
    # jobs that failed at once do not promise an early end
    of = board(4)
    for number in range(3):
        begun(of, number)
    said(of, *ends(0, 2), now=0.5)
    assert of.left(0.5) == pytest.approx(0.5, rel=0.02)
    said(of, *ends(1), now=100.0)
    assert of.left(100.0) == pytest.approx(100.0, rel=0.02)
