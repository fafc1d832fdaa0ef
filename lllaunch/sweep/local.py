"""The executor of this machine: each job is a fork of the launcher, and leases what it runs on.

docs/design/sweep-shell.md says why it is as it is.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

import lllaunch.sweep.schedule as v
from lllaunch.documents import Plain
from lllaunch.errors import LaunchError, OutputError, for_signal
from lllaunch.linux.process import send_signal, wait_readable
from lllaunch.spawner.forks import STOP_AND_CONTINUE, ignored_at_start
from lllaunch.sweep.loop import Executor
from lllaunch.sweep.machine import RETRY_AFTER, LeaseFailed, Leases
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.processes import ForkFailed, JobProcess, Remains, Work
from lllaunch.sweep.protocol import BeginJob, Prepared
from lllaunch.sweep.schedule import by_signal

if TYPE_CHECKING:
    from lllaunch.linux.process import HasFileno
    from lllaunch.sweep.protocol import Answer

# How long a job may take to be gone after SIGKILL, and what it started after its own end.
KILL_SECONDS = 15.0
# How long jobs may take to end when the sweep itself fails.
_ABANDON_SECONDS = 30.0


class LocalExecutor(Executor):
    """The jobs of a sweep in processes of this machine; they die with the thread that forks them.

    ``work``: its warm spawners stay the caller's, for another sweep. ``review``: called with the
    first answer of a job, without its payload; what it returns counts (its ``warm`` must stay),
    until the job is composed again for another attempt: that is not reviewed.
    """

    def __init__(
        self,
        work: Work,
        leases: Leases,
        review: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> None:
        self.slots = work.machine.everything
        marks = (os.urandom(8).hex(), os.urandom(8).hex())
        self._work = work._replace(marks=marks, ignored=ignored_at_start())
        self._warm = work.warm
        self._leases = leases
        self._review = review
        self._jobs: dict[int, JobProcess] = {}
        # One that has been asked for; others are composed again, for another attempt.
        self._composing: JobProcess | None = None
        # The number of a job that is to be composed, and has no process yet.
        self._unforked: int | None = None
        # by slots that others hold: what is readable when they may be free, or when to look again
        self._watches: dict[Lease, socket.socket | float] = {}
        # what jobs leave is adopted from now on
        self._remains = Remains(lambda: (*marks, *work.warm.marks()))

    # What the scheduler decides

    def compose(self, number: int) -> None:
        """Fork a job, which composes itself."""
        self._unforked = number
        try:
            self.again()
        except ForkFailed as error:
            self.sweep.block(error)

    def again(self) -> None:
        """Fork the job that could not be forked."""
        if self._unforked is not None:
            self._composing = self._fork(self._unforked)
            self._unforked = None

    def start(self, start: v.StartJob) -> None:
        """Lock the slots of a lease, and let a job run with them."""
        try:
            busy = self._leases.acquire(start.lease)
            if busy is not None and not all(job.apart for job in self._jobs.values()):
                # What was just released may still be open in a job that was just forked.
                for each in self._jobs.values():
                    while not (each.apart or each.channel.closed):
                        wait_readable(each.channel)
                        each.receive()
                busy = self._leases.acquire(start.lease)
            if busy is not None:
                watch = self._leases.watch(busy)
                later = self.sweep.clock() + RETRY_AFTER
                self._watches[busy] = later if watch is None else watch
                self.sweep.tell(v.JobNotStarted(start.number, busy))
                return
            # one that is tried again is composed again
            job = self._jobs.get(start.number) or self._fork(start.number)
        except (LeaseFailed, ForkFailed) as error:
            self._take_back(start.number, start.lease, error)
            return
        job.lease, job.attempt = start.lease, start.attempt
        if job.answer is not None:
            self._begin(job)

    def settled(self, end: v.Settle) -> None:
        """End the process of a job that waits for a lease, which it will not get."""
        job = self._jobs.get(end.number)
        if job is not None:
            self._drop(job)

    def signal(self, signum: int) -> None:
        """Pass a signal on to the jobs that run; those that wait stop and continue, too."""
        everyone = signum in STOP_AND_CONTINUE
        for job in [*self._jobs.values()] if everyone else self._running():
            job.signal(signum)
            if signum == signal.SIGKILL and job.deadline is None:
                # what it started is killed then, too
                job.deadline = self.sweep.clock() + KILL_SECONDS

    def _fork(self, number: int) -> JobProcess:
        job = self._jobs[number] = JobProcess.fork(number, self._work, self._leave)
        return job

    def _leave(self) -> None:
        """In a forked job: closes what is the launcher's."""
        self.sweep.source.leave()
        self._leases.close()
        self.sweep.journal.close()
        for job in self._jobs.values():
            job.close()
        self._remains.close()
        self._warm.leave()

    def _take_back(self, number: int, lease: Lease, error: LaunchError) -> None:
        """A job that was to start does not."""
        self._leases.release(lease)
        job = self._jobs.get(number)
        if job is not None:
            job.lease = None
        self.sweep.block(error)
        self.sweep.tell(v.JobNotStarted(number))

    def _begin(self, job: JobProcess) -> None:
        """The job holds its lease and is composed: it may run."""
        if not isinstance(job.answer, Prepared):
            return  # It could not be composed again, and ends by itself.
        assert job.lease is not None
        try:
            self.sweep.records.starts(job.answer, job.attempt, job.lease, job.pid)
        except OutputError as error:
            self._take_back(job.number, job.lease, error)
            return
        self.sweep.observe(v.StartJob(job.number, job.lease, job.attempt))
        lent = None if job.answer.warm is None else self._warm.lend(job.answer.warm, job.pidfd)
        # It was forked before they were taken.
        locks = self._leases.descriptors(job.lease)
        if lent is None:
            job.channel.queue(Plain()(BeginJob(job.lease)), fds=locks)
            return
        branch, soon = lent
        begin = BeginJob(job.lease, branch.mark, soon)
        # the only message: it has left when this returns
        job.channel.queue(Plain()(begin), fds=(branch.sock.fileno(), *locks))
        branch.sock.close()

    # What is waited for

    def awaited(self, *, prints: bool) -> Sequence[HasFileno | int]:
        """Return what spawners, slots, and jobs with what they have left have to say."""
        return [
            *self._warm.spawners(),
            *(watch for watch in self._watches.values() if not isinstance(watch, float)),
            *self._remains.pidfds.values(),
            *(fd for job in self._jobs.values() for fd in job.awaited(prints=prints)),
        ]

    def deadline(self) -> float | None:
        """Return when a job is to be gone, or now, if an answer came by another way."""
        if any(job.answer is not None and not job.handled for job in self._jobs.values()):
            return 0.0
        deadlines = [job.deadline for job in self._jobs.values() if job.deadline is not None]
        deadlines += [watch for watch in self._watches.values() if isinstance(watch, float)]
        return min(deadlines, default=None)

    def look(self, ready: frozenset[int]) -> None:
        """Tell what spawners and jobs say, and which slots others have given back."""
        self._warm.dispatch(ready, self.sweep.observe)
        for job in list(self._jobs.values()):
            self._look_at(job, ready)
        for slot, watch in list(self._watches.items()):
            if isinstance(watch, float):
                if watch > self.sweep.clock():
                    continue
            elif watch.fileno() in ready:
                watch.close()
            else:
                continue
            del self._watches[slot]
            self.sweep.tell(v.SlotsFreed(slot))

    def _look_at(self, job: JobProcess, ready: frozenset[int]) -> None:
        """Reads what a job says and prints, and notices its end."""
        if self._jobs.get(job.number) is not job:
            return  # an earlier event of this turn was its end
        for pipe in job.pipes:
            if pipe.fileno() in ready:
                pipe.read(self.sweep.observe)
        if job.channel.fileno() in ready:
            job.receive()
            if job.progress is not None:
                self.sweep.observe(job.progress)
                job.progress = None
        # Not one that ended after the wait: a signal to the launcher may have come before.
        ended = job.exit_code is not None or (job.pidfd in ready and job.reap())
        if job.answer is not None and not job.handled:
            job.handled = True
            self._answered(job)
        if self._jobs.get(job.number) is not job:
            return
        if ended:
            self._ended(job)
        elif job.deadline is not None and job.deadline <= self.sweep.clock():
            self._remains.leave_alone(job.pid)
            self._over(job, for_signal(signal.SIGKILL))

    def _answered(self, job: JobProcess) -> None:
        """A job has been composed, or could not be."""
        if self._composing is not job:
            if job.lease is not None:
                self._begin(job)
            return
        self._composing = None
        assert job.answer is not None
        said, job.answer = job.answer, self._review(job.answer)
        if isinstance(job.answer, v.JobBroken):
            del self._jobs[job.number]
            job.end(self.sweep.observe, KILL_SECONDS if job.answer is said else 0.0)
        self.sweep.composed(job.answer)

    def _ended(self, job: JobProcess) -> None:
        """The process of a job has ended."""
        assert job.exit_code is not None
        if job is self._composing:
            self._composing = None
            self._drop(job)
            code = job.exit_code if by_signal(job.exit_code) else 1
            broken = v.JobBroken(job.number, code, "its process ended while it was composed")
            self.sweep.composed(self._review(broken))
        elif job.lease is None:
            # Killed while it waited. It is forked again when it is its turn.
            self._drop(job)
        else:
            # what it started lives on for a while at most
            alive = self._remains.look(self._pids())
            if job.branch_ended() and not alive:
                self._over(job, job.exit_code)
            elif job.deadline is None:
                job.deadline = self.sweep.clock() + KILL_SECONDS
            elif job.deadline <= self.sweep.clock():
                if job.branch_pidfd >= 0:
                    # its workers die with it
                    send_signal(job.branch_pidfd, signal.SIGKILL)
                self._remains.kill(self._pids())
                self._over(job, job.exit_code)

    def _over(self, job: JobProcess, exit_code: int) -> None:
        """A running job is over, or given up."""
        del self._jobs[job.number]
        lease = job.lease
        assert lease is not None
        job.close(self.sweep.observe)
        self._leases.release(lease)
        self.sweep.tell(self._end_of(job, exit_code))

    def _end_of(self, job: JobProcess, exit_code: int) -> v.JobEnded:
        """Write down how a job that held a lease has ended."""
        answer, directory, why = job.answer, "", job.why
        if isinstance(answer, Prepared):
            directory = answer.directory
            why = why or ("" if exit_code else "its process ended without a result")
        elif isinstance(answer, v.JobBroken):
            exit_code, why = answer.exit_code, answer.why
        end = self.sweep.records.ended(job.number, job.attempt, directory, exit_code, why)
        # the observer knows how long it held its lease
        return structs.replace(end, seconds=None)

    def _running(self) -> list[JobProcess]:
        return [job for job in self._jobs.values() if job.lease is not None]

    def _drop(self, job: JobProcess) -> None:
        del self._jobs[job.number]
        job.end()

    def _pids(self) -> frozenset[int]:
        """Children that nobody left behind."""
        return frozenset(job.pid for job in self._jobs.values()) | self._warm.pids()

    # When the sweep is over

    def abandon(self) -> None:
        """The sweep itself failed: ends what runs, gently first."""
        for job in self._running():
            job.signal(signal.SIGTERM)
        until = self.sweep.clock() + _ABANDON_SECONDS
        for job in self._running():
            job.end(seconds=max(0.0, until - self.sweep.clock()))
            if job.exit_code is not None and isinstance(job.answer, Prepared):
                self._end_of(job, job.exit_code)

    def close(self) -> None:
        """No process and no descriptor is left."""
        for job in list(self._jobs.values()):
            self._drop(job)
            if job.lease is not None:
                self._leases.release(job.lease)
        for watch in self._watches.values():
            if not isinstance(watch, float):
                watch.close()
        self._remains.kill(self._warm.pids())
        self._remains.close()
