"""What is known of a job of a sweep while that runs. Pure data."""

from __future__ import annotations

from collections import Counter

from lllaunch.sweep.resources import Lease
from lllaunch.sweep.vocabulary import JobState


class JobView:
    """What is known of a job.

    Attributes:
        number: of the job.
        overrides: those that differ from other jobs'.
        directory: where its files are, as the job told.
        state: of the job.
        attempt: number of the one that runs or ran, from 0.
        tries: how often it was started.
        lease: what it holds or held.
        since: when its attempt began, seconds.
        seconds: how long its last attempt took.
        line: what it printed last.
        why: the first failure of its last attempt in one line, or why it cannot run.
        exit_code: of its last attempt, None if there is none.
        held: whether it was said that other launchers hold its slots.
        retried: how often it was, by cause.
    """

    __slots__ = (
        "attempt",
        "directory",
        "exit_code",
        "held",
        "lease",
        "line",
        "number",
        "overrides",
        "retried",
        "seconds",
        "since",
        "state",
        "tries",
        "why",
    )

    def __init__(self, number: int, overrides: str) -> None:
        self.number = number
        self.overrides = overrides
        self.directory = ""
        self.state = JobState.WAITING
        self.attempt = self.tries = 0
        self.lease = Lease()
        self.since = self.seconds = 0.0
        self.line = self.why = ""
        self.exit_code: int | None = None
        self.held = False
        self.retried: Counter[str] = Counter()
