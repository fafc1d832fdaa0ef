"""What a sweep does about a fact: the actions that `lllaunch.sweep.schedule` lists. Pure."""

from __future__ import annotations

from collections import Counter

import lllaunch.sweep.vocabulary as v
from lllaunch.exit_codes import ExitCode
from lllaunch.sweep.policy import Summary, SweepPolicy, by_signal
from lllaunch.sweep.pool import Pool, fits, never_fits
from lllaunch.sweep.resources import Lease, Need
from lllaunch.sweep.waiting import Job, Waiting

# So many jobs are composed ahead at least, and at most where slots are idle that may fit another.
_AHEAD, _FAR_AHEAD = 2, 64

J = v.JobState
# Jobs are started in these states, or will be.
_GOING_ON = frozenset({v.SweepState.PACKING, v.SweepState.BLOCKED})


class Sweep:
    """A sweep from its first job to its end.

    Args:
        slots: all slots that it may use, GPUs in the order of CUDA_VISIBLE_DEVICES.
        policy: what holds for all of its jobs.

    Attributes:
        state: state of the sweep.
        running: the jobs that hold a lease, by number.
        paused: the jobs that wait for the moment of their retry, by number.
        waiting: the jobs that wait for slots.
        composing: whether a job has been asked for.
    """

    def __init__(self, slots: Lease, policy: SweepPolicy | None = None) -> None:
        self.state = v.SweepState.NEW
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
        self._ends: Counter[v.JobState] = Counter()
        # What jobs have needed so far, without what is no smaller than another.
        self._smallest: list[Need] = []

    def begin(self, fact: v.Begin) -> v.Decisions:
        """Ask for the first job."""
        self.state, self.total = v.SweepState.PACKING, fact.total
        return self._go_on()

    def composed(self, fact: v.JobComposed) -> v.Decisions:
        """A job waits, unless it can never run."""
        self.composing = False
        why = never_fits(fact.need, self.pool.size)
        if why:
            code = int(ExitCode.CONFIG)
            return self._failed(v.Settle(fact.number, J.FAILED, exit_code=code, why=why))
        if not any(fits(small, fact.need) for small in self._smallest):
            larger = [need for need in self._smallest if not fits(fact.need, need)]
            self._smallest = [*larger, fact.need]
        self.waiting.add(Job(fact.number, fact.need, self.policy.retries))
        return self._go_on()

    def composed_too_late(self, fact: v.JobComposed) -> v.Decisions:
        """Nothing is started any more."""
        self.composing = False
        return (self._settle(v.Settle(fact.number, J.NOT_RUN)),)

    def broken(self, fact: v.JobBroken) -> v.Decisions:
        """A job that cannot run has failed."""
        self.composing = False
        end = v.Settle(fact.number, J.FAILED, exit_code=fact.exit_code, why=fact.why)
        return self._failed(end)

    def broken_while_cancelled(self, fact: v.JobBroken) -> v.Decisions:
        """A job that cannot run has failed; one whose process got the signal, too, has not run."""
        if not by_signal(fact.exit_code):
            return self.broken(fact)
        self.composing = False
        return (self._settle(v.Settle(fact.number, J.NOT_RUN)),)

    def no_more(self, _: v.Fact) -> v.Decisions:
        """What waits and runs is all that is left."""
        self.composing, self.exhausted = False, True
        return self._go_on()

    def refused(self, fact: v.LeaseRefused) -> v.Decisions:
        """A job did not start after all: it waits again, for other slots."""
        self.waiting.add(self._take_back(fact))
        return self._go_on()

    def refused_too_late(self, fact: v.LeaseRefused) -> v.Decisions:
        """A job did not start, and does not any more."""
        return (self._leave(self._take_back(fact)), *self._go_on())

    def not_started(self, fact: v.NotStarted) -> v.Decisions:
        """A job could not be started: it waits until that can be tried again."""
        self.waiting.add(self._unlease(fact))
        return self._go_on()

    def not_started_too_late(self, fact: v.NotStarted) -> v.Decisions:
        """A job could not be started, and is not any more."""
        return (self._leave(self._unlease(fact)), *self._go_on())

    def block(self, _: v.Blocked) -> v.Decisions:
        """Nothing is started for now."""
        self.state = v.SweepState.BLOCKED
        return ()

    def unblock(self, _: v.Unblocked) -> v.Decisions:
        """Jobs are started again."""
        self.state = v.SweepState.PACKING
        return self._go_on()

    def abandon(self, _: v.Abandoned) -> v.Decisions:
        """Nothing is started any more; what runs goes on."""
        return (*self._halt(v.SweepState.DRAINING), *self._go_on())

    def freed(self, fact: v.SlotsFreed) -> v.Decisions:
        """Slots can be tried again."""
        self.pool.regain(Lease(fact.gpus, fact.cpus))
        return self._go_on()

    def ended(self, fact: v.JobEnded) -> v.Decisions:
        """A job ended: it succeeded, is tried again, or failed."""
        job = self._end(fact)
        if fact.exit_code == 0:
            return (self._over(job, J.SUCCEEDED), *self._go_on())
        if fact.cause is None or not job.take_chance(fact.cause):
            return self._failed(self._end_of(job, J.FAILED))
        at = None
        if self.policy.retry_delay > 0:
            at = self.now + self.policy.retry_delay
            self.paused[job.number] = job
        else:
            self.waiting.add(job)
        return (v.Retry(job.number, job.attempts, fact.cause, at), *self._go_on())

    def ended_while_draining(self, fact: v.JobEnded) -> v.Decisions:
        """A job ended, and is not tried again."""
        job = self._end(fact)
        state = J.FAILED if fact.exit_code else J.SUCCEEDED
        return (self._over(job, state), *self._go_on())

    def ended_while_cancelled(self, fact: v.JobEnded) -> v.Decisions:
        """A job ended after a signal, by that signal or as it would have anyway."""
        if not by_signal(fact.exit_code):
            return self.ended_while_draining(fact)
        return (self._over(self._end(fact), J.CANCELLED), *self._go_on())

    def retry(self, fact: v.RetryDue) -> v.Decisions:
        """A job that failed waits for slots again."""
        self.waiting.add(self.paused.pop(fact.number))
        return self._go_on()

    def cancel(self, fact: v.SignalReceived) -> v.Decisions:
        """The first signal: nothing more is started, and what runs is told to end."""
        self.signum = fact.signum
        told = (v.SignalJobs(fact.signum),) if self.running and fact.forward else ()
        return (*told, *self._halt(v.SweepState.CANCELLING), *self._go_on())

    def kill(self, _: v.SignalReceived) -> v.Decisions:
        """Another signal: what runs is killed."""
        self.state = v.SweepState.KILLING
        return (v.KillJobs(),)

    def ignore(self, _: v.Fact) -> v.Decisions:
        """Nothing follows."""
        return ()

    def _go_on(self) -> v.Decisions:
        """Start what fits, compose what may fit next; or finish, if nothing is left."""
        if self.state not in _GOING_ON:
            return () if self.running else self._finish()
        if self.exhausted and not (self.running or self.waiting or self.paused):
            return self._finish()
        if self.state is v.SweepState.BLOCKED:
            return ()
        starts = self._fill()
        # First, since composing goes on beside the starting.
        return (*self._look_ahead(), *starts)

    def _fill(self) -> v.Decisions:
        starts = []
        while self._may_start():
            job = self.waiting.take(self.pool.free, self.pool.ours)
            if job is None:
                break
            job.lease = self.pool.take(job.need)
            self.running[job.number] = job
            starts.append(v.StartJob(job.number, job.lease, job.attempts))
        return tuple(starts)

    def _may_start(self) -> bool:
        limit = self.policy.max_parallel
        return limit is None or len(self.running) < limit

    def _look_ahead(self) -> v.Decisions:
        if self.composing or self.exhausted:
            return ()
        ahead = len(self.waiting)
        enough = ahead >= max(_AHEAD, len(self.running))
        if enough and (ahead >= _FAR_AHEAD or not self._idle()):
            return ()
        self.composing = True
        return (v.ComposeNext(),)

    def _idle(self) -> bool:
        """Whether there is room for a job such as there has been before, and none waits for it."""
        room = self.waiting.room(self.pool.free, self.pool.ours)
        return self._may_start() and any(fits(need, room) for need in self._smallest)

    def _take_back(self, fact: v.LeaseRefused) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease, Lease(fact.gpus, fact.cpus))
        return job

    def _unlease(self, fact: v.NotStarted) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease)
        return job

    def _end(self, fact: v.JobEnded) -> Job:
        job = self.running.pop(fact.number)
        self.pool.give(job.lease)
        job.attempts += 1
        job.exit_code, job.why = fact.exit_code, fact.why
        job.overtaken = 0
        return job

    def _failed(self, end: v.Settle) -> v.Decisions:
        """A job failed for good; perhaps it was one too many."""
        settled = self._settle(end)
        limit = self.policy.max_failures
        halted: v.Decisions = ()
        going_on = self.state in _GOING_ON
        if going_on and limit is not None and self._ends[J.FAILED] >= limit:
            halted = self._halt(v.SweepState.DRAINING)
        return (settled, *halted, *self._go_on())

    def _halt(self, state: v.SweepState) -> v.Decisions:
        """Start nothing any more."""
        self.state = state
        left = [*self.waiting.clear(), *self.paused.values()]
        self.paused.clear()
        return tuple(self._leave(job) for job in sorted(left, key=lambda job: job.number))

    def _leave(self, job: Job) -> v.Settle:
        """A job does not get to run, or to be tried again."""
        return self._over(job, J.FAILED if job.attempts else J.NOT_RUN)

    def _over(self, job: Job, state: v.JobState) -> v.Settle:
        return self._settle(self._end_of(job, state))

    def _end_of(self, job: Job, state: v.JobState) -> v.Settle:
        return v.Settle(job.number, state, job.attempts, job.exit_code, job.why)

    def _settle(self, end: v.Settle) -> v.Settle:
        self._ends[end.state] += 1
        return end

    def _finish(self) -> v.Decisions:
        self.state = v.SweepState.FINISHED
        ends = self._ends
        told = sum(ends.values())
        unknown = 0 if self.total is None else max(0, self.total - told)
        summary = Summary(
            succeeded=ends[J.SUCCEEDED],
            failed=ends[J.FAILED],
            cancelled=ends[J.CANCELLED],
            not_run=ends[J.NOT_RUN] + unknown,
        )
        return (v.Finish(summary, summary.exit_code(self.signum), self.signum),)
