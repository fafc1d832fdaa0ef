"""What the process of a job does: compose itself, then be the launcher of its run."""

from __future__ import annotations

import functools
import hashlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.utils import env_override, filter_overrides, run_job
from msgspec.structs import replace

from lllaunch.app.boundary import JobFailed, message_of, noting_variables, without_variables
from lllaunch.app.configs import job_name
from lllaunch.app.gate import JobOf, admit
from lllaunch.app.planning import in_snapshot, load, locating, perform, plain
from lllaunch.app.sweeping.composing import LAUNCHER
from lllaunch.app.sweeping.sweeper import Lazy
from lllaunch.config.plan import MARKS, essential, plan_node
from lllaunch.config.read import CLUSTER, PublicReader
from lllaunch.config.values import WORDS
from lllaunch.console.sweep import JobConsole, Reported
from lllaunch.errors import ConfigError, Diagnostic, LaunchError
from lllaunch.run.group import patience, spawner_environment
from lllaunch.secret_names import redacted_overrides
from lllaunch.spec import rank_key
from lllaunch.sweep.fingerprint import job_config, job_key, worth_keeping
from lllaunch.sweep.machine import VISIBLE
from lllaunch.sweep.pool import Need, need_of
from lllaunch.sweep.protocol import Answer, Prepared, SpawnerKey
from lllaunch.sweep.schedule import JobBroken
from lllaunch.sweep.session import id_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.composing import Composer, JobConfig
    from lllaunch.run.build import Build
    from lllaunch.run.result import RunResult
    from lllaunch.run.snapshot import Snapshot
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import Cluster, LaunchSpec
    from lllaunch.sweep.machine import SweepMachine
    from lllaunch.sweep.pool import Lease


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


THREADS = "OMP_NUM_THREADS"

# What every job needs and imports lazily: in the launcher it is imported once, not in each fork.
FOR_JOBS = ("lllaunch.config.resolve", "lllaunch.run.execute", "lllaunch.run.ending")


@dataclass(eq=False)
class NotRun(LaunchError):
    """A job was composed and could not be run."""

    reason: str

    def __str__(self) -> str:
        return f"the job could not be run: {self.reason}"


def needed(spec: LaunchSpec, machine: SweepMachine) -> Need:
    """What a run needs of a machine."""
    return need_of(spec.nproc, spec.resources, bool(machine.gpus), len(machine.cpus))


def with_threads(spec: LaunchSpec, machine: SweepMachine, environ: Mapping[str, str]) -> LaunchSpec:
    """Lets workers compute on the cores that they lease, and not each of them on all there are.

    A worker that leases none, but a GPU, has what torchrun would give it.
    """
    threads = needed(spec, machine).cpus // spec.nproc
    if not threads or THREADS in environ or THREADS in spec.env:
        return spec
    return replace(spec, derived_env={**spec.derived_env, THREADS: str(threads)})


class Planned(NamedTuple):
    """A job that is composed and may run; it stays in the job's process."""

    config: JobConfig
    spec: LaunchSpec
    # what its outcome depends on, canonical (`lllaunch.sweep.fingerprint`)
    identity: Mapping[str, Any]
    # which spawner it can share with others; None if it needs one of its own, or none
    warm: SpawnerKey | None


@dataclass(eq=False)
class SweepJobs:
    """Makes and runs the jobs of a sweep, each in a process forked for it."""

    composer: Composer
    _task_function: Callable[[DictConfig], Any]
    machine: SweepMachine
    _environ: Mapping[str, str]
    build: Build | None = None
    _reported: Reported = field(default_factory=Reported)
    # where they go, as the first says; None for this machine
    cluster: Cluster | None = None
    # hash of the plan of each job of a locked sweep, when it was tried beforehand
    admitted: Mapping[str, str] = field(default_factory=dict)
    # of the code that the jobs run on this machine; None for what it is then
    snapshot: Snapshot | None = None

    def plan(self, overrides: Sequence[str], number: int, directory: str | None = None) -> Planned:
        """Composes a job and decides what it is.

        Raises:
            LaunchError: something is wrong with its config.
            Exception: whatever Hydra, OmegaConf and resolvers raise.
        """
        config = self.composer.compose(overrides, number, directory)
        everything = self.machine.environment(self.machine.everything)
        users_own = self.composer.user is not None
        admitted = self.admitted.get(job_name(overrides), "") if self.admitted else ""
        job = JobOf(overrides, self.composer.master, admitted)
        with locating(self.composer.context.config_loader, config.whole):
            spec = self.composer.plan(config, everything)
            self._expect_same_place(spec)
            self._expect_own_gpus(spec, config)
            admit(spec, config.whole, job, users_own=users_own)
        spec = with_threads(spec, self.machine, {**self._environ, **os.environ})
        where = config.where
        places = (
            (where.output_dir, "<output_dir>"),
            (config.sweep_dir, "<sweep_dir>"),
            (where.runtime_cwd, "<cwd>"),
        )
        public = PublicReader(config.whole)
        launch = public.with_sources(plan_node(spec)["launch"], LAUNCHER, "launch")
        counted = spec.cluster is None
        if counted and (launch["nproc"] is None or launch["nproc"] in WORDS):
            # of a job its outcome may depend on how many there are
            launch["nproc"] = spec.nproc
        if spec.cluster is not None and spec.cluster.nodes > 1:
            launch["nnodes"] = spec.cluster.nodes
        # where they are not told otherwise, workers are where the command was given
        if launch["cwd"] == where.runtime_cwd:
            launch["cwd"] = MARKS.cwd
        launch = essential({"launch": launch})["launch"]
        rest = public.config() | self._hidden(public)
        identity = job_config(launch, rest, places)
        with env_override(config.whole.hydra.job.env_set):
            if self.snapshot is not None:
                spec = in_snapshot(spec, self.snapshot, os.environ)
            warm = self._warm_key(spec)
        return Planned(config, spec, identity, warm)

    def prepare(
        self, overrides: Sequence[str], labels: Sequence[str], number: int, directory: str | None
    ) -> Answer:
        """Composes a job for `lllaunch.sweep.loop.Sweep`."""
        shown = tuple(labels)
        with noting_variables():
            try:
                planned = self.plan(overrides, number, directory)
            except LaunchError as error:
                text = without_variables(str(error))
                problems = getattr(error, "problems", ())
                return JobBroken(number, error.exit_code, text, shown, directory or "", problems)
            except Exception as error:  # noqa: BLE001 - of Hydra, OmegaConf and resolvers
                text = without_variables(message_of(error))
                return JobBroken(number, 1, text, shown, directory or "")
        return Prepared(
            number,
            need=needed(planned.spec, self.machine),
            overrides=shown,
            directory=planned.spec.log_dir,
            fingerprint=job_key(planned.identity),
            config=planned.identity if worth_keeping(planned.identity) else None,
            payload=planned,
            warm=planned.warm,
            patience=patience(planned.spec.watchdog),
        )

    def execute(self, prepared: Prepared, lease: Lease, spawner: Spawner | None) -> int:  # noqa: ARG002 - the lease is in the environment
        """Runs a job that `prepare` made, with Hydra's logging, directories and callbacks.

        Raises:
            NotRun: Hydra could not run it.
        """
        planned = prepared.payload
        assert isinstance(planned, Planned)
        user, build, snapshot = self.composer.user, self.build, self.snapshot
        if user is not None and snapshot is not None:
            user = user._replace(place=snapshot.place)
        outcomes: list[RunResult] = []  # empty if the run could not be started

        @functools.wraps(self._task_function)
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
                hydra_context=self.composer.context,
                task_function=task,
                config=planned.config.whole,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        except SystemExit as end:
            # a callback's, or a library's; what it says of the run is not true
            if not outcomes:
                raise NotRun(f"it was ended by SystemExit({end.code!r})") from end
            return outcomes[0].exit_code
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                traceback.print_exc()
            raise NotRun(without_variables(message_of(error))) from error
        if not outcomes:
            # what it raised: the run could not be started
            return int(done.return_value or 0)
        return outcomes[0].exit_code

    def _expect_same_place(self, spec: LaunchSpec) -> None:
        """Raises if the job goes to a cluster and others run here, or the other way round."""
        if (spec.cluster is not None) == self.composer.for_cluster:
            return
        here, there = "runs here", "goes to a cluster"
        first, this = (there, here) if self.composer.for_cluster else (here, there)
        message = f"is such that the job {this}, and the first one of the sweep {first}"
        raise ConfigError((Diagnostic(CLUSTER, CLUSTER, "", message, "make two sweeps of them"),))

    def _expect_own_gpus(self, spec: LaunchSpec, config: JobConfig) -> None:
        """Raises if the job says itself which GPUs its workers see: the lease does."""
        if not self.machine.masks_gpus:
            return
        env_set = config.whole.hydra.job.env_set
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

    def _hidden(self, public: PublicReader) -> dict[str, Any]:
        """Marks for the literals that are not written, so that others make another job."""
        if not self.composer.users_own:
            return {}
        sweep = id_of(self.composer.sweep_dir)
        found = [each for each in public.secrets if not each[0].startswith("launch.")]
        marks = {where: mark(text, sweep) for where, _, text in found}
        return {"$hidden": marks} if marks else {}

    def _warm_key(self, spec: LaunchSpec) -> SpawnerKey | None:
        user = self.composer.user
        if user is not None and user.forked:
            return None
        cwd = spec.spawner_cwd or spec.cwd
        return SpawnerKey.of(spec.imports, cwd, spawner_environment(spec), self._environ)
