"""Countdown timers: a worker sets itself a deadline; if it passes, a server ends the worker.

With the public names of ``torch.distributed.elastic.timer``; changing the import is the whole
migration. A worker of a launch with ``watchdog.timers`` needs no more than::

    from lllaunch.timer import expires

    with expires(after=60):
        torch.distributed.all_reduce(...)

Requests are written to a FIFO (`FileTimerClient`, `FileTimerServer`) or put into a queue of
multiprocessing's (`LocalTimerClient`, `LocalTimerServer`), in torch's form, so that either side may
be torch's.

Every worker imports this package; what only a server needs is loaded when it is first used.
"""

from lllaunch.timer import client
from lllaunch.timer.client import *  # noqa: F403 - what is in its `__all__`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from lllaunch.timer.api import FileTimerServer, LocalTimerServer

__all__ = ["FileTimerServer", "LocalTimerServer"]
__all__ += client.__all__


def __getattr__(name: str) -> "Any":
    if name not in (*__all__, "RequestQueue", "TimerServer"):  # the last two are torch's
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lllaunch.timer import api  # noqa: PLC0415 - workers start no server

    return getattr(api, name)
