"""`lllaunch.main`: a user's own Hydra app whose function runs in ``launch.nproc`` workers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import hydra

from lllaunch.app.command_line import WrongUsage, prestarted, read
from lllaunch.app.job import Jobs
from lllaunch.app.own_worker import call_in_worker
from lllaunch.app.returned import load
from lllaunch.app.schema_store import install
from lllaunch.app.search_path import BASE
from lllaunch.app.sweeping.resume import completed
from lllaunch.exit_codes import ExitCode

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.run.result import RunResult

R = TypeVar("R")
_UNSPECIFIED: Any = object()


class LaunchedMain(Generic[R]):
    """A function that `main` made into a Hydra app.

    Called without arguments it runs the app: Hydra composes the config from ``sys.argv``, and the
    function runs in ``launch.nproc`` workers. Called with a config it is the function itself.
    """

    def __init__(self, function: Callable[[Any], R], **hydra_arguments: Any) -> None:
        functools.update_wrapper(self, function)
        self.outcome: RunResult | None = None  # the result of the last run, None before the first
        self._function = function
        self._jobs: Jobs | None = None

        # Hydra finds the script and its configs through what the task function wraps
        @functools.wraps(function)
        def task(cfg: DictConfig) -> Any:
            return self._launch(cfg)

        self._task = task
        self._app = hydra.main(**hydra_arguments)(task)

    def __call__(self, cfg_passthrough: DictConfig | None = None) -> R | None:
        """Run the app, or the function itself with a config.

        Raises:
            SystemExit: the app failed; docs/reference/exit-codes.md lists the codes.
        """
        if cfg_passthrough is not None:
            return self._function(cfg_passthrough)
        if call_in_worker(self._function):
            return None
        code = self._run_app()
        if code is not None:
            sys.exit(code)
        return None

    def return_values(self) -> dict[int, Any]:
        """Return what the function returned in the last run, by rank; empty unless it succeeded.

        Raises:
            OutputError: a value cannot be read from its file.
        """
        found = {} if self.outcome is None else self.outcome.return_values
        return {rank: load(value) for rank, value in found.items()}

    def _run_app(self) -> int | None:
        try:
            line = read(sys.argv[1:], own_app=True)
            sys.argv[1:] = completed(line.words)
        except WrongUsage as wrong:
            print(f"lllaunch: {wrong}", file=sys.stderr)
            return ExitCode.CONFIG
        spawner = prestarted(sys.argv[1:])
        try:
            install()
            self._jobs = Jobs(spawner, function=self._function, quiet=line.asks("--quiet", "-q"))
            self._jobs.mark(self._task)
            return self._jobs.run_app(self._app)
        finally:
            if spawner is not None:
                spawner.close()
            if self._jobs is not None:
                self._jobs.ledger.restore()
            self._jobs = None

    def _launch(self, cfg: DictConfig) -> Any:
        """The task function that Hydra calls, once for each job."""
        assert self._jobs is not None
        self.outcome = None
        self.outcome = self._jobs.run(cfg)
        with self._jobs.reporting():
            return load(self.outcome.return_values.get(0))


def main(
    config_path: str | None = _UNSPECIFIED,
    config_name: str | None = None,
    version_base: str | None = BASE,
) -> Callable[[Callable[[Any], R]], LaunchedMain[R]]:
    """Make a function a Hydra app that runs it in ``launch.nproc`` workers.

    It takes the arguments of `hydra.main`. The config is composed once, and every worker gets it.
    There is one output directory; rank 0 writes Hydra's job log, other ranks log in their own
    directories. The node ``launch`` exists whatever the primary config is. The Hydra job returns
    what rank 0 returned; `LaunchedMain.return_values` has the values of all ranks.

    Every worker runs the script as ``__main__`` up to the call of the function. The function must
    be found by its name.

    ``config_path`` is relative to the file of the function.
    """
    arguments: dict[str, Any] = {"config_name": config_name, "version_base": version_base}
    if config_path is not _UNSPECIFIED:
        arguments["config_path"] = config_path

    def decorate(function: Callable[[Any], R]) -> LaunchedMain[R]:
        return LaunchedMain(function, **arguments)

    return decorate
