"""The jobs of a sweep: composed by Hydra, planned, and run, each in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import re
import select
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override, filter_overrides, run_job, setup_globals
from msgspec import structs
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch.app.boundary import JobFailed, message_of, without_variables
from lllaunch.app.gate import JobOf, admit, asks_for_lock
from lllaunch.app.planning import in_snapshot, job_name, load, locating, perform, plain, plan_job
from lllaunch.app.sweeper import Lazy
from lllaunch.cluster.address import format_nnodes
from lllaunch.config.plan import MARKS, essential, plan_hash, plan_node
from lllaunch.config.read import CLUSTER, PublicReader, cluster_key
from lllaunch.config.schema import TARGET
from lllaunch.config.values import WORDS
from lllaunch.console.sweep import JobConsole, Reported
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError
from lllaunch.linux.process import set_parent_death_signal
from lllaunch.run.execute import patience, spawner_environment
from lllaunch.secret_names import redacted_overrides
from lllaunch.spawner import forks
from lllaunch.spawner.forks import flush_streams, fork
from lllaunch.spec import rank_key
from lllaunch.sweep.fingerprint import CONFIG_LIMIT, job_config, job_key
from lllaunch.sweep.machine import VISIBLE, SweepMachine
from lllaunch.sweep.pool import Need, need_of, never_fits
from lllaunch.sweep.protocol import Answer, Prepared, SpawnerKey
from lllaunch.sweep.schedule import JobBroken
from lllaunch.sweep.session import id_of

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.types import HydraContext
    from omegaconf import DictConfig

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.run.repository import Build, Snapshot
    from lllaunch.run.result import RunResult
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import Cluster, LaunchSpec, Resources
    from lllaunch.sweep.history import JobHistory
    from lllaunch.sweep.pool import Lease
    from lllaunch.sweep.processes import SpawnerPool
    from lllaunch.sweep.session import Compose


def labels_of(overrides: Sequence[Sequence[str]], sweep: str = "") -> Sequence[tuple[str, ...]]:
    """Return the overrides of jobs as Hydra lists them for a job, without secrets.

    ``sweep``: name of the sweep where hidden values that differ are told apart (`mark`): of an app
    where literals stand under names that only sound secret (``sort_key``); else empty.
    """

    def label(index: int) -> tuple[str, ...]:
        written = filter_overrides(overrides[index])
        shown = redacted_overrides(written)
        if not sweep:
            return shown
        return tuple(
            new if old == new or "${" in old else f"{old.partition('=')[0]}={mark(old, sweep)}"
            for old, new in zip(written, shown, strict=True)
        )

    return Lazy(len(overrides), label)


def name_of(overrides: Sequence[str], number: int | None = None) -> str:
    """Return what a message calls a job: by its number, if it is known, and its overrides."""
    text = " ".join(overrides)
    if number is None:
        return text or "the job"
    return f"job {number} ({text})" if text else f"job {number}"


@functools.lru_cache(maxsize=4096)
def mark(text: str, sweep: str) -> str:
    """Return a name for a hidden value, which tells it from others of its sweep.

    It is slow to make, so that who reads it does not find the value by trying many.
    """
    value, salt = text.encode("utf-8", "surrogateescape"), os.fsencode(sweep)
    return f"<hidden {hashlib.pbkdf2_hmac('sha256', value, salt, 20_000).hex()[:8]}>"


LAUNCHER = "hydra.launcher"
"""The node of a sweep's settings."""

# What every job needs and imports lazily: in the launcher it is imported once, not in each fork.
FOR_JOBS = ("lllaunch.config.resolve", "lllaunch.run.execute", "lllaunch.run.judge")


def _not_run(reason: str) -> LaunchError:
    return LaunchError(f"the job could not be run: {reason}")


class Planned(NamedTuple):
    """A job that is composed and may run; it stays in the job's process."""

    config: DictConfig
    spec: LaunchSpec
    # what its outcome depends on, canonical (`lllaunch.sweep.fingerprint`)
    identity: Mapping[str, Any]


@dataclass(eq=False)
class SweepJobs:
    """Makes and runs the jobs of a sweep, each in a process forked for it."""

    context: HydraContext
    # what the sweep itself was composed to
    master: DictConfig
    # what workers run instead of the configured entrypoint, None for that
    user: UserFunction | None = None
    # whether the app is a user's own that knows nothing of lllaunch
    users_own: bool = False
    task_function: Callable[[DictConfig], Any] | None = None
    machine: SweepMachine = field(default_factory=SweepMachine)
    # the sweep's directory, absolute; empty for where the config says
    sweep_dir: str = ""
    build: Build | None = None
    # whether the first one goes to a cluster, and to which
    for_cluster: bool = False
    cluster: Cluster | None = None
    # hash of the plan of each job of a locked sweep, when it was tried beforehand
    admitted: Mapping[str, str] = field(default_factory=dict)
    # of the code that the jobs run on this machine; None for what it is then
    snapshot: Snapshot | None = None
    _environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _reported: Reported = field(default_factory=Reported)

    def go_to_cluster(self, overrides: Sequence[Sequence[str]]) -> bool:
        """Return whether the jobs go to a cluster, their own or the launcher's, as the first says.

        What is swept is not in what the sweep was composed to: clusters, or experiments that choose
        theirs.
        """
        configs, loader = [self.master], self.context.config_loader
        with contextlib.suppress(Exception):  # of Hydra; it is told where jobs are tried
            configs += [loader.load_sweep_config(self.master, [*job]) for job in overrides[:1]]
        return any(cluster_key(each, users_own=self.users_own, outer=LAUNCHER) for each in configs)

    def compose(
        self, overrides: Sequence[str], number: int, directory: str | None = None
    ) -> DictConfig:
        """Composes a job's config and makes it Hydra's config of this process.

        ``directory``: where its result.json shall be, absolute; None or empty for where its config
        says. Raises whatever Hydra, OmegaConf and resolvers raise.
        """
        setup_globals()
        config = self.context.config_loader.load_sweep_config(self.master, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        # not by set_config, which copies Hydra's own node: run_job does so twice afterwards
        hydra: Any = HydraConfig.instance()
        hydra.cfg = config
        # a run that says itself where its files go has other directories than Hydra
        if OmegaConf.select(config, "launch.log_dir") is not None:
            directory = None
        sweep_dir = self.sweep_dir or os.path.abspath(str(config.hydra.sweep.dir))
        output_dir = os.path.abspath(os.path.join(sweep_dir, str(config.hydra.sweep.subdir)))
        with read_write(config.hydra), open_dict(config.hydra):
            if sweep_dir != os.path.abspath(str(config.hydra.sweep.dir)):
                config.hydra.sweep.dir = sweep_dir
            if directory and directory != output_dir:
                # a name that is another one each time, such as that of a moment
                config.hydra.sweep.dir, config.hydra.sweep.subdir = os.path.split(directory)
            config.hydra.runtime.output_dir = directory or output_dir
        OmegaConf.set_readonly(config.hydra, True)
        return config

    def plan(self, config: DictConfig, *, here: bool = True) -> LaunchSpec:
        """Decides what the run of a job is, or raises `ConfigError`.

        ``here`` is False for reviewers, on no machine in particular.
        """
        spec = plan_job(
            config,
            self.user,
            outer=LAUNCHER,
            users_own=self.users_own,
            environ=self.machine.environment(self.machine.everything),
            threads=self._threads,
            here=here,
        )
        ours = config.hydra.launcher.get("_target_") == TARGET
        if ours and spec.nodes is not None and spec.cluster is None:
            nnodes = format_nnodes(spec.nodes.min_nodes, spec.nodes.max_nodes)
            written = repr(spec.sources.get(("nnodes",), nnodes))
            message = "asks for several machines, and the jobs of a sweep run on this one"
            hint = "start it by itself, without -m"
            raise ConfigError((Diagnostic("nodes", "launch.nnodes", written, message, hint),))
        return spec

    def prepare(
        self, overrides: Sequence[str], labels: Sequence[str], number: int, directory: str | None
    ) -> Answer:
        """Composes and plans a job for `lllaunch.sweep.loop.Sweep`."""
        shown = tuple(labels)
        try:
            return self._prepared(overrides, shown, number, directory)
        except LaunchError as error:
            text = without_variables(str(error))
            problems = getattr(error, "problems", ())
            return JobBroken(number, error.exit_code, text, shown, directory or "", problems)
        except Exception as error:  # noqa: BLE001 - of Hydra, OmegaConf and resolvers
            text = without_variables(message_of(error))
            return JobBroken(number, 1, text, shown, directory or "")

    def _prepared(
        self, overrides: Sequence[str], shown: tuple[str, ...], number: int, directory: str | None
    ) -> Prepared:
        config = self.compose(overrides, number, directory)
        admitted = self.admitted.get(job_name(overrides), "") if self.admitted else ""
        job = JobOf(overrides, self.master, admitted)
        with locating(self.context.config_loader, config):
            spec = self.plan(config)
            if (spec.cluster is not None) != self.for_cluster:
                here, there = "runs here", "goes to a cluster"
                first, this = (there, here) if self.for_cluster else (here, there)
                message = f"is such that the job {this}, and the first one of the sweep {first}"
                problem = Diagnostic(CLUSTER, CLUSTER, "", message, "make two sweeps of them")
                raise ConfigError((problem,))
            self._expect_own_gpus(spec, config)
            admit(spec, config, job, users_own=self.user is not None)
        identity, warm = self._identity(spec, config), None
        with env_override(config.hydra.job.env_set):
            if self.snapshot is not None:
                spec = in_snapshot(spec, self.snapshot, os.environ)
            if self.user is None or not self.user.forked:
                cwd, environ = spec.spawner_cwd or spec.cwd, spawner_environment(spec)
                warm = SpawnerKey.of(spec.imports, cwd, environ, self._environ)
        return Prepared(
            number,
            need=self._need(spec.nproc, spec.resources),
            overrides=shown,
            directory=spec.log_dir,
            fingerprint=job_key(identity),
            config=identity if len(json.dumps(identity)) <= CONFIG_LIMIT else None,
            payload=Planned(config, spec, identity),
            warm=warm,
            patience=patience(spec.watchdog),
        )

    def _need(self, nproc: int, per_proc: Resources) -> Need:
        return need_of(nproc, per_proc, bool(self.machine.gpus), len(self.machine.cpus))

    def _threads(self, nproc: int, per_proc: Resources) -> int:
        # workers compute on the cores that they lease, and not each of them on all there are; one
        # that leases none, but a GPU, has what torchrun would give it
        return self._need(nproc, per_proc).cpus // nproc

    def _identity(self, spec: LaunchSpec, config: DictConfig) -> dict[str, Any]:
        """Return what the outcome of a job depends on."""
        runtime = config.hydra.runtime
        public = PublicReader(config)
        launch = public.with_sources(plan_node(spec)["launch"], LAUNCHER, "launch")
        if spec.cluster is None and (launch["nproc"] is None or launch["nproc"] in WORDS):
            # its outcome may depend on how many there are
            launch["nproc"] = spec.nproc
        if spec.cluster is not None and spec.cluster.nodes > 1:
            launch["nnodes"] = spec.cluster.nodes
        # where they are not told otherwise, workers are where the command was given
        if launch["cwd"] == runtime.cwd:
            launch["cwd"] = MARKS.cwd
        rest, sweep = public.config(), id_of(self.sweep_dir)
        if self.users_own:
            # literals that are hidden there, so that others make another job
            found = [each for each in public.secrets if not each[0].startswith("launch.")]
            marks = {where: mark(text, sweep) for where, _, text in found}
            rest |= {"$hidden": marks} if marks else {}
        places = (
            (runtime.output_dir, "<output_dir>"),
            (self.sweep_dir, "<sweep_dir>"),
            (runtime.cwd, "<cwd>"),
        )
        return job_config(essential({"launch": launch})["launch"], rest, places)

    def execute(self, prepared: Prepared, lease: Lease, spawner: Spawner | None) -> int:  # noqa: ARG002 - the lease is in the environment
        """Run a prepared job with Hydra's logging, directories and callbacks."""
        planned = prepared.payload
        assert isinstance(planned, Planned)
        assert self.task_function is not None
        user, build, snapshot = self.user, self.build, self.snapshot
        if user is not None and snapshot is not None:
            user = user._replace(place=snapshot.place)
        outcomes: list[RunResult] = []  # empty if the run could not be started

        @functools.wraps(self.task_function)
        def task(cfg: DictConfig) -> Any:
            """Launch the job's workers; return what rank 0 returned, or raise `JobFailed`."""
            known = None if build is None else lambda: build
            console = JobConsole(self._reported)
            outcome = perform(planned.spec, cfg, user, console, spawner, build=known)
            outcomes.append(outcome)
            if outcome.exit_code:
                raise JobFailed(outcome.exit_code, f"the run in {outcome.directory} failed")
            value = outcome.return_values.get(0)
            return plain(value) if user is None else load(value)

        try:
            done = run_job(
                hydra_context=self.context,
                task_function=task,
                config=planned.config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        except SystemExit as end:
            # a callback's, or a library's; what it says of the run is not true
            if not outcomes:
                raise _not_run(f"it was ended by SystemExit({end.code!r})") from end
            return outcomes[0].exit_code
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                traceback.print_exc()
            raise _not_run(without_variables(message_of(error))) from error
        if not outcomes:
            # what it raised: the run could not be started
            return int(done.return_value or 0)
        return outcomes[0].exit_code

    def _expect_own_gpus(self, spec: LaunchSpec, config: DictConfig) -> None:
        """Raises if the job says itself which GPUs its workers see: the lease does."""
        if not self.machine.masks_gpus:
            return
        env_set = config.hydra.job.env_set
        ranks = spec.env_per_rank.items()
        named = {"launch.env": spec.env, "hydra.job.env_set": env_set}
        named |= {f"launch.env_per_rank.{rank_key(rank)}": env for rank, env in ranks}
        problems = [
            Diagnostic(
                "reserved-variable",
                f"{key}.{VISIBLE}",
                repr(str(env[VISIBLE])),
                "is set for each job of a sweep by its lease",
                "say with hydra.launcher.gpus which GPUs the sweep may use",
            )
            for key, env in named.items()
            if VISIBLE in env
        ]
        if problems:
            raise ConfigError(tuple(problems))


# Jobs that are composed before any is started
#
# What is wrong with those that are tried is wrong with the sweep. Composing them all would take as
# long as a short sweep. So those are chosen that are likely to differ in what is checked: the first
# one, and one for each value that is swept of ``launch``, of what that refers to, and of a config
# group. A job that only a value elsewhere makes wrong fails when its turn comes.

MOST_PROBES = 32
# Keys of the launch node whose values may be anything.
_HARMLESS = frozenset({"args", "env", "env_per_rank"})
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select\s*:)?\s*([\w.-]+)\s*[,}]")
_SHOWN = 5
# So many jobs are worth another process.
_SHARE = 8


@dataclass(eq=False)
class SweepRefused(LaunchError):
    """Jobs of a sweep cannot run; nothing was started."""

    faults: Mapping[str, JobBroken]

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """What a run of the first of these jobs would end with."""
        return next(iter(self.faults.values())).exit_code

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """What is wrong with these jobs and is known to stand in a file, each thing once."""
        every = (problem for fault in self.faults.values() for problem in fault.problems)
        return tuple(dict.fromkeys(every))

    def __str__(self) -> str:
        alike: dict[str, list[str]] = {}
        for name, fault in self.faults.items():
            alike.setdefault(fault.why, []).append(name)
        lines = ["nothing was started"]
        for why, names in alike.items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"{', '.join(names[:_SHOWN])}{more}:")
            lines += [f"  {line}" for line in why.splitlines()]
        return "\n".join(lines)


def choose(
    jobs: Sequence[Sequence[str]], matters: Callable[[str], bool], *, all_of_them: bool = False
) -> list[int]:
    """Returns the indices of the jobs to try; pure."""
    if all_of_them or not jobs:
        return [*range(len(jobs))]
    chosen, seen = [0], set(jobs[0])
    for index in range(1, len(jobs)):
        new = [text for text in jobs[index] if text not in seen]
        seen.update(new)
        if any(map(matters, new)):
            chosen.append(index)
            if len(chosen) == MOST_PROBES:
                break
    return chosen


def decides(loader: ConfigLoader, master: DictConfig) -> Callable[[str], bool]:
    """Return what tells whether an override may decide whether a job can run.

    That is one of ``launch``, of the cluster, of a config group, or of what the launch node and the
    launcher's settings refer to.
    """
    raw: Any = OmegaConf.to_container(master, resolve=False)
    launch = [item for key, item in (raw.get("launch") or {}).items() if key not in _HARMLESS]
    texts = repr([launch, raw["hydra"]["sweep"], raw["hydra"]["launcher"]])
    referenced = set(_REFERENCE.findall(texts))

    # to ask Hydra takes milliseconds, and a sweep has few keys
    @functools.cache
    def key_matters(key: str) -> bool:
        above, _, name = key.rpartition("/")
        if key.partition(".")[0] in {"launch", CLUSTER} or name in loader.list_groups(above):
            return True
        return any(
            f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.") for path in referenced
        )

    return lambda text: key_matters(text.partition("=")[0].lstrip("+~").partition("@")[0])


def probe(
    jobs: SweepJobs, overrides: Sequence[Sequence[str]], first: int, spawners: SpawnerPool
) -> None:
    """Compose some jobs in a process of their own; `SweepRefused` if they cannot run."""
    labels, size = labels_of(overrides), jobs.machine.everything
    room = Need(len(size.gpus), len(size.cpus))
    matters = decides(jobs.context.config_loader, jobs.master)
    # nothing starts of a sweep that is not the reviewed one
    locked = asks_for_lock(jobs.master)
    chosen = choose(overrides, matters, all_of_them=locked)

    def look(index: int) -> Answer:
        answer = jobs.prepare(overrides[index], labels[index], first + index, None)
        if isinstance(answer, JobBroken):
            return answer
        spec = answer.payload.spec
        # what a cluster has is not known here
        why = never_fits(answer.need, room) if spec.cluster is None else ""
        if why:
            return JobBroken(answer.number, int(ExitCode.CONFIG), why)
        return structs.replace(answer, payload=(plan_hash(spec) if locked else "", spec.cluster))

    # a process has its own imports to make: not for a few jobs
    processes = min(len(os.sched_getaffinity(0)), 1 + len(chosen) // _SHARE)
    with contextlib.closing(map_in_forks(look, chosen, processes)) as answers:
        found = dict(zip(chosen, answers, strict=True))
    faults = {
        name_of(labels[index]): each for index, each in found.items() if isinstance(each, JobBroken)
    }
    if faults:
        raise SweepRefused(faults)
    if locked:
        jobs.admitted = {
            job_name(overrides[index]): each.payload[0]
            for index, each in found.items()
            if isinstance(each, Prepared)
        }
    one = found.get(0)
    if isinstance(one, Prepared):
        jobs.cluster = one.payload[1]
        if one.warm is not None and jobs.cluster is None:
            spawners.start(one.warm)


def compared(
    jobs: SweepJobs,
    overrides: Sequence[Sequence[str]],
    labels: Sequence[Sequence[str]],
    sweep_dir: str,
) -> Compose:
    """Return what composes jobs that have finished, for comparison: as many at once as cores."""

    def look(job: tuple[int, JobHistory]) -> Answer:
        index, old = job
        directory = os.path.join(sweep_dir, old.directory)
        answer = jobs.prepare(overrides[index], labels[index], old.job, directory)
        if isinstance(answer, JobBroken):
            return answer
        return structs.replace(answer, payload=answer.payload.identity)

    def compose(
        finished: Sequence[tuple[int, JobHistory]],
    ) -> Generator[Mapping[str, Any], None, None]:
        processes = len(os.sched_getaffinity(0))
        with contextlib.closing(map_in_forks(look, finished, processes)) as answers:
            for answer in answers:
                if isinstance(answer, JobBroken):
                    raise SweepRefused({name_of(answer.overrides, answer.number): answer})
                yield answer.payload

    return compose


A = TypeVar("A")
T = TypeVar("T")


def map_in_forks(
    function: Callable[[A], T], items: Sequence[A], processes: int
) -> Generator[T, None, None]:
    """Call a function with each of some items, in several forks of this process.

    Close what this returns: in a finalizer an exception of a signal's handler would be lost. A
    `LaunchError` is of one that has raised something, which standard error shows, or was killed.
    """
    with contextlib.ExitStack() as stack:
        pipes = [
            stack.enter_context(_fork(function, items[place::processes]))
            for place in range(min(processes, len(items)))
        ]
        for place in range(len(items)):
            try:
                answer = pickle.load(pipes[place % processes])  # noqa: S301 - of our own fork
            except (EOFError, pickle.UnpicklingError):
                text = "jobs were composed, and the process that did so was killed or failed"
                raise LaunchError(text) from None
            yield answer


def in_fork(work: Callable[[], T], seconds: float) -> T | None:
    """Return what a function returns in a process of its own; None if it takes longer, or dies."""
    with _fork(lambda _: work(), [None]) as answers:
        if select.select([answers], [], [], seconds)[0]:
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                answer: T | None = pickle.load(answers)  # noqa: S301 - of our own fork
                return answer
    return None


@contextlib.contextmanager
def _fork(function: Callable[[A], object], items: Sequence[A]) -> Iterator[IO[bytes]]:
    """The pipe that a fork writes what the function returns to; it is gone afterwards."""
    flush_streams()
    read, write = os.pipe2(os.O_CLOEXEC)
    parent, ignored = os.getpid(), forks.ignored_at_start()
    pid = fork()
    if pid == 0:
        # never returns into the code that was forked
        try:
            os.close(read)
            # Ctrl-C is for the launcher, which ends the fork then, or takes it along
            forks.leave_terminal(parent)
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() == parent:
                forks.reset(ignored, python=True)  # lifts the mask, too
                answers = os.fdopen(write, "wb")
                for item in items:
                    pickle.dump(function(item), answers)
                    answers.flush()
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            flush_streams()
        finally:
            # closes the pipe, when all is said on standard error, too
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        try:
            yield file
        finally:
            # one that has answered all is ending; the others are not wanted any more
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
