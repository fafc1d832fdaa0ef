"""Runs that go to a cluster, alone or as jobs of a sweep: made ready, submitted, followed or left.

What is in the queue stands in the directories alone, so a launcher that dies, or leaves, loses
nothing: the next one goes on with what it finds there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.hydra_config import HydraConfig
from msgspec import structs
from omegaconf import DictConfig, OmegaConf

import lllaunch.sweep.schedule as v
from lllaunch.app.boundary import AppEnded
from lllaunch.app.jobs import SweepRefused, map_in_forks, name_of
from lllaunch.app.planning import without_hydra
from lllaunch.cluster import slurm
from lllaunch.config.plan import plan_config
from lllaunch.console.console import Console
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError, for_signal
from lllaunch.files import naming, write_atomic
from lllaunch.linux.process import wait
from lllaunch.results.index import remember
from lllaunch.results.locate import entry_now, locate
from lllaunch.results.store import BatchQueue, cancelled, queue_text, read_run
from lllaunch.run.directory import PLAN, forget_result
from lllaunch.run.repository import Snapshot, free_place, hold, let_go, remove, take
from lllaunch.run.result import RunResult
from lllaunch.run.submission import (
    FUNCTION,
    LOG,
    SCRIPT,
    BatchEnded,
    BatchSignalled,
    BatchStarted,
    Submission,
    account_of,
    forget_submission,
    read_history,
    read_submission,
)
from lllaunch.spawner.protocol import Function
from lllaunch.spec import Cluster
from lllaunch.sweep.arrays import (
    OUTPUT,
    Array,
    ArrayJob,
    arrays_of,
    holder_of,
    known_arrays,
    new_directory,
    write_tasks,
)
from lllaunch.sweep.journal import ARRAYS
from lllaunch.sweep.loop import Executor, JobsLeft
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import Prepared
from lllaunch.text import duration
from lllaunch.words import counted, shown_path
from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.jobs import SweepJobs
    from lllaunch.app.own_worker import UserFunction
    from lllaunch.cluster.slurm import QueuedJob
    from lllaunch.spec import LaunchSpec
    from lllaunch.sweep.protocol import Answer
    from lllaunch.sweep.schedule import SweepPolicy
    from lllaunch.sweep.session import Batch, SweepSession

# Of a snapshot that is no other run's.
_HOLDER = "run"
# Between two looks at a queue, seconds: at first.
_PAUSE = 1.0


def replace_submission(directory: str) -> None:
    """Forget an earlier submission of a directory, where another run is to begin.

    One whose batch job is not over, as far as anybody can tell, is a `ConfigError`.
    """
    submission, ended = read_submission(directory), account_of(directory).last
    if submission and not submission.refused and not isinstance(ended, BatchEnded):
        queue = BatchQueue()
        job = queue.find(submission)
        if job is not None or (slurm.available() and not queue.answers):
            what = f"batch job {submission.job}" if submission.job else "a batch job"
            known = queue_text(job) if job is not None else "Slurm does not answer"
            message = f"is the directory of {what}, which is not over ({known})"
            hint = "stop it, wait for it, or choose another directory with hydra.run.dir=..."
            problem = Diagnostic("in-use", "hydra.run.dir", repr(directory), message, hint)
            raise ConfigError((problem,))
    forget_submission(directory)


# in a plan, what is not the environment's, a worker's or a directory
_OTHERS = re.compile(r"\$\{(?!oc\.env:|worker:|hydra:runtime\.(?:cwd|output_dir)\})")


def make_ready(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    snapshot: Snapshot | None,
    directory: str,
) -> bool:
    """Write what a batch job needs to run a run: its plan, and what workers call.

    Hydra's config is that of the job; ``user`` is as for `lllaunch.app.planning.plan_job`. Returns
    whether the plan is all that it needs. Workers that could only be forked from this process are a
    `ConfigError`.
    """
    # of an earlier submission, whose end is not this one's
    forget_submission(directory)
    if user is not None:
        if snapshot is not None:
            user = user._replace(place=snapshot.place)
        target = user.target(cfg)
        if not isinstance(target, Function):
            message = (
                f"needs a function that workers can import, and {user.entrypoint.text} is none"
            )
            hint = "put it at the top level of its module"
            key = "cluster" if spec.cluster is None else spec.cluster.key
            raise ConfigError((Diagnostic("cluster", key, "", message, hint),))
        submitted = user._replace(function=target, place=str)
        data = pickle.dumps(submitted, pickle.HIGHEST_PROTOCOL)
        former = os.umask(0o077)
        try:
            write_atomic(os.path.join(directory, FUNCTION), data)
        finally:
            os.umask(former)
    plan = plan_config(spec)
    write_atomic(os.path.join(directory, PLAN), plan.encode("utf-8", "surrogateescape"))
    node, cluster = HydraConfig.get(), spec.cluster
    logs = node.runtime.choices.get("hydra/job_logging", "default") != "default"
    acts = node.callbacks or node.job.env_set or node.job.chdir or logs
    several = spec.nodes is not None or (cluster is not None and cluster.nodes > 1)
    return not (user is not None or spec.locked or acts or several or _OTHERS.search(plan))


def command_of(*words: str) -> list[str]:
    """Return the command line of a batch job."""
    return [sys.executable, "-m", "lllaunch", "job", *words]


def batch_text(spec: LaunchSpec, name: str) -> str:
    """Return the batch file of a run; the name is for a job whose settings have none."""
    cluster = spec.cluster
    assert cluster is not None
    return slurm.batch_text(
        cluster,
        command=command_of(spec.output_dir),
        directory=spec.output_dir,
        output=os.path.join(spec.output_dir, LOG),
        name=name,
    )


def _expect_accepted(text: str) -> None:
    """Raise if the cluster would not take a batch file: nothing is submitted then."""
    problem = slurm.test_only(text)
    if problem is not None:
        raise slurm.SubmitFailed("sbatch --test-only", problem, exit_code=int(ExitCode.CONFIG))


def _snapshot(
    cluster: Cluster, cwd: str, directory: str, holder: str, say: Callable[[str], object]
) -> Snapshot | None:
    """Set the code aside, if the cluster's settings say so, and hold it if it is temporary."""
    if cluster.snapshot == "none":
        return None
    snapshot = take(cwd, free_place(directory), os.environ, say)
    if snapshot is not None and cluster.snapshot == "temporary":
        hold(snapshot, [holder])
    return snapshot


def submit_run(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    name: str,
    release: Callable[[], object],
) -> RunResult:
    """Submit a run whose directory is claimed and has its ``.hydra``, and follow it if asked.

    ``cfg`` and ``user`` are as for `make_ready`, ``name`` is for a batch job whose settings have
    none. ``release`` gives the directory back, before the batch job can start. A run that is left
    alone ends the app.
    """
    cluster, directory, console = spec.cluster, spec.output_dir, Console()
    assert cluster is not None
    if spec.log_dir != directory:
        message = "is another directory than Hydra's, where the run of a cluster keeps its files"
        hint = "leave it out, and set hydra.run.dir"
        raise ConfigError((Diagnostic("cluster", "launch.log_dir", "", message, hint),))
    remember(directory, spec.runtime_cwd, os.environ)
    slurm.expect_available()
    replace_submission(directory)
    text = batch_text(spec, name)
    _expect_accepted(text)
    cwd = spec.runtime_cwd
    snapshot = _snapshot(cluster, cwd, directory, _HOLDER, console.note)
    plain = make_ready(spec, cfg, user, snapshot, directory)
    submission = Submission.of(
        *(cluster, directory), cwd=cwd, plain=plain, snapshot=snapshot, holder=_HOLDER
    )
    # its id may be lost with this process; the directory then tells which it is
    submission.write(directory)
    # that of a former run would be taken for this one's
    forget_result(directory)
    release()
    # a Ctrl-C waits until it is known what is in the queue
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        job = slurm.submit(text, os.path.join(directory, SCRIPT))
        submission = structs.replace(submission, job=job)
        submission.write(directory)
    except slurm.SubmitFailed as error:
        if not error.unsure:
            forget_submission(directory)
            # whoever finds the directory is told why nothing runs
            refused = structs.replace(submission, refused=error.said, snapshot=None, holder="")
            refused.write(directory)
            if snapshot is not None:
                remove(snapshot)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    where = shown_path(directory, os.getcwd())
    console.note(f"submitted job {submission.job}, the run is in {where}")
    result = _follow(directory, console, cluster.poll_s) if follows(cluster) else None
    if result is None:
        raise AppEnded(ExitCode.SUCCESS)
    return result


def follows(cluster: Cluster) -> bool:
    """Return whether the launcher stays until a run is over."""
    if cluster.detach is not None:
        return not cluster.detach
    return sys.stdout.isatty()


def ask(what: str) -> Literal["leave", "cancel", "follow"]:
    """Ask on the terminal what Ctrl-C is to mean for a job; another one means to leave it."""
    sys.stderr.write(f"\nlllaunch: leave {what}, cancel, or follow on? [L/c/f] ")
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        return "leave"
    return "cancel" if answer[:1] == "c" else "follow" if answer[:1] == "f" else "leave"


def _follow(directory: str, console: Console, longest: float) -> RunResult | None:
    """Show a submitted run until it is over, and return what became of it; None if it is left."""
    follower = Follower("follow", elsewhere=True)
    follower.add(os.path.join(directory, LOG), b"", sys.stdout)
    follower.start()
    queue, said, pause = BatchQueue(), "", _PAUSE
    try:
        while True:
            try:
                queue.forget()
                entry = entry_now(locate(directory), queue)
                if not entry.queue:
                    entry, result = read_run(locate(directory), queue)
                    break
                if entry.queue != said:
                    said = entry.queue
                    console.note(f"job {entry.batch_job}: {entry.queue}")
                time.sleep(pause)
                pause = min(pause * 1.2, longest)
            except KeyboardInterrupt:
                pause = _PAUSE
                where = shown_path(directory, os.getcwd())
                asks = sys.stdin.isatty() and sys.stderr.isatty()
                answer = ask("the job") if asks else "leave"
                submission = read_submission(directory)
                if answer == "cancel" and submission is not None and submission.job:
                    slurm.cancel([submission.job])
                elif answer == "leave":
                    console.note(
                        f"left; 'lllaunch logs -f {where}' follows it, "
                        f"'lllaunch stop {where}' ends it"
                    )
                    return None
        if entry.exit_code is not None and result is not None:
            return result
        why = f": {entry.root_cause}" if entry.root_cause else ""
        console.warning(f"the run has ended without a result{why}; see {LOG}")
        code = int(ExitCode.ERROR) if entry.exit_code is None else entry.exit_code
        return RunResult("error", code, directory)
    finally:
        follower.stop()


# The jobs of a sweep

# Of a temporary snapshot, until all jobs that need it are in the queue.
_SWEEP_HOLDER = "launcher"
# A job that is gone from the queue without a word is so at so many looks: it may just come back.
_LOOKS = 3
# How long the cluster may be silent while jobs are followed, seconds.
_PATIENCE = 600.0


@dataclass(slots=True)
class SubmittedJob:
    """A job that is in a queue."""

    number: int
    directory: str
    id: str
    shares: bool  # whether other jobs are in the same batch job, which may run when this is over
    running: bool = False  # whether the observer knows that it has started
    gone: int = 0  # at how many looks in a row it was not in the queue
    cancelled: bool = False  # whether this launcher has cancelled it, if it had not started


class _ToldToEnd(Exception):
    """A signal ends the sweep before all jobs are composed."""


@dataclass(eq=False)
class SlurmExecutor(Executor):
    """The jobs of a sweep on a cluster: to start one is to submit it, several of them as an array.

    What is asked for with one start, and what may go back into the queue after a failure, is up to
    the batch jobs: of each the scheduler sees one attempt.

    """

    _session: SweepSession
    _jobs: SweepJobs
    _policy: SweepPolicy
    _batch: Batch
    # composes a job, in a fork; and what of that counts
    _prepare: Callable[[int], Answer]
    _review: Callable[[Answer], Answer]
    _say: Callable[[str], object]
    # whether these are all jobs of the sweep
    _at_once: bool
    _in_queue: dict[int, SubmittedJob] = field(default_factory=dict)
    # what was composed and is not in the queue, once all of it is
    _answers: dict[int, Prepared] | None = None
    _starts: list[int] = field(default_factory=list)
    _to_submit: deque[Array] = field(default_factory=deque)
    _detached: bool = False
    _snapshot: Snapshot | None = None
    # directory and submission of the first of those, if the cluster had no room for it
    _ready: tuple[str, Submission] | None = None
    # whether that, or what an earlier launcher had, may be in the queue
    _unsure: bool = False
    # what was submitted: what for, how many tasks, its id; None for an earlier launcher's
    _arrays: list[tuple[Cluster | None, int, str]] = field(default_factory=list)
    _waits_for_room: bool = False
    _most_tasks: int = 0  # of an array; 0 as long as nobody has asked
    # since when the cluster has not answered, and when it is asked next, by the sweep's clock
    _silent: float | None = None
    _ask_at: float = 0.0
    _pause: float = _PAUSE
    _longest_pause: float = Cluster().poll_s

    # What the scheduler decides

    def compose(self, number: int) -> None:
        """Compose all jobs, if that has not been done, so that what cannot run stops the sweep."""
        if self._answers is None:
            numbers = self._batch.to_run()
            try:
                self._take_up(frozenset(numbers))
                self._answers = self._compose_all(numbers)
            except _ToldToEnd:
                return
            if self._answers:
                slurm.expect_available()
                first = {id(array.cluster): array for array in self._arrays_of(self._answers)}
                for array in first.values():
                    _expect_accepted(self._batch_text(array, array.cluster, self._session.path))
            if self._in_queue:
                text = "that an earlier launcher has submitted are followed"
                self._say(f"{counted(len(self._in_queue), 'job')} {text}")
        answer = self._answers.get(number)
        if answer is not None:
            self.sweep.composed(answer)
        else:
            label, directory = self._batch.label(number), self._session.directory_of(number)
            self.sweep.tell(v.JobComposed(number, Need(), tuple(label), directory))

    def start(self, start: v.StartJob) -> None:
        """Submit a job with the next turn, if it is not in the queue."""
        if start.number not in self._in_queue:
            self._starts.append(start.number)

    def goes_on(self, signum: int) -> bool:
        """Return whether somebody on the terminal wants jobs to be followed on, or cancelled."""
        if not (self._in_queue or self._arrays or self._unsure):
            return False
        answer = "leave"
        if signum == signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty():
            answer = ask("the jobs")
        if answer == "leave":
            raise self._leave(signum)
        if answer == "cancel":
            slurm.cancel({job.id for job in self._in_queue.values()})
            for job in self._in_queue.values():
                job.cancelled = True
            self.sweep.tell(v.Abandoned())
        return True

    def deadline(self) -> float:
        """Return when the cluster is asked next."""
        return self._ask_at

    def look(self, ready: frozenset[int]) -> None:  # noqa: ARG002 - nothing of Slurm's is waited for
        """Submit what is to be started, and ask what has become of the rest."""
        if self.sweep.clock() < self._ask_at:
            return
        if self._starts:
            self._to_submit.extend(self._arrays_of(self._starts))
            self._starts = []
            self._submit()
            self._leave_detached()
        answers = self._ask()
        longest = self._longest_pause
        self._pause = min(1.1 * self._pause, longest) if answers else longest
        self._ask_at = self.sweep.clock() + self._pause
        self._leave_detached()

    def abandon(self) -> None:
        """What is in the queue goes on."""
        self.left = self._unsure or bool(self._in_queue)

    def close(self) -> None:
        """Let go of the code; what was not submitted is so with another snapshot."""
        self._release_snapshot()

    # What is in the queue already

    def _take_up(self, numbers: Collection[int]) -> None:
        """Find jobs that an earlier launcher has submitted, and that are not over."""
        arrays = known_arrays(self._session.path) if self._session.resumed else []
        if not arrays:
            return
        # of what has not said that it is over
        known = {
            f"{array.submission.job}_{index}"
            for array in arrays
            if array.submission.job
            for index, task in enumerate(array.tasks)
            for job in task
            if job.number in numbers and not isinstance(account_of(job.directory).last, BatchEnded)
        }
        self._unsure = True
        queued = self._queued()
        for _ in range(_LOOKS - 1):
            if queued.keys() >= known:
                break
            # put back, a job is away a moment
            time.sleep(_PAUSE)
            queued |= self._queued()
        self._unsure = False
        for array in arrays:
            of_array = array.submission.job or _id_of(queued, array.directory)
            before = len(self._in_queue)
            for index, task in enumerate(array.tasks):
                id_ = f"{of_array}_{index}"
                for job in task if id_ in queued else ():
                    if job.number not in numbers:
                        continue
                    if read_submission(job.directory) is None:
                        submission = structs.replace(array.submission, job=id_, directory="")
                        submission.write(job.directory)
                    self._in_queue[job.number] = SubmittedJob(
                        job.number, job.directory, id_, shares=len(task) > 1
                    )
            if len(self._in_queue) > before:
                self._arrays.append((None, len(array.tasks), of_array))

    def _queued(self) -> dict[str, QueuedJob]:
        """Return what is in the queue, when the cluster answers."""
        while True:
            self._heed()
            try:
                return slurm.queued()
            except slurm.SlurmFailed as error:
                self._note_silence(str(error))
            wait([self.sweep.source], seconds=self._longest_pause)

    def _heed(self) -> None:
        """Raise `_ToldToEnd` if a signal ends the sweep."""
        if self.sweep.heed():
            raise _ToldToEnd

    # Composing

    def _compose_all(self, all_numbers: Sequence[int]) -> dict[int, Prepared]:
        """Make the directories of the jobs ready that are not in the queue."""
        first = self._jobs.cluster
        # it was tried whether the first one can run
        assert first is not None
        self._longest_pause = first.poll_s
        # a sweeper that asks for one batch after another wants to know what became of each, and
        # what waits for a user's own app takes its end for that of the jobs, as with submitit
        stays = self._jobs.users_own or not self._at_once
        self._detached = first.detach is True if stays else not follows(first)
        numbers = [number for number in all_numbers if number not in self._in_queue]
        if not numbers:
            return {}
        with naming(self._session.path):
            # from now on this is a sweep of a cluster for whoever finds it
            os.makedirs(os.path.join(self._session.path, ARRAYS), exist_ok=True)
        cwd = str(self._jobs.master.hydra.runtime.cwd)
        self._snapshot = _snapshot(first, cwd, self._session.path, _SWEEP_HOLDER, self._say)
        cores = len(os.sched_getaffinity(0))
        found, faults = {}, {}
        with contextlib.closing(map_in_forks(self._make_ready, numbers, cores)) as made:
            for number in numbers:
                answer = self._review(next(made))
                if isinstance(answer, Prepared):
                    found[number] = answer
                else:
                    faults[name_of(self._batch.label(number), number)] = answer
                self._heed()
        if faults:
            raise SweepRefused(faults)
        return found

    def _release_snapshot(self) -> None:
        """Let go of the snapshot; take it away if no job has it."""
        if self._snapshot is None:
            return
        with contextlib.suppress(LaunchError):
            if self._unsure or any(cluster for cluster, *_ in self._arrays):
                let_go(self._snapshot, _SWEEP_HOLDER)
            else:
                remove(self._snapshot)

    def _make_ready(self, number: int) -> Answer:
        """In a fork: compose a job, and write what its batch job needs; return its cluster, too."""
        answer = self._prepare(number)
        if isinstance(answer, v.JobBroken):
            return answer
        spec, config = answer.payload.spec, answer.payload.config
        cluster = spec.cluster
        why = ""
        if spec.log_dir != spec.output_dir:
            why = "launch.log_dir: a job of a cluster keeps its files in Hydra's directory"
        elif cluster.pack > 1 and cluster.nodes > 1:
            why = (
                f"cluster.pack: expected 1, as a job has {cluster.nodes} nodes, got {cluster.pack}"
            )
        if why:
            return v.JobBroken(
                number, int(ExitCode.CONFIG), why, answer.overrides, answer.directory
            )
        try:
            with naming(spec.output_dir):
                os.makedirs(spec.output_dir, exist_ok=True)
            _write_hydra(config)
            user = self._jobs.user
            # a copy takes as long as composing
            cfg = config if user is None else without_hydra(config)
            plain = make_ready(spec, cfg, user, self._snapshot, spec.output_dir)
        except LaunchError as error:
            return v.JobBroken(number, error.exit_code, str(error), answer.overrides)
        return structs.replace(answer, payload=(cluster, plain), need=Need(), warm=None)

    # Submitting

    def _arrays_of(self, numbers: Iterable[int]) -> list[Array]:
        assert self._answers is not None
        jobs = []
        for number in numbers:
            answer = self._answers[number]
            directory = os.path.join(self._session.path, answer.directory)
            jobs.append((ArrayJob(number, directory), answer.payload[0]))
        self._most_tasks = self._most_tasks or slurm.max_array_size()
        return arrays_of(jobs, self._most_tasks)

    def _submit(self) -> None:
        """Submit as many arrays as the cluster takes."""
        while self._to_submit:
            if self.sweep.heed() or self.sweep.ends:
                return
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
        self._arrays.append((array.cluster, len(array.tasks), id_))
        submission = structs.replace(submission, job=id_)
        submission.write(directory)
        for index, job in array.jobs:
            known = f"{id_}_{index}"
            structs.replace(submission, job=known, directory="").write(job.directory)
            self._in_queue[job.number] = SubmittedJob(
                job.number, job.directory, known, shares=len(array.tasks[index]) > 1
            )

    def _ready_array(self, array: Array) -> tuple[str, Submission]:
        """Write down that jobs go to the queue, and what the tasks of their array run."""
        assert self._answers is not None
        for _, job in array.jobs:
            answer = self._answers[job.number]
            self.sweep.records.starts(answer, 0, Lease(), None)
        directory = new_directory(self._session.path)
        write_tasks(directory, array)
        cluster, snapshot = array.cluster, self._snapshot
        retries = {cause: n for cause, n in self._policy.retries._asdict().items() if n}
        submission = Submission.of(
            *(cluster, directory),
            cwd=self._jobs.master.hydra.runtime.cwd,
            plain=all(self._answers[job.number].payload[1] for _, job in array.jobs),
            snapshot=snapshot,
            retries=retries,
        )
        submission.write(directory)
        if snapshot is not None and cluster.snapshot == "temporary":
            holders = [holder_of(directory, index) for index in range(len(array.tasks))]
            hold(snapshot, holders)
        return directory, submission

    def _batch_text(self, array: Array, cluster: Cluster, directory: str) -> str:
        return slurm.batch_text(
            cluster,
            command=command_of("--array", directory),
            directory=directory,
            output=os.path.join(directory, OUTPUT),
            name=str(self._jobs.master.hydra.job.name),
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
        known = {job.id.partition("_")[0] for job in self._in_queue.values()}
        others = [
            (tasks, id_)
            for other, tasks, id_ in self._arrays
            if (other is None or other == cluster) and id_ in known
        ]
        count = len(array.tasks) + sum(tasks for tasks, _ in others)
        given = str(cluster.settings.get("dependency", ""))
        # its parts stand for each other where there is a question mark
        if not others or count <= self._parallel(cluster) or "?" in given:
            return cluster
        after = ",".join(filter(None, [given, f"afterany:{others[-1][1]}"]))
        return structs.replace(cluster, settings={**cluster.settings, "dependency": after})

    # Following

    def _ask(self) -> bool:
        """Look what has become of jobs, and submit more; return whether the cluster answers."""
        try:
            self._look_at_queue()
            self._submit()
        except slurm.SlurmFailed as error:
            if isinstance(error, slurm.SubmitFailed) and not slurm.is_silent(error.said):
                raise
            self._note_silence(str(error))
            return False
        if self._silent is not None:
            self._silent = None
            self._say("Slurm answers again")
        return True

    def _note_silence(self, said: str) -> None:
        now = self.sweep.clock()
        if self._silent is None:
            self._silent = now
            text = f"it is asked again for {duration(_PATIENCE)}; jobs go on meanwhile"
            self._say(f"Slurm does not answer ({said}): {text}")
        elif now - self._silent >= _PATIENCE:
            text = f"Slurm has not answered for {duration(_PATIENCE)}, so its jobs are left: {said}"
            raise LaunchError(text)

    def _look_at_queue(self) -> None:
        """Ask the cluster, and take note of what has changed."""
        queued = slurm.queued() if self._in_queue else {}
        for job in [*self._in_queue.values()]:
            found = queued.get(job.id)
            job.gone = job.gone + 1 if found is None else 0
            if found is not None and found.state == "PENDING":
                job.running = False
            elif found is not None and not job.running:
                last = account_of(job.directory).last
                if isinstance(last, (BatchStarted, BatchSignalled)):
                    self._tell_start(job)
            if found is None or job.shares:
                self._look_for_end(job)
        if not self.sweep.ends:
            return
        # nothing starts any more, what runs goes on
        for array in self._to_submit:
            for _, each in array.jobs:
                self.sweep.tell(v.JobNotStarted(each.number))
        self._to_submit.clear()
        waiting = [job for job in self._in_queue.values() if not (job.running or job.cancelled)]
        if waiting:
            slurm.cancel({job.id for job in waiting}, pending_only=True)
        for job in waiting:
            job.cancelled = True

    def _tell_start(self, job: SubmittedJob) -> None:
        job.running = True
        starts = account_of(job.directory).starts
        self.sweep.observe(v.StartJob(job.number, Lease(), max(0, starts - 1)))

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
            self.sweep.tell(v.JobDropped(job.number, said.exit_code, said.reason))
            return
        if not job.running:
            # it was short
            self._tell_start(job)
        code, why = (said.exit_code, said.reason) if isinstance(said, BatchEnded) else (0, "")
        why = why or "its batch job ended without a result"
        end = self.sweep.records.ended(job.number, 0, job.directory, code, why)
        self.sweep.tell(structs.replace(end, cause=None, cancelled=was_cancelled))

    # Leaving

    def _leave_detached(self) -> None:
        """Raise `JobsLeft` if nobody is to follow what is in the queue."""
        if self._detached and self._in_queue and not self._to_submit:
            raise self._leave(None)

    def _leave(self, signum: int | None) -> JobsLeft:
        self.left = True
        waiting = len(self._starts) + sum(1 for array in self._to_submit for _ in array.jobs)
        if waiting:
            text = "not submitted: only a launcher that goes on with the sweep does that"
            self._say(f"{counted(waiting, 'job')} {text}")
        code = ExitCode.SUCCESS if signum in {None, signal.SIGINT} else for_signal(int(signum or 0))
        return JobsLeft(v.FinishSweep(int(code), signum))


def _write_hydra(config: DictConfig) -> None:
    """Write what Hydra leaves in the directory of a job that it runs."""
    node = config.hydra
    if node.output_subdir is None:
        return
    directory = os.path.join(node.runtime.output_dir, str(node.output_subdir))
    own: list[Any] = [key for key in config if key != "hydra"]
    written = {
        "config.yaml": OmegaConf.masked_copy(config, own),
        "hydra.yaml": OmegaConf.masked_copy(config, "hydra"),
        "overrides.yaml": node.overrides.task,
    }
    with naming(directory):
        os.makedirs(directory, exist_ok=True)
        for name, each in written.items():
            OmegaConf.save(each, os.path.join(directory, name))


def _id_of(queued: Mapping[str, QueuedJob], directory: str) -> str:
    """Return the id of an array by its working directory, an empty string if it is over."""
    found = (job.id for job in queued.values() if job.directory == directory)
    return next(found, "").partition("_")[0]


def _was_cancelled(job: SubmittedJob, *, started: bool) -> bool:
    """Return whether somebody has cancelled a job's batch job, this launcher or another."""
    if job.cancelled and not started:
        return True
    try:
        facts = slurm.job_facts(job.id)
    except LaunchError:
        return False
    return facts is not None and facts.state == "CANCELLED"
