"""What a submitted run's directory tells of its way through the queue."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pytest

from lllaunch.run.submission import (
    HISTORY,
    SUBMISSION,
    Account,
    BatchEnded,
    BatchJob,
    BatchSignalled,
    BatchStarted,
    EndFacts,
    Limits,
    QueueEvent,
    Requeued,
    Submission,
    account_of,
    append,
    decide,
    read_history,
    read_submission,
)
from lllaunch.spec import Requeue

STARTED = BatchStarted("7", ("node0",), 1000.0)
LIMITS = Limits(Requeue(preempted=2, timeout=1, node_failure=1), 90.0, {"failure": 1})
SIGNALLED = EndFacts(143, signalled=True)


def account(*events: QueueEvent) -> Account:
    return Account(events)


class TestAccount:
    def test_counts_starts_and_returns(self) -> None:
        found = account(STARTED, Requeued("timeout", "lllaunch"), BatchStarted("7", ("node1",)))
        assert (found.starts, found.job, found.nodes) == (2, "7", ("node1",))
        assert (found.count("timeout"), found.count("preempted"), found.requeues) == (1, 0, 1)

    @pytest.mark.parametrize(
        ("events", "cause"),
        [
            ([STARTED], "node_failure"),
            ([STARTED, BatchSignalled("SIGTERM")], "preempted"),
            ([STARTED, BatchSignalled("SIGTERM"), Requeued("timeout", "lllaunch")], None),
            ([STARTED, BatchEnded(0)], None),
            ([], None),
            ([STARTED, BatchSignalled("SIGTERM"), BatchEnded(1), STARTED], "node_failure"),
        ],
    )
    def test_a_start_that_ended_without_a_word(
        self, events: Sequence[QueueEvent], cause: str | None
    ) -> None:
        lost = Account(events).lost()
        assert (None if lost is None else lost.cause) == cause
        assert lost is None or lost.by == "slurm"

    def test_refuses_one_start_too_many(self) -> None:
        lost = Requeued("node_failure", "slurm")
        once, twice = account(STARTED, lost), account(STARTED, lost, STARTED, lost)
        assert once.refusal("node_failure", LIMITS) == ""
        assert twice.refusal("node_failure", LIMITS) == (
            "lost a node 2 times; cluster.requeue.node_failure is 1"
        )


class TestDecide:
    def test_a_success_is_over(self) -> None:
        assert decide(account(STARTED), EndFacts(0), LIMITS) == BatchEnded(0)

    @pytest.mark.parametrize(
        ("left", "cause"), [(None, "preempted"), (4000.0, "preempted"), (120.0, "timeout")]
    )
    def test_a_signal_near_the_time_limit_is_about_that(
        self, left: float | None, cause: str
    ) -> None:
        facts = SIGNALLED._replace(seconds_left=left)
        assert decide(account(STARTED), facts, LIMITS) == Requeued(cause, "lllaunch")  # type: ignore[arg-type]

    def test_what_slurm_takes_back_is_preempted_whatever_the_time(self) -> None:
        facts = SIGNALLED._replace(seconds_left=10.0, taken_back=True)
        assert decide(account(STARTED), facts, LIMITS) == Requeued("preempted", "slurm")

    def test_a_lost_node_counts_whoever_notices_it(self) -> None:
        lost = EndFacts(3, failure="failure", lost_node=True)
        back = Requeued("node_failure", "lllaunch")
        assert decide(account(STARTED), lost, LIMITS) == back
        assert decide(account(STARTED, back, STARTED), lost, LIMITS) == BatchEnded(
            3, "it lost a node 2 times, and cluster.requeue.node_failure is 1"
        )
        taken = SIGNALLED._replace(lost_node=True, taken_back=True)
        assert decide(account(STARTED), taken, LIMITS) == Requeued("node_failure", "slurm")

    def test_a_lost_node_is_not_what_a_time_limit_or_another_job_ends(self) -> None:
        near = SIGNALLED._replace(lost_node=True, seconds_left=120.0)
        assert decide(account(STARTED), near, LIMITS) == Requeued("timeout", "lllaunch")
        known = SIGNALLED._replace(lost_node=True, cause="preempted")
        assert decide(account(STARTED), known, LIMITS) == Requeued("preempted", "lllaunch")

    def test_a_cancelled_job_is_over(self) -> None:
        found = decide(account(STARTED), SIGNALLED._replace(cancelled=True), LIMITS)
        assert found == BatchEnded(143, "it was cancelled")

    @pytest.mark.parametrize("code", [2, 5, 7])
    def test_what_goes_wrong_each_time_is_over(self, code: int) -> None:
        facts = EndFacts(code, signalled=True, failure="failure")
        assert decide(account(STARTED), facts, LIMITS) == BatchEnded(code)

    def test_what_may_have_been_cancelled_is_not_put_back(self) -> None:
        facts = SIGNALLED._replace(unexplained=True)
        said = "it was ended by SIGTERM, and Slurm does not say why"
        assert decide(account(STARTED), facts, LIMITS) == BatchEnded(143, said)
        # nobody cancels at the very moment when the time is over
        near = facts._replace(seconds_left=30.0)
        assert decide(account(STARTED), near, LIMITS) == Requeued("timeout", "lllaunch")

    def test_as_often_as_it_may(self) -> None:
        back = Requeued("preempted", "lllaunch")
        assert decide(account(STARTED, back, STARTED), SIGNALLED, LIMITS) == back
        found = decide(account(STARTED, back, STARTED, back, STARTED), SIGNALLED, LIMITS)
        assert found == BatchEnded(
            143, "it was preempted 3 times, and cluster.requeue.preempted is 2"
        )

    def test_never_where_that_is_not_wanted(self) -> None:
        limits = LIMITS._replace(requeue=Requeue(0, 0, 0))
        found = decide(account(STARTED), SIGNALLED, limits)
        assert found == BatchEnded(143, "it was preempted once, and cluster.requeue.preempted is 0")

    @pytest.mark.parametrize("kind", [None, "hang"])
    def test_a_failure_that_no_retry_is_for(self, kind: str | None) -> None:
        assert decide(account(STARTED), EndFacts(3, failure=kind), LIMITS) == BatchEnded(3)

    def test_a_failure_that_is_tried_again(self) -> None:
        facts = EndFacts(3, failure="failure")
        back = Requeued("failed", "lllaunch", "failure")
        assert decide(account(STARTED), facts, LIMITS) == back
        assert decide(account(STARTED, back, STARTED), facts, LIMITS) == BatchEnded(
            3, "it was tried again once, as retries.failure says"
        )

    def test_returns_for_other_reasons_do_not_count(self) -> None:
        events = [STARTED, Requeued("timeout", "lllaunch"), STARTED]
        assert decide(Account(events), SIGNALLED, LIMITS) == Requeued("preempted", "lllaunch")


class TestFiles:
    def test_a_submission_is_read_as_it_was_written(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        assert read_submission(path) is None
        submission = Submission("12_3", path, 5, "login", LIMITS, {"path": "/x"})
        submission.write(path)
        assert read_submission(path) == submission
        submission._replace(job="", snapshot=None).write(path)
        assert read_submission(path) == submission._replace(job="", snapshot=None)

    def test_what_others_have_made_of_it(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        with open(os.path.join(path, SUBMISSION), "w") as file:
            json.dump({"job": 5, "requeue": {"preempted": "x"}, "retries": []}, file)
        assert read_submission(path) == Submission("", "")

    def test_events_come_back_in_order(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        events = [
            STARTED,
            BatchSignalled("SIGUSR2"),
            Requeued("failed", "lllaunch", "oom"),
            BatchStarted("7"),
            BatchEnded(0, ""),
        ]
        for event in events:
            append(path, event)
        found = read_history(path)
        assert [event for _, event in found] == events
        assert all(time_ns > 0 for time_ns, _ in found)
        assert account_of(path).starts == 2

    def test_half_a_line_spoils_no_other(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        append(path, STARTED)
        with open(os.path.join(path, HISTORY), "a") as file:
            file.write('{"type": "JobEn')
        append(path, BatchSignalled("SIGTERM"))
        assert [event for _, event in read_history(path)] == [STARTED, BatchSignalled("SIGTERM")]


class TestBatchJob:
    def test_writes_down_at_once_that_a_signal_came(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        job = BatchJob(path, account(STARTED), end_time=0.0)
        job.signalled(12)
        assert job.announced
        assert job.seconds_left == 0.0
        assert [event for _, event in read_history(path)] == [BatchSignalled("SIGUSR2")]
        lost = job.account.lost()
        assert lost is not None
        assert lost.cause == "preempted"

    def test_other_nodes_write_nothing(self, tmp_path: os.PathLike[str]) -> None:
        job = BatchJob(os.fspath(tmp_path), leads=False)
        job.signalled(15)
        assert job.announced
        assert job.seconds_left is None
        assert read_history(os.fspath(tmp_path)) == []

    def test_remembers_what_comes_before_the_run(self) -> None:
        job = BatchJob("/nowhere")
        job.remember(15)
        job.remember(12)
        assert job.early == 15
        over = BatchJob("/nowhere", ran=True)
        over.remember(15)
        assert over.early is None

    def test_ends_all_the_same_where_nothing_can_be_written(self) -> None:
        job = BatchJob("/proc/nowhere", account(STARTED))
        job.signalled(15)
        assert job.announced
