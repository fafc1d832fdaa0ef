"""torch's module of this name: timers whose requests go through a queue."""

from lllaunch.timer import api
from lllaunch.timer.api import LocalTimerServer
from lllaunch.timer.client import LocalTimerClient

__all__ = ["LocalTimerClient", "LocalTimerServer"]

__getattr__ = api.__getattr__  # of `MultiprocessingRequestQueue`
