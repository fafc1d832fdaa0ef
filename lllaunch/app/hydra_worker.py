"""What a worker of a user's own Hydra app does: become the job, then call the user's function."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from lllaunch.app.config_state import unpack
from lllaunch.app.user_script import Reach, Script, find_function, import_script
from lllaunch.spawner.targets import Function
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
        config: made by `lllaunch.app.config_state.pack`; not unpickled before the script is
            imported, whose classes it may hold.
        argv: the launcher's ``sys.argv``.
        path: the launcher's ``sys.path``.
    """

    script: Script
    function: Reach
    config: bytes
    argv: tuple[str, ...]
    path: tuple[str, ...]

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
    """Runs a user's function in this worker; called by the spawner.

    Returns:
        What the function returned.

    Raises:
        ConfigError: the function is not found here.
    """
    sys.argv[:] = call.argv
    sys.path[:] = call.path
    import_script(call.script)
    function = find_function(call.function)
    return run_in_worker(function, unpack(call.config))


def run_in_worker(function: Callable[[Any], Any], cfg: DictConfig) -> Any:
    """Runs a function with its config in this worker, where Hydra's state is that of the job."""
    _configure_logging(os.environ)
    return function(cfg)


def _configure_logging(environ: Mapping[str, str]) -> None:
    """Sets up Hydra's job logging, its files in this worker's own directory."""
    hydra = HydraConfig.get()
    logging: Any = OmegaConf.to_container(hydra.job_logging, resolve=True)
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    if error_file and error_file != os.devnull:
        directory = os.path.dirname(error_file)
        for handler in (logging.get("handlers") or {}).values():
            if isinstance(handler.get("filename"), str):
                handler["filename"] = moved(
                    handler["filename"], hydra.runtime.output_dir, directory
                )
    configure_log(OmegaConf.create(logging), hydra.verbose)


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
