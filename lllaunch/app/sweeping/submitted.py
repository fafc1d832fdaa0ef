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
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from hydra.core.utils import filter_overrides
from msgspec import structs
from omegaconf import OmegaConf

import lllaunch.sweep.schedule as v
from lllaunch.app.batch import ask, command_of, follows, make_ready
from lllaunch.app.sweeping.composing import naming_launchers
from lllaunch.app.sweeping.jobs import Planned, name_of
from lllaunch.app.sweeping.probes import SweepRefused, map_in_forks
from lllaunch.clock import now_ns
from lllaunch.cluster import slurm
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.linux.process import wait
from lllaunch.results.queue import cancelled
from lllaunch.run.directory import RESULT
from lllaunch.run.files import naming
from lllaunch.run.snapshot import Snapshot, free_place, hold, let_go, remove, take
from lllaunch.run.submission import (
    SCRIPT,
    BatchEnded,
    BatchSignalled,
    BatchStarted,
    Submission,
    account_of,
    read_history,
    read_submission,
)
from lllaunch.sweep.arrays import (
    OUTPUT,
    Array,
    ArrayJob,
    KnownArray,
    arrays_of,
    holder_of,
    known_arrays,
    new_directory,
    write_tasks,
)
from lllaunch.sweep.directory import ARRAYS
from lllaunch.sweep.history import forget_result
from lllaunch.sweep.journal import ComposedRecord, OverRecord, Skipped, StartedRecord
from lllaunch.sweep.policy import Summary
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import Broken, Prepared, Tick, record_of
from lllaunch.text import duration
from lllaunch.words import counted

if TYPE_CHECKING:
    from lllaunch.app.sweeping.composing import JobConfig
    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.cluster.slurm import QueuedJob
    from lllaunch.signal_source import SignalSource
    from lllaunch.spec import Cluster
    from lllaunch.sweep.policy import SweepPolicy
    from lllaunch.sweep.session import Batch, SweepSession

# Of a temporary snapshot, until all jobs that need it are in the queue.
_HOLDER = "launcher"
# Between two looks at a queue, seconds: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
# A job that is gone from the queue without a word is so at so many looks: it may just come back.
_LOOKS = 3
# How long the cluster may be silent while jobs are followed, seconds.
_PATIENCE = 600.0


@dataclass(eq=False)
class ClusterSilent(LaunchError):
    """The cluster has not answered for long; its jobs go on, and were left."""

    seconds: float
    said: str

    def __str__(self) -> str:
        silence = f"Slurm has not answered for {duration(self.seconds)}"
        return f"{silence}, so its jobs are left: {self.said}"


class ReadyJob(NamedTuple):
    """A job whose directory is ready, or why it is not."""

    answer: Prepared | Broken
    cluster: Cluster | None = None


@dataclass(slots=True)
class SubmittedJob:
    """A job that is in a queue."""

    number: int
    directory: str
    id: str
    shares: bool  # whether other jobs are in the same batch job, which may run when this is over
    running: bool = False
    gone: int = 0  # at how many looks in a row it was not in the queue
    cancelled: bool = False  # whether this launcher has cancelled it, if it had not started
    ended: bool = False  # whether it has, started or not


class ReadyArray(NamedTuple):
    """An array whose directory says what its tasks run."""

    directory: str
    submission: Submission


class _ToldToEnd(Exception):
    """A signal has ended the launcher before all is submitted."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class SubmittedSweep:
    """A batch of jobs of a sweep, on a cluster.

    ``signals``: notes the signals that end this launcher, and not the jobs. ``at_once``: whether
    these are all jobs of the sweep.
    """

    def __init__(
        self,
        session: SweepSession,
        jobs: SweepJobs,
        policy: SweepPolicy,
        batch: Batch,
        overrides: Sequence[Sequence[str]],
        observer: Callable[[object], None],
        signals: SignalSource,
        say: Callable[[str], object],
        *,
        at_once: bool,
    ) -> None:
        self.left = False  # whether the launcher has left jobs in the queue
        self._at_once = at_once
        self._say = say
        self._session = session
        self._jobs = jobs
        self._policy = policy
        self._batch = batch
        self._overrides = overrides
        self._observer = observer
        self._signals = signals
        self._in_queue: dict[int, SubmittedJob] = {}
        self._to_submit: deque[Array] = deque()
        self._ends: Counter[v.JobState] = Counter()
        self._detached = False
        # of what is to be submitted
        self._answers: dict[int, Prepared] = {}
        self._snapshot_of_jobs: Snapshot | None = None
        self._taken: Snapshot | None = None
        # who holds it, if it is temporary
        self._holders: list[str] = []
        # the first of those, if the cluster had no room for it
        self._ready: ReadyArray | None = None
        # whether that, or what an earlier launcher had, may be in the queue
        self._unsure = False
        # what was submitted, with its id
        self._arrays: list[tuple[Array, str]] = []
        # of those by an earlier launcher
        self._known: list[tuple[KnownArray, str]] = []
        self._has_submitted = False
        self._waits_for_room = False
        self._stops = False
        # since when the cluster has not answered, by the monotonic clock
        self._silent: float | None = None

    def run(self) -> v.FinishSweep:
        """Submit what is not in the queue, and follow all jobs to their ends, or leave them.

        Raises:
            SweepRefused: some cannot run; nothing was submitted.
            LaunchError: they could not be submitted.
        """
        numbers = self._batch.to_run()
        self._observer(v.BeginSweep(len(numbers)))
        try:
            self._take_up(numbers)
            known = len(self._in_queue)
            self._plan_arrays(self._compose(numbers))
            if self._stops:
                self._drop_arrays()
            if known:
                text = "that an earlier launcher has submitted are followed"
                self._say(f"{counted(known, 'job')} {text}")
            self._submit()
            return self._follow()
        except _ToldToEnd as told:
            return self._leave(told.signum) if self._has_any() else self._end_by(told.signum)
        except LaunchError:
            # what is in the queue goes on
            self.left = self._unsure or bool(self._in_queue)
            raise
        finally:
            # what was not submitted is so with another one
            self._release_snapshot()

    # What is in the queue already

    def _take_up(self, numbers: Sequence[int]) -> None:
        """Find jobs that an earlier launcher has submitted, and that are not over."""
        if not self._session.resumed:
            return
        if not os.path.isdir(os.path.join(self._session.path, ARRAYS)):
            return
        wanted, arrays = frozenset(numbers), known_arrays(self._session.path)
        self._unsure = True
        queued = self._queued_by_now(arrays, wanted)
        self._unsure = False
        for array in arrays:
            of_array = array.submission.job or _id_of(queued, array.directory)
            before = len(self._in_queue)
            for index, task in enumerate(array.tasks):
                known = f"{of_array}_{index}"
                for job in task:
                    if job.number not in wanted or not of_array:
                        continue
                    # or it has succeeded since results were read
                    if known not in queued and not _has_succeeded(job.directory, known):
                        continue
                    if read_submission(job.directory) is None:
                        structs.replace(array.submission, job=known, directory="").write(
                            job.directory
                        )
                    self._batch.directories[job.number] = job.directory
                    self._in_queue[job.number] = SubmittedJob(
                        job.number, job.directory, known, shares=len(task) > 1
                    )
            if len(self._in_queue) > before:
                self._known.append((array, of_array))

    def _queued_by_now(
        self, arrays: Sequence[KnownArray], wanted: Collection[int]
    ) -> dict[str, QueuedJob]:
        """Return what is in the queue at any of some looks: put back, a job is away a moment."""
        known = {
            f"{array.submission.job}_{index}": job.directory
            for array in arrays
            if array.submission.job
            for index, task in enumerate(array.tasks)
            for job in task
            if job.number in wanted and not isinstance(account_of(job.directory).last, BatchEnded)
        }
        queued = self._queued()
        for _ in range(_LOOKS - 1):
            if queued.keys() >= known.keys():
                break
            time.sleep(_PAUSE)
            queued |= self._queued()
        return queued

    def _queued(self) -> dict[str, QueuedJob]:
        """Return what is in the queue, when the cluster answers.

        Raises:
            ClusterSilent: it has not for long.
        """
        while True:
            self._heed()
            try:
                return slurm.queued()
            except slurm.SlurmFailed as error:
                self._note_silence(str(error))
            wait([self._signals], seconds=_LONGEST_PAUSE)

    # Composing

    def _compose(self, all_numbers: Sequence[int]) -> dict[int, ReadyJob]:
        """Make the directories of the jobs ready that are not in the queue.

        Raises:
            SweepRefused: some cannot run.
        """
        if not all_numbers:
            return {}
        with contextlib.closing(map_in_forks(self._cluster_of, all_numbers[:1], 1)) as answers:
            first = next(answers)
        self._heed()
        if first is not None:
            # a sweeper that asks for one batch after another wants to know what became of each, and
            # what waits for a user's own app takes its end for that of the jobs, as with submitit
            stays = self._jobs.composer.users_own or not self._at_once
            self._detached = first.detach is True if stays else not follows(first)
        numbers = [number for number in all_numbers if number not in self._in_queue]
        if not numbers:
            return {}
        self._take_up_arrays()
        with naming(self._session.path):
            # from now on this is a sweep of a cluster for whoever finds it
            os.makedirs(os.path.join(self._session.path, ARRAYS), exist_ok=True)
        snapshot = None if first is None else self._snapshot(first)
        cores = len(os.sched_getaffinity(0))

        def ready(number: int) -> ReadyJob:
            return self._make_ready(number, snapshot)

        with contextlib.closing(map_in_forks(ready, numbers, cores)) as made:
            found = {}
            for number in numbers:
                found[number] = next(made)
                self._heed()
        faults = {
            self._name(number): job.answer
            for number, job in found.items()
            if isinstance(job.answer, Broken)
        }
        faults |= self._in_one_directory(found)
        if faults:
            raise SweepRefused(faults)
        self._snapshot_of_jobs = snapshot
        return found

    def _snapshot(self, cluster: Cluster) -> Snapshot | None:
        if cluster.snapshot == "none":
            return None
        cwd = str(self._jobs.composer.master.hydra.runtime.cwd)
        snapshot = take(cwd, free_place(self._session.path), os.environ, self._say)
        self._taken = snapshot
        if snapshot is not None and cluster.snapshot == "temporary":
            # as long as jobs are to be submitted
            self._hold(snapshot, [_HOLDER])
        return snapshot

    def _hold(self, snapshot: Snapshot, holders: Sequence[str]) -> None:
        self._holders += holders
        hold(snapshot, holders)

    def _release_snapshot(self) -> None:
        """Let go of the snapshot; take it away if no job has it."""
        snapshot, self._taken = self._taken, None
        if snapshot is None:
            return
        unused = not (self._has_submitted or self._unsure)
        with contextlib.suppress(LaunchError):
            for holder in self._holders:
                if unused or holder == _HOLDER:
                    let_go(snapshot, holder)
            if unused:
                remove(snapshot)

    def _take_up_arrays(self) -> None:
        """Find out what the arrays of an earlier launcher asked for, which count with new ones."""
        firsts = [
            next(job.number for task in array.tasks for job in task if job.number in self._in_queue)
            for array, _ in self._known
        ]
        with contextlib.closing(map_in_forks(self._cluster_of, firsts, 1)) as answers:
            for (array, id_), cluster in zip(self._known, answers, strict=True):
                if cluster is not None:
                    self._arrays.append((Array(cluster, array.tasks), id_))

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
        return self._jobs.prepare(self._overrides[index], batch.labels[index], number, directory)

    def _make_ready(self, number: int, snapshot: Snapshot | None) -> ReadyJob:
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
        assert cluster is not None
        if cluster.pack > 1 and cluster.nodes > 1:
            why = (
                f"cluster.pack: expected 1, as a job has {cluster.nodes} nodes, got {cluster.pack}"
            )
            return ReadyJob(Broken(int(ExitCode.CONFIG), why, answer.overrides, answer.directory))
        try:
            with naming(spec.output_dir):
                os.makedirs(spec.output_dir, exist_ok=True)
            self._write_hydra(config, self._overrides[self._batch.index(number)])
            with naming_launchers(config.whole, users_own=self._jobs.composer.users_own):
                make_ready(spec, config.own(), self._jobs.composer.user, snapshot, spec.output_dir)
        except LaunchError as error:
            return ReadyJob(Broken(error.exit_code, str(error), answer.overrides))
        return ReadyJob(structs.replace(answer, payload=None, need=Need()), spec.cluster)

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
        return name_of(self._batch.label(number), number)

    # Submitting

    def _plan_arrays(self, ready: Mapping[int, ReadyJob]) -> None:
        jobs = []
        for number, job in ready.items():
            answer = job.answer
            assert isinstance(answer, Prepared)
            assert job.cluster is not None
            self._batch.directories[number] = answer.directory
            self._observer(v.JobComposed(number, answer.need, answer.overrides, answer.directory))
            directory = os.path.join(self._session.path, answer.directory)
            jobs.append((ArrayJob(number, directory), job.cluster))
        if jobs:
            slurm.expect_available()
            arrays = arrays_of(jobs, slurm.max_array_size())
            self._expect_accepted(arrays)
            self._to_submit = deque(arrays)
            self._answers = {
                number: job.answer
                for number, job in ready.items()
                if isinstance(job.answer, Prepared)
            }

    def _expect_accepted(self, arrays: Sequence[Array]) -> None:
        """Raise if the cluster would not accept an array: none is submitted then.

        Raises:
            SubmitFailed: it would not.
        """
        asked: list[Cluster] = []
        for array in arrays:
            if array.cluster in asked:
                continue
            asked.append(array.cluster)
            problem = slurm.test_only(self._batch_text(array, array.cluster, self._session.path))
            if problem is not None:
                command = "sbatch --test-only"
                raise slurm.SubmitFailed(command, problem, exit_code=int(ExitCode.CONFIG))

    def _submit(self) -> None:
        """Submit as many arrays as the cluster takes.

        Raises:
            LaunchError: it takes none, and had none of this sweep; or another reason.
        """
        while self._to_submit:
            self._heed()
            if not self._to_submit:
                break
            try:
                self._submit_one(self._to_submit[0])
            except slurm.SubmitFailed as error:
                had = bool(self._in_queue or self._arrays)
                if not (had and slurm.is_full(error.said)):
                    raise
                if not self._waits_for_room:
                    self._waits_for_room = True
                    waiting = sum(1 for array in self._to_submit for _ in array.jobs)
                    text = "not submitted yet, as the site takes no more now"
                    self._say(f"{counted(waiting, 'job')} {text} ({error.said})")
                return
            self._to_submit.popleft()
        self._release_snapshot()

    def _submit_one(self, array: Array) -> None:
        if self._ready is None:
            self._ready = self._ready_array(array)
        directory, submission = self._ready
        id_ = _id_of(slurm.queued(), directory) if self._unsure else ""
        if not id_:
            text = self._batch_text(array, self._after_others(array), directory)
            path = os.path.join(directory, SCRIPT)
            try:
                # who resumes the sweep waits until it is known what is in the queue
                id_ = slurm.submit(text, path, holding=self._session.locks)
            except slurm.SubmitFailed as error:
                self._unsure = error.unsure
                id_ = _id_of(slurm.queued(), directory) if error.unsure else ""
                if not id_:
                    raise
        self._ready, self._unsure = None, False
        self._arrays.append((array, id_))
        self._has_submitted = True
        submission = structs.replace(submission, job=id_)
        submission.write(directory)
        for index, job in array.jobs:
            known = f"{id_}_{index}"
            structs.replace(submission, job=known, directory="").write(job.directory)
            self._in_queue[job.number] = SubmittedJob(
                job.number, job.directory, known, shares=len(array.tasks[index]) > 1
            )

    def _ready_array(self, array: Array) -> ReadyArray:
        """Write down that jobs go to the queue, and what the tasks of their array run."""
        for _, job in array.jobs:
            self._write_down(job)
        directory = new_directory(self._session.path)
        write_tasks(directory, array)
        cluster = array.cluster
        retries = {cause: n for cause, n in self._policy.retries._asdict().items() if n}
        snapshot = self._snapshot_of_jobs
        submission = Submission(
            directory=directory,
            time_ns=now_ns(),
            host=socket.gethostname(),
            requeue=cluster.requeue,
            signal_delay=cluster.signal_delay,
            retries=retries,
            snapshot=snapshot,
        )
        submission.write(directory)
        if snapshot is not None and cluster.snapshot == "temporary":
            holders = [holder_of(directory, index) for index in range(len(array.tasks))]
            self._hold(snapshot, holders)
        return ReadyArray(directory, submission)

    def _batch_text(self, array: Array, cluster: Cluster, directory: str) -> str:
        return slurm.batch_text(
            cluster,
            command=command_of("--array", directory),
            directory=directory,
            output=os.path.join(directory, OUTPUT),
            name=str(self._jobs.composer.master.hydra.job.name),
            array=(len(array.tasks), self._parallel(cluster)),
            retries=any(self._policy.retries),
        )

    def _parallel(self, cluster: Cluster) -> int:
        """Return how many tasks run at the same time at most."""
        most = self._policy.max_parallel
        if most is None:
            return cluster.array_parallelism
        return min(cluster.array_parallelism, max(1, most // cluster.pack))

    def _after_others(self, array: Array) -> Cluster:
        """Return what an array asks for: to start after the last of its kind, if need be.

        Slurm counts what runs at the same time in each array by itself.
        """
        cluster = array.cluster
        alike = [(other, id_) for other, id_ in self._arrays if other.cluster == cluster]
        known = {job.id.partition("_")[0] for job in self._in_queue.values()}
        others = [(len(other.tasks), id_) for other, id_ in alike if id_ in known]
        count = len(array.tasks) + sum(tasks for tasks, _ in others)
        given = str(cluster.settings.get("dependency", ""))
        # its parts stand for each other where there is a question mark
        if not others or count <= self._parallel(cluster) or "?" in given:
            return cluster
        after = ",".join(filter(None, [given, f"afterany:{others[-1][1]}"]))
        return replace(cluster, settings={**cluster.settings, "dependency": after})

    def _write_down(self, job: ArrayJob) -> None:
        """Write into the journal that a job goes to the queue, and forget what was before."""
        journal = self._session.journal
        journal.append(self._composed(job))
        forget_result(job.directory)
        journal.append(StartedRecord(job.number))

    def _composed(self, job: ArrayJob) -> ComposedRecord:
        relative = os.path.relpath(job.directory, self._session.path)
        inside = not relative.startswith(os.pardir)
        answer = self._answers[job.number]
        return record_of(job.number, answer, relative if inside else job.directory)

    # Following

    def _follow(self) -> v.FinishSweep:
        pause = _PAUSE
        while self._in_queue or self._to_submit:
            if self._detached and not self._to_submit:
                return self._leave(None)
            if not self._ask():
                pause = _LONGEST_PAUSE
            if not self._in_queue and not self._to_submit:
                break
            wait([self._signals], seconds=pause)
            pause = min(1.1 * pause, _LONGEST_PAUSE)
            self._heed()
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

    def _ask(self) -> bool:
        """Look what has become of jobs, and submit more; return whether the cluster answers.

        Raises:
            ClusterSilent: it has not for long.
            LaunchError: another reason.
        """
        try:
            self._look()
            self._submit()
        except (slurm.SlurmFailed, slurm.SubmitFailed) as error:
            if isinstance(error, slurm.SubmitFailed) and not slurm.is_silent(error.said):
                raise
            self._note_silence(str(error))
            return False
        if self._silent is not None:
            self._silent = None
            self._say("Slurm answers again")
        return True

    def _note_silence(self, said: str) -> None:
        now = time.monotonic()
        if self._silent is None:
            self._silent = now
            text = f"it is asked again for {duration(_PATIENCE)}; jobs go on meanwhile"
            self._say(f"Slurm does not answer ({said}): {text}")
        elif now - self._silent >= _PATIENCE:
            raise ClusterSilent(_PATIENCE, said)

    def _look(self) -> None:
        """Ask the cluster, and take note of what has changed."""
        queued = slurm.queued()
        for job in [*self._in_queue.values()]:
            found = queued.get(job.id)
            if found is None:
                job.gone += 1
            else:
                job.gone = 0
                self._note_start(job, found)
            if found is None or job.shares:
                self._look_for_end(job)
        if self._stops:
            self._cancel_waiting()
        self._observer(Tick())

    def _note_start(self, job: SubmittedJob, found: QueuedJob) -> None:
        if found.state == "PENDING":
            job.running = False
        elif not job.running and _runs(job.directory):
            self._tell_start(job)

    def _tell_start(self, job: SubmittedJob) -> None:
        job.running = True
        starts = account_of(job.directory).starts
        self._observer(v.StartJob(job.number, Lease(), max(0, starts - 1)))

    def _look_for_end(self, job: SubmittedJob) -> None:
        """See whether a job is over: it has said so, or is gone without a word."""
        history = read_history(job.directory)
        said = history[-1][1] if history else None
        if not isinstance(said, BatchEnded) and job.gone < _LOOKS:
            return
        started = any(isinstance(event, BatchStarted) for _, event in history)
        told = isinstance(said, BatchEnded) and said.exit_code <= 128
        was_cancelled = not told and _was_cancelled(job, started=started)
        if was_cancelled and not isinstance(said, BatchEnded):
            said = cancelled(history)
        del self._in_queue[job.number]
        if was_cancelled and not started:
            assert isinstance(said, BatchEnded)
            self._not_run(job.number, said.reason, said.exit_code)
            return
        if not job.running:
            # it was short
            self._tell_start(job)
        end = self._session.end_in_queue(
            job.number, job.directory, said if isinstance(said, BatchEnded) else None
        )
        self._observer(end)
        state = v.JobState.FAILED if end.exit_code else v.JobState.SUCCEEDED
        if end.exit_code and was_cancelled:
            state = v.JobState.CANCELLED
        self._ends[state] += 1
        self._observer(v.Settle(job.number, state, 1, end.exit_code, end.why))
        limit = self._policy.max_failures
        if limit is not None and self._ends[v.JobState.FAILED] >= limit:
            self._stop_submitting()

    def _not_run(self, number: int, why: str = "", exit_code: int | None = None) -> None:
        """A job has not been started, and is not going to be."""
        self._session.journal.keep(Skipped(number, why or v.JobState.NOT_RUN.value))
        self._ends[v.JobState.NOT_RUN] += 1
        self._observer(v.Settle(number, v.JobState.NOT_RUN, 0, exit_code, why))

    def _stop_submitting(self) -> None:
        """Enough have failed: nothing starts any more, what runs goes on."""
        self._stops = True
        self._drop_arrays()

    def _drop_arrays(self) -> None:
        """Leave what was not submitted."""
        for array in self._to_submit:
            for _, job in array.jobs:
                self._session.journal.keep(self._composed(job))
                self._not_run(job.number)
        self._to_submit.clear()

    def _cancel_waiting(self) -> None:
        waiting = [job for job in self._in_queue.values() if not (job.running or job.cancelled)]
        if waiting:
            slurm.cancel({job.id for job in waiting}, pending_only=True)
        for each in waiting:
            each.cancelled = True

    # Leaving

    def _has_any(self) -> bool:
        """Return whether there is, or may be, a job in the queue."""
        return bool(self._in_queue or self._has_submitted or self._unsure)

    def _heed(self) -> None:
        """Look whether a signal has come that ends this launcher.

        Raises:
            _ToldToEnd: one has.
        """
        for signum in self._signals.received():
            if signum in self._signals.quiet:
                continue
            if not (self._has_any() and self._follows_on(signum)):
                raise _ToldToEnd(signum)

    def _end_by(self, signum: int) -> v.FinishSweep:
        """A signal ends the sweep, of which nothing is in the queue."""
        summary = Summary(not_run=len(self._batch.to_run()))
        finish = v.FinishSweep(summary, for_signal(signum), signum)
        self._observer(finish)
        self._session.journal.keep(OverRecord(finish.exit_code))
        return finish

    def _follows_on(self, signum: int) -> bool:
        """Ask what a signal is to mean; return whether to follow on."""
        if signum != signal.SIGINT or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        answer = ask("the jobs")
        if answer == "cancel":
            slurm.cancel({job.id for job in self._in_queue.values()})
            for job in self._in_queue.values():
                job.cancelled = job.ended = True
            self._stop_submitting()
        return answer != "leave"

    def _leave(self, signum: int | None) -> v.FinishSweep:
        self.left = True
        waiting = sum(1 for array in self._to_submit for _ in array.jobs)
        if waiting:
            text = "not submitted: only a launcher that goes on with the sweep does that"
            self._say(f"{counted(waiting, 'job')} {text}")
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


def _was_cancelled(job: SubmittedJob, *, started: bool) -> bool:
    """Return whether somebody has cancelled a job's batch job, this launcher or another."""
    if job.ended or (job.cancelled and not started):
        return True
    try:
        facts = slurm.job_facts(job.id)
    except LaunchError:
        return False
    return facts is not None and facts.state == "CANCELLED"


def _has_succeeded(directory: str, known: str) -> bool:
    """Return whether a job has succeeded in a batch job."""
    account = account_of(directory)
    ended = isinstance(account.last, BatchEnded) and account.last.exit_code == 0
    return ended and account.job == known and os.path.exists(os.path.join(directory, RESULT))
