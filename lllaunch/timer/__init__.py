"""Countdown timers: a worker sets itself a deadline; if it passes, the launcher ends the worker.

With the public names of ``torch.distributed.elastic.timer``; changing the import is the whole
migration. A worker of a launch with ``watchdog.timers`` needs no more than::

    from lllaunch.timer import expires

    with expires(after=60):
        torch.distributed.all_reduce(...)

Requests are written to a FIFO in torch's form, so that either side may be torch's. The launcher
serves it with a `TimerService`. Servers for programs of one's own, and timers whose requests go
through a queue, are torch's, which is imported for them.
"""

from lllaunch import torchs
from lllaunch.timer import api
from lllaunch.timer.api import *  # noqa: F403 - what is in its `__all__`

__all__ = api.__all__

_SERVERS = "FileTimerServer", "LocalTimerServer", "RequestQueue", "TimerServer"
__getattr__ = torchs(__name__, *_SERVERS, "LocalTimerClient", "TimerRequest")
