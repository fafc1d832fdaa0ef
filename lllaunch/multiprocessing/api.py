"""The names of ``torch.distributed.elastic.multiprocessing.api``."""

from lllaunch.multiprocessing.context import PContext, RunProcsResult
from lllaunch.multiprocessing.contexts import SubprocessContext, TargetContext
from lllaunch.multiprocessing.function_context import MultiprocessContext
from lllaunch.multiprocessing.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from lllaunch.multiprocessing.redirects import get_std_cm
from lllaunch.multiprocessing.signals import SignalException
from lllaunch.multiprocessing.std import Std, to_map

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
    "TargetContext",
    "get_std_cm",
    "to_map",
]
