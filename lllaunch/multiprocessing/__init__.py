"""n processes of one entrypoint: start, redirect, tee, wait, end.

Names, signatures and documented behaviour are those of torch.distributed.elastic.multiprocessing
(torch 2.13), so that changing the import is the whole migration. Nothing here imports torch.

Names are loaded when they are first used: workers import `errors` from here and need no more.
"""

# ruff: noqa: F403, F405 - for type checkers, the names in `__all__` of the modules
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lllaunch.multiprocessing.api import *
    from lllaunch.multiprocessing.errors import *
    from lllaunch.multiprocessing.tail_log import *


# Where the names are, the lightest first.
_MODULES = ("errors", "tail_log", "api")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        found = vars(import_module(f"{__name__}.{module}"))
        if name in found:
            globals()[name] = found[name]
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "TailLog",
    "get_error_handler",
    "record",
    "start_processes",
    "tail_logfile",
    "to_map",
]
