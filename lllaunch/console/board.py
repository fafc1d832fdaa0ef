"""What is known of a sweep while it runs, and the table that shows it. Pure.

Only jobs that wait, run or ended of late are kept: a sweep of many jobs takes no more memory than
one of few.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import lllaunch.sweep.schedule as v
from lllaunch.console.slots import OTHER, slots_row
from lllaunch.console.status import passed
from lllaunch.console.table import (
    GAP,
    Row,
    Table,
    cells,
    counts_text,
    cut,
    decoded,
    extremes_text,
    objective_text,
    short_extremes,
    short_overrides,
)
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.sweep.policy import Summary, SweepPolicy
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import JobAnswered, JobPrinted, JobProgressed
from lllaunch.sweep.schedule import JobState
from lllaunch.text import duration, plain, spans
from lllaunch.words import StyledText, cause_line, short_step

if TYPE_CHECKING:
    from lllaunch.spec import RestartCause


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
        progress: how far it is, or None.
        progressed: when it said so, seconds.
        why: the first failure of its last attempt in one line, or why it cannot run.
        exit_code: of its last attempt, None if there is none.
        objective: what it returned, if that is a number; else None.
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
        "objective",
        "overrides",
        "progress",
        "progressed",
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
        self.progress: JobProgressed | None = None
        self.progressed = 0.0
        self.exit_code: int | None = None
        self.objective: float | None = None
        self.held = False
        self.retried: Counter[str] = Counter()

    def left(self, now: float) -> float | None:
        """Return how long it will run on, seconds, as it says itself; None if it does not."""
        if self.progress is None or self.progress.eta is None:
            return None
        return max(0.0, self.progress.eta - (now - self.progressed))


class Began(NamedTuple):
    """A job runs."""

    number: int
    overrides: str
    attempt: int
    lease: Lease


class JobOver(NamedTuple):
    """What became of a job is known.

    Attributes:
        number: of the job.
        state: a final one.
        attempts: how many there were in this sweep; 0 if it was not started.
        seconds: how long the last one took.
        exit_code: of it, or what the job broke with.
        why: the first failure in one line, or why the job cannot run, perhaps in several.
        directory: where its files are, as `lllaunch.sweep.protocol.Prepared` has it.
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


class JobRetried(NamedTuple):
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
        again: whether it is the second, which kills them.
    """

    signum: int
    running: int
    again: bool


class Draining(NamedTuple):
    """As many jobs have failed as may: no more are started.

    Attributes:
        failed: how many.
        running: how many run on.
    """

    failed: int
    running: int


class StartsBlocked(NamedTuple):
    """No job can be started for now.

    Attributes:
        why: what failed.
    """

    why: str


class StartsUnblocked(NamedTuple):
    """Jobs can be started again."""


Change = (
    Began | JobOver | JobRetried | Held | Signalled | Draining | StartsBlocked | StartsUnblocked
)


class Durations(NamedTuple):
    """How long some attempts took.

    Attributes:
        number: how many they are.
        seconds: how long they took together.
    """

    number: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.number > 0

    def with_one(self, seconds: float) -> Durations:
        """Return the same and another one."""
        return Durations(self.number + 1, self.seconds + seconds)


# Of the time that a job takes.
_PRECISION = 1 / 64


def expected_left(
    running: Sequence[tuple[float, float | None]],
    waiting: int,
    succeeded: Durations,
    ended: Durations,
) -> float | None:
    """Return how long a sweep will take about until all its jobs are over, seconds.

    Jobs that say how far they are take as long as they think, the others as long as those that have
    succeeded and those that say it; as many run side by side as now.

    Args:
        running: of each job that runs, for how long it has, and how long it says that it will;
            seconds, None if it does not say.
        waiting: how many jobs wait.
        succeeded: how long jobs took that did.
        ended: what counts as long as nothing better is known: how long others took, too.

    Returns:
        None before that can be told.
    """
    # those that will succeed, as far as anybody knows
    thought = [ran + left for ran, left in running if left is not None]
    known = succeeded or (ended if not thought else Durations())
    count = known.number + len(thought)
    if not running or not count:
        return None
    each = (known.seconds + sum(thought)) / count
    ends = [max(0.0, each - ran) if left is None else left for ran, left in running]
    return time_left(ends, waiting, each)


def time_left(ends: Sequence[float], waiting: int, each: float) -> float:
    """Return how long it takes until all jobs have ended, seconds.

    Args:
        ends: in how many seconds those that run will end, at least one. A waiting job takes the
            place of the one that ends next.
        waiting: how many jobs wait.
        each: how long one of them takes, seconds.
    """
    last = max(ends)
    if not waiting or each <= 0:
        return last

    def run_until(moment: float) -> int:
        return sum(int((moment - end) / each) for end in ends if end < moment)

    # no sooner than if jobs could be cut in pieces, and at most one job later
    low = max(last, (sum(ends) + waiting * each) / len(ends)) - each
    high = low + 2 * each
    while high - low > each * _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if run_until(middle) >= waiting else (middle, high)
    return max(last, high)


# More than fit a terminal.
_RECENT = 100
_LONGEST_LINE = 500

J = v.JobState


class Board:
    """A sweep as it stands.

    Args:
        total: number of jobs.
        overrides: gives those of a job, redacted.
        common: those that all jobs share; they are not shown.
        policy: of the sweep, if it is known.
        now: the time, seconds.
        resumed: how many jobs had succeeded before.
        slots: all that jobs may lease; None if that is not known.
        objectives: takes note of those that jobs yield; made if None.

    Attributes:
        slots: all that jobs may lease.
        objectives: what the jobs have yielded so far.
        jobs: those that are composed and not over, by number.
        counts: how many are over, by state.
        failed: the last ones that failed, the latest last.
        succeeded: the same for those that did not.
        cancelled: numbers of the jobs that ran when a signal came, and were ended by it.
        ending: whether nothing is started any more.
        began: when the sweep began, seconds.
        held: slots that other launchers hold, as far as that was noticed.
    """

    def __init__(
        self,
        total: int = 0,
        overrides: Callable[[int], Sequence[str]] = lambda _: (),
        common: Collection[str] = (),
        policy: SweepPolicy | None = None,
        now: float = 0.0,
        resumed: int = 0,
        slots: Lease | None = None,
        objectives: Objectives | None = None,
    ) -> None:
        self.total = total
        self.slots = slots or Lease()
        self.objectives = Objectives() if objectives is None else objectives
        self.began = now
        self.jobs: dict[int, JobView] = {}
        self.counts: Counter[v.JobState] = Counter({J.SKIPPED: resumed} if resumed else {})
        self.failed: deque[JobView] = deque(maxlen=_RECENT)
        self.succeeded: deque[JobView] = deque(maxlen=_RECENT)
        self.cancelled: set[int] = set()
        self.held: set[str | int] = set()
        self.ending = False
        self._overrides, self._common = overrides, common
        self._policy = policy
        self._signals = 0
        # How many attempts have ended, and how long they took; the same of those that succeeded.
        self._all, self._good = Durations(), Durations()
        # Said to start, which other launchers may prevent yet.
        self._starting: dict[int, JobView] = {}

    def of_state(self, *states: v.JobState) -> list[JobView]:
        """The jobs of `jobs` in one of these states, by number."""
        found = (job for job in self.jobs.values() if job.state in states)
        return sorted(found, key=lambda job: job.number)

    @property
    def running(self) -> int:
        """How many jobs run."""
        return sum(job.state is J.RUNNING for job in self.jobs.values())

    @property
    def waiting(self) -> int:
        """How many jobs neither run nor are over."""
        return max(0, self.total - self.counts.total() - self.running)

    def take(self, event: object, now: float) -> list[Change]:
        """Takes note of what happened; what of it is worth a line.

        Args:
            event: an event or action of the scheduler, or what a job printed; others are ignored.
            now: the time, seconds.
        """
        found: list[Change] = []
        if self._starting and not isinstance(event, _TOO_EARLY):
            found += [_began(job) for job in self._starting.values()]
            self._starting.clear()
        action = _ACTIONS.get(type(event))
        if action is not None:
            found += action(self, event, now)
        return found

    def left(self, now: float) -> float | None:
        """Returns how long it will take about until all jobs are over, seconds.

        None before that can be told.
        """
        running = [
            (now - job.since, job.left(now)) for job in self.jobs.values() if job.state is J.RUNNING
        ]
        return expected_left(running, self.waiting, self._good, self._all)

    def summary(self) -> Summary | None:
        """What became of the jobs, now that the sweep is over; None if nothing was told."""
        if not self.counts:
            return None
        ends = self.counts
        return Summary(
            succeeded=ends[J.SUCCEEDED],
            failed=ends[J.FAILED],
            cancelled=ends[J.CANCELLED],
            not_run=ends[J.NOT_RUN] + self.waiting + self.running,
            skipped=ends[J.SKIPPED],
        )

    def _job(self, number: int, overrides: Sequence[str] = ()) -> JobView:
        job = self.jobs.get(number)
        if job is None:
            text = short_overrides(overrides or self._overrides(number), self._common)
            job = self.jobs[number] = JobView(number, text)
        return job

    def _answered(self, event: JobAnswered, _: float) -> Iterable[Change]:
        self._job(event.number, event.answer.overrides).directory = event.answer.directory
        return ()

    def _broken(self, event: v.JobBroken, _: float) -> Iterable[Change]:
        self._job(event.number).why = event.why
        return ()

    def _start(self, event: v.StartJob, now: float) -> Iterable[Change]:
        job = self._starting[event.number] = self._job(event.number)
        job.state, job.attempt, job.lease, job.since = J.RUNNING, event.attempt, event.lease, now
        job.tries = event.attempt + 1
        job.line = job.why = ""
        job.progress = job.objective = None
        self.held.difference_update(event.lease.gpus, event.lease.cpus)
        return ()

    def _refused(self, event: v.LeaseRefused, _: float) -> Iterable[Change]:
        job = self._job(event.number)
        self._starting.pop(event.number, None)
        job.state, job.lease, job.tries = J.WAITING, Lease(), job.attempt
        self.held.update(event.gpus, event.cpus)
        if job.held:
            return ()
        job.held = True
        return (Held(event.number, Lease(event.gpus, event.cpus)),)

    def _freed(self, event: v.SlotsFreed, _: float) -> Iterable[Change]:
        self.held.difference_update(event.gpus, event.cpus)
        return ()

    def _not_started(self, event: v.JobNotStarted, _: float) -> Iterable[Change]:
        job = self._job(event.number)
        self._starting.pop(event.number, None)
        job.state, job.lease, job.tries = J.WAITING, Lease(), job.attempt
        return ()

    def _printed(self, event: JobPrinted, _: float) -> Iterable[Change]:
        job = self.jobs.get(event.number)
        # Of a longer line nothing more is ever shown.
        text = plain(decoded(event.line)[:_LONGEST_LINE]).strip()
        if job is not None and text:
            job.line = text
        return ()

    def _progressed(self, event: JobProgressed, now: float) -> Iterable[Change]:
        job = self.jobs.get(event.number)
        if job is not None:
            job.progress, job.progressed = event, now
        return ()

    def _end(self, event: v.JobEnded, now: float) -> Iterable[Change]:
        job = self._job(event.number)
        job.seconds = now - job.since if event.seconds is None else event.seconds
        job.exit_code, job.why = event.exit_code, event.why
        self._all = self._all.with_one(job.seconds)
        if not event.exit_code:
            self._good = self._good.with_one(job.seconds)
        if event.objective is not None:
            job.objective = event.objective
            self.objectives.add(Objective(event.objective, job.number, job.overrides))
        return ()

    def _retry(self, event: v.Retry, now: float) -> Iterable[Change]:
        job = self._job(event.number)
        retries = self._policy.retries if self._policy else None
        job.retried[event.cause] += 1
        job.state = J.WAITING if event.at is None else J.PAUSED
        job.lease = Lease()
        again = JobRetried(
            number=job.number,
            attempt=job.attempt,
            cause=event.cause,
            seconds=job.seconds,
            exit_code=job.exit_code,
            why=job.why,
            retry=job.retried[event.cause],
            of=None if retries is None else retries.of(event.cause),
            wait=0.0 if event.at is None else max(0.0, event.at - now),
        )
        job.attempt = event.attempt
        return (again,)

    def _due(self, event: v.RetryDue, _: float) -> Iterable[Change]:
        job = self.jobs.get(event.number)
        if job is not None:
            job.state = J.WAITING
        return ()

    def _settle(self, end: v.Settle, _: float) -> Iterable[Change]:
        job = self.jobs.pop(end.number, None)
        self.counts[end.state] += 1
        if end.state is J.NOT_RUN:
            return ()
        if job is None:
            job = self._job(end.number)
            del self.jobs[end.number]
        job.state = end.state
        job.exit_code = end.exit_code if end.exit_code is not None else job.exit_code
        job.why = end.why or job.why
        if end.state is J.CANCELLED:
            self.cancelled.add(job.number)
        recent = self.succeeded if end.state is J.SUCCEEDED else self.failed
        recent.append(job)
        return (_over(job, end.attempts), *self._drains(end))

    def _drains(self, end: v.Settle) -> Iterable[Change]:
        limit = None if self._policy is None else self._policy.max_failures
        failed = self.counts[J.FAILED]
        if self.ending or end.state is not J.FAILED or limit is None or failed < limit:
            return ()
        self.ending = True
        left = self.total > self.counts.total()
        return (Draining(failed, self.running),) if left else ()

    def _blocked(self, event: v.Blocked, _: float) -> Iterable[Change]:
        return (StartsBlocked(event.why),)

    def _unblocked(self, _: v.Unblocked, __: float) -> Iterable[Change]:
        return (StartsUnblocked(),)

    def _signalled(self, event: v.SweepSignalled, _: float) -> Iterable[Change]:
        self.ending = True
        self._signals += 1
        if self._signals > 2:
            return ()
        return (Signalled(event.signum, self.running, self._signals == 2),)


def _began(job: JobView) -> Began:
    return Began(job.number, job.overrides, job.attempt, job.lease)


def _over(job: JobView, attempts: int) -> JobOver:
    return JobOver(
        number=job.number,
        state=job.state,
        attempts=attempts,
        seconds=job.seconds,
        exit_code=job.exit_code,
        why=job.why,
        directory=job.directory,
        overrides=job.overrides,
    )


# After these a `LeaseRefused` or `NotStarted` may come that takes a `StartJob` back.
_TOO_EARLY = (
    v.ComposeNext,
    v.StartJob,
    v.Retry,
    v.Settle,
    v.SignalJobs,
    v.KillJobs,
    v.LeaseRefused,
    v.JobNotStarted,
    v.Blocked,
    v.NoMoreJobs,
)

_ACTIONS: dict[type, Callable[[Board, Any, float], Iterable[Change]]] = {
    JobAnswered: Board._answered,
    v.JobBroken: Board._broken,
    v.StartJob: Board._start,
    v.LeaseRefused: Board._refused,
    v.SlotsFreed: Board._freed,
    v.JobNotStarted: Board._not_started,
    JobPrinted: Board._printed,
    JobProgressed: Board._progressed,
    v.JobEnded: Board._end,
    v.Blocked: Board._blocked,
    v.Unblocked: Board._unblocked,
    v.Retry: Board._retry,
    v.RetryDue: Board._due,
    v.Settle: Board._settle,
    v.SweepSignalled: Board._signalled,
}


# Columns of the terminal that are needed for a column of the table to be shown, and lines for what
# is told of the sweep as a whole.
_ROOM_FOR_MORE = 10
_ROOM_FOR_LEASES, _ROOM_FOR_LEASES_AGAIN = 60, 120
_ROOM_FOR_ATTEMPTS, _ROOM_FOR_LINES, _ROOM_FOR_STEPS, _ROOM_FOR_LEFT = 70, 56, 48, 60
_LONGEST_SLOT = 19  # columns of a GPU's name
_WIDEST = 18
_LEAST_LINE = 10
_LEAST_WIDTH = 10
_LEAST_OVERRIDES = 12

_STYLES = {
    JobState.RUNNING: "busy",
    JobState.SUCCEEDED: "good",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "bad",
}


def lease_text(lease: Lease) -> str:
    """Returns ``GPU 0,1, cores 0-3``; an empty string if nothing is leased."""
    return ", ".join(filter(None, (_gpus(lease.gpus), _cores(lease.cpus))))


def _gpus(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"GPU {','.join(cut(plain(name), _LONGEST_SLOT) for name in names)}"


def _cores(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{'core' if len(numbers) == 1 else 'cores'} {spans(numbers).replace(' ', '')}"


def table_rows(board: Board, columns: int, lines: int, now: float) -> list[Row]:
    """Returns the header and the jobs, each in less than ``columns`` columns.

    Running jobs come first, then those that failed last, those that are about to run, and those
    that succeeded last. Those fill half of the terminal at most, since what jobs print scrolls
    above.

    Args:
        board: the sweep.
        columns: of the terminal.
        lines: of the terminal; fewer are returned.
        now: the time, seconds.
    """
    width, room = columns - 1, lines - 3
    rows: list[Row] = [(StyledText(_header(board, now, width), "title"),)]
    if room < 1 or width < _LEAST_WIDTH:
        return rows[: max(0, lines - 1)]
    held: list[Row] = []
    if lines >= _ROOM_FOR_MORE:
        held = slots_rows(board, width)
        rows += [*_objectives(board, width), *held]
        room -= len(rows) - 1
    shown, rest = _chosen(board, room, lines // 2)
    if shown:
        # what each job holds is told again where there is much room
        on = width >= (_ROOM_FOR_LEASES_AGAIN if held else _ROOM_FOR_LEASES)
        rows += _columns(shown, width, now, on=on)
    if rest:
        rows.append((StyledText(cut(f"and {rest}", width), "faint"),))
    return rows


def _objectives(board: Board, width: int) -> list[Row]:
    objectives = extremes_text(board.objectives)
    if cells(objectives) > width:
        objectives = cut(short_extremes(board.objectives), width)
    return [(StyledText(objectives),)] if objectives else []


def slots_rows(board: Board, width: int) -> list[Row]:
    """Return rows that tell who holds which GPU, and which core where jobs lease cores.

    Args:
        board: the sweep.
        width: columns that a row may take.
    """
    running = board.of_state(JobState.RUNNING)
    gpus, cpus = board.slots.gpus, board.slots.cpus
    holders = {name: str(job.number) for job in running for name in job.lease.gpus}
    cores = {str(core): str(job.number) for job in running for core in job.lease.cpus}
    others = {str(slot): OTHER for slot in board.held}
    rows = [slots_row("GPU", gpus, {**others, **holders}, width)] if gpus else []
    if cpus and (cores or not gpus):
        rows.append(slots_row("core", [str(core) for core in cpus], {**others, **cores}, width))
    return [row for row in rows if row]


def heartbeat_text(board: Board, now: float) -> str:
    """Return how far a sweep is in one line, for where there is no table.

    ``10 min: 12/200 jobs done, 1 failed, 8 running, about 3 h left, best 0.0123 (job 4)``
    """
    parts = [part.text for part in _parts(board, now, "jobs done") if part.weight]
    best = short_extremes(board.objectives)
    return _since_began(board, now, [*parts, *filter(None, [best])])


class _Part(NamedTuple):
    """A part of the header; of those that have no room the one with the least weight goes first."""

    weight: int
    text: str


def _header(board: Board, now: float, width: int) -> str:
    parts = _parts(board, now, "done")
    while True:
        text = _since_began(board, now, [part.text for part in parts])
        if cells(text) <= width or len(parts) == 1:
            return cut(text, width)
        parts.remove(min(parts))


def _since_began(board: Board, now: float, parts: Sequence[str]) -> str:
    return f"{passed(now - board.began)}: {', '.join(parts)}"


def _parts(board: Board, now: float, what: str) -> list[_Part]:
    counts = board.counts
    done = counts[JobState.SUCCEEDED] + counts[JobState.SKIPPED]
    left = None if board.ending else board.left(now)
    ending = "no new jobs" if board.ending else ""
    if left:
        ending = f"about {passed(left)} left"
    return [
        _Part(9, f"{done}/{board.total} {what}"),
        *(
            _Part(weight, f"{number} {state}")
            for weight, number, state in (
                (7, counts[JobState.FAILED], "failed"),
                (3, counts[JobState.CANCELLED], "cancelled"),
                (2, board.running, "running"),
                (1, counts[JobState.NOT_RUN], "not run"),
                (0, board.waiting, "waiting"),
            )
            if number
        ),
        *([_Part(8, ending)] if ending else []),
    ]


def _chosen(board: Board, room: int, half: int) -> tuple[list[JobView], str]:
    """Returns the jobs that get a row, and what is said of the rest."""
    running = board.of_state(JobState.RUNNING)
    failed = list(reversed(board.failed))
    waiting = board.of_state(JobState.PAUSED, JobState.WAITING)
    order = [*running, *failed, *waiting, *reversed(board.succeeded)]
    size = min(room, max(len(running) + 1, half))
    shown = order[:size]
    rest = _rest(board, shown)
    if rest and len(shown) == size:
        # Its line takes room, too.
        shown = shown[: size - 1]
        rest = _rest(board, shown)
    return shown, rest


def _rest(board: Board, shown: Sequence[JobView]) -> str:
    states = [job.state for job in shown]
    ended = sum(board.counts[state] for state in (JobState.FAILED, JobState.CANCELLED))
    left = (
        (board.running - states.count(JobState.RUNNING), "more running"),
        (ended - states.count(JobState.FAILED) - states.count(JobState.CANCELLED), "more failed"),
        (
            board.waiting - states.count(JobState.WAITING) - states.count(JobState.PAUSED),
            "more waiting",
        ),
    )
    return counts_text(left)


def _columns(jobs: Sequence[JobView], width: int, now: float, *, on: bool) -> list[Row]:
    """Returns the titles and a row for each job."""
    table = Table()
    table.add("job", [str(job.number) for job in jobs], most=width, right=True)
    # They are no narrower than this where there is room: columns that move are hard to read.
    steady = width >= _ROOM_FOR_ATTEMPTS
    columns = [
        ("state", [_state(job) for job in jobs], 9 * steady, True),
        ("tries", [str(job.tries) for job in jobs], 0, steady),
        ("on", [_lease(job) for job in jobs], 0, on),
        ("time", [_time(job, now) for job in jobs], 8 * steady, True),
        ("step", [_step(job) for job in jobs], 0, width >= _ROOM_FOR_STEPS),
        ("left", [_left(job, now) for job in jobs], 0, width >= _ROOM_FOR_LEFT),
        ("objective", [_objective(job) for job in jobs], 0, steady),
    ]
    for title, texts, least, wanted in columns:
        if wanted:
            right, most = title not in {"state", "on"}, min(_WIDEST, width - table.width)
            table.add(title, texts, least=least, most=most, right=right)
    overrides = [job.overrides for job in jobs]
    lines = [_line(job) for job in jobs] if width >= _ROOM_FOR_LINES else []
    room = width - table.width
    if any(overrides):
        least = _LEAST_LINE + len(GAP) if any(lines) else 0
        natural = max(*map(cells, overrides), len("overrides"))
        share = max(_LEAST_OVERRIDES, 2 * room // 3, room - least - _longest(lines))
        table.add("overrides", overrides, most=min(natural, share, room), at=1)
    if width - table.width >= _LEAST_LINE:
        table.add("last line", lines, most=width - table.width)
    return table.rows([_STYLES.get(job.state, "") for job in jobs], "state")


def _longest(texts: Sequence[str]) -> int:
    return max(map(cells, texts), default=0)


def _state(job: JobView) -> str:
    return "retry" if job.state is JobState.PAUSED else job.state.value


def _lease(job: JobView) -> str:
    return lease_text(job.lease) if job.state is JobState.RUNNING else ""


def _time(job: JobView, now: float) -> str:
    if job.state is JobState.RUNNING:
        return passed(now - job.since)
    over = job.state not in {JobState.WAITING, JobState.PAUSED}
    return duration(job.seconds) if over and job.seconds else ""


def _step(job: JobView) -> str:
    if job.state is not JobState.RUNNING or job.progress is None:
        return ""
    return short_step(job.progress.step, job.progress.total)


def _left(job: JobView, now: float) -> str:
    left = job.left(now) if job.state is JobState.RUNNING else None
    return "" if left is None else passed(left)


def _objective(job: JobView) -> str:
    return "" if job.objective is None else objective_text(job.objective)


def _line(job: JobView) -> str:
    """Returns what a job printed last, or what it failed of."""
    return job.line if job.state is JobState.RUNNING else plain(cause_line(job.why)) or job.line
