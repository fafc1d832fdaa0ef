"""Countdown timers: a worker sets itself a deadline; if it passes, a server ends the worker.

Module for module with the public names of ``torch.distributed.elastic.timer``; changing the import
is the whole migration. A worker of a launch with ``watchdog.timers`` needs no more than::

    from lllaunch.timer import expires

    with expires(after=60):
        torch.distributed.all_reduce(...)

Requests are written to a FIFO (`FileTimerClient`, `FileTimerServer`) or put into a queue of
multiprocessing's (`LocalTimerClient`, `LocalTimerServer`), in torch's form, so that either side may
be torch's.

Every worker imports this package; what only a server needs is imported by the server.
"""

from lllaunch.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    configure,
    deadline,
    expires,
)
from lllaunch.timer.file_based_local_timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
)
from lllaunch.timer.local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "deadline",
    "expires",
]
