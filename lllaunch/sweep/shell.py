"""The launcher's part of a sweep: performs the scheduler's decisions with real processes.

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
from typing import TYPE_CHECKING

import lllaunch.sweep.schedule as v
from lllaunch.multiprocessing.signals import STACKS_ON, SignalSource
from lllaunch.spawner.signals import ignored_at_start
from lllaunch.sweep.bookkeeping import Books
from lllaunch.sweep.leases import LeaseFailed, Leases, Slot
from lllaunch.sweep.loop import KILL_SECONDS, Loop
from lllaunch.sweep.machine import Machine
from lllaunch.sweep.policy import SweepPolicy
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.prepared import Answer, Broken, Prepared
from lllaunch.sweep.processes import ForkFailed, JobProcess, Remains, Work
from lllaunch.sweep.schedule import Scheduler

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner
    from lllaunch.sweep.journal import Journal
    from lllaunch.sweep.warmth import Warmth


class Sweep(Loop):
    """A sweep, performed by this process; in its main thread.

    Args:
        machine: whose slots the jobs lease.
        policy: what holds for all jobs.
        leases: the locks on those slots.
        journal: of the sweep, or None.
        prepare: composes a job; called in the job's process with its number.
        execute: runs a job; called in the job's process with what ``prepare`` returned, its lease,
            and its branch of the warm spawner (None if there is none); its exit code.
        observer: gets every fact and every decision, what composing yielded
            (`lllaunch.sweep.prepared.JobAnswered`), what the warm spawners tell, the jobs' lines
            (`lllaunch.sweep.output.JobPrinted`), and the ticks.
        numbers: of the jobs, in order, each once.
        review: called with a job that has been composed for the first time, without its payload;
            what it returns counts (its ``warm`` must stay), until the job is composed again for
            another attempt: that is not reviewed.
        warm: the spawners that jobs share, or None; they stay the caller's, for another sweep.
        captures: whether what jobs print goes to the observer, else to where this process's does.
        pins: whether jobs are bound to the cores of their leases.
        ticks: the observer gets a `lllaunch.sweep.output.Tick` every so many seconds at least, for
            a display that shows the time; None for only when something has happened.
        label: gives the overrides of a job, redacted, for one that dies before it can say them.
        full: descriptors that are to be writable before the observer gets more of what jobs print;
            nothing if it takes all.
        locks: descriptors that are kept open as long as anything of a job lives.
        signals: notes the signals that end the sweep; None for those of a run, while it lasts.
    """

    def __init__(
        self,
        machine: Machine,
        policy: SweepPolicy,
        leases: Leases,
        journal: Journal | None,
        prepare: Callable[[int], Answer],
        execute: Callable[[Prepared, Lease, Spawner | None], int],
        observer: Callable[[object], None],
        numbers: Sequence[int],
        *,
        review: Callable[[int, Prepared], Prepared | Broken] | None = None,
        warm: Warmth | None = None,
        captures: bool = False,
        pins: bool = False,
        ticks: float | None = None,
        label: Callable[[int], Sequence[str]] | None = None,
        full: Callable[[], Sequence[int]] = tuple,
        locks: tuple[int, ...] = (),
        signals: SignalSource | None = None,
    ) -> None:
        super().__init__(leases, Books(journal), warm, observer, review, ticks, label, full)
        self._marks = (os.urandom(8).hex(), os.urandom(8).hex())
        self._work = Work(prepare, execute, machine, pins, warm, self._marks, locks)
        self._scheduler = Scheduler(machine.everything, policy)
        self._total = len(numbers)
        self._numbers = iter(numbers)
        self._captures = captures
        self._signals = signals
        self._ignored = ignored_at_start()
        self._facts: deque[v.Fact] = deque()
        self._telling = False
        self._finish: v.Finish | None = None

    def run(self) -> v.Finish:
        """Sweep.

        Returns:
            How it ended.

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
                    SignalSource(quiet=STACKS_ON, stops=True)
                )
                try:
                    self._tell(v.Begin(self._total))
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
        self._books.over(finish.exit_code if failure is None else failure.exit_code)
        failure = failure or self._books.error
        if failure is not None and finish.signum is None:
            raise failure
        return finish

    # Facts and decisions

    def _tell(self, fact: v.Fact) -> None:
        """Tells a fact when all that follows from earlier ones is done."""
        self._facts.append(fact)
        if self._telling:
            return
        self._telling = True
        while self._facts:
            fact = self._facts.popleft()
            self._observer(fact)
            for decision in self._scheduler.handle(fact, self._clock()):
                self._observer(decision)
                self._perform(decision)
        self._telling = False

    def _perform(self, decision: v.Decision) -> None:
        if isinstance(decision, v.Finish):
            self._finish = decision
        elif isinstance(decision, v.ComposeNext):
            self._compose_next()
        elif isinstance(decision, v.StartJob):
            self._start(decision)
        elif isinstance(decision, v.Retry):
            if decision.at is not None:
                self._due[decision.number] = decision.at
        elif isinstance(decision, v.Settle):
            self._settle(decision)
        else:
            self._end_jobs(decision)

    def _end_jobs(self, decision: v.SignalJobs | v.KillJobs) -> None:
        for job in self._running():
            if isinstance(decision, v.SignalJobs):
                # a job would show where its workers stand, and go on
                signum = decision.signum
                job.signal(signal.SIGTERM if signum == STACKS_ON else signum)
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
        self._books.leave()
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
        self._books.settled(end)
        job = self._jobs.get(end.number)
        if job is not None:
            # It waits for a lease that it will not get.
            self._drop(job)
