"""The jobs of a sweep on a cluster: composed here, submitted as arrays, followed or left.

All are composed and checked, and their directories made ready, before anything is submitted. What
is in the queue stands in the directories alone, so a launcher that dies, or leaves, loses nothing:
the next one goes on with what it finds there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hydra.core.utils import filter_overrides
from omegaconf import OmegaConf

import lllaunch.sweep.schedule as v
from lllaunch.app.submitting import ask, command_of, follows, make_ready, snapshot_of
from lllaunch.app.sweeping.jobs import Planned
from lllaunch.app.sweeping.probes import SweepRefused, map_in_forks
from lllaunch.clock import now_ns
from lllaunch.cluster import slurm
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.linux.process import wait
from lllaunch.run.files import naming
from lllaunch.run.snapshot import Snapshot
from lllaunch.run.submission import (
    CODE,
    SCRIPT,
    BatchSignalled,
    BatchStarted,
    Limits,
    Submission,
    account_of,
    read_submission,
)
from lllaunch.sweep.arrays import (
    OUTPUT,
    Array,
    ArrayJob,
    arrays_of,
    known_arrays,
    new_directory,
    write_tasks,
)
from lllaunch.sweep.directory import ARRAYS
from lllaunch.sweep.history import forget_result
from lllaunch.sweep.journal import OverRecord, StartedRecord
from lllaunch.sweep.policy import Summary
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import Broken, JobAnswered, Prepared, Tick, record_of

if TYPE_CHECKING:
    from lllaunch.app.sweeping.composing import JobConfig
    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.app.sweeping.launcher import JobBatch
    from lllaunch.cluster.slurm import QueuedJob
    from lllaunch.signal_source import SignalSource
    from lllaunch.spec import Cluster
    from lllaunch.sweep.policy import SweepPolicy
    from lllaunch.sweep.session import SweepSession

# Between two looks at a queue, seconds: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
# A job that is gone from the queue without a word is so at so many looks: it may just come back.
_LOOKS = 3


class ReadyJob(NamedTuple):
    """A job whose directory is ready, or why it is not.

    Attributes:
        answer: what composing it yielded.
        cluster: where it goes; None for nowhere.
    """

    answer: Prepared | Broken
    cluster: Cluster | None = None


class SubmittedJob:
    """A job that is in a queue.

    Attributes:
        number: of the job.
        directory: of its run, absolute.
        id: of its batch job.
        running: whether it was seen to run.
        gone: at how many looks in a row it was not in the queue.
        cancelled: whether this launcher has cancelled it.
    """

    __slots__ = ("cancelled", "directory", "gone", "id", "number", "running")

    def __init__(self, number: int, directory: str, id: str) -> None:  # noqa: A002 - Slurm's word
        self.number = number
        self.directory = directory
        self.id = id
        self.running = False
        self.gone = 0
        self.cancelled = False


class SubmittedSweep:
    """A batch of jobs of a sweep, on a cluster.

    Args:
        session: the sweep's directory.
        jobs: composes them.
        policy: what holds for all of them.
        batch: the jobs.
        observer: gets what happens, in the words of a sweep on this machine.
        signals: notes the signals that end this launcher, and not the jobs.
        at_once: whether these are all jobs of the sweep.

    Attributes:
        left: whether the launcher has left jobs in the queue.
    """

    def __init__(
        self,
        session: SweepSession,
        jobs: SweepJobs,
        policy: SweepPolicy,
        batch: JobBatch,
        observer: Callable[[object], None],
        signals: SignalSource,
        *,
        at_once: bool,
    ) -> None:
        self.left = False
        self._at_once = at_once
        self._session = session
        self._jobs = jobs
        self._policy = policy
        self._batch = batch
        self._observer = observer
        self._signals = signals
        self._in_queue: dict[int, SubmittedJob] = {}
        self._to_submit: deque[Array] = deque()
        self._ends: Counter[v.JobState] = Counter()
        self._detached = False
        # of what is to be submitted
        self._answers: dict[int, Prepared] = {}
        self._snapshot_json: Mapping[str, str] | None = None

    def run(self) -> v.FinishSweep:
        """Submit what is not in the queue, and follow all jobs to their ends, or leave them.

        Raises:
            SweepRefused: some cannot run; nothing was submitted.
            LaunchError: they could not be submitted.
        """
        numbers = self._batch.to_run()
        self._observer(v.BeginSweep(len(numbers)))
        self._take_up(numbers)
        ready = self._compose([number for number in numbers if number not in self._in_queue])
        self._plan_arrays(ready)
        self._submit()
        if self._detached and (self._in_queue or self._to_submit):
            return self._leave(None)
        return self._follow()

    # What is in the queue already

    def _take_up(self, numbers: Sequence[int]) -> None:
        """Find jobs that an earlier launcher has submitted, and that are not over."""
        if not os.path.isdir(os.path.join(self._session.path, ARRAYS)):
            return
        queued = slurm.queued()
        for array in known_arrays(self._session.path):
            of_array = array.submission.job or _id_of(queued, array.directory)
            for index, task in enumerate(array.tasks):
                for job in task:
                    known = f"{of_array}_{index}"
                    if job.number not in numbers or not of_array or known not in queued:
                        continue
                    if read_submission(job.directory) is None:
                        array.submission._replace(job=known, directory="").write(job.directory)
                    self._batch.directories[job.number] = job.directory
                    self._in_queue[job.number] = SubmittedJob(job.number, job.directory, known)

    # Composing

    def _compose(self, numbers: Sequence[int]) -> dict[int, ReadyJob]:
        """Make the directories of jobs ready.

        Raises:
            SweepRefused: some cannot run.
        """
        if not numbers:
            return {}
        cores = len(os.sched_getaffinity(0))
        with contextlib.closing(map_in_forks(self._cluster_of, numbers[:1], 1)) as answers:
            first = next(answers)
        snapshot = None
        if first is not None:
            # a sweeper that asks for one batch after another wants to know what became of each
            leaves = not follows(first) if self._at_once else first.detach is True
            self._detached = leaves
            snapshot = self._snapshot(first)

        def ready(number: int) -> ReadyJob:
            return self._ready(number, snapshot)

        with contextlib.closing(map_in_forks(ready, numbers, cores)) as made:
            found = dict(zip(numbers, made, strict=True))
        faults = {
            self._name(number): job.answer
            for number, job in found.items()
            if isinstance(job.answer, Broken)
        }
        faults |= self._in_one_directory(found)
        if faults:
            raise SweepRefused(faults)
        self._snapshot_json = None if snapshot is None else snapshot.to_json()
        return found

    def _snapshot(self, cluster: Cluster) -> Snapshot | None:
        above, name, number = self._session.path, CODE, 0
        while os.path.lexists(os.path.join(above, name)):
            number += 1
            name = f"{CODE}_{number}"
        cwd = str(self._jobs.composer.master.hydra.runtime.cwd)
        return snapshot_of(cluster, cwd, above, name)

    def _cluster_of(self, number: int) -> Cluster | None:
        """In a fork: where a job goes, None if it cannot run."""
        answer = self._prepare(number)
        if isinstance(answer, Broken):
            return None
        return _planned(answer).spec.cluster

    def _prepare(self, number: int) -> Prepared | Broken:
        batch = self._batch
        index, directory = batch.index(number), batch.directories.get(number)
        if directory is not None:
            directory = os.path.join(self._session.path, directory)
        return self._jobs.prepare(batch.overrides[index], batch.labels[index], number, directory)

    def _ready(self, number: int, snapshot: Snapshot | None) -> ReadyJob:
        """In a fork: compose a job, and write what its batch job needs."""
        answer = self._prepare(number)
        if isinstance(answer, Broken):
            return ReadyJob(answer)
        planned = _planned(answer)
        spec, config = planned.spec, planned.config
        if spec.log_dir != spec.output_dir:
            why = "launch.log_dir: a job of a cluster keeps its files in Hydra's directory"
            return ReadyJob(Broken(int(ExitCode.CONFIG), why, answer.overrides, answer.directory))
        cluster = spec.cluster
        if cluster is not None and cluster.pack > 1 and cluster.nodes > 1:
            why = (
                f"cluster.pack: expected 1, as a job has {cluster.nodes} nodes, got {cluster.pack}"
            )
            return ReadyJob(Broken(int(ExitCode.CONFIG), why, answer.overrides, answer.directory))
        try:
            with naming(spec.output_dir):
                os.makedirs(spec.output_dir, exist_ok=True)
            self._write_hydra(config, self._batch.overrides[self._batch.index(number)])
            make_ready(spec, config.own(), self._jobs.composer.user, snapshot, spec.output_dir)
        except LaunchError as error:
            return ReadyJob(Broken(error.exit_code, str(error), answer.overrides))
        return ReadyJob(answer._replace(payload=None, need=Need()), spec.cluster)

    def _write_hydra(self, config: JobConfig, overrides: Sequence[str]) -> None:
        """Write what Hydra leaves in the directory of a job that it runs."""
        subdir = config.whole.hydra.output_subdir
        if subdir is None:
            return
        directory = os.path.join(config.where.output_dir, str(subdir))
        hydra = OmegaConf.masked_copy(config.whole, "hydra")
        written = {
            "config.yaml": config.own(),
            "hydra.yaml": hydra,
            "overrides.yaml": OmegaConf.create([*filter_overrides(overrides)]),
        }
        with naming(directory):
            os.makedirs(directory, exist_ok=True)
            for name, each in written.items():
                OmegaConf.save(each, os.path.join(directory, name))

    def _in_one_directory(self, jobs: Mapping[int, ReadyJob]) -> dict[str, Broken]:
        """Return which jobs would run in the directory of another one."""
        taken: dict[str, int] = {}
        faults = {}
        for number, job in jobs.items():
            directory = job.answer.directory
            other = taken.setdefault(directory, number)
            if other != number:
                why = (
                    f"hydra.sweep.subdir: the directory is that of job {other} ({directory}); make "
                    "it depend on the job, as ${hydra:job.num} does"
                )
                faults[self._name(number)] = Broken(int(ExitCode.CONFIG), why)
        return faults

    def _name(self, number: int) -> str:
        return self._batch.labels.name(self._batch.index(number), number)

    # Submitting

    def _plan_arrays(self, ready: Mapping[int, ReadyJob]) -> None:
        jobs = []
        for number, job in ready.items():
            answer = job.answer
            assert isinstance(answer, Prepared)
            assert job.cluster is not None
            self._batch.directories[number] = answer.directory
            self._observer(JobAnswered(number, answer))
            directory = os.path.join(self._session.path, answer.directory)
            jobs.append((ArrayJob(number, directory, answer.warm), job.cluster))
        if jobs:
            slurm.expect_available()
            self._to_submit = deque(arrays_of(jobs, slurm.limits().max_array_size))
            self._answers = {
                number: job.answer
                for number, job in ready.items()
                if isinstance(job.answer, Prepared)
            }

    def _submit(self) -> None:
        """Submit as many arrays as the cluster takes.

        Raises:
            LaunchError: it takes none, and has none of this sweep.
        """
        while self._to_submit:
            try:
                self._submit_one(self._to_submit[0])
            except slurm.SubmitFailed as error:
                if not (slurm.is_full(error.said) and self._in_queue):
                    raise
                return
            self._to_submit.popleft()

    def _submit_one(self, array: Array) -> None:
        cluster = array.cluster
        for _, job in array.jobs:
            self._write_down(job)
        directory = new_directory(self._session.path)
        write_tasks(directory, array)
        limits = Limits(
            cluster.requeue, cluster.signal_delay, _counts(self._policy.retries._asdict())
        )
        submission = Submission(
            "", directory, now_ns(), socket.gethostname(), limits, self._snapshot_json
        )
        submission.write(directory)
        parallel = cluster.array_parallelism
        if self._policy.max_parallel is not None:
            parallel = min(parallel, max(1, self._policy.max_parallel // cluster.pack))
        text = slurm.batch_text(
            cluster,
            command=command_of("--array", directory),
            directory=directory,
            output=os.path.join(directory, OUTPUT),
            name=str(self._jobs.composer.master.hydra.job.name),
            array=(len(array.tasks), parallel),
        )
        id_ = slurm.submit(text, os.path.join(directory, SCRIPT))
        submission = submission._replace(job=id_)
        submission.write(directory)
        for index, job in array.jobs:
            known = f"{id_}_{index}"
            submission._replace(job=known, directory="").write(job.directory)
            self._in_queue[job.number] = SubmittedJob(job.number, job.directory, known)

    def _write_down(self, job: ArrayJob) -> None:
        """Write into the journal that a job goes to the queue, and forget what was before."""
        answer, journal = self._answers[job.number], self._session.journal
        relative = os.path.relpath(job.directory, self._session.path)
        inside = not relative.startswith(os.pardir)
        journal.append(record_of(job.number, answer, relative if inside else job.directory))
        forget_result(job.directory)
        journal.append(StartedRecord(job.number))

    # Following

    def _follow(self) -> v.FinishSweep:
        pause = _PAUSE
        while self._in_queue or self._to_submit:
            self._look()
            if not self._in_queue and not self._to_submit:
                break
            wait([self._signals], seconds=pause)
            pause = min(1.1 * pause, _LONGEST_PAUSE)
            for signum in self._signals.received():
                if signum == self._signals.quiet:
                    continue
                if not self._follows_on(signum):
                    return self._leave(signum)
            self._submit()
        ends = self._ends
        summary = Summary(
            succeeded=ends[v.JobState.SUCCEEDED],
            failed=ends[v.JobState.FAILED],
            cancelled=ends[v.JobState.CANCELLED],
            not_run=ends[v.JobState.NOT_RUN],
        )
        finish = v.FinishSweep(summary, summary.exit_code(None))
        self._observer(finish)
        self._session.journal.keep(OverRecord(finish.exit_code))
        return finish

    def _look(self) -> None:
        """Ask the cluster, and take note of what has changed."""
        queued = slurm.queued()
        for job in [*self._in_queue.values()]:
            found = queued.get(job.id)
            if found is not None:
                job.gone = 0
                if found.state != "PENDING" and not job.running and _runs(job.directory):
                    job.running = True
                    starts = account_of(job.directory).starts
                    self._observer(v.StartJob(job.number, Lease(), max(0, starts - 1)))
                elif found.state == "PENDING":
                    job.running = False
                continue
            job.gone += 1
            end = self._session.end_in_queue(job.number, job.directory, last=job.gone >= _LOOKS)
            if end is not None:
                self._over(job, end)
        self._observer(Tick())

    def _over(self, job: SubmittedJob, end: v.JobEnded) -> None:
        """A job has ended."""
        del self._in_queue[job.number]
        self._observer(end)
        state = v.JobState.FAILED if end.exit_code else v.JobState.SUCCEEDED
        if end.exit_code and (job.cancelled or _was_cancelled(job.id, end)):
            state = v.JobState.CANCELLED if job.running else v.JobState.NOT_RUN
        self._ends[state] += 1
        self._observer(v.Settle(job.number, state, 1, end.exit_code, end.why))
        limit = self._policy.max_failures
        if limit is not None and self._ends[v.JobState.FAILED] >= limit:
            self._stop_submitting()

    def _stop_submitting(self) -> None:
        """Enough have failed: nothing starts any more, what runs goes on."""
        for array in self._to_submit:
            for _, job in array.jobs:
                self._ends[v.JobState.NOT_RUN] += 1
                self._observer(v.Settle(job.number, v.JobState.NOT_RUN))
        self._to_submit.clear()
        waiting = [job for job in self._in_queue.values() if not (job.running or job.cancelled)]
        if waiting:
            slurm.cancel([job.id for job in waiting], pending_only=True)
        for each in waiting:
            each.cancelled = True

    # Leaving

    def _follows_on(self, signum: int) -> bool:
        """Ask what a signal is to mean; return whether to follow on."""
        if signum != signal.SIGINT or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        answer = ask("the jobs")
        if answer == "cancel":
            slurm.cancel([job.id for job in self._in_queue.values()])
            for job in self._in_queue.values():
                job.cancelled = True
            self._to_submit.clear()
        return answer != "leave"

    def _leave(self, signum: int | None) -> v.FinishSweep:
        self.left = True
        code = ExitCode.SUCCESS if signum in {None, signal.SIGINT} else for_signal(int(signum or 0))
        return v.FinishSweep(Summary(), int(code), signum)


def _planned(answer: Prepared) -> Planned:
    assert isinstance(answer.payload, Planned)
    return answer.payload


def _id_of(queued: Mapping[str, QueuedJob], directory: str) -> str:
    """Return the id of an array by its working directory, an empty string if it is over."""
    found = (job.id for job in queued.values() if job.directory == directory)
    return next(found, "").partition("_")[0]


def _runs(directory: str) -> bool:
    return isinstance(account_of(directory).last, (BatchStarted, BatchSignalled))


def _was_cancelled(id_: str, end: v.JobEnded) -> bool:
    if end.exit_code <= 128:
        return False
    facts = slurm.job_facts(id_)
    return facts is not None and facts.state == "CANCELLED"


def _counts(retries: Mapping[str, int]) -> dict[str, int]:
    return {cause: count for cause, count in retries.items() if count}
