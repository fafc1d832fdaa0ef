"""The names of ``torch.distributed.elastic.multiprocessing.api``."""

from lllaunch.multiprocessing.context import (
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SubprocessContext,
)
from lllaunch.multiprocessing.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from lllaunch.multiprocessing.redirects import get_std_cm
from lllaunch.signal_source import SignalException
from lllaunch.std import Std, to_map

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "get_std_cm",
    "to_map",
]
