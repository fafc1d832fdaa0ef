"""An executor of a few lines, with which a sweep runs: its jobs are numbers of this process."""

from __future__ import annotations

from pathlib import Path

import lllaunch.sweep.schedule as v
from lllaunch.signal_source import QUIET, SignalSource
from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.journal import Header, Journal, read_journal
from lllaunch.sweep.loop import Executor, Onlooker, Sweep
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import Prepared
from lllaunch.sweep.schedule import SweepPolicy


class Queue(Executor):
    """Two jobs at a time, which end in turns; job 1 fails once."""

    slots = Lease(cpus=(0, 1))

    def __init__(self) -> None:
        self.started: list[v.StartJob] = []
        self.most = 0

    def compose(self, number: int) -> None:
        self.sweep.composed(v.JobComposed(number, Need(cpus=1), (f"x={number}",)))

    def start(self, start: v.StartJob) -> None:
        self.sweep.records.starts(Prepared(start.number), start.attempt, start.lease, None)
        self.started.append(start)
        self.most = max(self.most, len(self.started))

    def goes_on(self, signum: int) -> bool:
        return False

    def deadline(self) -> float:
        return 0.0

    def look(self, ready: frozenset[int]) -> None:
        job = self.started.pop(0)
        code = int(job.number == 1 and job.attempt == 0)
        self.sweep.tell(self.sweep.records.ended(job.number, job.attempt, "", code, ""))


def swept(place: Path, queue: Queue) -> tuple[v.FinishSweep, dict[int, tuple[str, int]]]:
    """What a sweep of four jobs comes to, and state and tries of each."""
    journal = Journal.create(str(place / "sweep.jsonl"), Header("id", "0"))
    policy = SweepPolicy()
    policy = policy._replace(retries=policy.retries._replace(failure=1))
    with SignalSource(quiet=QUIET, stops=True) as signals:
        onlooker = Onlooker(lambda _: None)
        finish = Sweep(queue, policy, journal, onlooker, range(4), signals).run()
    journal.close()
    known = SweepHistory(read_journal(journal.path)).jobs
    return finish, {job.job: (job.state, job.tries) for job in known.values()}


def test_an_executor_of_a_few_lines_runs_a_sweep(tmp_path: Path) -> None:
    queue = Queue()
    finish, jobs = swept(tmp_path, queue)
    assert finish == v.FinishSweep(0)
    tries = {0: 1, 1: 2, 2: 1, 3: 1}
    assert jobs == {number: ("succeeded", count) for number, count in tries.items()}
    assert queue.most == 2
