"""Which job of a sweep runs when, and on what: events in, actions out.

Pure: nothing here starts, waits or asks for the time. `Scheduler.handle` takes an event and returns
the actions that follow; the launcher performs them and feeds back what happens. `TABLE`, at the
end, says for a state and an event the next state and what is done. What is not in it cannot come.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from lllaunch.exit_codes import ExitCode
from lllaunch.spec import RestartCause
from lllaunch.sweep.policy import Retries, Summary, SweepPolicy, by_signal
from lllaunch.sweep.pool import Lease, Need, Pool, fits, never_fits, without


class SweepState(str, Enum):
    """State of a sweep."""

    NEW = "new"  # nothing has begun
    PACKING = "packing"  # jobs are composed and started as slots come free
    # the journal cannot be written, or no process can be made; nothing is started until that works
    # again, what runs goes on
    BLOCKED = "blocked"
    # enough jobs have failed, or what blocks will not pass; nothing is started any more, what runs
    # goes on to its end
    DRAINING = "draining"
    CANCELLING = "cancelling"  # a signal came; nothing is started, what runs was told to end
    KILLING = "killing"  # another signal came; what runs is being killed
    FINISHED = "finished"  # all jobs have ended; terminal


class JobState(str, Enum):
    """State of a job of a sweep."""

    WAITING = "waiting"  # it is composed and waits for slots
    RUNNING = "running"  # it holds a lease
    PAUSED = "paused"  # it failed, and waits for the moment of its next attempt
    SUCCEEDED = "succeeded"  # its last attempt ended with exit code 0; final, as are all below
    FAILED = "failed"  # it failed and is not tried again, or it could not be composed
    CANCELLED = "cancelled"  # a signal to the launcher ended it
    NOT_RUN = "not_run"  # it was never started
    SKIPPED = "skipped"  # it had succeeded in an earlier sweep that this one resumes


# Events


@dataclass(frozen=True)
class BeginSweep:
    """The launcher was asked to sweep."""

    # number of jobs if that is known beforehand, so that those that are never composed can be
    # counted; else None
    total: int | None = None


@dataclass(frozen=True)
class JobComposed:
    """The next job is composed, and its config is good. Answers `ComposeNext`."""

    number: int
    need: Need
    # for those who look on: its overrides, redacted, and where its result.json will be
    overrides: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True)
class JobBroken:
    """The next job could not be composed, or its config is wrong. Answers `ComposeNext`."""

    number: int
    # what a run of this config alone would end with, 1 or 2; 128+N if signal N ended the process
    # that composed it
    exit_code: int
    why: str = ""
    overrides: tuple[str, ...] = ()  # as those of `JobComposed`
    directory: str = ""


@dataclass(frozen=True)
class NoMoreJobs:
    """All jobs have been composed. Answers `ComposeNext`."""


@dataclass(frozen=True)
class LeaseRefused:
    """A job was not started, since other launchers hold slots of its lease."""

    number: int
    # the slots of its lease that others hold; at least one of both kinds together
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class SlotsFreed:
    """Other launchers no longer hold slots that `LeaseRefused` named."""

    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class JobNotStarted:
    """A job was not started, since something failed; `Blocked` came before."""

    number: int


@dataclass(frozen=True)
class JobDropped:
    """A job that was started is gone from a queue: somebody has cancelled it before it ran."""

    number: int
    exit_code: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Blocked:
    """The journal cannot be written, or no process can be made: no job can be started."""

    why: str = ""


@dataclass(frozen=True)
class Unblocked:
    """What `Blocked` told of works again."""


@dataclass(frozen=True)
class Abandoned:
    """No job can be started any more: what failed will not work again."""


@dataclass(frozen=True)
class JobEnded:
    """The process of a running job has ended, or could not be made. Its slots are free."""

    number: int
    exit_code: int  # its exit code; 128+N if signal N ended the process
    # what it failed of, see `lllaunch.sweep.policy.cause_of`; None if it succeeded, or if another
    # attempt would be in vain
    cause: RestartCause | None = None
    why: str = ""
    # how long it took, where that is not what the observer sees; else None
    seconds: float | None = None
    # what it returned, if it succeeded and that is a number; else None
    objective: float | None = None
    # whether somebody has cancelled it, where that is not a signal to the launcher
    cancelled: bool = False


@dataclass(frozen=True)
class RetryDue:
    """The moment that a `Retry` named has come."""

    number: int


@dataclass(frozen=True)
class SweepSignalled:
    """A signal to the launcher."""

    signum: int


SweepEvent = (
    BeginSweep
    | JobComposed
    | JobBroken
    | NoMoreJobs
    | LeaseRefused
    | SlotsFreed
    | JobNotStarted
    | JobDropped
    | Blocked
    | Unblocked
    | Abandoned
    | JobEnded
    | RetryDue
    | SweepSignalled
)


# Actions


@dataclass(frozen=True)
class ComposeNext:
    """Compose one more job. Exactly one event answers; until then no other is asked for."""


@dataclass(frozen=True)
class StartJob:
    """Lock the slots of a lease and start a job; else `LeaseRefused` follows."""

    number: int
    lease: Lease
    attempt: int = 0  # number of the job's attempt in this sweep, from 0


@dataclass(frozen=True)
class Retry:
    """An attempt of a job failed, and the job is tried again."""

    number: int
    attempt: int
    cause: RestartCause
    # when it may start again, on the clock of `handle`'s ``now``, seconds; `RetryDue` follows then.
    # None if it waits for slots at once, before all others
    at: float | None = None


@dataclass(frozen=True)
class Settle:
    """What became of a job, for good. Comes exactly once for each job that was told of."""

    number: int
    state: JobState
    attempts: int = 0
    exit_code: int | None = None
    why: str = ""


@dataclass(frozen=True)
class SignalJobs:
    """Send a signal to all running jobs. Each then gives its workers their grace period."""

    signum: int


@dataclass(frozen=True)
class KillJobs:
    """SIGKILL all running jobs and what they started."""


@dataclass(frozen=True)
class FinishSweep:
    """The sweep is over."""

    summary: Summary
    exit_code: int
    signum: int | None = None


SweepAction = ComposeNext | StartJob | Retry | Settle | SignalJobs | KillJobs | FinishSweep
SweepActions = tuple[SweepAction, ...]


_NOTHING = Lease()


class Job:
    """A job that is not over."""

    __slots__ = ("_left", "attempts", "exit_code", "lease", "need", "number", "overtaken", "why")

    def __init__(self, number: int, need: Need, retries: Retries) -> None:
        self.number = number
        self.need = need
        self.attempts = 0
        self.lease = _NOTHING
        self.exit_code: int | None = None
        self.why = ""
        # how many jobs behind it started while it waited for its first or next attempt
        self.overtaken = 0
        self._left = retries._asdict()

    def take_chance(self, cause: RestartCause | None) -> bool:
        """Whether it is tried again for a cause; that leaves one chance less."""
        if cause is None or self._left.get(cause, 0) <= 0:
            return False
        self._left[cause] -= 1
        return True

    def rank(self) -> tuple[bool, int]:
        """Its place in the order: the smaller, the sooner."""
        return (self.attempts == 0, self.number)


class Waiting:
    """The jobs that wait, in order.

    ``patience``: how many jobs may overtake one before slots are kept for it.
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

        ``ours``: the slots that no other launcher holds.
        """
        for job in self._jobs:
            if job.overtaken >= self._patience and fits(job.need, ours):
                return job
        return None

    def room(self, free: Need, ours: Need) -> Need:
        """Returns the free slots that are not kept for anybody.

        ``ours``: slots that no other launcher holds.
        """
        first = self.starving(ours)
        return free if first is None else without(free, first.need)

    def take(self, free: Need, ours: Need) -> Job | None:
        """Returns the next job to start, which waits no longer; None if none fits."""
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


class EnoughFailed:
    """Of an event within: with it as many jobs have failed as the policy allows."""


class NothingLeft:
    """Of an event within: with it no job runs, waits or is to come."""


class ImpossibleSweepEvent(Exception):
    """An event came when it cannot come: an error in the launcher."""


class Scheduler:
    """A sweep from its first job to its end."""

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

    def handle(self, event: SweepEvent, now: float) -> SweepActions:
        """Take note of an event; the actions that follow, in order.

        Raises:
            ImpossibleSweepEvent: it cannot come in this state, or of this job.
        """
        if self.state is SweepState.FINISHED:
            # Late news: a job that was being composed, another signal.
            return ()
        transition = TABLE.get((self.state, type(event)))
        if transition is None:
            raise ImpossibleSweepEvent(f"{event} in state {self.state.value}")
        after, act = transition
        if act is not Scheduler.ignore:
            self._check(event)
        self.now, self.state = now, after
        return act(self, event)

    def _follow(self, kind: type[EnoughFailed | NothingLeft]) -> SweepActions:
        """Go on to what follows within an event."""
        self.state, act = TABLE[self.state, kind]
        return act(self, None)

    def _check(self, event: SweepEvent) -> None:
        """An event must be about what there is."""
        if isinstance(event, (JobComposed, JobBroken, NoMoreJobs)) and not self.composing:
            raise ImpossibleSweepEvent(f"{event}, which was not asked for")
        if isinstance(event, (JobComposed, JobBroken)):
            if any(event.number in jobs for jobs in (self.running, self.paused, self.waiting)):
                raise ImpossibleSweepEvent(
                    f"{event} is about another job than the one of that number"
                )
        elif isinstance(event, (JobEnded, LeaseRefused, JobNotStarted, JobDropped)):
            if event.number not in self.running:
                raise ImpossibleSweepEvent(f"{event}, which does not run")
        elif isinstance(event, RetryDue) and event.number not in self.paused:
            raise ImpossibleSweepEvent(f"{event}, which is not to be tried again")
        if isinstance(event, LeaseRefused):
            lease = self.running[event.number].lease
            inside = {*event.gpus} <= {*lease.gpus} and {*event.cpus} <= {*lease.cpus}
            # Without a slot that is out of the pool the job would start again at once, for ever.
            if not inside or not (event.gpus or event.cpus):
                raise ImpossibleSweepEvent(f"{event} does not name slots of {lease}")

    def begin(self, event: BeginSweep) -> SweepActions:
        """Ask for the first job."""
        self.total = event.total
        return self._go_on()

    def composed(self, event: JobComposed) -> SweepActions:
        """A job waits, unless it can never run."""
        self.composing = False
        why = never_fits(event.need, self.pool.size)
        if why:
            code = int(ExitCode.CONFIG)
            return self._failed(Settle(event.number, J.FAILED, exit_code=code, why=why))
        if not any(fits(small, event.need) for small in self._smallest):
            larger = [need for need in self._smallest if not fits(event.need, need)]
            self._smallest = [*larger, event.need]
        self.waiting.add(Job(event.number, event.need, self.policy.retries))
        return self._go_on()

    def composed_too_late(self, event: JobComposed) -> SweepActions:
        """Nothing is started any more."""
        self.composing = False
        return (self._settle(Settle(event.number, J.NOT_RUN)),)

    def broken(self, event: JobBroken) -> SweepActions:
        """A job that cannot run has failed."""
        self.composing = False
        end = Settle(event.number, J.FAILED, exit_code=event.exit_code, why=event.why)
        return self._failed(end)

    def broken_while_cancelled(self, event: JobBroken) -> SweepActions:
        """A job that cannot run has failed; one whose process got the signal, too, has not run."""
        if not by_signal(event.exit_code):
            return self.broken(event)
        self.composing = False
        return (self._settle(Settle(event.number, J.NOT_RUN)),)

    def no_more(self, _: SweepEvent) -> SweepActions:
        """What waits and runs is all that is left."""
        self.composing, self.exhausted = False, True
        return self._go_on()

    def put_back(self, event: LeaseRefused | JobNotStarted) -> SweepActions:
        """A job did not start after all: it waits again, for other slots or until that works."""
        self.waiting.add(self._take_back(event))
        return self._go_on()

    def put_back_too_late(self, event: LeaseRefused | JobNotStarted) -> SweepActions:
        """A job did not start, and does not any more."""
        return (self._leave(self._take_back(event)), *self._go_on())

    def dropped(self, event: JobDropped) -> SweepActions:
        """A job has left a queue without a start."""
        job = self._take_back(event)
        job.exit_code, job.why = event.exit_code, event.why
        return (self._over(job, J.NOT_RUN), *self._go_on())

    def unblock(self, _: Unblocked) -> SweepActions:
        """Jobs are started again."""
        return self._go_on()

    def abandon(self, _: Abandoned) -> SweepActions:
        """Nothing is started any more; what runs goes on."""
        return (*self.halt(None), *self._go_on())

    def freed(self, event: SlotsFreed) -> SweepActions:
        """Slots can be tried again."""
        self.pool.regain(Lease(event.gpus, event.cpus))
        return self._go_on()

    def ended(self, event: JobEnded) -> SweepActions:
        """A job ended: it succeeded, is tried again, or failed."""
        job = self._end(event)
        if event.exit_code == 0:
            return (self._over(job, J.SUCCEEDED), *self._go_on())
        if event.cancelled:
            return (self._over(job, J.CANCELLED), *self._go_on())
        if event.cause is None or not job.take_chance(event.cause):
            return self._failed(self._end_of(job, J.FAILED))
        at = None
        if self.policy.retry_delay > 0:
            at = self.now + self.policy.retry_delay
            self.paused[job.number] = job
        else:
            self.waiting.add(job)
        return (Retry(job.number, job.attempts, event.cause, at), *self._go_on())

    def ended_while_draining(self, event: JobEnded) -> SweepActions:
        """A job ended, and is not tried again."""
        job = self._end(event)
        failed = J.CANCELLED if event.cancelled else J.FAILED
        state = failed if event.exit_code else J.SUCCEEDED
        return (self._over(job, state), *self._go_on())

    def ended_while_cancelled(self, event: JobEnded) -> SweepActions:
        """A job ended after a signal, by that signal or as it would have anyway."""
        if not by_signal(event.exit_code):
            return self.ended_while_draining(event)
        return (self._over(self._end(event), J.CANCELLED), *self._go_on())

    def retry(self, event: RetryDue) -> SweepActions:
        """A job that failed waits for slots again."""
        self.waiting.add(self.paused.pop(event.number))
        return self._go_on()

    def cancel(self, event: SweepSignalled) -> SweepActions:
        """The first signal: nothing more is started, and what runs is told to end."""
        self.signum = event.signum
        told = (SignalJobs(event.signum),) if self.running else ()
        return (*told, *self.halt(None), *self._go_on())

    def kill(self, _: SweepSignalled) -> SweepActions:
        """Another signal: what runs is killed."""
        return (KillJobs(),)

    def ignore(self, _: object) -> SweepActions:
        """Nothing follows."""
        return ()

    def _go_on(self) -> SweepActions:
        """Start what fits, compose what may fit next; or finish, if nothing is left."""
        if self.state not in _GOING_ON:
            return () if self.running else self._follow(NothingLeft)
        if self.exhausted and not (self.running or self.waiting or self.paused):
            return self._follow(NothingLeft)
        if self.state is SweepState.BLOCKED:
            return ()
        starts = self._fill()
        # First, since composing goes on beside the starting.
        return (*self._look_ahead(), *starts)

    def _fill(self) -> SweepActions:
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

    def _look_ahead(self) -> SweepActions:
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

    def _take_back(self, event: LeaseRefused | JobNotStarted | JobDropped | JobEnded) -> Job:
        job = self.running.pop(event.number)
        if isinstance(event, LeaseRefused):
            self.pool.give(job.lease, Lease(event.gpus, event.cpus))
        else:
            self.pool.give(job.lease)
        return job

    def _end(self, event: JobEnded) -> Job:
        job = self._take_back(event)
        job.attempts += 1
        job.exit_code, job.why = event.exit_code, event.why
        job.overtaken = 0
        return job

    def _failed(self, end: Settle) -> SweepActions:
        """A job failed for good; perhaps it was one too many."""
        settled = self._settle(end)
        limit = self.policy.max_failures
        halted: SweepActions = ()
        going_on = self.state in _GOING_ON
        if going_on and limit is not None and self._ends[J.FAILED] >= limit:
            halted = self._follow(EnoughFailed)
        return (settled, *halted, *self._go_on())

    def halt(self, _: object) -> SweepActions:
        """Start nothing any more."""
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

    def finish(self, _: object) -> SweepActions:
        """All is over."""
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


# mypy cannot know that a method gets the event that it stands for in the table.
_Method = Callable[[Any, Any], SweepActions]

_S = SweepState
_ENDING = (_S.DRAINING, _S.CANCELLING, _S.KILLING)
_STOPPED = (_S.CANCELLING, _S.KILLING)
_BEGUN = (_S.PACKING, _S.BLOCKED, *_ENDING)
_OPEN = (_S.PACKING, _S.BLOCKED)

_Row = tuple["tuple[SweepState, ...]", tuple[type, ...], "SweepState | None", _Method]
# In which states, at which events; the next state (None: the same), and what is done.
# fmt: off
_ROWS: tuple[_Row, ...] = (
    ((_S.NEW,), (BeginSweep,), _S.PACKING, Scheduler.begin),
    # Answers to the request to compose. A job that cannot run has failed also while all ends.
    (_OPEN, (JobComposed,), None, Scheduler.composed),
    (_ENDING, (JobComposed,), None, Scheduler.composed_too_late),
    ((*_OPEN, _S.DRAINING), (JobBroken,), None, Scheduler.broken),
    (_STOPPED, (JobBroken,), None, Scheduler.broken_while_cancelled),
    (_BEGUN, (NoMoreJobs,), None, Scheduler.no_more),
    # Jobs that do not start. One that a failure kept from it would start again at once.
    (_OPEN, (LeaseRefused,), None, Scheduler.put_back),
    ((_S.BLOCKED,), (JobNotStarted,), None, Scheduler.put_back),
    (_ENDING, (LeaseRefused, JobNotStarted), None, Scheduler.put_back_too_late),
    (_BEGUN, (JobDropped,), None, Scheduler.dropped),
    # What may be started then: nothing of it is while the sweep is blocked (`Scheduler._go_on`).
    (_OPEN, (SlotsFreed,), None, Scheduler.freed),
    (_OPEN, (RetryDue,), None, Scheduler.retry),
    (_ENDING, (SlotsFreed, RetryDue), None, Scheduler.ignore),
    # Jobs end.
    (_OPEN, (JobEnded,), None, Scheduler.ended),
    ((_S.DRAINING,), (JobEnded,), None, Scheduler.ended_while_draining),
    (_STOPPED, (JobEnded,), None, Scheduler.ended_while_cancelled),
    # Something fails that every start needs. It is told of once, whatever else fails.
    ((_S.PACKING,), (Blocked,), _S.BLOCKED, Scheduler.ignore),
    ((_S.BLOCKED,), (Unblocked,), _S.PACKING, Scheduler.unblock),
    (_OPEN, (Abandoned,), _S.DRAINING, Scheduler.abandon),
    (_ENDING, (Blocked, Unblocked, Abandoned), None, Scheduler.ignore),
    # Signals.
    ((_S.NEW, *_OPEN, _S.DRAINING), (SweepSignalled,), _S.CANCELLING, Scheduler.cancel),
    (_STOPPED, (SweepSignalled,), _S.KILLING, Scheduler.kill),
    # What follows within an event.
    (_OPEN, (EnoughFailed,), _S.DRAINING, Scheduler.halt),
    (_BEGUN, (NothingLeft,), _S.FINISHED, Scheduler.finish),
)
# fmt: on

# The scheduler as a machine: state and event; the next state and what is done.
TABLE: dict[tuple[SweepState, type], tuple[SweepState, _Method]] = {
    (state, event): (after or state, act)
    for states, events, after, act in _ROWS
    for state in states
    for event in events
}


# How long it will take

# Of the time that a job takes.
_PRECISION = 1 / 64


class Durations(NamedTuple):
    """The number of some attempts, and how long they took together, seconds."""

    number: int = 0
    seconds: float = 0.0

    def with_one(self, seconds: float) -> Durations:
        """Return the same and another one."""
        return Durations(self.number + 1, self.seconds + seconds)


def expected_left(
    running: Sequence[tuple[float, float | None]],
    waiting: int,
    succeeded: Durations,
    ended: Durations,
) -> float | None:
    """Return how long a sweep will take until all its jobs are over, seconds; None if unknown.

    A job that reports its progress takes as long as it says. The others take as long as those that
    succeeded and those that report it. As many run side by side as now.

    ``running``: for each running job, how long it has run, and how long it says it will go on;
    seconds, None if it does not say. ``waiting``: how many jobs wait. ``succeeded``: how long jobs
    took that succeeded. ``ended``: how long all ended jobs took; used while nothing better is
    known.
    """
    # those that will succeed, as far as anybody knows
    thought = [ran + left for ran, left in running if left is not None]
    known = succeeded if succeeded.number or thought else ended
    count = known.number + len(thought)
    if not running or not count:
        return None
    each = (known.seconds + sum(thought)) / count
    ends = [max(0.0, each - ran) if left is None else left for ran, left in running]
    last = max(ends)
    if not waiting or each <= 0:
        return last

    def begun_by(moment: float) -> int:
        # a waiting job takes the place of the one that ends next
        return sum(int((moment - end) / each) for end in ends if end < moment)

    # no sooner than if jobs could be cut in pieces, and at most one job later
    low = max(last, (sum(ends) + waiting * each) / len(ends)) - each
    high = low + 2 * each
    while high - low > each * _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if begun_by(middle) >= waiting else (middle, high)
    return max(last, high)
