"""A function of the user's that every worker calls with the job's config, instead of an entrypoint.

Where workers find it by its module and name they run the script and find it there: they are forks
of a spawner, or fresh interpreters. What they cannot find, a closure or an object with a
``__call__``, is called in forks of the job's launcher, which has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig

from lllaunch.app.config_state import pack
from lllaunch.app.hydra_worker import HydraCall, entrypoint_of, run_in_worker
from lllaunch.app.user_script import (
    Reach,
    Script,
    calls_directly,
    check_reachable,
    original_arguments,
    reach_of,
    started_as,
)
from lllaunch.spawner.protocol import Forked, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.spec import Entrypoint


class UserFunction(NamedTuple):
    """A function, and how workers come by it.

    Attributes:
        function: what is called with the config.
        reach: how workers find it; None if they are forked from the process that has it.
        script: how the launcher was started.
    """

    function: Callable[[Any], Any]
    reach: Reach | None
    script: Script

    @classmethod
    def importable(cls, function: Callable[[Any], Any]) -> UserFunction:
        """A function that workers import.

        Raises:
            ConfigError: they would not find it.
        """
        return cls._of(function, check_reachable(function))

    @classmethod
    def any(cls, function: Callable[[Any], Any]) -> UserFunction:
        """A function that workers import if they can, and are forked with otherwise."""
        return cls._of(function, reach_of(function))

    @classmethod
    def _of(cls, function: Callable[[Any], Any], reach: Reach | None) -> UserFunction:
        in_main = reach is not None and reach.module == "__main__"
        main = sys.modules["__main__"]
        script = started_as(main, needed=in_main, direct=calls_directly(main))
        # read from standard input: there is nothing that workers could import
        lost = in_main and script == Script()
        return cls(function, None if lost else reach, script)

    @property
    def forked(self) -> bool:
        """Whether workers are forked from the process that has the function."""
        return self.reach is None

    @property
    def entrypoint(self) -> Entrypoint:
        """What the run's messages and its plan call it."""
        return entrypoint_of(self.script, self.reach or _named(self.function))

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that every worker needs."""
        return () if self.reach is None else (HydraCall.__module__,)

    def target(self, cfg: DictConfig) -> Target | Forked:
        """What each worker runs; Hydra's config is that of the job.

        Raises:
            NotPicklable: the config cannot be sent.
        """
        if self.reach is None:
            return Forked(run_in_worker, (self.function, cfg))
        cwd = HydraConfig.get().runtime.cwd
        call = HydraCall(
            self.script,
            self.reach,
            pack(cfg),
            original_arguments(self.script, cwd),
            tuple(sys.orig_argv),
            tuple(sys.path),
            cwd,
        )
        return call.target()


def _named(function: Callable[[Any], Any]) -> Reach:
    """A name for messages, of what cannot be found by it."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    name = getattr(kind, "__qualname__", "task").replace(os.sep, ".")
    return Reach(getattr(kind, "__module__", None) or "__main__", name)
