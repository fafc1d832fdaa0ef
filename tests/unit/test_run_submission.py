"""What a submitted run's directory tells of its way through the queue."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from lllaunch.errors import ExitCode
from lllaunch.run.directory import SUBMISSION
from lllaunch.run.repository import Snapshot
from lllaunch.run.submission import (
    Account,
    BatchEnded,
    BatchJob,
    BatchSignalled,
    BatchStarted,
    EndFacts,
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

STARTED = BatchStarted("7", ("node0",))
LIMITS = Submission(
    requeue=Requeue(preempted=2, timeout=1, node_failure=1),
    signal_delay=90.0,
    retries={"failure": 1},
)
SIGNALLED = EndFacts(143, signalled=True)


class TestAccount:
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
        assert Account([STARTED, lost]).refusal("node_failure", LIMITS.requeue) == ""
        assert Account([STARTED, lost] * 2).refusal("node_failure", LIMITS.requeue) == (
            "lost a node 2 times; cluster.requeue.node_failure is 1"
        )


LOST = EndFacts(3, failure="failure", lost_node=True)
FAILED = EndFacts(3, failure="failure")
UNEXPLAINED = SIGNALLED._replace(unexplained=True)
PREEMPTED = Requeued("preempted", "lllaunch")
TIMEOUT = Requeued("timeout", "lllaunch")
NODE_FAILURE = Requeued("node_failure", "lllaunch")
TRIED = Requeued("failed", "lllaunch", "failure")


@pytest.mark.parametrize(
    ("returns", "facts", "decision"),
    [
        ([], EndFacts(0), BatchEnded(0)),
        # a signal near the time limit is about that
        ([], SIGNALLED, PREEMPTED),
        ([], SIGNALLED._replace(seconds_left=4000.0), PREEMPTED),
        ([], SIGNALLED._replace(seconds_left=120.0), TIMEOUT),
        # what Slurm takes back is preempted whatever the time
        (
            [],
            SIGNALLED._replace(seconds_left=10.0, taken_back=True),
            Requeued("preempted", "slurm"),
        ),
        # a lost node counts whoever notices it
        ([], LOST, NODE_FAILURE),
        ([], LOST._replace(taken_back=True), Requeued("node_failure", "slurm")),
        # but whom Slurm has signalled was preempted: others may have ended before
        ([], SIGNALLED._replace(lost_node=True), PREEMPTED),
        (
            [],
            SIGNALLED._replace(lost_node=True, taken_back=True),
            Requeued("preempted", "slurm"),
        ),
        # unless Slurm names the node as the reason
        (
            [],
            SIGNALLED._replace(cause="node_failure", taken_back=True),
            Requeued("node_failure", "slurm"),
        ),
        (
            [NODE_FAILURE],
            LOST,
            BatchEnded(3, "it lost a node 2 times, and cluster.requeue.node_failure is 1"),
        ),
        # but not what a time limit or another job ends
        ([], SIGNALLED._replace(lost_node=True, seconds_left=120.0), TIMEOUT),
        ([], SIGNALLED._replace(lost_node=True, cause="preempted"), PREEMPTED),
        ([], SIGNALLED._replace(cancelled=True), BatchEnded(143, "it was cancelled")),
        # what goes wrong each time
        *(
            ([], EndFacts(code, signalled=True, failure="failure"), BatchEnded(code))
            for code in (2, 5, 7)
        ),
        # what may have been cancelled is not put back
        (
            [],
            UNEXPLAINED,
            BatchEnded(143, "it was ended by SIGTERM, and Slurm does not say why"),
        ),
        # though nobody cancels at the very moment when the time is over
        ([], UNEXPLAINED._replace(seconds_left=30.0), TIMEOUT),
        # as often as it may; returns for other reasons do not count
        ([PREEMPTED, TIMEOUT], SIGNALLED, PREEMPTED),
        (
            [PREEMPTED, PREEMPTED],
            SIGNALLED,
            BatchEnded(143, "it was preempted 3 times, and cluster.requeue.preempted is 2"),
        ),
        # failures: those that retries are for
        ([], EndFacts(3), BatchEnded(3)),
        ([], EndFacts(3, failure="hang"), BatchEnded(3)),
        ([], FAILED, TRIED),
        (
            [TRIED],
            FAILED,
            BatchEnded(3, "it was tried again once, as retries.failure says"),
        ),
    ],
)
def test_whether_a_run_goes_back_into_the_queue(
    returns: Sequence[Requeued], facts: EndFacts, decision: Requeued | BatchEnded
) -> None:
    events = [STARTED, *(each for back in returns for each in (back, STARTED))]
    assert decide(Account(events), facts, LIMITS) == decision


def test_never_where_that_is_not_wanted() -> None:
    limits = structs.replace(LIMITS, requeue=Requeue(0, 0, 0))
    found = decide(Account([STARTED]), SIGNALLED, limits)
    assert found == BatchEnded(143, "it was preempted once, and cluster.requeue.preempted is 0")


class TestFiles:
    def test_a_submission_is_read_as_it_was_written(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        assert read_submission(path) is None
        code = Snapshot("/x", "", "", "/y", changed=True)
        submission = structs.replace(
            LIMITS, job="12_3", directory=path, time_ns=5, host="login", snapshot=code
        )
        submission.write(path)
        assert read_submission(path) == submission
        structs.replace(submission, job="", snapshot=None).write(path)
        assert read_submission(path) == structs.replace(submission, job="", snapshot=None)

    def test_events_come_back_in_order(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        events = [
            STARTED,
            BatchSignalled("SIGUSR2"),
            Requeued("failed", "lllaunch", "oom"),
            BatchStarted("7"),
            BatchEnded(ExitCode.CONFIG, ""),
        ]
        for event in events:
            append(path, event)
            # half a line spoils no other
            with open(os.path.join(path, SUBMISSION), "a") as file:
                file.write('{"type": "JobEn')
        found = read_history(path)
        assert [event for _, event in found] == events
        assert all(time_ns > 0 for time_ns, _ in found)
        assert account_of(path).starts == 2


class TestBatchJob:
    def test_writes_down_at_once_that_a_signal_came(self, tmp_path: os.PathLike[str]) -> None:
        path = os.fspath(tmp_path)
        job = BatchJob(path, Account([STARTED]))
        job.signalled(12)
        assert job.announced
        assert job.signalled_ns > 0
        assert [event for _, event in read_history(path)] == [BatchSignalled("SIGUSR2")]
        lost = job.account.lost()
        assert lost is not None
        assert lost.cause == "preempted"

    def test_other_nodes_write_nothing(self, tmp_path: os.PathLike[str]) -> None:
        job = BatchJob(os.fspath(tmp_path), leads=False)
        job.signalled(15)
        assert job.announced
        assert read_history(os.fspath(tmp_path)) == []


def test_an_event_is_written_though_somebody_keeps_the_file(tmp_path: Path) -> None:
    """A signal may come while this process writes one, and its handler writes another."""
    append(str(tmp_path), BatchStarted("7"))
    with open(tmp_path / SUBMISSION) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        append(str(tmp_path), BatchSignalled("SIGUSR2"))
    assert [event for _, event in read_history(str(tmp_path))] == [
        BatchStarted("7"),
        BatchSignalled("SIGUSR2"),
    ]
