"""A sweep of Hydra's, from the overrides of its jobs to what became of each: `launch`.

What Hydra is told of a job is looked up when it is asked for, so that it costs nothing: a sweep of
ten thousand jobs keeps neither configs nor return values. The first are composed again, the second
read from result.json.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, filter_overrides, setup_globals
from msgspec import structs
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch import __version__
from lllaunch.app.app import jobs_of
from lllaunch.app.boundary import AppEnded, JobFailed, refusing, tell_ci
from lllaunch.app.command_line import program
from lllaunch.app.jobs import (
    FOR_JOBS,
    LAUNCHER,
    SweepJobs,
    compared,
    labels_of,
    name_of,
    probe,
)
from lllaunch.app.own_worker import UserFunction, call_in_worker
from lllaunch.app.planning import as_written, is_of_a_moment, job_cwd, load, locating, without_hydra
from lllaunch.config.cluster import LAUNCHERS_KEYS, read_snapshot
from lllaunch.config.cluster import SYNONYMS as CLUSTER_SYNONYMS
from lllaunch.config.fields import (
    Findings,
    hinted,
    known_items,
    read_choice,
    read_count,
    read_each,
    read_flag,
    read_positive,
    read_text,
)
from lllaunch.config.kinds import CONSOLE, Kind, Node, read_fields
from lllaunch.config.read import Reader, cluster_key, register_resolvers
from lllaunch.config.schema import SYNONYMS as LAUNCH_SYNONYMS
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import parse_duration
from lllaunch.console.sweep import Board, SweepConsole
from lllaunch.errors import (
    ConfigError,
    Diagnostic,
    ExitCode,
    LaunchError,
    OutputError,
    Unfit,
    for_signal,
)
from lllaunch.files import naming
from lllaunch.hydra_compat import BASIC_SWEEPER
from lllaunch.results.index import remember
from lllaunch.run.directory import RESULT
from lllaunch.run.repository import Build, BuildQuery
from lllaunch.secret_names import redacted_overrides
from lllaunch.signal_source import QUIET, SignalSource, remember_interrupts
from lllaunch.spec import LAUNCH_FIELDS, ConsolePolicy, Snapshots
from lllaunch.sweep.history import read_result
from lllaunch.sweep.journal import ARRAYS
from lllaunch.sweep.local import LocalExecutor
from lllaunch.sweep.loop import Executor, Onlooker, Sweep
from lllaunch.sweep.machine import Leases, find_machine
from lllaunch.sweep.objective import DIRECTIONS, Direction, Objective, Objectives, as_direction
from lllaunch.sweep.processes import SpawnerPool, Work
from lllaunch.sweep.protocol import Answer
from lllaunch.sweep.schedule import FinishSweep, JobBroken, Retries, SweepPolicy
from lllaunch.sweep.session import Batch, SweepSession, id_of
from lllaunch.words import RESUME, counted, resume_override, short_overrides, shown_path

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from hydra_plugins.lllaunch_launcher.launcher import LllaunchLauncher
    from lllaunch.sweep.history import JobHistory
    from lllaunch.sweep.pool import Lease

SYNONYMS = {
    **LAUNCH_SYNONYMS,
    "n_jobs": "max_parallel",
    "array_parallelism": "max_parallel",
    "gpus_per_node": "gpus",
    "cpus_per_node": "cpus",
    "max_failures": "on_failure.max_failures",
    "timeout_min": "watchdog.timeout",
    "tasks_per_node": "nproc",
}

# For Hydra, which makes the launcher of them.
_HYDRAS = ("_target_", "_recursive_", "_convert_", "_partial_")
# Each job has its own.
_OF_JOBS = ("entrypoint", "args", "log_dir", "run_id")
# A sweep has one machine, unless it goes to a cluster.
_OF_SEVERAL = ("nnodes", "node_rank", "rdzv")
_FAILURE_FORMS = "continue, stop or {max_failures: 3}"


class SweepSettings(NamedTuple):
    """What holds for all jobs of a sweep, except their launch fields."""

    policy: SweepPolicy = SweepPolicy()
    # which GPUs may be leased, as `lllaunch.sweep.machine.find_machine` takes it: a number, names,
    # or None for all
    gpus: int | tuple[int | str, ...] | None = None
    cpus: int | tuple[int | str, ...] | None = None
    pin_cpus: bool = False
    # which of two objectives is better; None if that is not said here
    direction: Direction | None = None
    # directory of the sweep that this one goes on with, as written; None for a new one
    resume: str | None = None
    # whether the jobs run the code as it was when the sweep began. Of a cluster's sweep its own
    # setting says so
    snapshot: Snapshots = "none"
    console: ConsolePolicy = ConsolePolicy()


def sweep_settings(config: DictConfig, key: str = "hydra.launcher") -> SweepSettings:
    """Reads what holds for all jobs of a sweep.

    Launch fields in the node are not looked at: `lllaunch.config.resolve.resolve` reads them for
    each job.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
    """
    register_resolvers()
    findings = Findings()
    names, synonyms = (*SWEEP, "cluster", *LAUNCH_FIELDS, *_HYDRAS), SYNONYMS
    node: Any = OmegaConf.select(config, key)
    submits = node.get("cluster") is not None
    if submits:
        names, synonyms = (*names, *LAUNCHERS_KEYS), {**SYNONYMS, **CLUSTER_SYNONYMS}
    # jobs on one machine are runs of one node
    explained = dict.fromkeys(
        _OF_SEVERAL, "start a run of several nodes by itself, without -m, or set cluster"
    )
    of_jobs = (*_OF_JOBS, *_OF_SEVERAL) if submits else _OF_JOBS
    explained |= {name: f"each job has its own: set launch.{name}" for name in of_jobs}
    known_items(dict.fromkeys(node), key, names, findings, synonyms, explained)
    values = read_fields(SWEEP, Reader(config, findings).items(key, SWEEP), key, findings)
    findings.raise_if_any([f"{key}.{name}" for name in SWEEP])
    values["max_failures"] = values.pop("on_failure", None)
    of_policy = {name: values.pop(name) for name in SweepPolicy._fields if name in values}
    return SweepSettings(SweepPolicy(**of_policy), **values)


_SLOTS = "a number (0, 1, 2, ...) or a list of which"


def _read_slot(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise Unfit("a number or a name", code="type")
    if value in {"all", "auto", "none"}:
        raise Unfit(_SLOTS, "null is all of them, 0 is none", code="number")
    return value


def _read_slots(tree: Tree, key: str, findings: Findings) -> Any:
    """Read how many of a kind of slots may be leased, or which ones."""
    plain = reveal(tree)
    if isinstance(plain, list) or (isinstance(plain, str) and not plain.isdecimal()):
        return read_each(tree, key, findings, _read_slot)
    return findings.attempt(key, tree, hinted(read_count, "", _SLOTS))


def _read_failures(tree: Tree, key: str, findings: Findings) -> int | None:
    """Read how many jobs may fail for good before nothing more is started."""
    if not isinstance(tree, dict):
        choose = partial(read_choice, choices=("continue", "stop"))
        word = findings.attempt(key, tree, hinted(choose, "", _FAILURE_FORMS))
        return 1 if word == "stop" else None
    items = known_items(tree, key, ("max_failures",), findings)
    read = hinted(read_positive, "write on_failure: continue for no limit")
    most = items.get("max_failures", BROKEN if tree else None)
    return findings.attempt(f"{key}.max_failures", most, read)


SWEEP: Mapping[str, Kind] = {
    "max_parallel": Kind(hinted(read_positive, "null is as many as have room")),
    "gpus": Kind(_read_slots, whole=True),
    "cpus": Kind(_read_slots, whole=True),
    "pin_cpus": Kind(read_flag),
    "on_failure": Kind(_read_failures, whole=True),
    # how often a job is tried again, by cause
    "retries": Node(
        Retries,
        dict.fromkeys(Retries._fields, Kind(read_count)),
        meant=lambda _: "say for what: {failure: 3}",
        of="causes to numbers",
    ).kind,
    "retry_delay": Kind(parse_duration),
    "direction": Kind(partial(read_choice, choices=DIRECTIONS)),
    "resume": Kind(read_text),
    "snapshot": Kind(read_snapshot),
    "console": CONSOLE.kind,
}
"""The settings of a sweep itself."""


def launch(
    launcher: LllaunchLauncher, overrides: Sequence[Sequence[str]], first: int
) -> list[JobReturn]:
    """Run a batch of jobs to their ends; most sweepers ask for one.

    Raises `SystemExit` if nothing was started, or if a signal ended the sweep.
    """
    # the script of a worker that has found another way to a launcher than the usual ones
    call_in_worker(launcher.task_function, runs=True)
    # our own app has disabled it for its start
    gc.enable()
    remember_interrupts()
    setup_globals()
    register_resolvers()
    with refusing():
        if launcher.sweep is None:
            launcher.sweep = HydraSweep.begin(launcher, overrides, first)
        sweep = launcher.sweep
        batch = sweep.number(overrides, first)
        finish = sweep.run(batch, overrides)
    if sweep.at_once:
        launcher.sweep = None
        sweep.close()
    launcher.exit_code = launcher.exit_code or finish.exit_code
    if finish.signum is not None or sweep.left:
        raise AppEnded(finish.exit_code)
    return [sweep.returned(batch, job, index) for index, job in enumerate(overrides)]


@dataclass(eq=False)
class HydraSweep:
    """What a launcher has from its first batch of jobs to its last; made by `begin`."""

    _jobs: SweepJobs
    _settings: SweepSettings
    _leases: Leases
    _session: SweepSession
    _spawners: SpawnerPool
    # how the app was called, if a resume needs no more than that; else empty
    _command: str
    # whether the sweeper asks for all jobs at once, so that a resume can, too
    at_once: bool
    # of earlier batches, and of jobs that had finished in earlier launchers
    _objectives: Objectives
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    # which job runs in a directory
    _taken: dict[str, int] = field(default_factory=dict)
    _batches: int = 0
    # the last of several, while the sweep's summary is not written and shown
    _open: Batch | None = None
    # whether jobs are in a cluster's queue that this launcher does not follow
    left: bool = False

    @classmethod
    def begin(
        cls, launcher: LllaunchLauncher, overrides: Sequence[Sequence[str]], first: int
    ) -> HydraSweep:
        """Take the directory of a sweep that can run, or raise `LaunchError`; nothing is started.

        ``launcher``: Hydra's; all is given back when our app ends, or else when this is gone.
        """
        if threading.current_thread() is not threading.main_thread():
            text = "a sweep is launched from the main thread only: its jobs end with the thread"
            raise LaunchError(text)
        config, loader = launcher.config, launcher.hydra_context.config_loader
        ours = jobs_of(launcher.task_function)
        function = launcher.task_function if ours is None else ours.function
        # what workers run instead of the configured entrypoint, None for that
        user = None
        if function is not None:
            user = UserFunction.of(function, importable=ours is not None)
        own, task = ours is None, launcher.task_function
        jobs = SweepJobs(launcher.hydra_context, config, user, users_own=own, task_function=task)
        for_cluster = jobs.for_cluster = jobs.go_to_cluster(overrides)
        with locating(loader, config):
            settings = sweep_settings(config, LAUNCHER)
            if not for_cluster:
                jobs.machine = find_machine(os.environ, settings.gpus, settings.cpus)
            check_resume(config, settings.resume)
        if ours is not None and ours.quiet:
            settings = settings._replace(console=structs.replace(settings.console, quiet=True))
        with contextlib.ExitStack() as undo:
            spawners = SpawnerPool(
                dict(os.environ), prestarted=None if ours is None else ours.spawner
            )
            undo.callback(spawners.close)
            query = BuildQuery(config.hydra.runtime.cwd)
            undo.callback(query.close)
            probe(jobs, overrides, first, spawners)
            for name in FOR_JOBS:
                importlib.import_module(name)
            slots = None if for_cluster else jobs.machine.everything
            session = _begin_session(launcher, settings, slots)
            undo.callback(session.close)
            jobs.sweep_dir = session.path
            # once for all jobs
            jobs.build = query.result(own=[session.path])
            if settings.snapshot != "none" and not for_cluster:
                _take_snapshot(jobs, session.path, undo, keeps=settings.snapshot != "temporary")
            if launcher.on_begin is not None:
                launcher.on_begin(session.resumed)
            leases = Leases(jobs.machine, lock_cpus=settings.pin_cpus)
            called = "" if ours is None else f"{program()} -m"
            at_once, known = launches_once(config), Objectives(session.direction)
            sweep = cls(jobs, settings, leases, session, spawners, called, at_once, known)
            undo.callback(sweep._conclude_quietly)
            undo.callback(leases.close)
            sweep._resources = undo.pop_all()
        # Hydra does not tell a launcher when it is done, but our own app has an end. The collector
        # may come while that one closes the spawner that it has lent.
        if ours is None:
            weakref.finalize(launcher, sweep.close)
        else:
            ours.at_end.callback(sweep.close)
        return sweep

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._resources.close()

    def number(self, overrides: Sequence[Sequence[str]], first: int) -> Batch:
        """Give jobs their numbers; of a resumed sweep, those that they had."""
        jobs, path = self._jobs, self._session.path
        labels = labels_of(overrides, id_of(path) if jobs.users_own else "")
        compose = compared(jobs, overrides, labels, path)
        clusters = not jobs.users_own or cluster_key(jobs.master, users_own=True) != ""
        self._batches += 1
        return self._session.plan(labels, first, compose, clusters=clusters)

    def run(self, batch: Batch, overrides: Sequence[Sequence[str]]) -> FinishSweep:
        """Run jobs, and write and say what became of them, however that ended."""
        self._open = batch
        where = "Slurm" if self._jobs.for_cluster else str(self._jobs.machine)
        console = SweepConsole(machine=where, policy=self._settings.console)
        common, finish = self._common(batch), None
        for number, job in batch.skipped.items():
            if job.objective is not None:
                name = short_overrides(batch.label(number), common)
                self._objectives.add(Objective(job.objective, number, name))
        # one that comes while the end is written and told does not keep that from being done
        with (
            SignalSource(quiet=QUIET, stops=True) as signals,
            contextlib.closing(console),
        ):
            board = Board(
                *(self._session.path, len(batch.numbers), batch.label, len(batch.skipped)),
                common=common,
                policy=self._settings.policy,
                slots=None if self._jobs.for_cluster else self._jobs.machine.everything,
                objectives=self._objectives,
            )
            console.began(board, None if self.at_once else self._batches - 1)
            try:
                finish = self._sweep(batch, overrides, console, signals)
            finally:
                if self.left:
                    self._open = None
                    where = shown_path(self._session.path, os.getcwd())
                    _say(
                        f"the sweep is in {where}; 'lllaunch wait {where}' waits for its jobs, "
                        f"'lllaunch stop {where}' ends them, {resume_override(where)} goes on with "
                        "it"
                    )
                elif self.at_once or finish is None or finish.signum is not None:
                    self._conclude(batch, console)
            late = [signum for signum in signals.received() if signum not in signals.quiet]
        if late and finish.signum is None:
            return structs.replace(finish, signum=late[0], exit_code=for_signal(late[0]))
        return finish

    def _sweep(
        self,
        batch: Batch,
        overrides: Sequence[Sequence[str]],
        console: SweepConsole,
        signals: SignalSource,
    ) -> FinishSweep:
        def prepare(number: int) -> Answer:
            """In the process of a job: compose it."""
            index = batch.index(number)
            # where it was tried before, by this launcher or another
            directory = self._session.directory_of(number) or None
            return self._jobs.prepare(overrides[index], batch.labels[index], number, directory)

        def review(answer: Answer) -> Answer:
            """Refuse a job that would write where another one does."""
            number = answer.number
            if isinstance(answer, JobBroken):
                # one that was killed came to say nothing
                label = answer.overrides or tuple(batch.label(number))
                return structs.replace(answer, overrides=label)
            other = self._taken.setdefault(answer.directory, number)
            if other == number:
                return answer
            why = (
                f"hydra.sweep.subdir or launch.log_dir: job {number} would run in the directory of "
                f"job {other} ({answer.directory}); "
                "make it depend on the job, as ${hydra:job.num} does"
            )
            return JobBroken(number, ExitCode.CONFIG, why, answer.overrides, answer.directory)

        jobs, session, policy = self._jobs, self._session, self._settings.policy
        executor: Executor
        if jobs.for_cluster:
            # only of what goes to a cluster
            from lllaunch.app.submitting import SlurmExecutor  # noqa: PLC0415

            given = (session, jobs, policy, batch, prepare, review, console.note)
            executor = SlurmExecutor(*given, self.at_once)
            # of the cluster: it limits what runs at the same time
            policy = policy._replace(max_parallel=None)
        else:
            pins, spawners = self._settings.pin_cpus, self._spawners
            work = Work(prepare, jobs.execute, jobs.machine, spawners, pins, captures=True)
            work = work._replace(locks=session.locks)
            executor = LocalExecutor(work, self._leases, review)
        onlooker = Onlooker(console.observe, console.tick_in, console.awaited)
        sweep = Sweep(executor, policy, session.journal, onlooker, batch.to_run(), signals)
        try:
            return sweep.run()
        finally:
            self.left = executor.left

    def _conclude_quietly(self) -> None:
        """Say what became of all batches; when this is called nothing can be raised any more."""
        batch = self._open
        if batch is None:
            return
        with contextlib.suppress(AppEnded), refusing():
            console = SweepConsole(live=False, policy=self._settings.console)
            with SignalSource(quiet=QUIET), contextlib.closing(console):
                board = Board(self._session.path, 0, batch.label, common=self._common(batch))
                console.began(board, batch=1)
                self._conclude(batch, console, seen=False)

    def _conclude(self, batch: Batch, console: SweepConsole, *, seen: bool = True) -> None:
        """Write and say what became of the sweep, of which this was the last batch."""
        self._open = None
        result = self._session.result()
        try:
            # before the console has its last word, which it may have to wait for
            self._session.write(result, batch.numbers, batch.label)
        finally:
            resume = self._command if self.at_once else None
            # one that has not seen the jobs knows no times of theirs
            numbers = batch.numbers if self.at_once and seen else None
            console.finished(result, numbers, resume=resume)
            tell_ci(self._session.path)

    def _common(self, batch: Batch) -> frozenset[str]:
        """Return the overrides that all jobs of the sweep have."""
        # what the jobs of one batch of several have in common may be what the sweeper chooses; what
        # stands on the command line as it is in the job is not
        stated = as_written(self._jobs.master.hydra.overrides.task)
        common: set[str] | None = None
        for label in batch.labels if self.at_once else [*batch.labels[:1], stated]:
            common = set(label) if common is None else common.intersection(label)
            if not common:
                break
        return frozenset(common or ())

    def returned(self, batch: Batch, overrides: Sequence[str], index: int) -> JobReturn:
        """Return what became of a job."""
        number = batch.numbers[index]
        job, directory = self._session.job(number), self._session.directory_of(number)
        failure = None
        if job is None or not job.finished:
            failure = _failure(name_of(batch.labels[index], number), job)

        def compose() -> DictConfig:
            return self._jobs.compose(overrides, number, directory)

        return SweptJob(filter_overrides(overrides), directory, failure, compose)


def _take_snapshot(
    jobs: SweepJobs, directory: str, undo: contextlib.ExitStack, *, keeps: bool
) -> None:
    """Let the jobs run the code as it is now, or raise `SnapshotFailed`."""
    # only of sweeps that have one
    from lllaunch.run.repository import free_place, remove, take  # noqa: PLC0415

    cwd = str(jobs.master.hydra.runtime.cwd)
    snapshot = jobs.snapshot = take(cwd, free_place(directory), os.environ, _say)
    if snapshot is not None:
        jobs.build = snapshot.build(jobs.build or Build())
        if not keeps:
            undo.callback(remove, snapshot)


# The sweep's settings


_OURS = "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper"


def launches_once(config: DictConfig) -> bool:
    """Whether the sweeper asks for all of its jobs at once."""
    sweeper: Any = config.hydra.sweeper
    basic = sweeper.get("_target_") == BASIC_SWEEPER and not sweeper.get("max_batch_size")
    return basic or sweeper.get("_target_") == _OURS


def check_resume(config: DictConfig, resume: str | None) -> None:
    """Raise `ConfigError` if a sweep is resumed that is not where Hydra works, or cannot be."""
    if resume is None:
        return
    sweep_dir, cwd = str(config.hydra.sweep.dir), config.hydra.runtime.cwd
    theirs, ours = (os.path.realpath(os.path.join(cwd, path)) for path in (sweep_dir, resume))
    if theirs != ours:
        message = f"is not the sweep's directory ({sweep_dir})"
        hint = f"add hydra.sweep.dir={resume}"
    elif not launches_once(config):
        message = "cannot be resumed with a sweeper that asks for jobs in several batches"
        hint = "use hydra/sweeper=lllaunch, which runs all jobs as one batch"
    else:
        return
    raise ConfigError((Diagnostic("resume", RESUME, repr(resume), message, hint),))


# The sweep's directory


def _begin_session(
    launcher: LllaunchLauncher, settings: SweepSettings, slots: Lease | None
) -> SweepSession:
    """Take the sweep's directory, or raise what `SweepSession.begin` does.

    Hydra names directories after the second. Of sweeps that begin in the same one, the first gets
    that name and the others get it with a number, if the sweeper lets the launcher choose.
    """
    config, resume = launcher.config, settings.resume is not None
    node: Any = config.hydra.sweep
    place = stated = os.path.join(config.hydra.runtime.cwd, str(node.dir))
    chooses = not resume and launcher.on_begin is not None and is_of_a_moment(node)
    for number in itertools.count(1) if chooses else ():
        with naming(place), contextlib.suppress(FileExistsError):
            os.makedirs(place)
            break
        place = f"{stated}-{number}"
    if not resume and os.path.isdir(os.path.join(place, ARRAYS)):
        _expect_none_queued(place)
    # of two objectives, which one a sweeper looks for, as Optuna's says it
    direction = as_direction(OmegaConf.select(config, "hydra.sweeper.direction"))
    session = SweepSession.begin(
        place,
        command=redacted_overrides(as_written(config.hydra.overrides.task)),
        version=__version__,
        direction=settings.direction or direction,
        slots=slots,
        resume=resume,
        say=_say,
    )
    remember(session.path, config.hydra.runtime.cwd, os.environ)
    if place != stated:
        with read_write(node), open_dict(node):
            node.dir = f"{node.dir}{place[len(stated) :]}"
    return session


def _say(text: str) -> None:
    print(f"lllaunch: {text}", file=sys.stderr)


def _expect_none_queued(place: str) -> None:
    """Raise if jobs of a sweep that is there are on a cluster: two would run in one directory."""
    from lllaunch.cluster import slurm  # noqa: PLC0415 - only of what went to a cluster

    arrays = os.path.join(os.path.abspath(place), ARRAYS, "")
    try:
        queued = [job for job in slurm.queued().values() if job.directory.startswith(arrays)]
    except slurm.SlurmMissing:
        return
    if queued:
        message = f"holds a sweep of which {counted(len(queued), 'batch job')} are not over"
        hint = f"{resume_override(place)} goes on with it, 'lllaunch stop {place}' ends it"
        problem = Diagnostic("sweeper", "hydra.sweep.dir", repr(place), message, hint)
        raise ConfigError((problem,))


# What Hydra is told of a job


class SweptJob(JobReturn):
    """What became of a job of a sweep."""

    def __init__(
        self,
        overrides: Sequence[str],
        directory: str,
        failure: JobFailed | None,
        compose: Callable[[], DictConfig],
    ) -> None:
        self.overrides = list(overrides)
        self.status = JobStatus.COMPLETED if failure is None else JobStatus.FAILED
        self.task_name = JobRuntime.instance().get("name")
        self._directory = directory
        self._failure = failure
        self._compose = compose

    @property
    def cfg(self) -> DictConfig:  # type: ignore[override]
        """The job's config, composed again."""
        with self._again() as config:
            return without_hydra(config)

    @property
    def hydra_cfg(self) -> DictConfig:  # type: ignore[override]
        """Hydra's config of the job, composed again."""
        with self._again() as config:
            found: DictConfig = OmegaConf.masked_copy(config, "hydra")
            return found

    @property
    def working_dir(self) -> str:  # type: ignore[override]
        """Where the job worked: its output directory with ``hydra.job.chdir``."""
        with self._again() as config:
            return job_cwd(config.hydra)

    @property  # type: ignore[misc]
    def return_value(self) -> Any:
        """What rank 0 returned; `JobFailed` if it failed, `OutputError` if that is not readable."""
        if self._failure is not None:
            raise self._failure
        result = read_result(self._directory)
        if result is None:
            raise OutputError(os.path.join(self._directory, RESULT), "is not the result of a run")
        return load(result.return_values.get(0))

    @contextlib.contextmanager
    def _again(self) -> Iterator[DictConfig]:
        before = HydraConfig.instance().cfg
        try:
            yield self._compose()
        finally:
            HydraConfig.instance().cfg = before

    def __repr__(self) -> str:
        return f"SweptJob(overrides={self.overrides}, status={self.status.name})"


def _failure(name: str, job: JobHistory | None) -> JobFailed:
    """Return the exception of a job that did not succeed."""
    if job is None or job.exit_code is None:
        return JobFailed(ExitCode.ERROR, f"lllaunch: {name} was not run")
    said = f"failed (exit code {job.exit_code})"
    why = f": {job.root_cause}" if job.root_cause else ""
    return JobFailed(job.exit_code, f"lllaunch: {name} {said}{why}")
