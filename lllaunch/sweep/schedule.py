"""Which job of a sweep runs when, and on what: facts in, decisions out.

Pure: nothing here starts, waits or asks for the time. `Scheduler.handle` takes a fact and returns
the decisions that follow; the launcher performs them and feeds back what happens. The tables at the
end say for every state and fact what is done, or that it cannot come.

Which job is next: first those that are tried again, then by number. The first that fits is next, so
that no slot is idle while a waiting job fits it. That alone would let a large job wait as long as
smaller ones come. So jobs that start from behind it are counted, and when there were enough of
them, the slots that come free are kept for it: others get only what it does not need. From then on
it waits at the longest until the attempts that run now have ended. Nothing is kept for a job that
other launchers leave too few slots for: waiting for ours would not help it.

What a job gets stands in `lllaunch.sweep.pool`.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lllaunch.exit_codes import ExitCode
from lllaunch.policies import RESTART_CAUSES, RestartCause
from lllaunch.sweep.policy import Retries, Summary, SweepPolicy, by_signal
from lllaunch.sweep.pool import Lease, Need, Pool, fits, never_fits, without


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
class BeginSweep:
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
class JobNotStarted:
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
class SweepSignalled:
    """A signal to the launcher.

    Attributes:
        signum: its number.
        forward: False if the jobs get it from elsewhere (a Slurm step).
    """

    signum: int
    forward: bool = True


Fact = (
    BeginSweep
    | JobComposed
    | JobBroken
    | NoMoreJobs
    | LeaseRefused
    | SlotsFreed
    | JobNotStarted
    | Blocked
    | Unblocked
    | Abandoned
    | JobEnded
    | RetryDue
    | SweepSignalled
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
class FinishSweep:
    """The sweep is over.

    Attributes:
        summary: what became of its jobs.
        exit_code: of the launcher.
        signum: the first signal to the launcher, or None.
    """

    summary: Summary
    exit_code: int
    signum: int | None = None


Decision = ComposeNext | StartJob | Retry | Settle | SignalJobs | KillJobs | FinishSweep
Decisions = tuple[Decision, ...]


_NOTHING = Lease()


class Job:
    """A job that is not over.

    Args:
        number: its number.
        need: what it needs.
        retries: how often it is tried again.

    Attributes:
        attempts: how many attempts of it have ended.
        lease: what it holds while it runs.
        exit_code: of its last attempt, or None.
        why: what that failed of, or empty.
        overtaken: how many jobs behind it started while it waited for its first or next attempt.
    """

    __slots__ = ("_left", "attempts", "exit_code", "lease", "need", "number", "overtaken", "why")

    def __init__(self, number: int, need: Need, retries: Retries) -> None:
        self.number = number
        self.need = need
        self.attempts = 0
        self.lease = _NOTHING
        self.exit_code: int | None = None
        self.why = ""
        self.overtaken = 0
        self._left: dict[RestartCause, int] = {}
        for cause in RESTART_CAUSES:
            self._left[cause] = retries.of(cause)

    def take_chance(self, cause: RestartCause | None) -> bool:
        """Whether it is tried again for a cause; that leaves one chance less."""
        if cause is None or self._left[cause] <= 0:
            return False
        self._left[cause] -= 1
        return True

    def rank(self) -> tuple[bool, int]:
        """Its place in the order: the smaller, the sooner."""
        return (self.attempts == 0, self.number)


class Waiting:
    """The jobs that wait, in order.

    Args:
        patience: how many jobs may overtake one before slots are kept for it.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return any(job.number == number for job in self._jobs)

    def add(self, job: Job) -> None:
        """A job waits."""
        insort(self._jobs, job, key=Job.rank)

    def clear(self) -> list[Job]:
        """Nobody waits any longer; those who did."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def starving(self, ours: Need) -> Job | None:
        """Returns the job that slots are kept for, if there is one.

        Args:
            ours: the slots that no other launcher holds.
        """
        for job in self._jobs:
            if job.overtaken >= self._patience and fits(job.need, ours):
                return job
        return None

    def room(self, free: Need, ours: Need) -> Need:
        """Returns the free slots that are not kept for anybody.

        Args:
            free: slots that nobody holds.
            ours: slots that no other launcher holds.
        """
        first = self.starving(ours)
        return free if first is None else without(free, first.need)

    def take(self, free: Need, ours: Need) -> Job | None:
        """Returns the next job to start, which waits no longer; None if none fits.

        Args:
            free: slots that nobody holds.
            ours: slots that no other launcher holds.
        """
        first = self.starving(ours)
        if first is not None and fits(first.need, free):
            return self._remove(self._jobs.index(first))
        room = free if first is None else without(free, first.need)
        # Most jobs of a sweep need the same.
        misfits: set[Need] = set()
        for place, job in enumerate(self._jobs):
            if job is first or job.need in misfits:
                continue
            if fits(job.need, room):
                return self._remove(place)
            misfits.add(job.need)
        return None

    def _remove(self, place: int) -> Job:
        """Let the job at a place start, and so overtake those before it."""
        job = self._jobs.pop(place)
        for other in self._jobs[:place]:
            other.overtaken += 1
        return job


# So many jobs are composed ahead at least, and at most where slots are idle that may fit another.
_AHEAD, _FAR_AHEAD = 2, 64

J = JobState
# Jobs are started in these states, or will be.
_GOING_ON = frozenset({SweepState.PACKING, SweepState.BLOCKED})


class ImpossibleSweepFact(Exception):
    """A fact came when it cannot come: an error in the launcher."""


class Scheduler:
    """A sweep from its first job to its end.

    Args:
        slots: all slots that it may use, GPUs in the order of CUDA_VISIBLE_DEVICES.
        policy: what holds for all of its jobs.

    Attributes:
        state: state of the sweep.
        running: the jobs that hold a lease, by number.
        paused: the jobs that wait for the moment of their retry, by number.
        waiting: the jobs that wait for slots.
        composing: whether a job has been asked for.
    """

    def __init__(self, slots: Lease, policy: SweepPolicy | None = None) -> None:
        self.state = SweepState.NEW
        self.policy = policy or SweepPolicy()
        self.pool = Pool(slots)
        self.waiting = Waiting(self.policy.patience)
        self.running: dict[int, Job] = {}
        self.paused: dict[int, Job] = {}
        self.composing = False
        self.exhausted = False
        self.total: int | None = None
        self.signum: int | None = None
        self.now = 0.0
        self._ends: Counter[JobState] = Counter()
        # What jobs have needed so far, without what is no smaller than another.
        self._smallest: list[Need] = []

    def handle(self, fact: Fact, now: float) -> Decisions:
        """Take note of a fact; the decisions that follow, in order.

        Args:
            fact: what happened.
            now: the time on a clock that never goes back, seconds.

        Raises:
            ImpossibleFact: it cannot come in this state, or of this job.
        """
        if self.state is SweepState.FINISHED:
            # Late news: a job that was being composed, another signal.
            return ()
        action = TRANSITIONS[self.state].get(type(fact))
        if action is None:
            raise ImpossibleSweepFact(f"{fact} in state {self.state.value}")
        self.now = now
        if action is not Scheduler.ignore:
            self._check(fact)
        return action(self, fact)

    def _check(self, fact: Fact) -> None:
        """A fact must be about what there is."""
        if type(fact) in _OF_COMPOSING and not self.composing:
            raise ImpossibleSweepFact(f"{fact}, which was not asked for")
        if isinstance(fact, (JobComposed, JobBroken)):
            if any(fact.number in jobs for jobs in (self.running, self.paused, self.waiting)):
                raise ImpossibleSweepFact(
                    f"{fact} is about another job than the one of that number"
                )
        elif isinstance(fact, (JobEnded, LeaseRefused, JobNotStarted)):
            if fact.number not in self.running:
                raise ImpossibleSweepFact(f"{fact}, which does not run")
        elif isinstance(fact, RetryDue) and fact.number not in self.paused:
            raise ImpossibleSweepFact(f"{fact}, which is not to be tried again")
        if isinstance(fact, LeaseRefused):
            lease = self.running[fact.number].lease
            inside = {*fact.gpus} <= {*lease.gpus} and {*fact.cpus} <= {*lease.cpus}
            # Without a slot that is out of the pool the job would start again at once, for ever.
            if not inside or not (fact.gpus or fact.cpus):
                raise ImpossibleSweepFact(f"{fact} does not name slots of {lease}")

    def begin(self, fact: BeginSweep) -> Decisions:
        """Ask for the first job."""
        self.state, self.total = SweepState.PACKING, fact.total
        return self._go_on()

    def composed(self, fact: JobComposed) -> Decisions:
        """A job waits, unless it can never run."""
        self.composing = False
        why = never_fits(fact.need, self.pool.size)
        if why:
            code = int(ExitCode.CONFIG)
            return self._failed(Settle(fact.number, J.FAILED, exit_code=code, why=why))
        if not any(fits(small, fact.need) for small in self._smallest):
            larger = [need for need in self._smallest if not fits(fact.need, need)]
            self._smallest = [*larger, fact.need]
        self.waiting.add(Job(fact.number, fact.need, self.policy.retries))
        return self._go_on()

    def composed_too_late(self, fact: JobComposed) -> Decisions:
        """Nothing is started any more."""
        self.composing = False
        return (self._settle(Settle(fact.number, J.NOT_RUN)),)

    def broken(self, fact: JobBroken) -> Decisions:
        """A job that cannot run has failed."""
        self.composing = False
        end = Settle(fact.number, J.FAILED, exit_code=fact.exit_code, why=fact.why)
        return self._failed(end)

    def broken_while_cancelled(self, fact: JobBroken) -> Decisions:
        """A job that cannot run has failed; one whose process got the signal, too, has not run."""
        if not by_signal(fact.exit_code):
            return self.broken(fact)
        self.composing = False
        return (self._settle(Settle(fact.number, J.NOT_RUN)),)

    def no_more(self, _: Fact) -> Decisions:
        """What waits and runs is all that is left."""
        self.composing, self.exhausted = False, True
        return self._go_on()

    def refused(self, fact: LeaseRefused) -> Decisions:
        """A job did not start after all: it waits again, for other slots."""
        self.waiting.add(self._take_back(fact))
        return self._go_on()

    def refused_too_late(self, fact: LeaseRefused) -> Decisions:
        """A job did not start, and does not any more."""
        return (self._leave(self._take_back(fact)), *self._go_on())

    def not_started(self, fact: JobNotStarted) -> Decisions:
        """A job could not be started: it waits until that can be tried again."""
        self.waiting.add(self._unlease(fact))
        return self._go_on()

    def not_started_too_late(self, fact: JobNotStarted) -> Decisions:
        """A job could not be started, and is not any more."""
        return (self._leave(self._unlease(fact)), *self._go_on())

    def block(self, _: Blocked) -> Decisions:
        """Nothing is started for now."""
        self.state = SweepState.BLOCKED
        return ()

    def unblock(self, _: Unblocked) -> Decisions:
        """Jobs are started again."""
        self.state = SweepState.PACKING
        return self._go_on()

    def abandon(self, _: Abandoned) -> Decisions:
        """Nothing is started any more; what runs goes on."""
        return (*self._halt(SweepState.DRAINING), *self._go_on())

    def freed(self, fact: SlotsFreed) -> Decisions:
        """Slots can be tried again."""
        self.pool.regain(Lease(fact.gpus, fact.cpus))
        return self._go_on()

    def ended(self, fact: JobEnded) -> Decisions:
        """A job ended: it succeeded, is tried again, or failed."""
        job = self._end(fact)
        if fact.exit_code == 0:
            return (self._over(job, J.SUCCEEDED), *self._go_on())
        if fact.cause is None or not job.take_chance(fact.cause):
            return self._failed(self._end_of(job, J.FAILED))
        at = None
        if self.policy.retry_delay > 0:
            at = self.now + self.policy.retry_delay
            self.paused[job.number] = job
        else:
            self.waiting.add(job)
        return (Retry(job.number, job.attempts, fact.cause, at), *self._go_on())

    def ended_while_draining(self, fact: JobEnded) -> Decisions:
        """A job ended, and is not tried again."""
        job = self._end(fact)
        state = J.FAILED if fact.exit_code else J.SUCCEEDED
        return (self._over(job, state), *self._go_on())

    def ended_while_cancelled(self, fact: JobEnded) -> Decisions:
        """A job ended after a signal, by that signal or as it would have anyway."""
        if not by_signal(fact.exit_code):
            return self.ended_while_draining(fact)
        return (self._over(self._end(fact), J.CANCELLED), *self._go_on())

    def retry(self, fact: RetryDue) -> Decisions:
        """A job that failed waits for slots again."""
        self.waiting.add(self.paused.pop(fact.number))
        return self._go_on()

    def cancel(self, fact: SweepSignalled) -> Decisions:
        """The first signal: nothing more is started, and what runs is told to end."""
        self.signum = fact.signum
        told = (SignalJobs(fact.signum),) if self.running and fact.forward else ()
        return (*told, *self._halt(SweepState.CANCELLING), *self._go_on())

    def kill(self, _: SweepSignalled) -> Decisions:
        """Another signal: what runs is killed."""
        self.state = SweepState.KILLING
        return (KillJobs(),)

    def ignore(self, _: Fact) -> Decisions:
        """Nothing follows."""
        return ()

    def _go_on(self) -> Decisions:
        """Start what fits, compose what may fit next; or finish, if nothing is left."""
        if self.state not in _GOING_ON:
            return () if self.running else self._finish()
        if self.exhausted and not (self.running or self.waiting or self.paused):
            return self._finish()
        if self.state is SweepState.BLOCKED:
            return ()
        starts = self._fill()
        # First, since composing goes on beside the starting.
        return (*self._look_ahead(), *starts)

    def _fill(self) -> Decisions:
        starts = []
        while self._may_start():
            job = self.waiting.take(self.pool.free, self.pool.ours)
            if job is None:
                break
            job.lease = self.pool.take(job.need)
            self.running[job.number] = job
            starts.append(StartJob(job.number, job.lease, job.attempts))
        return tuple(starts)

    def _may_start(self) -> bool:
        limit = self.policy.max_parallel
        return limit is None or len(self.running) < limit

    def _look_ahead(self) -> Decisions:
        if self.composing or self.exhausted:
            return ()
        ahead = len(self.waiting)
        enough = ahead >= max(_AHEAD, len(self.running))
        if enough and (ahead >= _FAR_AHEAD or not self._idle()):
            return ()
        self.composing = True
        return (ComposeNext(),)

    def _idle(self) -> bool:
        """Whether there is room for a job such as there has been before, and none waits for it."""
        room = self.waiting.room(self.pool.free, self.pool.ours)
        return self._may_start() and any(fits(need, room) for need in self._smallest)

    def _take_back(self, fact: LeaseRefused) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease, Lease(fact.gpus, fact.cpus))
        return job

    def _unlease(self, fact: JobNotStarted) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease)
        return job

    def _end(self, fact: JobEnded) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease)
        job.attempts += 1
        job.exit_code, job.why = fact.exit_code, fact.why
        job.overtaken = 0
        return job

    def _failed(self, end: Settle) -> Decisions:
        """A job failed for good; perhaps it was one too many."""
        settled = self._settle(end)
        limit = self.policy.max_failures
        halted: Decisions = ()
        going_on = self.state in _GOING_ON
        if going_on and limit is not None and self._ends[J.FAILED] >= limit:
            halted = self._halt(SweepState.DRAINING)
        return (settled, *halted, *self._go_on())

    def _halt(self, state: SweepState) -> Decisions:
        """Start nothing any more."""
        self.state = state
        left = [*self.waiting.clear(), *self.paused.values()]
        self.paused.clear()
        return tuple(self._leave(job) for job in sorted(left, key=lambda job: job.number))

    def _leave(self, job: Job) -> Settle:
        """A job does not get to run, or to be tried again."""
        return self._over(job, J.FAILED if job.attempts else J.NOT_RUN)

    def _over(self, job: Job, state: JobState) -> Settle:
        return self._settle(self._end_of(job, state))

    def _end_of(self, job: Job, state: JobState) -> Settle:
        return Settle(job.number, state, job.attempts, job.exit_code, job.why)

    def _settle(self, end: Settle) -> Settle:
        self._ends[end.state] += 1
        return end

    def _finish(self) -> Decisions:
        self.state = SweepState.FINISHED
        ends = self._ends
        told = sum(ends.values())
        unknown = 0 if self.total is None else max(0, self.total - told)
        summary = Summary(
            succeeded=ends[J.SUCCEEDED],
            failed=ends[J.FAILED],
            cancelled=ends[J.CANCELLED],
            not_run=ends[J.NOT_RUN] + unknown,
        )
        return (FinishSweep(summary, summary.exit_code(self.signum), self.signum),)


# mypy cannot know that an action gets the fact it stands for in the table.
Action = Callable[[Any, Any], Decisions]

# While nothing more is started. A job that cannot run has failed even so.
_ENDING: dict[type, Action] = {
    JobComposed: Scheduler.composed_too_late,
    JobBroken: Scheduler.broken,
    NoMoreJobs: Scheduler.no_more,
    LeaseRefused: Scheduler.refused_too_late,
    JobNotStarted: Scheduler.not_started_too_late,
    Blocked: Scheduler.ignore,
    Unblocked: Scheduler.ignore,
    Abandoned: Scheduler.ignore,
    SlotsFreed: Scheduler.ignore,
    # Its moment was set before.
    RetryDue: Scheduler.ignore,
}

# What is done for every fact in every state.
TRANSITIONS: dict[SweepState, dict[type, Action]] = {
    SweepState.NEW: {
        BeginSweep: Scheduler.begin,
        SweepSignalled: Scheduler.cancel,
    },
    SweepState.PACKING: {
        JobComposed: Scheduler.composed,
        JobBroken: Scheduler.broken,
        NoMoreJobs: Scheduler.no_more,
        LeaseRefused: Scheduler.refused,
        SlotsFreed: Scheduler.freed,
        JobEnded: Scheduler.ended,
        RetryDue: Scheduler.retry,
        Blocked: Scheduler.block,
        Abandoned: Scheduler.abandon,
        SweepSignalled: Scheduler.cancel,
    },
    # As above, but nothing follows that would start something (`Scheduler._go_on`).
    SweepState.BLOCKED: {
        JobComposed: Scheduler.composed,
        JobBroken: Scheduler.broken,
        NoMoreJobs: Scheduler.no_more,
        LeaseRefused: Scheduler.refused,
        JobNotStarted: Scheduler.not_started,
        SlotsFreed: Scheduler.freed,
        JobEnded: Scheduler.ended,
        RetryDue: Scheduler.retry,
        Unblocked: Scheduler.unblock,
        Abandoned: Scheduler.abandon,
        SweepSignalled: Scheduler.cancel,
    },
    SweepState.DRAINING: {
        **_ENDING,
        JobEnded: Scheduler.ended_while_draining,
        SweepSignalled: Scheduler.cancel,
    },
    SweepState.CANCELLING: {
        **_ENDING,
        JobBroken: Scheduler.broken_while_cancelled,
        JobEnded: Scheduler.ended_while_cancelled,
        SweepSignalled: Scheduler.kill,
    },
    SweepState.KILLING: {
        **_ENDING,
        JobBroken: Scheduler.broken_while_cancelled,
        JobEnded: Scheduler.ended_while_cancelled,
        SweepSignalled: Scheduler.kill,
    },
    # Terminal: after the decision to finish every fact is late news.
    SweepState.FINISHED: {},
}

_OF_COMPOSING: frozenset[type] = frozenset({JobComposed, JobBroken, NoMoreJobs})
_OF_JOBS: frozenset[type] = frozenset({LeaseRefused, SlotsFreed, JobNotStarted, JobEnded, RetryDue})
_OF_BLOCKS: frozenset[type] = frozenset({Blocked, Unblocked, Abandoned})

# The rest, and why it cannot come.
IMPOSSIBLE: dict[SweepState, frozenset[type]] = {
    # Nothing was asked for or started.
    SweepState.NEW: _OF_COMPOSING | _OF_JOBS | _OF_BLOCKS,
    # A sweep begins once. What was not started for a failure would be started again at once.
    SweepState.PACKING: frozenset({BeginSweep, JobNotStarted, Unblocked}),
    # It is blocked once, whatever else fails.
    SweepState.BLOCKED: frozenset({BeginSweep, Blocked}),
    SweepState.DRAINING: frozenset({BeginSweep}),
    SweepState.CANCELLING: frozenset({BeginSweep}),
    SweepState.KILLING: frozenset({BeginSweep}),
    SweepState.FINISHED: frozenset(),
}
