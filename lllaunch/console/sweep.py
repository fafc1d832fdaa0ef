"""What the user sees of a sweep: a live table on a terminal, a line for each change elsewhere.

`SweepConsole` speaks for the sweep's launcher, `JobConsole` for one job, which is silent where the
launcher reports the same. `Board` is what is known, `lllaunch.console.views` has its tables.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TextIO

from msgspec.structs import replace

import lllaunch.sweep.schedule as v
from lllaunch.console.console import Bottom, Console, size_of, stays
from lllaunch.console.stream import Outlet, display, given_or_nowhere, same_file
from lllaunch.console.table import Row, decoded, is_terminal, painter
from lllaunch.documents import signal_name
from lllaunch.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.processes import tell_progress
from lllaunch.sweep.protocol import JobPrinted, JobProgressed, Stopping, Tick
from lllaunch.sweep.schedule import Durations, SweepPolicy, expected_left
from lllaunch.text import coloured, duration, plain, printable, spans
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
    from lllaunch.run.result import RunResult
    from lllaunch.sweep.history import SweepResult
    from lllaunch.watchdog.progress import Progress

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
        self.tries = 0  # how often it was started
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
        match event:
            case v.JobComposed() | v.JobBroken():
                job = self._job(event.number, event.overrides)
                job.directory = event.directory
                job.why = event.why if isinstance(event, v.JobBroken) else job.why
            case v.StartJob():
                self._start(event, now)
            case v.JobNotStarted():
                self._not_started(event)
            case JobPrinted() if event.number in self.jobs:
                # the rest of a longer line is never shown
                text = plain(decoded(event.line)[:_LONGEST_LINE]).strip()
                job = self.jobs[event.number]
                job.line = text or job.line
            case JobProgressed() if event.number in self.jobs:
                job = self.jobs[event.number]
                job.progress, job.progressed = event, now
            case v.JobEnded():
                self._ended(event, now)
            case v.Retry():
                self._retry(event, now)
            case v.RetryDue() if event.number in self.jobs:
                self.jobs[event.number].state = J.WAITING
            case v.Settle():
                self._settle(event)
            case v.Blocked():
                why = printable(event.why, _LONGEST_CAUSE)
                then = "no job is started until that works again, those that run go on"
                self._say(f"{why}; {then}", "cause")
            case v.Unblocked():
                self._say("what failed works again: jobs are started", "good")
            case v.SweepSignalled():
                self._signalled(event)
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

    def _start(self, event: v.StartJob, now: float) -> None:
        job = self._job(event.number)
        job.state, job.lease, job.since = J.RUNNING, event.lease, now
        job.tries = event.attempt + 1
        job.line = job.why = ""
        job.progress = job.objective = None
        named = f" ({job.overrides})" if job.overrides else ""
        on = f" on {slots}" if (slots := lease_text(job.lease)) else ""
        attempt = f", attempt {event.attempt}" if event.attempt else ""
        self._say(f"job {job.number} started{named}{on}{attempt}", routine=True)

    def _not_started(self, event: v.JobNotStarted) -> None:
        job, slots = self._job(event.number), lease_text(event.held)
        if slots and not job.held:
            job.held = True
            self._say(f"job {job.number} waits for {slots}: held by another launcher")

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
        text = f"job {job.number}: attempt {event.attempt - 1} {FAILED[event.cause]}"
        text += f" after {duration(job.seconds)}: {ending(job.exit_code, job.why)}; trying again"
        if event.at is not None and event.at > now:
            text += f" in {duration(event.at - now)}"
        limit = f" of {self._policy.retries.of(event.cause)}" if self._policy else ""
        job.state = J.WAITING if event.at is None else J.PAUSED
        job.lease = Lease()
        self._say(f"{text} ({job.retried[event.cause]}{limit})", "cause")

    def _settle(self, end: v.Settle) -> None:
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

    def _signalled(self, event: v.SweepSignalled) -> None:
        self.ending = True
        self._signals += 1
        name, jobs = signal_name(event.signum), counted(self.running, "running job")
        if self._signals == 1:
            then = "SIGKILL follows after the grace period, or now on a second signal"
            forwarded = f"; forwarded to {jobs}; {then}" if self.running else ""
            self._say(f"{name} received: no new jobs start{forwarded}", "cause")
        elif self._signals == 2:
            self._say(f"{name} received again: {jobs} killed", "cause")


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


# How long a message waits for a stream, seconds; jobs wait for the launcher meanwhile.
_PATIENCE_S = 0.2
# The same for the last messages.
_LAST_PATIENCE_S = 10.0
# The table is drawn at most every so many seconds.
_FRAME_S = 0.1
# It shows times, and what a burst of changes has left undrawn.
_TICK_S = 0.25
_LEAST_COLUMNS, _LEAST_LINES = 40, 6
# Rows of the table that are no jobs.
_AROUND = 6


@display("more messages of this sweep", "finished", "close")
class SweepConsole:
    """The messages of a sweep's launcher.

    On a terminal a table of the jobs stays at the bottom, what jobs print and what fails scrolls
    above. Elsewhere each change is one line, written as a whole, and now and then a line reports
    how far the sweep is. No stream makes the sweep fail or wait.

    Messages go to `stream` (standard error), what jobs print to `out` (standard output). Paths are
    relative to `cwd` (the working directory). `machine` is what the sweep may lease, for people
    (``"8 GPUs, 2 cores"``). Without `live` the policy says whether there is a table.
    """

    is_off: bool

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        cwd: str | None = None,
        live: bool | None = None,
        machine: str = "",
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: ConsolePolicy | None = None,
    ) -> None:
        policy = ConsolePolicy() if policy is None else policy
        stream = given_or_nowhere(sys.stderr if stream is None else stream)
        out = given_or_nowhere(sys.stdout if out is None else out)
        self._cwd = working_directory() if cwd is None else cwd
        self._machine = machine
        self._clock = clock
        outlet = partial(Outlet, clock=clock, elsewhere="the jobs' logs")
        self._flow = outlet(stream)
        self._out = self._flow if same_file(stream, out) else outlet(out)
        size = size_of(stream)
        fits = size.columns >= _LEAST_COLUMNS and size.lines >= _LEAST_LINES
        # whether there is a table
        self.live = stays(stream, policy, unasked=fits) if live is None else live
        self._quiet = policy.quiet
        self._interval = None if self.live or policy.quiet else policy.interval
        self._paint = painter(stream, policy.color)
        self._table: Bottom | None = None
        self._board = Board(self._cwd)
        self._drawn = float("-inf")
        self._changed = False
        # when the next line reports how far the sweep is
        self._beat = float("inf")

    def tick_in(self) -> float | None:
        """Return in how many seconds `Tick` has something to show even if nothing happens."""
        if self.live:
            return _TICK_S
        return None if self._interval is None else max(0.0, self._beat - self._clock())

    def began(self, board: Board, batch: int | None = None) -> None:
        """Report that a sweep begins.

        Where the sweeper asks for several batches of jobs, `batch` is the number of this one, and
        only the first begins the sweep.
        """
        self._board, now = board, self._clock()
        board.began, board.cwd = now, self._cwd
        if self._interval is not None:
            self._beat = now + self._interval
        where = shown_path(board.directory, self._cwd)
        text = f"sweep of {counted(board.total, 'job')} in {where}"
        if batch is not None:
            text = f"sweep in {where}, whose jobs the sweeper chooses as it goes on"
        text += f", {self._machine}" if self._machine else ""
        if board.resumed:
            text += f"; {board.resumed} of them had succeeded before"
        if not batch and not self._quiet:
            self.note(text)
        if self.live:
            self._table = Bottom(self._flow, self._paint, self._rows)
            self._draw(now)

    def _rows(self, columns: int, lines: int) -> list[Row]:
        from lllaunch.console.views import view_rows  # noqa: PLC0415 - of terminals

        view = view_of(self._board, self._clock())
        # what jobs print scrolls above
        most = max(lines // 2, self._board.running + _AROUND)
        return view_rows(view, columns, min(lines, most), self._cwd)

    def awaited(self) -> tuple[int, ...]:
        """Return descriptors that are writable when what is kept can be shown."""
        return tuple({flow.awaited() for flow in (self._flow, self._out)} - {-1})

    def observe(self, event: object) -> None:
        """Take note of whatever a sweep tells its observer."""
        now = self._clock()
        if isinstance(event, JobPrinted):
            self._printed(event)
        for message in self._board.take(event, now):
            if not (message.routine and (self._quiet or self._table is not None)):
                first, *rest = message.lines
                head = first._replace(text=f"lllaunch: {first.text}")
                self._say([(line,) for line in (head, *rest)])
        if isinstance(event, Stopping):
            # the shell writes now
            if self._table is not None:
                self._table.hide(_PATIENCE_S)
                self._changed = True
            return
        if isinstance(event, Tick):
            self._tick(now)
        else:
            self._changed = True
        if self._table is not None and self._changed and now - self._drawn >= _FRAME_S:
            self._draw(now)

    def note(self, text: str) -> None:
        """Show a message about the sweep as a whole."""
        self._say([(StyledText(f"lllaunch: {text}"),)])

    def finished(
        self,
        result: SweepResult,
        numbers: Collection[int] | None = None,
        *,
        resume: str | None = "",
    ) -> None:
        """Show the summary of a sweep that is over.

        A sweep that is resumed may have had other jobs than those with `numbers`; None for all,
        also those of batches before. `resume` is as `lllaunch.console.views.Setting` has it.
        """
        # what only the end needs is imported then
        from lllaunch.console.views import Setting, summary_rows  # noqa: PLC0415
        from lllaunch.results.sweeps import entry_of_job  # noqa: PLC0415

        self.close()
        stream = self._flow.stream
        setting = Setting(
            directory=self._board.directory,
            cwd=self._cwd,
            total=0 if numbers is None else self._board.total,
            common=self._board.common,
            cancelled=self._board.cancelled,
            columns=size_of(stream).columns if is_terminal(stream) else 0,
            resume=resume,
        )
        if numbers is not None:
            numbers = numbers if isinstance(numbers, range) else frozenset(numbers)
            ours = tuple(job for job in result.jobs if job.job in numbers)
            result = replace(result, jobs=ours, seconds=self._clock() - self._board.began)
        if not (self._quiet and result.exit_code == 0):
            jobs = (entry_of_job(job, setting.directory, "failed") for job in result.jobs)
            self._say(summary_rows(result, jobs, setting), last=True)

    def close(self) -> None:
        """Take the table away and write what was not shown yet; idempotent."""
        if self._table is not None:
            self._table.end(_LAST_PATIENCE_S)
            self._table = None
        for flow in (self._flow, self._out):
            flow.push(_LAST_PATIENCE_S, last=True)

    def _printed(self, event: JobPrinted) -> None:
        flow = self._out if event.stream == 1 else self._flow
        text = f"[{event.number}] {decoded(event.line)}"
        if self._table is not None and flow is self._flow:
            self._table.say(coloured(text))
        else:
            flow.put(f"{text}\n", _PATIENCE_S)

    def _say(self, rows: Sequence[Row], *, last: bool = False) -> None:
        """Write rows at once, or above the table with its next drawing."""
        lines = self._paint(rows)
        if self._table is not None:
            for line in lines:
                self._table.say(line)
            return
        patience = _LAST_PATIENCE_S if last else _PATIENCE_S
        self._flow.put("".join(f"{line}\n" for line in lines), patience, last=last)

    def _tick(self, now: float) -> None:
        """Show what is due: time has passed."""
        for flow in (self._flow, self._out):
            flow.push()
        if self._table is not None and (now - self._drawn >= 1 or self._table.resized):
            self._changed = True
        if self._interval is not None and now >= self._beat:
            self._beat = now + self._interval
            self.note(heartbeat_text(self._board, now))

    def _draw(self, now: float) -> None:
        assert self._table is not None
        self._drawn = now
        self._changed = not self._table.draw()


# Bytes of the digest of a failure, and how many there may be: later ones are all reported.
_DIGEST = 8
_MOST = 512


class Reported:
    """The failures that jobs have reported, shared by all processes that are forked later."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _DIGEST * _MOST)

    def is_new(self, text: str) -> bool:
        """Return whether nobody has reported this before; two at the same moment both may."""
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=_DIGEST).digest()
        for at in range(0, _DIGEST * _MOST, _DIGEST):
            seen = self._memory[at : at + _DIGEST]
            if seen == digest:
                return False
            if not any(seen):
                self._memory[at : at + _DIGEST] = digest
                return True
        return True


@display("more messages of this job", "finished")
class JobConsole(Console):
    """Reports what happens within a job: restarts, hangs, warnings, and why it failed.

    A failure like one that other jobs have `reported` is shown by the sweep's launcher in one line,
    and that is enough.
    """

    def __init__(self, reported: Reported) -> None:
        super().__init__()
        self._reported = reported

    def _left_to_sweep(self, *_: object, **__: object) -> None:
        """Do nothing: the sweep's launcher shows what its jobs do, and the signals that it got."""

    started = signalled = doing = _left_to_sweep

    def killing(
        self, signum: int | None, workers: int | None, ignoring: Collection[int] = ()
    ) -> None:
        """Report that workers are killed because they did not end by themselves."""
        if signum is None:
            super().killing(signum, workers, ignoring)

    def sampled(self, progress: Mapping[int, Progress], memory: int) -> None:  # noqa: ARG002 - an override
        """Tell the sweep's launcher how far the furthest worker is; its table shows that."""
        if progress:
            furthest = max(progress.values(), key=lambda each: each.step)
            tell_progress(furthest.step, furthest.total, furthest.eta)

    def finished(self, outcome: RunResult) -> None:
        """Show the report of a run that failed by itself, in a way that no other has."""
        if not outcome.exit_code or outcome.state == "signalled":
            return
        root = outcome.root_cause
        failure = f"{root.cause} {root.traceback}" if root else str(outcome.limit)
        if self._reported.is_new(f"{outcome.state}: {outcome.error or failure}"):
            super().finished(outcome)
