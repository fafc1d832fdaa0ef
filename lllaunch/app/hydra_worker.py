"""A worker of a user's own Hydra app: runs the script, becomes the job, calls the function."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from lllaunch.app.config_state import unpack
from lllaunch.app.user_script import Reach, Script, run_in_script
from lllaunch.linux.process import show_command
from lllaunch.spawner.protocol import Function
from lllaunch.spec import Entrypoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omegaconf import DictConfig


@dataclass(frozen=True)
class HydraCall:
    """One call of a user's function with a composed config.

    Attributes:
        script: how the launcher was started.
        function: how the function is found.
        config: made by `lllaunch.app.config_state.pack`; not unpickled before the script has come
            to its app, whose classes it may hold.
        argv: ``sys.argv`` as the launcher's script found it.
        command: the launcher's ``sys.orig_argv``.
        path: the launcher's ``sys.path``.
        cwd: where the launcher's script runs.
    """

    script: Script
    function: Reach
    config: bytes
    argv: tuple[str, ...]
    command: tuple[str, ...]
    path: tuple[str, ...]
    cwd: str

    def entrypoint(self) -> Entrypoint:
        """What the run's messages and its plan call it."""
        return entrypoint_of(self.script, self.function)

    def target(self) -> Function:
        """What the spawner starts."""
        call = pickle.dumps(((self,), {}), pickle.HIGHEST_PROTOCOL)
        return Function(__name__, run.__name__, call)


def entrypoint_of(script: Script, function: Reach) -> Entrypoint:
    """What a run's messages and its plan call a function of the user's."""
    module, qualname = function.module, function.qualname
    where = module
    if where == "__main__":
        where = script.module or os.path.basename(script.path)
    text = f"{where}:{qualname}"
    return Entrypoint(form="function", name=module, text=text, qualname=qualname)


def run(call: HydraCall) -> Any:
    """Runs a user's script and function in this worker; called by the spawner.

    Returns:
        What the function returned.

    Raises:
        ConfigError: the function is not found here.
    """
    sys.argv[:] = call.argv
    sys.orig_argv[:] = call.command
    show_command(call.command)
    sys.path[:] = call.path
    jobs = os.getcwd()
    os.chdir(call.cwd)

    def task(function: Callable[[Any], Any]) -> Any:
        os.chdir(jobs)
        return run_in_worker(function, unpack(call.config))

    return run_in_script(call.script, call.function, task)


def run_in_worker(function: Callable[[Any], Any], cfg: DictConfig) -> Any:
    """Runs a function with its config in this worker, where Hydra's state is that of the job."""
    _configure_logging(os.environ)
    return function(cfg)


def _configure_logging(environ: Mapping[str, str]) -> None:
    """Sets up logging as Hydra does for a job.

    Rank 0 writes where the job itself would, which has opened its files by now; the other ranks
    each write in their own directories.
    """
    hydra = HydraConfig.get()
    app: Any = OmegaConf.to_container(hydra.hydra_logging, resolve=True)
    # Hydra's own logging comes first: levels that the job's leaves out are those that it has set.
    app["handlers"] = {name: {"class": "logging.NullHandler"} for name in app.get("handlers") or {}}
    configure_log(OmegaConf.create(app), hydra.verbose)
    job: Any = OmegaConf.to_container(hydra.job_logging, resolve=True)
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    first, has_directory = environ.get("RANK") == "0", error_file not in {"", os.devnull}
    for handler in (job.get("handlers") or {}).values():
        if first and "mode" in handler:
            handler["mode"] = "a"
        elif has_directory and not first and isinstance(handler.get("filename"), str):
            directory = os.path.dirname(error_file)
            handler["filename"] = moved(handler["filename"], hydra.runtime.output_dir, directory)
    configure_log(OmegaConf.create(job), hydra.verbose)
    if first and has_directory:
        _log_attempt(os.path.basename(os.path.dirname(os.path.dirname(error_file))))


def _log_attempt(name: str) -> None:
    """Says in the files of the job's log that another attempt writes there, unless it is the first.

    Args:
        name: of the attempt's directory.
    """
    number = name.removeprefix("attempt_")
    if number in {name, "0"}:
        return
    logger = logging.getLogger("lllaunch")
    text = f"attempt {number} begins"
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


def moved(file: str, output_dir: str, directory: str) -> str:
    """Returns where a log file of the job goes for one worker, and makes its directory.

    Args:
        file: as the config has it.
        output_dir: the job's output directory; a file within it keeps its place relative to it.
        directory: the worker's.
    """
    within = os.path.relpath(os.path.abspath(file), output_dir)
    if within.startswith(os.pardir):
        within = os.path.basename(file)
    path = os.path.join(directory, within)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
