"""Which job of a sweep runs when, and on what: events in, actions out.

Pure: nothing here starts, waits or asks for the time. `Scheduler.handle` takes an event and returns
the actions that follow; the launcher performs them and feeds back what happens.

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
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field

from lllaunch.documents import Record
from lllaunch.errors import Diagnostic, ExitCode, for_signal
from lllaunch.spec import RestartCause
from lllaunch.sweep.pool import Lease, Need, Pool, fits, never_fits, without

# What a sweep does about failures

# Exit codes above are 128 + the number of the signal that ended a job's process, or the job.
_OF_SIGNALS = 128
# Another try of these meets the same config, or the same plan; or has been made often enough.
_IN_VAIN = frozenset(map(int, (ExitCode.CONFIG, ExitCode.REFUSED, ExitCode.NO_PROGRESS)))
# What result.json names as a cause. The rest are failures.
_CAUSES: dict[str, RestartCause] = {
    "OutOfMemory": "oom",
    "OverMemory": "oom",
    "DeviceOutOfMemory": "oom",
    "KilledBySignal": "signal",
    # Nothing of the experiment's failed: somebody killed the spawner.
    "SpawnerLost": "signal",
    "TimerExpired": "hang",
    "Stalled": "hang",
    "Silent": "hang",
    "Spinning": "hang",
    "HeartbeatLost": "hang",
    "ProgressMissing": "hang",
    "Unchanged": "hang",
    "NotFinite": "hang",
    "GaveUp": "hang",
    "HungInKernel": "hang",
    "FoundElsewhere": "hang",
    "TimedOut": "timeout",
}


class Retries(NamedTuple):
    """How often a job is tried again, by cause; each cause has its own count."""

    failure: int = 0
    oom: int = 0
    hang: int = 1
    signal: int = 2
    timeout: int = 0

    def of(self, cause: RestartCause) -> int:
        """How often for a cause."""
        return int(getattr(self, cause))


class SweepPolicy(NamedTuple):
    """What holds for all jobs of a sweep."""

    # how many jobs may run at the same time, at least 1; None for as many as fit
    max_parallel: int | None = None
    # nothing more is started once so many jobs have failed for good: 1 is ``on_failure: stop``,
    # None is ``on_failure: continue``
    max_failures: int | None = None
    retries: Retries = Retries()
    retry_delay: float = 0.0  # seconds before it is tried again
    # how many jobs behind a waiting one may be started before slots are kept for it
    patience: int = 64


def by_signal(exit_code: int) -> bool:
    """Whether a signal ended a job's process, or the job through its launcher."""
    return exit_code > _OF_SIGNALS


def cause_of(exit_code: int, kind: str = "") -> RestartCause | None:
    """Returns what a job's end is to `Retries`; None if it is not worth another try.

    ``exit_code``: of the job's process; 128+N if signal N ended that process itself. ``kind``: what
    its result.json names as ``type`` of its limit or of its root cause; empty if there is none.
    """
    if exit_code == ExitCode.SUCCESS or exit_code in _IN_VAIN:
        return None
    if by_signal(exit_code):
        # Whatever had happened in it before.
        return "signal"
    if exit_code == ExitCode.WATCHDOG:
        return _CAUSES.get(kind, "hang")
    return _CAUSES.get(kind, "failure")


class SweepState(str, Enum):
    """State of a sweep."""

    PACKING = "packing"  # jobs are composed and started as slots come free
    # the journal cannot be written, or no process can be made; nothing is started until that works
    # again, what runs goes on
    BLOCKED = "blocked"
    # enough jobs have failed, or what blocks will not pass; nothing is started any more, what runs
    # goes on to its end
    DRAINING = "draining"
    CANCELLING = "cancelling"  # a signal came; nothing is started, what runs was told to end
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


class SweepEvent(Record, frozen=True):
    """What has happened to a sweep."""


class BeginSweep(SweepEvent, frozen=True):
    """The launcher was asked to sweep."""


class JobComposed(SweepEvent, frozen=True):
    """The next job is composed, and its config is good. Answers `ComposeNext`."""

    number: int
    need: Need = Need()
    overrides: tuple[str, ...] = ()  # redacted
    # where its result.json will be; relative to the sweep's directory or absolute
    directory: str = ""


class JobBroken(SweepEvent, frozen=True, tag="broken"):
    """The next job could not be composed, or its config is wrong. Answers `ComposeNext`."""

    BESIDE = frozenset({"problems"})

    number: int
    # what a run of this config alone would end with, 1 or 2; 128+N if signal N ended the process
    # that composed it
    exit_code: int
    why: str = ""
    overrides: tuple[str, ...] = ()  # as those of `JobComposed`
    directory: str = ""
    # what of that is known to stand in a file; it stays in the job's process
    problems: tuple[Diagnostic, ...] = ()


class SlotsFreed(SweepEvent, frozen=True):
    """Other launchers no longer hold slots that `JobNotStarted` named."""

    slots: Lease


class JobNotStarted(SweepEvent, frozen=True):
    """A job was not started: other launchers hold its slots, or something failed."""

    number: int
    # the slots of its lease that others hold; nothing if something failed, and `Blocked` has told
    held: Lease = Lease()


class JobDropped(SweepEvent, frozen=True):
    """A job that was started is gone from a queue: somebody has cancelled it before it ran."""

    number: int
    exit_code: int | None = None
    why: str = ""


class Blocked(SweepEvent, frozen=True):
    """The journal cannot be written, or no process can be made: no job can be started."""

    why: str = ""


class Unblocked(SweepEvent, frozen=True):
    """What `Blocked` told of works again."""


class Abandoned(SweepEvent, frozen=True):
    """No job can be started any more: what failed will not work again."""


class JobEnded(SweepEvent, frozen=True):
    """The process of a running job has ended, or could not be made. Its slots are free."""

    number: int
    exit_code: int  # its exit code; 128+N if signal N ended the process
    # what it failed of, see `cause_of`; None if it succeeded, or if another
    # attempt would be in vain
    cause: RestartCause | None = None
    why: str = ""
    # how long it took, where that is not what the observer sees; else None
    seconds: float | None = None
    # what it returned, if it succeeded and that is a number; else None
    objective: float | None = None
    # whether somebody has cancelled it, where that is not a signal to the launcher
    cancelled: bool = False


class RetryDue(SweepEvent, frozen=True):
    """The moment that a `Retry` named has come."""

    number: int


class SweepSignalled(SweepEvent, frozen=True):
    """A signal to the launcher."""

    signum: int


# Actions


class SweepAction(Record, frozen=True):
    """What is to be done for a sweep."""


class ComposeNext(SweepAction, frozen=True):
    """Compose one more job. Exactly one event answers; until then no other is asked for."""

    number: int


class StartJob(SweepAction, frozen=True):
    """Lock the slots of a lease and start a job; else `JobNotStarted` follows."""

    number: int
    lease: Lease
    attempt: int = 0  # number of the job's attempt in this sweep, from 0


class Retry(SweepAction, frozen=True):
    """An attempt of a job failed, and the job is tried again."""

    number: int
    attempt: int
    cause: RestartCause
    # when it may start again, on the clock of `handle`'s ``now``, seconds; `RetryDue` follows then.
    # None if it waits for slots at once, before all others
    at: float | None = None


class Settle(SweepAction, frozen=True):
    """What became of a job, for good. Comes exactly once for each job that was told of."""

    number: int
    state: JobState
    attempts: int = 0
    exit_code: int | None = None
    why: str = ""


class SignalJobs(SweepAction, frozen=True):
    """Send a signal to all running jobs; they end their workers, but for SIGKILL."""

    signum: int


class FinishSweep(SweepAction, frozen=True):
    """The sweep is over."""

    exit_code: int
    signum: int | None = None


SweepActions = tuple[SweepAction, ...]


class Job(Struct):
    """A job that is not over."""

    number: int
    need: Need = Need()
    attempts: int = 0
    lease: Lease = Lease()
    exit_code: int | None = None
    why: str = ""
    # how many jobs behind it started while it waited for its first or next attempt
    overtaken: int = 0
    retries: Counter[str] = field(default_factory=Counter)  # had so far, by cause

    def rank(self) -> tuple[bool, int]:
        """Its place in the order: the smaller, the sooner."""
        return (self.attempts == 0, self.number)


# So many jobs are composed ahead at least, and at most where slots are idle that may fit another.
_AHEAD, _FAR_AHEAD = 2, 64
_SIGKILL = 9

J = JobState
_STATES = {
    Blocked: SweepState.BLOCKED,
    Unblocked: SweepState.PACKING,
    Abandoned: SweepState.DRAINING,
}


class Scheduler:
    """A sweep from its first job to its end; ``numbers``: of all jobs, in order."""

    def __init__(
        self, slots: Lease, policy: SweepPolicy | None = None, numbers: Sequence[int] = ()
    ) -> None:
        self.state = SweepState.PACKING
        self.running: dict[int, Job] = {}
        self._policy = policy or SweepPolicy()
        self._pool = Pool(slots)
        self._waiting: list[Job] = []  # in order
        self._paused: dict[int, Job] = {}
        self._numbers = numbers
        self._asked = 0  # how many of them are composed, or being so
        self._composing = False
        self._signum: int | None = None
        self._ends: Counter[JobState] = Counter()
        # the least of each kind that a job has needed so far
        self._least = Need(len(slots.gpus) + 1, len(slots.cpus) + 1)
        self._actions: list[SweepAction] = []

    @property
    def going_on(self) -> bool:
        """Whether jobs are started, or will be."""
        return self.state in {SweepState.PACKING, SweepState.BLOCKED}

    def handle(self, event: SweepEvent, now: float) -> SweepActions:
        """Take note of an event; the actions that follow, in order."""
        if self.state is SweepState.FINISHED:
            # Late news: a job that was being composed, another signal.
            return ()
        self._actions = []
        match event:
            case JobComposed() | JobBroken():
                self._answered(event)
            case JobNotStarted(number, held):
                insort(self._waiting, self._take_back(number, held), key=Job.rank)
            case JobDropped(number, exit_code, why):
                job = self._take_back(number)
                job.exit_code, job.why = exit_code, why
                self._settle(job, J.NOT_RUN)
            case JobEnded():
                self._ended(event, now)
            case RetryDue(number):
                insort(self._waiting, self._paused.pop(number), key=Job.rank)
            case SlotsFreed(slots):
                self._pool.regain(slots)
            case Blocked() | Unblocked() | Abandoned() if self.going_on:
                self.state = _STATES[type(event)]
            case SweepSignalled(signum):
                first, self._signum = self._signum is None, self._signum or signum
                self.state = SweepState.CANCELLING
                if self.running:
                    self._actions.append(SignalJobs(signum if first else _SIGKILL))
        self._go_on()
        return tuple(self._actions)

    def _answered(self, event: JobComposed | JobBroken) -> None:
        """A job waits, unless it can never run."""
        self._composing = False
        job = Job(event.number)
        if isinstance(event, JobBroken):
            # or its process got the signal to the launcher, too
            signalled = self._signum is not None and by_signal(event.exit_code)
            if not signalled:
                job.exit_code, job.why = event.exit_code, event.why
            self._settle(job, J.NOT_RUN if signalled else J.FAILED)
        elif not self.going_on:
            self._settle(job, J.NOT_RUN)
        elif why := never_fits(event.need, self._pool.size):
            job.exit_code, job.why = int(ExitCode.CONFIG), why
            self._settle(job, J.FAILED)
        else:
            job.need = event.need
            least = self._least
            self._least = Need(min(least.gpus, job.need.gpus), min(least.cpus, job.need.cpus))
            insort(self._waiting, job, key=Job.rank)

    def _ended(self, event: JobEnded, now: float) -> None:
        """A job ended: it succeeded, is tried again, or failed."""
        job, cause = self._take_back(event.number), event.cause
        job.attempts += 1
        job.exit_code, job.why = event.exit_code, event.why
        job.overtaken = 0
        signalled = self._signum is not None and by_signal(event.exit_code)
        if event.exit_code == 0:
            self._settle(job, J.SUCCEEDED)
        elif event.cancelled or signalled:
            self._settle(job, J.CANCELLED)
        elif (
            not self.going_on
            or cause is None
            or job.retries[cause] >= self._policy.retries.of(cause)
        ):
            self._settle(job, J.FAILED)
        else:
            job.retries[cause] += 1
            at = None
            if self._policy.retry_delay > 0:
                at = now + self._policy.retry_delay
                self._paused[job.number] = job
            else:
                insort(self._waiting, job, key=Job.rank)
            self._actions.append(Retry(job.number, job.attempts, cause, at))

    def _take_back(self, number: int, held: Lease = Lease()) -> Job:  # noqa: B008 - frozen
        """A job no longer runs; ``held``: what other launchers hold of its lease."""
        job = self.running.pop(number)
        self._pool.give(job.lease, held)
        return job

    def _settle(self, job: Job, state: JobState) -> None:
        self._ends[state] += 1
        self._actions.append(Settle(job.number, state, job.attempts, job.exit_code, job.why))

    def _go_on(self) -> None:
        """Start what fits, compose what may fit next; or finish, if nothing is left."""
        limit = self._policy.max_failures
        if self.going_on and limit is not None and self._ends[J.FAILED] >= limit:
            self.state = SweepState.DRAINING
        if not self.going_on:
            left = [*self._waiting, *self._paused.values()]
            self._waiting, self._paused = [], {}
            for job in sorted(left, key=lambda job: job.number):
                self._settle(job, J.FAILED if job.attempts else J.NOT_RUN)
        to_come = self._composing or self._asked < len(self._numbers)
        if self.running or (self.going_on and (to_come or self._waiting or self._paused)):
            if self.state is SweepState.PACKING:
                starts = self._fill()
                # First, since composing goes on beside the starting.
                self._look_ahead()
                self._actions += starts
            return
        self.state = SweepState.FINISHED
        good = self._ends[J.SUCCEEDED] == len(self._numbers)
        code = int(ExitCode.SUCCESS if good else ExitCode.SWEEP)
        code = code if self._signum is None else for_signal(self._signum)
        self._actions.append(FinishSweep(code, self._signum))

    def _fill(self) -> list[StartJob]:
        starts = []
        while self._may_start() and (job := self._next()) is not None:
            job.lease = self._pool.take(job.need)
            self.running[job.number] = job
            starts.append(StartJob(job.number, job.lease, job.attempts))
        return starts

    def _next(self) -> Job | None:
        """Take the first waiting job that fits, which overtakes those before it."""
        starving = self._starving()
        room = self._room(starving)
        for place, job in enumerate(self._waiting):
            if fits(job.need, self._pool.free if job is starving else room):
                for other in self._waiting[:place]:
                    other.overtaken += 1
                return self._waiting.pop(place)
        return None

    def _starving(self) -> Job | None:
        """Return the job that slots are kept for, if there is one."""
        patience, ours = self._policy.patience, self._pool.ours
        starving = (
            job for job in self._waiting if job.overtaken >= patience and fits(job.need, ours)
        )
        return next(starving, None)

    def _room(self, starving: Job | None) -> Need:
        """Return the free slots that are not kept for a job."""
        return self._pool.free if starving is None else without(self._pool.free, starving.need)

    def _may_start(self) -> bool:
        limit = self._policy.max_parallel
        return limit is None or len(self.running) < limit

    def _look_ahead(self) -> None:
        if self._composing or self._asked == len(self._numbers):
            return
        ahead = len(self._waiting)
        if ahead >= max(_AHEAD, len(self.running)):
            # only where there is room for a job such as there has been before
            idle = self._may_start() and fits(self._least, self._room(self._starving()))
            if ahead >= _FAR_AHEAD or not idle:
                return
        self._composing = True
        self._actions.append(ComposeNext(self._numbers[self._asked]))
        self._asked += 1


# How long it will take


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
    ends = sorted(max(0.0, each - ran) if left is None else left for ran, left in running)
    if not waiting:
        return ends[-1]
    # the waiting jobs take the places of those that end, in turn
    rounds, place = divmod(waiting - 1, len(ends))
    return max(ends[-1] + rounds * each, ends[place] + (rounds + 1) * each)
