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
from lllaunch.app.user_script import Script, find_function, import_script
from lllaunch.spawner.targets import Function
from lllaunch.spec import Entrypoint

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class HydraCall:
    """One call of a user's function with a composed config.

    Attributes:
        script: how the launcher was started.
        module: where the function is found.
        qualname: its name there.
        config: made by `lllaunch.app.config_state.pack`; not unpickled before the script is
            imported, whose classes it may hold.
        argv: the launcher's ``sys.argv``.
        path: the launcher's ``sys.path``.
    """

    script: Script
    module: str
    qualname: str
    config: bytes
    argv: tuple[str, ...]
    path: tuple[str, ...]

    def entrypoint(self) -> Entrypoint:
        """What the run's messages and its plan call it."""
        where = self.module
        if where == "__main__":
            where = self.script.module or os.path.basename(self.script.path)
        text = f"{where}:{self.qualname}"
        return Entrypoint(form="function", name=self.module, text=text, qualname=self.qualname)

    def target(self) -> Function:
        """What the spawner starts."""
        call = pickle.dumps(((self,), {}), pickle.HIGHEST_PROTOCOL)
        return Function(__name__, run.__name__, call)


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
    function = find_function(call.module, call.qualname)
    cfg = unpack(call.config)
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
