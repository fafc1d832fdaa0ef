"""The queue of a cluster, as this user's runs are in it."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import field

from lllaunch.documents import Record, Time
from lllaunch.errors import LaunchError, for_signal
from lllaunch.run.submission import BatchEnded, BatchSignalled, BatchStarted, Requeued
from lllaunch.words import PUT_BACK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.cluster.slurm import QueuedJob
    from lllaunch.run.submission import QueueEvent, Submission

NO_ANSWER = "no answer"
"""What stands in place of a batch job's state where the cluster cannot be asked."""

# How long it may take to submit a run and to write down its id, seconds; and how long a list of
# jobs is good for one that was submitted within that time.
_SUBMITTING, _FRESH = 150.0, 1.0
# Questions about single jobs that are over, in a list of runs.
_MOST_ENDINGS = 16


class BatchQueue:
    """What a cluster says of batch jobs; asked when it is first needed, of all of them at once.

    ``good_for``: seconds after which it is asked again; else somebody has to forget what it said.
    """

    def __init__(self, good_for: float = float("inf")) -> None:
        self._good_for = good_for
        self._jobs: dict[str, QueuedJob] | None = None
        self._asked = 0.0
        self._others: dict[str, QueuedJob | None] = {}
        self._endings: dict[str, str] = {}
        self._answers = True

    def forget(self) -> None:
        """Ask again."""
        self._jobs, self._answers = None, True
        self._others, self._endings = {}, {}

    @property
    def answers(self) -> bool:
        """Whether the cluster can be asked from here, and answers."""
        self._ask()
        return self._answers

    def find(self, submission: Submission, *, own: bool = True) -> QueuedJob | None:
        """Return a batch job that is not over, None if it is."""
        job = self._find(submission, own=own)
        if job is None and self._answers and is_recent(submission):
            # it may have come into the queue after the others were asked for
            if time.monotonic() - self._asked > _FRESH:
                self._jobs = None
            job = self._find(submission, own=own)
        return job

    def array_in(self, directory: str) -> str:
        """Return the id of this user's array with a working directory; empty if it is over."""
        found = (job.id for job in self._ask().values() if job.directory == directory)
        return next(found, "").partition("_")[0]

    def with_id(self, job: str) -> QueuedJob | None:
        """Return a job of this user's, None if it is not in the queue."""
        return self._ask().get(job)

    def ending(self, job: str) -> str:
        """Return the state that a batch job ended in, ``CANCELLED``; empty if nobody knows it.

        Slurm forgets a job some minutes after its end. Of a long list the first ones are asked for.
        """
        if job not in self._endings and len(self._endings) < _MOST_ENDINGS and self.answers:
            from lllaunch.cluster import slurm  # noqa: PLC0415 - most runs are of this machine

            try:
                facts = slurm.job_facts(job)
            except LaunchError:
                facts = None
            self._endings[job] = "" if facts is None else facts.state
        return self._endings.get(job, "")

    def _find(self, submission: Submission, *, own: bool) -> QueuedJob | None:
        jobs, id_ = self._ask(), submission.job
        if id_:
            return jobs.get(id_) or (None if own else self._of_another_user(id_))
        # who submitted it did not come to write down its id; tasks of an array share a directory
        found = (job for job in jobs.values() if job.directory == submission.directory)
        return next((job for job in found if "_" not in job.id), None)

    def _of_another_user(self, job: str) -> QueuedJob | None:
        if job not in self._others and self._answers:
            from lllaunch.cluster import slurm  # noqa: PLC0415 - most runs are of this machine

            try:
                self._others[job] = slurm.queued(job).get(job)
            except LaunchError:
                self._answers = False
        return self._others.get(job)

    def _ask(self) -> dict[str, QueuedJob]:
        if time.monotonic() - self._asked > self._good_for:
            self.forget()
        if self._jobs is None:
            from lllaunch.cluster import slurm  # noqa: PLC0415 - most runs are of this machine

            try:
                self._answers = slurm.available()
                self._jobs = slurm.queued() if self._answers else {}
            except LaunchError:
                self._jobs, self._answers = {}, False
            self._asked = time.monotonic()
        return self._jobs


def is_recent(submission: Submission) -> bool:
    """Return whether what was submitted may not have come into the queue yet."""
    return time.time_ns() - submission.time_ns < _SUBMITTING * 1e9


def queue_text(job: QueuedJob) -> str:
    """Return ``PENDING (Priority)`` of a batch job that waits, ``RUNNING (node1)`` of another."""
    where = job.nodes or job.reason
    return job.state if where in {"", "None"} else f"{job.state} ({where})"


_CANCELLED = for_signal(signal.SIGTERM)
"""Exit code of a run that SIGTERM ended; one that was cancelled in the queue gets it, too."""


def cancelled(history: Sequence[tuple[int, QueueEvent]]) -> BatchEnded:
    """Return how a run ended whose batch job was cancelled, if it has not said so itself."""
    last = history[-1][1] if history else None
    if isinstance(last, (BatchStarted, BatchSignalled)):
        return BatchEnded(_CANCELLED, "its batch job was cancelled, and was killed before its end")
    again = " again" if history else ""
    return BatchEnded(_CANCELLED, f"its batch job was cancelled before it started{again}")


class BatchFacts(Record, frozen=True):
    """The way of a run through a cluster's queue."""

    BESIDE = frozenset({"first_ns", "started_ns"})

    submitted_ns: Time = field(name="submitted")
    first_ns: int  # when it started first; 0 if it has not. The same holds for the last start
    started_ns: int
    starts: int
    nodes: tuple[str, ...]
    requeues: tuple[Requeued, ...]
    waited: float
    # for how long it ran in all, seconds. Of a start that was lost with its node nobody knows the
    # end; what it waited then is in it
    ran: float
    reason: str  # why it did not go back into the queue, or an empty string

    @property
    def text(self) -> str:
        """How often it started and why, if more than once: ``3; put back: preempted (2 times)``."""
        if self.starts < 2 and not self.requeues:
            return ""
        causes = Counter(PUT_BACK[back.cause] for back in self.requeues)
        parts = [why if times == 1 else f"{why} ({times} times)" for why, times in causes.items()]
        back = f"; put back into the queue: {', '.join(parts)}" if parts else ""
        return f"{self.starts}{back}"


def batch_facts(
    submission: Submission, history: Sequence[tuple[int, QueueEvent]], until_ns: int
) -> BatchFacts:
    """Return what the history of a submitted run comes to, until it was heard of last. Pure."""
    waited = ran = 0
    since, runs = submission.time_ns, False
    ends = [(at, each) for at, each in history if not isinstance(each, BatchSignalled)]
    if not ends or not isinstance(ends[-1][1], BatchEnded):
        ends.append((max(until_ns, history[-1][0] if history else 0), BatchEnded(0)))
    for time_ns, event in ends:
        passed = max(0, time_ns - since) if since else 0
        waited, ran = (waited, ran + passed) if runs else (waited + passed, ran)
        since, runs = time_ns, isinstance(event, BatchStarted)
    starts = [(at, event) for at, event in history if isinstance(event, BatchStarted)]
    last = history[-1][1] if history else None
    return BatchFacts(
        submission.time_ns,
        starts[0][0] if starts else 0,
        starts[-1][0] if starts else 0,
        len(starts),
        starts[-1][1].nodes if starts else (),
        tuple(event for _, event in history if isinstance(event, Requeued)),
        waited / 1e9,
        ran / 1e9,
        last.reason if isinstance(last, BatchEnded) else "",
    )
