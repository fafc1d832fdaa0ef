"""torch's module of this name: timers whose requests go through a queue."""

from lllaunch.timer.api import LocalTimerServer, MultiprocessingRequestQueue
from lllaunch.timer.client import LocalTimerClient

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]
