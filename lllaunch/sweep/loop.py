"""The launcher's part of a sweep: performs the scheduler's actions with real processes.

One thread, one loop. It waits for signals to the launcher, messages and ends of jobs, slots of
other launchers, and deadlines, and tells the scheduler (`lllaunch.sweep.schedule`) what happened.
docs/design/sweep-shell.md says why it is as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

import lllaunch.sweep.schedule as v
from lllaunch.clock import RunClock
from lllaunch.errors import LaunchError, OutputError
from lllaunch.exit_codes import for_signal
from lllaunch.linux.process import wait
from lllaunch.signal_source import QUIET, SignalSource
from lllaunch.spawner.forks import ignored_at_start
from lllaunch.sweep.leases import LeaseFailed, Leases, Slot, SlotWatch
from lllaunch.sweep.policy import SweepPolicy, by_signal
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.processes import ForkFailed, JobProcess, Remains, TooFewFiles, Work
from lllaunch.sweep.protocol import Broken, Prepared, Stopping, Tick
from lllaunch.sweep.schedule import Scheduler
from lllaunch.sweep.session import JobRecords

if TYPE_CHECKING:
    from lllaunch.sweep.journal import Journal


# How long a job may take to be gone after SIGKILL, and what it started after its own end.
KILL_SECONDS = 15.0
# How long jobs may take to end when the sweep itself fails.
_ABANDON_SECONDS = 30.0
# So many jobs in a row that died while they were composed: the next would, too.
_DEATHS = 3
# How long after a failure it is tried whether jobs can be started: at first, and at most.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
# How long jobs wait for that when none runs any more.
_PATIENCE_SECONDS = 600.0


class ComposingFailed(LaunchError):
    """The processes of several jobs in a row were killed while the jobs were composed."""

    def __str__(self) -> str:
        return f"{_DEATHS} jobs in a row were killed while they were composed"


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


class Sweep:
    """A sweep, performed by this process; in its main thread.

    ``work``: its warm spawners stay the caller's, for another sweep. ``review``: called with a job
    that has been composed for the first time, without its payload; what it returns counts (its
    ``warm`` must stay), until the job is composed again for another attempt: that is not reviewed.
    ``captures``: whether what jobs print goes to the onlooker, else to where this process's does.
    ``label``: gives the overrides of a job, redacted, for one that dies before it can say them.
    ``signals``: notes the signals that end the sweep; None for those of a run, while it lasts.
    """

    _remains: Remains
    _source: SignalSource

    def __init__(
        self,
        work: Work,
        policy: SweepPolicy,
        leases: Leases,
        journal: Journal | None,
        onlooker: Onlooker,
        numbers: Sequence[int],
        *,
        review: Callable[[int, Prepared], Prepared | Broken] | None = None,
        captures: bool = False,
        label: Callable[[int], Sequence[str]] | None = None,
        signals: SignalSource | None = None,
    ) -> None:
        self._label = label
        self._full = onlooker.awaited
        self._leases = leases
        self._records = JobRecords(journal)
        self._warm = work.warm
        self._observer = onlooker.observe
        self._review = review
        self._ticks = onlooker.tick_in
        self._clock = RunClock()
        self._tick_at: float | None = None
        self._jobs: dict[int, JobProcess] = {}
        # One that has been asked for; others are composed again, for another attempt.
        self._composing: JobProcess | None = None
        self._deaths = 0
        self._due: dict[int, float] = {}
        self._watches: dict[Slot, SlotWatch] = {}
        # The number of a job that is to be composed, and has no process yet.
        self._unforked: int | None = None
        # Why no job can be started, since when, and when that is tried again.
        self._error: LaunchError | None = None
        self._error_since = self._try_at = 0.0
        self._pause = _PAUSE_SECONDS
        # What has ended the sweep before its time.
        self._failure: LaunchError | None = None
        self._marks = (os.urandom(8).hex(), os.urandom(8).hex())
        self._work = work._replace(marks=self._marks)
        self._scheduler = Scheduler(work.machine.everything, policy)
        self._total = len(numbers)
        self._numbers = iter(numbers)
        self._captures = captures
        self._signals = signals
        self._ignored = ignored_at_start()
        self._events: deque[v.SweepEvent] = deque()
        self._telling = False
        self._finish: v.FinishSweep | None = None

    def run(self) -> v.FinishSweep:
        """Sweep.

        Raises:
            LaunchError: not all jobs could be started, since the journal could not be written, no
                process be made, or a slot not be locked; or the journal lacks something. All jobs
                have ended then.
            RuntimeError: this is not the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            # Jobs die with the thread that forked them.
            raise RuntimeError("a sweep runs in the main thread")
        self._remains = Remains(self._all_marks)
        try:
            with contextlib.ExitStack() as stack:
                self._source = self._signals or stack.enter_context(
                    SignalSource(quiet=QUIET, stops=True)
                )
                try:
                    self._tell(v.BeginSweep(self._total))
                    while self._finish is None:
                        self._turn()
                except BaseException:
                    self._abandon()
                    raise
                finally:
                    self._clean()
        finally:
            self._remains.close()
        finish, failure = self._finish, self._failure
        self._records.over(finish.exit_code if failure is None else failure.exit_code)
        failure = failure or self._records.error
        if failure is not None and finish.signum is None:
            raise failure
        return finish

    # What is waited for

    def _turn(self) -> None:
        """Waits until something happens, and tells it; signals first."""
        self._look_at_records()
        ready = self._wait()
        # One that came before a job ended is there by now, even if the wait did not tell.
        for signum in self._received():
            self._signalled(signum)
        if self._warm is not None:
            self._warm.dispatch(ready, self._observer)
        for job in list(self._jobs.values()):
            self._look_at(job, ready)
        for slot, watch in list(self._watches.items()):
            if watch.fileno() in ready:
                watch.close()
                del self._watches[slot]
                self._tell(v.SlotsFreed(slot.lease.gpus, slot.lease.cpus))
        now = self._clock()
        self._try_again(now)
        for number in [number for number, at in self._due.items() if at <= now]:
            if self._due.pop(number, None) is not None:
                self._tell(v.RetryDue(number))
        self._observer(Tick())
        seconds = self._ticks()
        self._tick_at = None if seconds is None else self._clock() + seconds

    def _received(self) -> list[int]:
        """The signals since the last call; if one of them stops the sweep, when it goes on."""
        received = self._source.received()
        if self._source.stopping:
            self._stop_until_continued()
        return received

    def _stop_until_continued(self) -> None:
        """Stop the jobs and this process (Ctrl-Z); until SIGCONT no time passes for the sweep.

        Jobs have sessions of their own. Each stops its workers, and waits for SIGCONT.
        """
        self._observer(Stopping())
        for job in self._jobs.values():
            job.signal(signal.SIGTSTP)
        self._clock.leave_out(self._source.stop_until_continued())
        for job in self._jobs.values():
            job.signal(signal.SIGCONT)

    def _signalled(self, signum: int) -> None:
        if signum not in self._source.quiet:
            self._tell(v.SweepSignalled(signum))
            return
        # each job shows where its workers stand, or passes it on to them, and the sweep goes on
        for job in self._running():
            job.signal(signum)

    def _wait(self) -> frozenset[int]:
        # Who cannot be told more lets jobs wait, as a terminal does that was stopped.
        full = self._full() or ()
        readable = [
            self._source,
            *(() if self._warm is None else self._warm.spawners()),
            *self._watches.values(),
            *self._remains.pidfds.values(),
            *(fd for job in self._jobs.values() for fd in job.awaited(prints=not full)),
        ]
        return wait(readable, full, self._next_in())

    def _next_in(self) -> float | None:
        """Return in how many seconds the next deadline is; None if there is none."""
        if any(job.answered and not job.handled for job in self._jobs.values()):
            return 0.0
        deadlines = [*self._due.values()]
        deadlines += [] if self._tick_at is None else [self._tick_at]
        deadlines += [] if self._error is None else [self._try_at]
        deadlines += [job.deadline for job in self._jobs.values() if job.deadline is not None]
        if not deadlines:
            return None
        return max(0.0, min(deadlines) - self._clock())

    def _look_at(self, job: JobProcess, ready: frozenset[int]) -> None:
        """Reads what a job says and prints, and notices its end."""
        if self._jobs.get(job.number) is not job:
            return  # an earlier event of this turn was its end
        for pipe in job.pipes:
            if pipe.fileno() in ready:
                pipe.read(self._observer)
        if job.channel is not None and job.channel.fileno() in ready:
            job.receive()
            if job.progress is not None:
                self._observer(job.progress)
                job.progress = None
        # Not one that ended after the wait: a signal to the launcher may have come before.
        ended = job.exit_code is not None or (job.pidfd in ready and job.reap())
        if job.answered and not job.handled:
            job.handled = True
            self._answered(job)
        if self._jobs.get(job.number) is not job:
            return
        if ended:
            self._ended(job)
        elif job.deadline is not None and job.deadline <= self._clock():
            self._remains.leave_alone(job.pid)
            self._over(job, for_signal(signal.SIGKILL))

    def _answered(self, job: JobProcess) -> None:
        """A job has been composed, or could not be."""
        if self._composing is not job:
            if job.lease is not None:
                self._begin(job)
            return
        self._composing, self._deaths = None, 0
        refused = isinstance(job.answer, Broken)
        if isinstance(job.answer, Prepared) and self._review is not None:
            job.answer = self._review(job.number, job.answer)
        answer = job.answer
        if isinstance(answer, Prepared):
            self._records.composed(job.number, answer)
            self._tell(v.JobComposed(job.number, answer.need, answer.overrides, answer.directory))
            return
        assert answer is not None
        del self._jobs[job.number]
        job.end(self._observer, by_itself=refused)
        self._broken(job.number, answer)

    def _broken(self, number: int, answer: Broken) -> None:
        if self._label is not None and not answer.overrides:
            # it came to say nothing
            answer = replace(answer, overrides=tuple(self._label(number)))
        self._records.composed(number, answer)
        self._tell(
            v.JobBroken(number, answer.exit_code, answer.why, answer.overrides, answer.directory)
        )

    def _begin(self, job: JobProcess) -> None:
        """The job holds its lease and is composed: it may run."""
        if not isinstance(job.answer, Prepared):
            return  # It could not be composed again, and ends by itself.
        try:
            self._records.starts(job, job.answer)
        except OutputError as error:
            assert job.lease is not None
            self._take_back(job.number, job.lease, error)
            return
        self._pause = _PAUSE_SECONDS
        job.begin(self._leases, self._warm)

    # When something fails that all jobs need

    def _take_back(self, number: int, lease: Lease, error: LaunchError) -> None:
        """A job that was to start does not."""
        self._leases.release(lease)
        job = self._jobs.get(number)
        if job is not None:
            job.lease = None
        self._block(error)
        self._tell(v.JobNotStarted(number))

    def _look_at_records(self) -> None:
        if self._records.error is not None:
            self._block(self._records.error)

    def _block(self, error: LaunchError) -> None:
        """No job is started until what failed works again."""
        if self._error is not None or self._failure is not None:
            return
        self._error, self._error_since = error, self._clock()
        self._tell(v.Blocked(str(error)))
        self._try_later(error, self._error_since)

    def _try_later(self, error: LaunchError, now: float) -> None:
        # no job has descriptors that it will give back
        hopeless = self._records.lost or (isinstance(error, TooFewFiles) and not self._jobs)
        if hopeless or now - self._error_since >= _PATIENCE_SECONDS:
            self._give_up(error)
        self._try_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _try_again(self, now: float) -> None:
        if self._error is None or now < self._try_at:
            return
        try:
            self._records.flush()
            if self._unforked is not None:
                self._compose(self._unforked)
        except LaunchError as error:
            if self._running():
                self._error_since = now
            self._try_later(error, now)
            return
        self._error = None
        self._tell(v.Unblocked())

    def _give_up(self, error: LaunchError) -> None:
        """No job is started any more; those that run go on."""
        self._error, self._failure = None, error
        self._tell(v.Abandoned())

    def _compose(self, number: int) -> None:
        """Begins to compose a job; raises `ForkFailed` if it has no process."""
        self._unforked = number
        self._composing = self._fork(number)
        self._unforked = None

    def _ended(self, job: JobProcess) -> None:
        """The process of a job has ended."""
        assert job.exit_code is not None
        if job is self._composing:
            self._died_composing(job)
        elif job.lease is None:
            # Killed while it waited. It is forked again when it is its turn.
            self._drop(job)
        elif self._leaves_nothing(job):
            self._over(job, job.exit_code)
        elif job.deadline is not None and job.deadline <= self._clock():
            job.kill_branch()
            self._remains.kill(self._pids())
            self._over(job, job.exit_code)

    def _died_composing(self, job: JobProcess) -> None:
        self._composing = None
        self._drop(job)
        self._deaths += 1
        if self._deaths >= _DEATHS:
            self._give_up(ComposingFailed())
        assert job.exit_code is not None
        code = job.exit_code if by_signal(job.exit_code) else 1
        self._broken(job.number, Broken(code, "its process ended while it was composed"))

    def _leaves_nothing(self, job: JobProcess) -> bool:
        """Whether what a job started has ended, too; gives that a deadline otherwise."""
        alive = self._remains.look(self._pids())
        if job.branch_ended() and not alive:
            return True
        if not job.lingers:
            job.lingers, job.deadline = True, self._clock() + KILL_SECONDS
        return False

    def _pids(self) -> frozenset[int]:
        """Children that nobody left behind."""
        return frozenset(job.pid for job in self._jobs.values()) | self._warm_pids()

    def _warm_pids(self) -> frozenset[int]:
        return frozenset() if self._warm is None else self._warm.pids()

    def _over(self, job: JobProcess, exit_code: int) -> None:
        """A running job is over, or given up."""
        del self._jobs[job.number]
        lease = job.lease
        assert lease is not None
        job.close(self._observer)
        self._leases.release(lease)
        event = self._records.ended(job, exit_code)
        self._look_at_records()
        self._tell(event)

    def _running(self) -> list[JobProcess]:
        return [job for job in self._jobs.values() if job.lease is not None]

    def _drop(self, job: JobProcess) -> None:
        del self._jobs[job.number]
        job.end()

    # When the sweep is over

    def _abandon(self) -> None:
        """The sweep itself failed: ends what runs, gently first."""
        for job in self._running():
            job.signal(signal.SIGTERM)
        until = self._clock() + _ABANDON_SECONDS
        for job in self._running():
            while not job.reap() and self._clock() < until:
                self._abandoned(job, until)
                if {*self._received()} - self._source.quiet:
                    until = 0.0
        for job in self._running():
            job.end()
            if job.exit_code is not None and job.begun:
                self._records.ended(job, job.exit_code)

    def _abandoned(self, job: JobProcess, until: float) -> None:
        """Waits for the end of a job, and lets it print meanwhile."""
        wait((self._source, *job.awaited()), seconds=until - self._clock())
        for pipe in job.pipes:
            pipe.read(lambda _: None)
        job.receive()

    def _clean(self) -> None:
        """No process and no descriptor is left."""
        for job in list(self._jobs.values()):
            self._drop(job)
            if job.lease is not None:
                self._leases.release(job.lease)
        for watch in self._watches.values():
            watch.close()
        self._remains.kill(self._warm_pids())

    # Events and actions

    def _tell(self, event: v.SweepEvent) -> None:
        """Tells an event when all that follows from earlier ones is done."""
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        while self._events:
            event = self._events.popleft()
            self._observer(event)
            for action in self._scheduler.handle(event, self._clock()):
                self._observer(action)
                self._perform(action)
        self._telling = False

    def _perform(self, action: v.SweepAction) -> None:
        if isinstance(action, v.FinishSweep):
            self._finish = action
        elif isinstance(action, v.ComposeNext):
            self._compose_next()
        elif isinstance(action, v.StartJob):
            self._start(action)
        elif isinstance(action, v.Retry):
            if action.at is not None:
                self._due[action.number] = action.at
        elif isinstance(action, v.Settle):
            self._settle(action)
        else:
            self._end_jobs(action)

    def _end_jobs(self, action: v.SignalJobs | v.KillJobs) -> None:
        for job in self._running():
            if isinstance(action, v.SignalJobs):
                # a job would show where its workers stand, or pass it on, and go on
                signum = action.signum
                job.signal(signal.SIGTERM if signum in QUIET else signum)
                continue
            job.signal(signal.SIGKILL)
            if job.deadline is None:
                job.deadline = self._clock() + KILL_SECONDS

    def _compose_next(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            self._tell(v.NoMoreJobs())
        else:
            try:
                self._compose(number)
            except ForkFailed as error:
                self._block(error)

    def _fork(self, number: int) -> JobProcess:
        job = JobProcess.fork(
            number, self._work, self._leave, captures=self._captures, ignored=self._ignored
        )
        self._jobs[number] = job
        return job

    def _all_marks(self) -> Sequence[str]:
        return self._marks if self._warm is None else (*self._marks, *self._warm.marks())

    def _leave(self) -> None:
        """In a forked job: closes what is the launcher's."""
        self._source.leave()
        self._leases.close()
        self._records.leave()
        for job in self._jobs.values():
            job.close()
        self._remains.leave()
        if self._warm is not None:
            self._warm.leave()

    def _start(self, start: v.StartJob) -> None:
        try:
            busy = self._acquire(start.lease)
            if busy:
                self._refused(start, busy)
                return
            job = self._process_of(start)
        except (LeaseFailed, ForkFailed) as error:
            self._take_back(start.number, start.lease, error)
            return
        job.lease, job.attempt = start.lease, start.attempt
        if job.answered:
            self._begin(job)

    def _acquire(self, lease: Lease) -> Sequence[Slot]:
        busy = self._leases.acquire(lease)
        if busy and not all(job.apart for job in self._jobs.values()):
            # What was just released may still be open in a job that was just forked.
            for job in self._jobs.values():
                job.await_apart()
            busy = self._leases.acquire(lease)
        return busy

    def _refused(self, start: v.StartJob, busy: Sequence[Slot]) -> None:
        for slot in busy:
            self._watches[slot] = self._leases.watch(slot)
        gpus = tuple(name for slot in busy for name in slot.lease.gpus)
        cpus = tuple(core for slot in busy for core in slot.lease.cpus)
        self._tell(v.LeaseRefused(start.number, gpus, cpus))

    def _process_of(self, start: v.StartJob) -> JobProcess:
        """The process of a job, forked anew if it is tried again or was killed while it waited."""
        job = self._jobs.get(start.number)
        if job is not None:
            if not job.reap():
                return job
            self._drop(job)
        return self._fork(start.number)

    def _settle(self, end: v.Settle) -> None:
        self._due.pop(end.number, None)
        self._records.settled(end)
        job = self._jobs.get(end.number)
        if job is not None:
            # It waits for a lease that it will not get.
            self._drop(job)
