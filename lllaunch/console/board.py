"""A sweep while it runs: what is known of it, and what is said of each change. Pure.

Only jobs that wait, run or ended recently are kept: a sweep of many jobs takes no more memory than
one of few.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import lllaunch.sweep.schedule as v
from lllaunch.console.table import decoded
from lllaunch.documents import signal_name
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import JobPrinted, JobProgressed, Prepared
from lllaunch.sweep.schedule import Durations, SweepPolicy, expected_left
from lllaunch.text import duration, plain, printable, spans
from lllaunch.words import (
    FAILED,
    StyledText,
    counted,
    done_text,
    ending,
    passed,
    short_extremes,
    short_overrides,
    shown_path,
)
from lllaunch.workers.terminal import cut

if TYPE_CHECKING:
    from lllaunch.results.live import LiveView

# More than fit a terminal.
_RECENT = 100
_LONGEST_LINE = 500
_LONGEST_CAUSE = 300

J = v.JobState


class JobView:
    """A job of the sweep; times are in seconds.

    ``seconds``: how long its last attempt took. ``why``: the first failure of its last attempt in
    one line, or why it cannot run.
    """

    def __init__(self, number: int, own: tuple[str, ...]) -> None:
        self.number = number
        self.own = own  # the overrides that other jobs do not have
        self.overrides = short_overrides(own)
        self.directory = ""  # where its files are; empty until it is composed
        self.state = J.WAITING
        self.attempt = self.tries = 0  # number of the attempt that runs or ran, from 0
        self.lease = Lease()
        self.since = self.seconds = 0.0  # when its attempt began
        self.line = self.why = ""  # what it printed last
        self.progress: JobProgressed | None = None
        self.progressed = 0.0
        self.exit_code: int | None = None
        self.objective: float | None = None
        self.held = False  # whether the user knows that other launchers hold its slots
        self.retried: Counter[str] = Counter()  # how often, by cause

    def left(self, now: float) -> float | None:
        """Return how long it will go on, seconds, as it says itself; None if it does not."""
        if self.progress is None or self.progress.eta is None:
            return None
        return max(0.0, self.progress.eta - (now - self.progressed))


class Announcement(NamedTuple):
    """What is said of a change; the first line without ``lllaunch:``.

    A table shows what is `routine`, too: a job started or succeeded.
    """

    lines: Sequence[StyledText]
    routine: bool = False


class Board:
    """The present state of a sweep.

    `overrides` returns those of a job, redacted; `common` are those that all jobs share, which are
    not shown. `resumed` jobs had succeeded before. Times are in seconds.
    """

    def __init__(
        self,
        directory: str,
        total: int = 0,
        overrides: Callable[[int], Sequence[str]] = lambda _: (),
        resumed: int = 0,
        *,
        common: Collection[str] = (),
        policy: SweepPolicy | None = None,
        slots: Lease | None = None,
        objectives: Objectives | None = None,
    ) -> None:
        self.directory, self.total = directory, total
        self.cwd = ""  # paths are shown relative to it
        self.resumed, self.common = resumed, frozenset(common)
        self.slots = slots or Lease()
        self.objectives = Objectives() if objectives is None else objectives
        self.began = 0.0
        self.jobs: dict[int, JobView] = {}  # those that are composed and not over, by number
        # how many are over, by state
        self.counts: Counter[J] = Counter({J.SKIPPED: resumed} if resumed else {})
        # the last ones that did not succeed, the latest last
        self.failed: deque[JobView] = deque(maxlen=_RECENT)
        self.succeeded: deque[JobView] = deque(maxlen=_RECENT)
        # numbers of the jobs that were ended by a signal to the launcher
        self.cancelled: set[int] = set()
        self.ending = False  # whether nothing is started any more
        self._overrides = overrides
        self._policy = policy
        self._signals = 0
        # of all attempts that have ended, and of those that succeeded
        self._all, self._good = Durations(), Durations()
        # about to start; other launchers may prevent that yet
        self._starting: dict[int, JobView] = {}
        self._said: list[Announcement] = []

    def of_state(self, *states: J) -> list[JobView]:
        """Return the jobs of `jobs` in one of these states, by number."""
        found = (job for job in self.jobs.values() if job.state in states)
        return sorted(found, key=lambda job: job.number)

    @property
    def running(self) -> int:
        """How many jobs run."""
        return len(self.of_state(J.RUNNING))

    @property
    def waiting(self) -> int:
        """How many jobs neither run nor are over."""
        return max(0, self.total - self.counts.total() - self.running)

    def take(self, event: object, now: float) -> list[Announcement]:
        """Take note of what happened, and return what is said of it.

        That is an event or action of the scheduler, or what a job printed; others are ignored.
        """
        self._said = []
        if self._starting and not isinstance(event, _TOO_EARLY):
            for job in self._starting.values():
                self._began(job)
            self._starting.clear()
        if (action := _ACTIONS.get(type(event))) is not None:
            action(self, event, now)
        return self._said

    def _say(self, text: str, style: str = "", *, routine: bool = False) -> None:
        first, *more = text.split("\n")
        rest = (StyledText(f"  {line}") for line in more)
        self._said.append(Announcement((StyledText(first, style), *rest), routine))

    def left(self, now: float) -> float | None:
        """Return how long it will take until all jobs are over, seconds; None if unknown."""
        running = [(now - job.since, job.left(now)) for job in self.of_state(J.RUNNING)]
        return expected_left(running, self.waiting, self._good, self._all)

    def by_state(self) -> dict[str, int]:
        """Return how many jobs there are by state."""
        counts = {state.value: number for state, number in self.counts.items()}
        counts["succeeded"] = self.counts[J.SUCCEEDED] + counts.pop("skipped", 0)
        paused = len(self.of_state(J.PAUSED))
        live = {"running": self.running, "paused": paused, "waiting": self.waiting - paused}
        return {**counts, **live}

    def _job(self, number: int, overrides: Sequence[str] = ()) -> JobView:
        if number not in self.jobs:
            known = overrides or self._overrides(number)
            own = tuple(each for each in known if each not in self.common)
            self.jobs[number] = JobView(number, own)
        return self.jobs[number]

    def _composed(self, event: v.JobComposed | v.JobBroken, _: float) -> None:
        job = self._job(event.number, event.overrides)
        job.directory = event.directory
        if isinstance(event, v.JobBroken):
            job.why = event.why

    def _start(self, event: v.StartJob, now: float) -> None:
        job = self._starting[event.number] = self._job(event.number)
        job.state, job.attempt, job.lease, job.since = J.RUNNING, event.attempt, event.lease, now
        job.tries = event.attempt + 1
        job.line = job.why = ""
        job.progress = job.objective = None

    def _began(self, job: JobView) -> None:
        named = f" ({job.overrides})" if job.overrides else ""
        on = f" on {slots}" if (slots := lease_text(job.lease)) else ""
        attempt = f", attempt {job.attempt}" if job.attempt else ""
        self._say(f"job {job.number} started{named}{on}{attempt}", routine=True)

    def _not_started(self, event: v.JobNotStarted, _: float) -> None:
        job = self._job(event.number)
        self._starting.pop(event.number, None)
        job.state, job.lease, job.tries = J.WAITING, Lease(), job.attempt
        slots = lease_text(event.held)
        if slots and not job.held:
            job.held = True
            self._say(f"job {job.number} waits for {slots}: held by another launcher")

    def _printed(self, event: JobPrinted, _: float) -> None:
        job = self.jobs.get(event.number)
        # the rest of a longer line is never shown
        text = plain(decoded(event.line)[:_LONGEST_LINE]).strip()
        if job is not None and text:
            job.line = text

    def _progressed(self, event: JobProgressed, now: float) -> None:
        job = self.jobs.get(event.number)
        if job is not None:
            job.progress, job.progressed = event, now

    def _ended(self, event: v.JobEnded, now: float) -> None:
        job = self._job(event.number)
        job.seconds = now - job.since if event.seconds is None else event.seconds
        job.exit_code, job.why = event.exit_code, event.why
        self._all = self._all.with_one(job.seconds)
        if not event.exit_code:
            self._good = self._good.with_one(job.seconds)
        if event.objective is not None:
            job.objective = event.objective
            self.objectives.add(Objective(event.objective, job.number, job.overrides))

    def _retry(self, event: v.Retry, now: float) -> None:
        job = self._job(event.number)
        job.retried[event.cause] += 1
        text = f"job {job.number}: attempt {job.attempt} {FAILED[event.cause]}"
        text += f" after {duration(job.seconds)}: {ending(job.exit_code, job.why)}; trying again"
        if event.at is not None and event.at > now:
            text += f" in {duration(event.at - now)}"
        limit = f" of {self._policy.retries.of(event.cause)}" if self._policy else ""
        job.state = J.WAITING if event.at is None else J.PAUSED
        job.lease, job.attempt = Lease(), event.attempt
        self._say(f"{text} ({job.retried[event.cause]}{limit})", "cause")

    def _due(self, event: v.RetryDue, _: float) -> None:
        job = self.jobs.get(event.number)
        if job is not None:
            job.state = J.WAITING

    def _settle(self, end: v.Settle, _: float) -> None:
        self.counts[end.state] += 1
        if end.state is J.NOT_RUN:
            self.jobs.pop(end.number, None)
            return
        job = self._job(end.number)
        del self.jobs[end.number]
        job.state = end.state
        job.exit_code = end.exit_code if end.exit_code is not None else job.exit_code
        job.why = end.why or job.why
        recent = self.succeeded if end.state is J.SUCCEEDED else self.failed
        recent.append(job)
        after = duration(job.seconds)
        if end.state is J.SUCCEEDED:
            self._say(f"job {job.number} succeeded in {after}", "good", routine=True)
        elif end.state is J.CANCELLED:
            self.cancelled.add(job.number)
            self._say(f"job {job.number} was cancelled after {after}")
        elif not end.attempts:
            named = f" ({job.overrides})" if job.overrides else ""
            code = f" (exit code {job.exit_code})" if job.exit_code is not None else ""
            lines = (printable(line, _LONGEST_CAUSE) for line in job.why.strip().splitlines())
            why = "\n".join(lines)
            self._say(f"job {job.number}{named} cannot run{code}: {why}", "bad")
        else:
            text = f"job {job.number} failed after {after}"
            text += f" in attempt {end.attempts - 1}" if end.attempts > 1 else ""
            where = shown_path(os.path.join(self.directory, job.directory), self.cwd)
            self._say(f"{text}: {ending(job.exit_code, job.why)}; logs in {where}", "bad")
        if end.state is J.FAILED:
            self._drain()

    def _drain(self) -> None:
        limit = None if self._policy is None else self._policy.max_failures
        failed = self.counts[J.FAILED]
        if self.ending or limit is None or failed < limit:
            return
        self.ending = True
        if self.total > self.counts.total():
            still = f", {self.running} still running" if self.running else ""
            self._say(f"{counted(failed, 'failed job')}: no more are started{still}", "cause")

    def _blocked(self, event: v.Blocked, _: float) -> None:
        why = printable(event.why, _LONGEST_CAUSE)
        then = "no job is started until that works again, those that run go on"
        self._say(f"{why}; {then}", "cause")

    def _unblocked(self, _: v.Unblocked, __: float) -> None:
        self._say("what failed works again: jobs are started", "good")

    def _signalled(self, event: v.SweepSignalled, _: float) -> None:
        self.ending = True
        self._signals += 1
        name, jobs = signal_name(event.signum), counted(self.running, "running job")
        if self._signals == 1:
            then = "SIGKILL follows after the grace period, or now on a second signal"
            forwarded = f"; forwarded to {jobs}; {then}" if self.running else ""
            self._say(f"{name} received: no new jobs start{forwarded}", "cause")
        elif self._signals == 2:
            self._say(f"{name} received again: {jobs} killed", "cause")


# After these a `JobNotStarted` may come that takes a `StartJob` back.
_TOO_EARLY = (
    v.ComposeNext,
    v.StartJob,
    v.Retry,
    v.Settle,
    v.SignalJobs,
    v.JobNotStarted,
    v.Blocked,
)

_ACTIONS: dict[type, Callable[[Board, Any, float], None]] = {
    v.JobComposed: Board._composed,
    Prepared: Board._composed,
    v.JobBroken: Board._composed,
    v.StartJob: Board._start,
    v.JobNotStarted: Board._not_started,
    JobPrinted: Board._printed,
    JobProgressed: Board._progressed,
    v.JobEnded: Board._ended,
    v.Blocked: Board._blocked,
    v.Unblocked: Board._unblocked,
    v.Retry: Board._retry,
    v.RetryDue: Board._due,
    v.Settle: Board._settle,
    v.SweepSignalled: Board._signalled,
}


# How it is shown

_LONGEST_SLOT = 19  # columns of a GPU's name
_ENDING = "no new jobs start"


def lease_text(lease: Lease) -> str:
    """Return ``GPU 0,1, cores 0-3``; an empty string if nothing is leased."""
    gpus = ",".join(cut(plain(name), _LONGEST_SLOT) for name in lease.gpus)
    cores = spans(lease.cpus).replace(" ", "")
    noun = "core" if len(lease.cpus) == 1 else "cores"
    return ", ".join(filter(None, (gpus and f"GPU {gpus}", cores and f"{noun} {cores}")))


def heartbeat_text(board: Board, now: float) -> str:
    """Return how far a sweep is in one line, for where there is no table.

    ``10 min: 12/200 done, 1 failed, 8 running, 179 waiting, about 3 h left, best 0.0123 (job 4)``
    """
    parts = [done_text(board.by_state())]
    if board.ending:
        parts.append(_ENDING)
    elif left := board.left(now):
        parts.append(f"about {passed(left)} left")
    parts.append(short_extremes(board.objectives))
    return f"{passed(now - board.began)}: {', '.join(filter(None, parts))}"


def view_of(board: Board, now: float) -> LiveView:
    """Return a sweep as ``top`` shows it.

    Running jobs come first, then those that failed last, those that wait, and those that succeeded
    last.
    """
    from lllaunch.results.live import LiveView  # noqa: PLC0415 - of terminals
    from lllaunch.results.store import ListEntry  # noqa: PLC0415 - as above

    running, waiting = board.of_state(J.RUNNING), board.of_state(J.PAUSED, J.WAITING)
    order = [*running, *reversed(board.failed), *waiting, *reversed(board.succeeded)]
    rows = []
    for job in order:
        runs, over = job.state is J.RUNNING, job.state not in {J.WAITING, J.PAUSED}
        progress = job.progress if runs else None
        rows.append(
            ListEntry(
                "job",
                job.directory,
                job.state.value,
                seconds=now - job.since if runs else job.seconds if over else None,
                attempts=job.tries,
                number=job.number,
                value=job.objective,
                # what it printed last, or what it failed of
                note=job.line if runs else job.why or job.line,
                step=None if progress is None else progress.step,
                total=None if progress is None else progress.total,
                eta=job.left(now) if runs else None,
                gpus=job.lease.gpus if runs else (),
                cpus=job.lease.cpus if runs else (),
                given=tuple(job.own),
            )
        )
    subject = ListEntry(
        "sweep",
        board.directory,
        "running",
        seconds=now - board.began,
        eta=None if board.ending else board.left(now),
        counts=board.by_state(),
        note=_ENDING if board.ending else "",
    )
    return LiveView(0, tuple(rows), subject, objectives=board.objectives, slots=board.slots)
