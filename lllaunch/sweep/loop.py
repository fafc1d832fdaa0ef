"""The launcher's part of a sweep: one loop, in which an executor does what the scheduler decides.

One thread. It waits for signals to the launcher, for whatever its executor waits for, and for
deadlines, and tells the scheduler (`lllaunch.sweep.schedule`) what happened.
docs/design/sweep-shell.md says why it is as it is.
"""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import lllaunch.sweep.schedule as v
from lllaunch.clock import RunClock
from lllaunch.errors import LaunchError, OutputError
from lllaunch.linux.process import wait
from lllaunch.signal_source import QUIET, SignalSource
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import Stopping, Tick
from lllaunch.sweep.schedule import Scheduler, SweepPolicy
from lllaunch.sweep.session import JobRecords

if TYPE_CHECKING:
    from lllaunch.linux.process import HasFileno
    from lllaunch.sweep.journal import Journal


# How long after a failure it is tried whether jobs can be started, again and again.
_PAUSE_SECONDS = 2.0
# How long jobs wait for that when none runs any more.
_PATIENCE_SECONDS = 600.0


class Onlooker(NamedTuple):
    """Who looks on while a sweep goes on, and what for.

    ``observe``: gets every event and every action, what the warm spawners tell, the jobs' lines
    (`lllaunch.sweep.protocol.JobPrinted`), and the ticks. ``tick_in``: asked after each turn in how
    many seconds another `lllaunch.sweep.protocol.Tick` is wanted at the latest, for a display that
    shows the time; None for only when something has happened. ``awaited``: descriptors that are to
    be writable before more is told of what jobs print; nothing if all is taken.
    """

    observe: Callable[[object], None]
    tick_in: Callable[[], float | None] = lambda: None
    awaited: Callable[[], Sequence[int] | None] = tuple


class JobsLeft(Exception):
    """The launcher ends, and its jobs go on without it."""

    def __init__(self, finish: v.FinishSweep) -> None:
        super().__init__()
        self.finish = finish


class Executor:
    """Where the jobs of a sweep run.

    It does what the scheduler decides, and tells what comes of it, at once or later: of `compose`
    with `Sweep.composed`, of `start` with `Sweep.tell` a `JobEnded` or `JobNotStarted`. What an
    executor has nothing to do for it leaves out.
    """

    sweep: Sweep
    # what jobs lease; nothing where they have a queue of their own
    slots = Lease()
    # whether jobs go on when the launcher has ended
    left = False

    def compose(self, number: int) -> None:
        """Compose a job."""
        raise NotImplementedError

    def start(self, start: v.StartJob) -> None:
        """Start a job that is composed, or start it again; tell the observer when it runs."""
        raise NotImplementedError

    def settled(self, end: v.Settle) -> None:
        """A job is over, or is not going to be started."""

    def signal(self, signum: int) -> None:
        """Pass a signal on to the jobs that run; SIGKILL kills them and what they started."""

    def goes_on(self, signum: int) -> bool:  # noqa: ARG002 - for those that ask
        """Return whether a signal that ends sweeps does not end this one.

        Raises:
            JobsLeft: it ends the launcher alone.
        """
        return False

    def awaited(self, *, prints: bool) -> Sequence[HasFileno | int]:  # noqa: ARG002 - of jobs that do
        """Return the descriptors to wait for; ``prints``: those of what jobs print, too."""
        return ()

    def deadline(self) -> float | None:
        """Return when `look` is to be called, by the sweep's clock, if nothing is readable."""
        return None

    def look(self, ready: frozenset[int]) -> None:
        """Tell what has happened.

        Raises:
            JobsLeft: the jobs need no launcher any more.
        """

    def again(self) -> None:
        """Try once more what `Sweep.block` was called for; a `LaunchError` if it still fails."""

    def abandon(self) -> None:
        """The sweep itself has failed: end what runs."""

    def close(self) -> None:
        """The sweep is over: leave no process and no descriptor."""


class Sweep:
    """A sweep, performed with an executor.

    ``signals``: notes the signals that end the sweep.
    """

    def __init__(
        self,
        executor: Executor,
        policy: SweepPolicy,
        journal: Journal,
        onlooker: Onlooker,
        numbers: Sequence[int],
        signals: SignalSource,
    ) -> None:
        self.source = signals
        self.observe = onlooker.observe
        self.journal, self.records = journal, JobRecords(journal)
        self.clock = RunClock()
        self._onlooker = onlooker
        self._executor = executor
        executor.sweep = self
        self._scheduler = Scheduler(executor.slots, policy, numbers)
        self._tick_at: float | None = None
        self._due: dict[int, float] = {}
        # Why no job can be started, since when, and when that is tried again.
        self._error: LaunchError | None = None
        self._error_since = self._try_at = 0.0
        # What has ended the sweep before its time.
        self._failure: LaunchError | None = None
        self._events: deque[v.SweepEvent] = deque()
        self._telling = False
        self._finish: v.FinishSweep | None = None

    def run(self) -> v.FinishSweep:
        """Sweep.

        Raises:
            LaunchError: not all jobs could be started, since the journal could not be written, no
                process be made, or a slot not be locked; or the journal lacks something. All jobs
                have ended then, or are left to the queue that they are in.
        """
        executor = self._executor
        try:
            self.tell(v.BeginSweep())
            while self._finish is None:
                self._turn()
        except JobsLeft as left:
            return left.finish
        except BaseException:
            executor.abandon()
            with contextlib.suppress(OutputError):
                self.journal.flush()
            raise
        finally:
            executor.close()
        finish, failure = self._finish, self._failure
        self.records.over(finish.exit_code if failure is None else failure.exit_code)
        failure = failure or self.journal.error
        if failure is not None and finish.signum is None:
            raise failure
        return finish

    @property
    def ends(self) -> bool:
        """Whether no job is started any more."""
        return not self._scheduler.going_on

    # What is waited for

    def _turn(self) -> None:
        """Waits until something happens, and tells it; signals first."""
        if self._error is None:
            try:
                self.journal.flush()
            except OutputError as error:
                self.block(error)
        # Who cannot be told more lets jobs wait, as a terminal does that was stopped.
        full = self._onlooker.awaited() or ()
        deadlines = [*self._due.values()]
        deadlines += [] if self._error is None else [self._try_at]
        deadlines += [at for at in (self._tick_at, self._executor.deadline()) if at is not None]
        seconds = max(0.0, min(deadlines) - self.clock()) if deadlines else None
        awaited = [self.source, *self._executor.awaited(prints=not full)]
        ready = wait(awaited, full, seconds)
        # One that came before a job ended is there by now, even if the wait did not tell.
        self.heed()
        self._executor.look(ready)
        self._try_again()
        now = self.clock()
        for number in [number for number, at in self._due.items() if at <= now]:
            if self._due.pop(number, None) is not None:
                self.tell(v.RetryDue(number))
        self.observe(Tick())
        seconds = self._onlooker.tick_in()
        self._tick_at = None if seconds is None else self.clock() + seconds

    def heed(self) -> bool:
        """Tell of the signals that have come; return whether one ends the sweep."""
        received, ends = self.source.received(), False
        if self.source.stopping:
            # Ctrl-Z; until SIGCONT no time passes for the sweep. Jobs have sessions of their own:
            # each stops its workers, and waits for SIGCONT
            self.observe(Stopping())
            self._executor.signal(signal.SIGTSTP)
            self.clock.leave_out(self.source.stop_until_continued())
            self._executor.signal(signal.SIGCONT)
        for signum in received:
            if signum in self.source.quiet:
                # each job shows where its workers stand, or passes it on to them, and goes on
                self._executor.signal(signum)
            elif not self._executor.goes_on(signum):
                ends = True
                self.tell(v.SweepSignalled(signum))
        return ends

    # When something fails that all jobs need

    def block(self, error: LaunchError) -> None:
        """No job is started until what failed works again."""
        if self._error is None and self._failure is None:
            self._error, self._error_since = error, self.clock()
            self.tell(v.Blocked(str(error)))
            self._try_later(error)

    def _try_later(self, error: LaunchError) -> None:
        now = self.clock()
        self._try_at = now + _PAUSE_SECONDS
        if self.journal.lost or now - self._error_since >= _PATIENCE_SECONDS:
            # what runs goes on
            self._error, self._failure = None, error
            self.tell(v.Abandoned())

    def _try_again(self) -> None:
        if self._error is None or self.clock() < self._try_at:
            return
        try:
            self.journal.flush()
            self._executor.again()
        except LaunchError as error:
            if self._scheduler.running:
                self._error_since = self.clock()
            self._try_later(error)
        else:
            self._error = None
            self.tell(v.Unblocked())

    # Events and actions

    def composed(self, answer: v.JobComposed | v.JobBroken) -> None:
        """A job that was to be composed is, or cannot be."""
        self.records.composed(answer)
        self.tell(answer)

    def tell(self, event: v.SweepEvent) -> None:
        """Tells an event when all that follows from earlier ones is done."""
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        while self._events:
            event = self._events.popleft()
            self.observe(event)
            for action in self._scheduler.handle(event, self.clock()):
                if not isinstance(action, v.StartJob):
                    self.observe(action)
                self._perform(action)
        self._telling = False

    def _perform(self, action: v.SweepAction) -> None:
        match action:
            case v.FinishSweep():
                self._finish = action
            case v.ComposeNext(number):
                self._executor.compose(number)
            case v.StartJob():
                self._executor.start(action)
            case v.Retry():
                if action.at is not None:
                    self._due[action.number] = action.at
            case v.Settle():
                self._due.pop(action.number, None)
                self.records.settled(action)
                self._executor.settled(action)
            case v.SignalJobs(signum):
                # a job would show where its workers stand, or pass it on, and go on
                self._executor.signal(signal.SIGTERM if signum in QUIET else signum)
