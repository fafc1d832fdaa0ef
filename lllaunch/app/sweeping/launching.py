"""A launcher of Hydra's, from its first job to its last: what `LllaunchLauncher.launch` does."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.utils import setup_globals
from omegaconf import OmegaConf, open_dict, read_write

from lllaunch import __version__
from lllaunch.app.boundary import AppEnded, refusing
from lllaunch.app.naming import is_of_a_moment
from lllaunch.app.own_worker import UserFunction, end_script_at_launch
from lllaunch.app.planning import locating
from lllaunch.app.sweeping.batch import BatchResources, BatchRun
from lllaunch.app.sweeping.composing import LAUNCHER, Composer
from lllaunch.app.sweeping.jobs import SweepJobs, import_for_jobs
from lllaunch.app.sweeping.probes import probe
from lllaunch.app.sweeping.resume import check, command
from lllaunch.app.sweeping.source import TaskSource
from lllaunch.config.read import register_resolvers
from lllaunch.config.sweep import SweepSettings, sweep_settings
from lllaunch.config.whole import redacted_overrides
from lllaunch.errors import ConfigError, LaunchError, Problem
from lllaunch.exit_codes import ExitCode
from lllaunch.hydra_compat import BASIC_SWEEPER
from lllaunch.interrupts import remember_interrupts
from lllaunch.results.find import remember
from lllaunch.run.build import BuildQuery
from lllaunch.sweep.directory import JOURNAL
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.machine import SweepMachine, find_machine
from lllaunch.sweep.session import SweepSession
from lllaunch.sweep.warmth import Warmth

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig, ListConfig


# So many sweeps may begin in one directory in the same second.
_MOST = 100


def begin_session(config: DictConfig, resume: bool, *, moves: bool) -> SweepSession:
    """Takes the sweep's directory.

    Hydra names directories after the second. Of sweeps that begin in the same one, the first gets
    that name and the others get it with a number, if they may.

    Args:
        config: what the sweep was composed to; it says afterwards where the sweep is.
        resume: whether the sweep that is there is gone on with.
        moves: whether the sweeper lets the launcher choose another name.

    Raises:
        ConfigError, OutputError: as `SweepSession.begin` has it.
    """
    stated = os.path.join(config.hydra.runtime.cwd, str(config.hydra.sweep.dir))
    if resume or not moves or not is_of_a_moment(config.hydra.sweep):
        return _begin(config, stated, resume)
    for number in itertools.count():
        place = f"{stated}-{number}" if number else stated
        if os.path.lexists(os.path.join(place, JOURNAL)) and number < _MOST:
            continue
        try:
            session = _begin(config, place, resume)
        except ConfigError:
            # another launcher was faster
            if number >= _MOST:
                raise
            continue
        if number:
            node: Any = config.hydra.sweep
            with read_write(node), open_dict(node):
                node.dir = f"{node.dir}-{number}"
        return session
    raise AssertionError("unreachable")


def _begin(config: DictConfig, place: str, resume: bool) -> SweepSession:
    session = SweepSession.begin(
        place,
        command=redacted_overrides(_raw(config.hydra.overrides.task)),
        version=__version__,
        resume=resume,
        say=lambda text: print(f"lllaunch: {text}", file=sys.stderr),
    )
    remember(session.path, config.hydra.runtime.cwd, os.environ)
    return session


def _raw(texts: ListConfig) -> list[str]:
    """Returns overrides as they were written: their interpolations are not this config's."""
    found: Any = OmegaConf.to_container(texts, resolve=False)
    return list(map(str, found))


_OURS = "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper"
_CHOOSE_OURS = "use hydra/sweeper=lllaunch, which runs all jobs as one batch"


def launches_once(config: DictConfig) -> bool:
    """Whether the sweeper asks for all of its jobs at once.

    Args:
        config: what the sweep was composed to.
    """
    return _target(config) == _OURS or (
        _target(config) == BASIC_SWEEPER and not _batch_size(config)
    )


def check_sweeper(config: DictConfig, settings: SweepSettings) -> None:
    """Checks that the sweeper can do what the launcher is asked for.

    Args:
        config: what the sweep was composed to.
        settings: of the launcher.

    Raises:
        ConfigError: it cannot.
    """
    problems = []
    if settings.resume is not None and not launches_once(config):
        message = "cannot be resumed with a sweeper that chooses jobs by the results of others"
        if _target(config) == BASIC_SWEEPER:
            message = "cannot be resumed in batches (hydra.sweeper.max_batch_size)"
        problem = Problem("hydra.launcher.resume", repr(settings.resume), message, _CHOOSE_OURS)
        problems.append(problem)
    stated = OmegaConf.select(config, "hydra.launcher.on_failure")
    if stated == "continue" and _target(config) == BASIC_SWEEPER and _batch_size(config):
        message = (
            "is not what Hydra's basic sweeper does with hydra.sweeper.max_batch_size: it ends "
            "with the first batch in which a job fails"
        )
        problem = Problem("hydra.launcher.on_failure", "'continue'", message, _CHOOSE_OURS)
        problems.append(problem)
    if problems:
        raise ConfigError(tuple(problems))


def _target(config: DictConfig) -> str:
    return str(OmegaConf.select(config, "hydra.sweeper._target_"))


def _batch_size(config: DictConfig) -> object:
    return OmegaConf.select(config, "hydra.sweeper.max_batch_size")


T = TypeVar("T")


def read_settings(config: DictConfig) -> tuple[SweepSettings, SweepMachine]:
    """Returns the launcher's settings, and what they let it lease.

    Args:
        config: what the sweep itself was composed to.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
    """
    problems: dict[str, Problem] = {}

    def attempt(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem.key, problem)
            return None

    settings = attempt(lambda: sweep_settings(config.hydra.launcher, LAUNCHER))
    # of settings that are wrong, what the machine has to do with can be looked at all the same
    raw: Any = settings or OmegaConf.to_container(config.hydra.launcher)
    gpus, cpus = (_of(raw, name) for name in ("gpus", "cpus"))
    machine = attempt(lambda: find_machine(os.environ, gpus, cpus, key=LAUNCHER))
    if settings is not None:
        found = settings
        sweep_dir, cwd = str(config.hydra.sweep.dir), config.hydra.runtime.cwd
        attempt(lambda: check(found.resume, sweep_dir, cwd))
        attempt(lambda: check_sweeper(config, found))
    if problems:
        raise ConfigError(tuple(problems.values()))
    assert settings is not None
    assert machine is not None
    return settings, machine


def _of(settings: Any, name: str) -> Any:
    return getattr(settings, name) if isinstance(settings, SweepSettings) else settings.get(name)


class NotInMainThread(LaunchError):
    """A sweep was asked for in another thread."""

    def __str__(self) -> str:
        return "a sweep is launched from the main thread only: its jobs end with the thread"


class Launching:
    """What a launcher keeps from one batch of jobs to the next.

    Args:
        owner: the launcher; all is closed when it is gone, or this process ends.
        context: Hydra's.
        task_function: Hydra's.
        config: what the sweep itself was composed to.
        on_begin: called when the sweep's directory is taken, and nothing has been started; with
            whether the sweep is resumed.

    Attributes:
        exit_code: of the sweep so far.
    """

    def __init__(
        self,
        owner: object,
        context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
        on_begin: Callable[[bool], None] | None = None,
    ) -> None:
        self.exit_code = int(ExitCode.SUCCESS)
        self._context = context
        self._task_function = task_function
        self._config = config
        self._on_begin = on_begin
        self._open: BatchResources | None = None
        self._batches = 0
        self._last: BatchRun | None = None
        self._resources = contextlib.ExitStack()
        # Hydra does not tell a launcher when it is done
        weakref.finalize(owner, self._resources.close)

    def close(self) -> None:
        """Gives everything back; idempotent."""
        self._resources.close()
        self._open = None

    def launch(self, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        """Runs a batch of jobs to their ends.

        Args:
            overrides: of each job.
            first: number of the first.

        Raises:
            SystemExit: as `LllaunchLauncher.launch` has it.
        """
        # the script of a worker that has found another way to a launcher than the usual ones
        end_script_at_launch(self._task_function)
        # our own app has disabled it for its start
        gc.enable()
        remember_interrupts()
        setup_globals()
        register_resolvers()
        with refusing():
            opened = self._open
            if opened is None:
                opened = self._open = self._begin(overrides, first)
            run = self._last = BatchRun(opened, overrides, first, self._batches)
            self._batches += 1
            finish = run.to_the_end()
        if launches_once(self._config):
            self.close()
        self.exit_code = self.exit_code or finish.exit_code
        if finish.signum is not None:
            raise AppEnded(finish.exit_code)
        return run.returns()

    def _conclude(self) -> None:
        """Says what became of all batches; when this is called nothing can be raised any more."""
        if self._last is not None:
            with contextlib.suppress(AppEnded), refusing():
                self._last.conclude()

    def _begin(self, overrides: Sequence[Sequence[str]], first: int) -> BatchResources:
        if threading.current_thread() is not threading.main_thread():
            raise NotInMainThread
        config = self._config
        with locating(self._context.config_loader, config):
            settings, machine = read_settings(config)
        source = TaskSource.of(self._task_function)
        user = _user(source, self._task_function)
        environ = dict(os.environ)
        composer = Composer(self._context, config, user, users_own=source is None)
        jobs = SweepJobs(composer, self._task_function, machine, environ)
        warmth = Warmth(environ, prestarted=None if source is None else source.spawner)
        self._resources.callback(warmth.close)
        query = BuildQuery.start(config.hydra.runtime.cwd)
        self._resources.callback(query.close)
        probe(jobs, overrides, first, warmth)
        import_for_jobs()
        session = begin_session(
            config, settings.resume is not None, moves=self._on_begin is not None
        )
        composer.sweep_dir = session.path
        # once for all jobs
        jobs.build = query.result(own=[session.path])
        self._resources.callback(session.close)
        if self._on_begin is not None:
            self._on_begin(session.resumed)
        self._resources.callback(self._conclude)
        leases = Leases(machine, lock_cpus=settings.pin_cpus)
        self._resources.callback(leases.close)
        at_once = launches_once(config)
        called = "" if source is None else command()
        return BatchResources(settings, machine, leases, session, warmth, jobs, {}, at_once, called)


def _user(source: TaskSource | None, task_function: TaskFunction) -> UserFunction | None:
    if source is None:
        return UserFunction.any(task_function)
    return None if source.function is None else UserFunction.importable(source.function)
