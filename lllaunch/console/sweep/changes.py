"""What changes in a sweep that is worth a line. Pure data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lllaunch.policies import RestartCause
    from lllaunch.sweep.resources import Lease
    from lllaunch.sweep.vocabulary import JobState


class Began(NamedTuple):
    """A job runs."""

    number: int
    overrides: str
    attempt: int
    lease: Lease


class Over(NamedTuple):
    """What became of a job is known.

    Attributes:
        number: of the job.
        state: a final one.
        attempts: how many there were in this sweep; 0 if it was not started.
        seconds: how long the last one took.
        exit_code: of it, or what the job broke with.
        why: the first failure in one line, or why the job cannot run, perhaps in several.
        directory: where its files are, as `lllaunch.sweep.prepared.Prepared` has it.
        overrides: those that differ from other jobs'.
    """

    number: int
    state: JobState
    attempts: int
    seconds: float
    exit_code: int | None
    why: str
    directory: str
    overrides: str


class Again(NamedTuple):
    """A failed attempt of a job is followed by another.

    Attributes:
        number: of the job.
        attempt: number of the one that failed.
        cause: of what.
        seconds: how long it took.
        exit_code: of it.
        why: the first failure in one line, or empty.
        retry: which retry for this cause follows, from 1.
        of: how many there may be, None if that is not known.
        wait: seconds until it may start.
    """

    number: int
    attempt: int
    cause: RestartCause
    seconds: float
    exit_code: int | None
    why: str
    retry: int
    of: int | None
    wait: float


class Held(NamedTuple):
    """A job waits for slots that other launchers hold."""

    number: int
    slots: Lease


class Signalled(NamedTuple):
    """A signal came.

    Attributes:
        signum: its number.
        running: how many jobs run.
        forward: False if they get it from elsewhere.
        again: whether it is the second, which kills them.
    """

    signum: int
    running: int
    forward: bool
    again: bool


class Draining(NamedTuple):
    """As many jobs have failed as may: no more are started.

    Attributes:
        failed: how many.
        running: how many run on.
    """

    failed: int
    running: int


class Blocked(NamedTuple):
    """No job can be started for now.

    Attributes:
        why: what failed.
    """

    why: str


class Unblocked(NamedTuple):
    """Jobs can be started again."""


Change = Began | Over | Again | Held | Signalled | Draining | Blocked | Unblocked
