"""What the scheduler of a sweep is told (facts) and what it decides. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lllaunch.policies import RestartCause
from lllaunch.sweep.policy import Summary
from lllaunch.sweep.resources import Lease, Need


class SweepState(str, Enum):
    """State of a sweep.

    Attributes:
        NEW: nothing has begun.
        PACKING: jobs are composed and started as slots come free.
        BLOCKED: the journal cannot be written, or no process can be made; nothing is started until
            that works again, what runs goes on.
        DRAINING: enough jobs have failed, or what blocks will not pass; nothing is started any
            more, what runs goes on to its end.
        CANCELLING: a signal came; nothing is started, what runs was told to end.
        KILLING: another signal came; what runs is being killed.
        FINISHED: all jobs have ended; terminal.
    """

    NEW = "new"
    PACKING = "packing"
    BLOCKED = "blocked"
    DRAINING = "draining"
    CANCELLING = "cancelling"
    KILLING = "killing"
    FINISHED = "finished"


class JobState(str, Enum):
    """State of a job of a sweep.

    Attributes:
        WAITING: it is composed and waits for slots.
        RUNNING: it holds a lease.
        PAUSED: it failed, and waits for the moment of its next attempt.
        SUCCEEDED: its last attempt ended with exit code 0; final, as are all below.
        FAILED: it failed and is not tried again, or it could not be composed.
        CANCELLED: a signal to the launcher ended it.
        NOT_RUN: it was never started.
        SKIPPED: it had succeeded in an earlier sweep that this one resumes.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NOT_RUN = "not_run"
    SKIPPED = "skipped"


# Facts


@dataclass(frozen=True)
class Begin:
    """The launcher was asked to sweep.

    Attributes:
        total: number of jobs if that is known beforehand, so that those that are never composed
            can be counted; else None.
    """

    total: int | None = None


@dataclass(frozen=True)
class JobComposed:
    """The next job is composed, and its config is good. Answers `ComposeNext`.

    Attributes:
        number: of the job, unique in the sweep.
        need: what it needs to run.
    """

    number: int
    need: Need


@dataclass(frozen=True)
class JobBroken:
    """The next job could not be composed, or its config is wrong. Answers `ComposeNext`.

    Attributes:
        number: of the job.
        exit_code: what a run of this config alone would end with, 1 or 2; 128+N if signal N ended
            the process that composed it.
        why: for people.
    """

    number: int
    exit_code: int
    why: str = ""


@dataclass(frozen=True)
class NoMoreJobs:
    """All jobs have been composed. Answers `ComposeNext`."""


@dataclass(frozen=True)
class LeaseRefused:
    """A job was not started, since other launchers hold slots of its lease.

    Attributes:
        number: of the job.
        gpus: the slots of its lease that others hold; at least one of both kinds together.
        cpus: the same.
    """

    number: int
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class SlotsFreed:
    """Other launchers no longer hold slots that `LeaseRefused` named.

    Attributes:
        gpus: those slots; others are ignored.
        cpus: the same.
    """

    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotStarted:
    """A job was not started, since something failed; `Blocked` came before.

    Attributes:
        number: of the job. Its lease is free again.
    """

    number: int


@dataclass(frozen=True)
class Blocked:
    """The journal cannot be written, or no process can be made: no job can be started.

    Attributes:
        why: for people.
    """

    why: str = ""


@dataclass(frozen=True)
class Unblocked:
    """What `Blocked` told of works again."""


@dataclass(frozen=True)
class Abandoned:
    """No job can be started any more: what failed will not work again."""


@dataclass(frozen=True)
class JobEnded:
    """The process of a running job has ended, or could not be made. Its slots are free.

    Attributes:
        number: of the job.
        exit_code: its exit code; 128+N if signal N ended the process.
        cause: what it failed of, see `lllaunch.sweep.policy.cause_of`; None if it succeeded, or if
            another attempt would be in vain.
        why: the first failure in one line, or empty.
    """

    number: int
    exit_code: int
    cause: RestartCause | None = None
    why: str = ""


@dataclass(frozen=True)
class RetryDue:
    """The moment that a `Retry` named has come.

    Attributes:
        number: of the job.
    """

    number: int


@dataclass(frozen=True)
class SignalReceived:
    """A signal to the launcher.

    Attributes:
        signum: its number.
        forward: False if the jobs get it from elsewhere (a Slurm step).
    """

    signum: int
    forward: bool = True


Fact = (
    Begin
    | JobComposed
    | JobBroken
    | NoMoreJobs
    | LeaseRefused
    | SlotsFreed
    | NotStarted
    | Blocked
    | Unblocked
    | Abandoned
    | JobEnded
    | RetryDue
    | SignalReceived
)


# Decisions


@dataclass(frozen=True)
class ComposeNext:
    """Compose one more job. Exactly one fact answers; until then no other is asked for."""


@dataclass(frozen=True)
class StartJob:
    """Lock the slots of a lease and start a job; else `LeaseRefused` follows.

    Attributes:
        number: of the job.
        lease: what it holds while it runs.
        attempt: number of the job's attempt in this sweep, from 0.
    """

    number: int
    lease: Lease
    attempt: int = 0


@dataclass(frozen=True)
class Retry:
    """An attempt of a job failed, and the job is tried again.

    Attributes:
        number: of the job.
        attempt: number that its next attempt will have.
        cause: why.
        at: when it may start again, on the clock of `handle`'s ``now``, seconds; `RetryDue`
            follows then. None if it waits for slots at once, before all others.
    """

    number: int
    attempt: int
    cause: RestartCause
    at: float | None = None


@dataclass(frozen=True)
class Settle:
    """What became of a job, for good. Comes exactly once for each job that was told of.

    Attributes:
        number: of the job.
        state: a final one.
        attempts: how many attempts of it ended in this sweep.
        exit_code: of the last attempt, or what the job broke with; None if there is neither.
        why: what the last attempt failed of in one line, or why it was never started; or empty.
    """

    number: int
    state: JobState
    attempts: int = 0
    exit_code: int | None = None
    why: str = ""


@dataclass(frozen=True)
class SignalJobs:
    """Send a signal to all running jobs. Each then gives its workers their grace period.

    Attributes:
        signum: its number.
    """

    signum: int


@dataclass(frozen=True)
class KillJobs:
    """SIGKILL all running jobs and what they started."""


@dataclass(frozen=True)
class Finish:
    """The sweep is over.

    Attributes:
        summary: what became of its jobs.
        exit_code: of the launcher.
        signum: the first signal to the launcher, or None.
    """

    summary: Summary
    exit_code: int
    signum: int | None = None


Decision = ComposeNext | StartJob | Retry | Settle | SignalJobs | KillJobs | Finish
Decisions = tuple[Decision, ...]
