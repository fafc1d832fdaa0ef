"""A launcher of Hydra's, from its first job to its last: what `LllaunchLauncher.launch` does."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hydra.core.utils import setup_globals

from lllaunch.app.ending import AppEnded
from lllaunch.app.planning import locating
from lllaunch.app.sweeping.batch import BatchRun, Resources
from lllaunch.app.sweeping.composing import Composer
from lllaunch.app.sweeping.jobs import SweepJobs, import_for_jobs
from lllaunch.app.sweeping.place import begin_session
from lllaunch.app.sweeping.probes import probe
from lllaunch.app.sweeping.refusing import refusing
from lllaunch.app.sweeping.resume import command
from lllaunch.app.sweeping.settings import read_settings
from lllaunch.app.sweeping.source import TaskSource
from lllaunch.app.sweeping.sweepers import launches_once
from lllaunch.app.user_function import UserFunction
from lllaunch.app.user_script import end_script_at_launch
from lllaunch.config.read import register_resolvers
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode
from lllaunch.interrupts import remember_interrupts
from lllaunch.run.build import BuildQuery
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.warmth import Warmth

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


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
        self._open: Resources | None = None
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

    def _begin(self, overrides: Sequence[Sequence[str]], first: int) -> Resources:
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
        return Resources(settings, machine, leases, session, warmth, jobs, {}, at_once, called)


def _user(source: TaskSource | None, task_function: TaskFunction) -> UserFunction | None:
    if source is None:
        return UserFunction.any(task_function)
    return None if source.function is None else UserFunction.importable(source.function)
