"""What is known of a sweep while it runs, and the table that shows it. Pure.

Only jobs that wait, run or ended of late are kept: a sweep of many jobs takes no more memory than
one of few.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import lllaunch.sweep.schedule as v
from lllaunch.console.table import (
    GAP,
    Row,
    Table,
    cells,
    counts_text,
    cut,
    decoded,
    short_overrides,
)
from lllaunch.console.wording import StyledText, cause_line, short_step
from lllaunch.sweep.policy import Summary, SweepPolicy
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import JobAnswered, JobPrinted, JobProgressed
from lllaunch.sweep.schedule import JobState
from lllaunch.text import duration, plain, spans

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
        self.held = False
        self.retried: Counter[str] = Counter()


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

    Attributes:
        jobs: those that are composed and not over, by number.
        counts: how many are over, by state.
        failed: the last ones that failed, the latest last.
        succeeded: the same for those that did not.
        cancelled: numbers of the jobs that ran when a signal came, and were ended by it.
        ending: whether nothing is started any more.
        began: when the sweep began, seconds.
    """

    def __init__(
        self,
        total: int = 0,
        overrides: Callable[[int], Sequence[str]] = lambda _: (),
        common: Collection[str] = (),
        policy: SweepPolicy | None = None,
        now: float = 0.0,
        resumed: int = 0,
    ) -> None:
        self.total = total
        self.began = now
        self.jobs: dict[int, JobView] = {}
        self.counts: Counter[v.JobState] = Counter({J.SKIPPED: resumed} if resumed else {})
        self.failed: deque[JobView] = deque(maxlen=_RECENT)
        self.succeeded: deque[JobView] = deque(maxlen=_RECENT)
        self.cancelled: set[int] = set()
        self.ending = False
        self._overrides, self._common = overrides, common
        self._policy = policy
        self._signals = 0
        # How many attempts have ended, and how long they took.
        self._ended, self._seconds = 0, 0.0
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

        As if all jobs took as long as those that have ended, and as many ran side by side as now.
        None before that can be told.
        """
        running = self.of_state(J.RUNNING)
        if not self._ended or not running:
            return None
        each = self._seconds / self._ended
        work = each * self.waiting + sum(max(0.0, each - now + job.since) for job in running)
        return work / len(running)

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
        job.progress = None
        return ()

    def _refused(self, event: v.LeaseRefused, _: float) -> Iterable[Change]:
        job = self._job(event.number)
        self._starting.pop(event.number, None)
        job.state, job.lease, job.tries = J.WAITING, Lease(), job.attempt
        if job.held:
            return ()
        job.held = True
        return (Held(event.number, Lease(event.gpus, event.cpus)),)

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
        self._ended += 1
        self._seconds += job.seconds
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
        return (Signalled(event.signum, self.running, event.forward, self._signals == 2),)


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


# Columns of the terminal that are needed for a column of the table to be shown.
_ROOM_FOR_LEASES, _ROOM_FOR_ATTEMPTS, _ROOM_FOR_LINES = 60, 70, 56
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
    rows: list[Row] = [(StyledText(cut(_header(board, now), width), "title"),)]
    if room < 1 or width < _LEAST_WIDTH:
        return rows[: max(0, lines - 1)]
    shown, rest = _chosen(board, room, lines // 2)
    if shown:
        rows += _columns(shown, width, now)
    if rest:
        rows.append((StyledText(cut(f"and {rest}", width), "faint"),))
    return rows


def _header(board: Board, now: float) -> str:
    counts = board.counts
    done = counts[JobState.SUCCEEDED] + counts[JobState.SKIPPED]
    parts = counts_text(
        (
            (counts[JobState.FAILED], "failed"),
            (counts[JobState.CANCELLED], "cancelled"),
            (board.running, "running"),
            (counts[JobState.NOT_RUN], "not run"),
            (board.waiting, "waiting"),
        )
    )
    left = None if board.ending else board.left(now)
    ending = "no new jobs" if board.ending else ""
    if left:
        ending = f"about {_whole_seconds(left)} left"
    told = ", ".join(filter(None, (f"{done}/{board.total} done", parts, ending)))
    return f"{_whole_seconds(now - board.began)}: {told}"


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


def _columns(jobs: Sequence[JobView], width: int, now: float) -> list[Row]:
    """Returns the titles and a row for each job."""
    table = Table()
    table.add("job", [str(job.number) for job in jobs], most=width, right=True)
    # They are no narrower than this where there is room: columns that move are hard to read.
    steady = width >= _ROOM_FOR_ATTEMPTS
    columns = [
        ("state", [_state(job) for job in jobs], 9 * steady, True),
        ("tries", [str(job.tries) for job in jobs], 0, steady),
        ("on", [_lease(job) for job in jobs], 0, width >= _ROOM_FOR_LEASES),
        ("time", [_time(job, now) for job in jobs], 8 * steady, True),
        ("step", [_step(job) for job in jobs], 0, steady),
        ("left", [_left(job, now) for job in jobs], 0, steady),
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
        share = max(_LEAST_OVERRIDES, room // 2, room - least - _longest(lines))
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
        return _whole_seconds(now - job.since)
    over = job.state not in {JobState.WAITING, JobState.PAUSED}
    return duration(job.seconds) if over and job.seconds else ""


def _step(job: JobView) -> str:
    if job.state is not JobState.RUNNING or job.progress is None:
        return ""
    return short_step(job.progress.step, job.progress.total)


def _left(job: JobView, now: float) -> str:
    if job.state is not JobState.RUNNING or job.progress is None or job.progress.eta is None:
        return ""
    return _whole_seconds(max(0.0, job.progress.eta - (now - job.progressed)))


def _whole_seconds(seconds: float) -> str:
    """Returns a time span that is still going on: no fractions that would flicker."""
    return f"{int(seconds)} s" if seconds < 10 else duration(int(seconds))


def _line(job: JobView) -> str:
    """Returns what a job printed last, or what it failed of."""
    return job.line if job.state is JobState.RUNNING else plain(cause_line(job.why)) or job.line
