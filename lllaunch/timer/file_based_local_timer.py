"""torch's module of this name: timers whose requests go through a FIFO."""

from lllaunch.timer.api import FileTimerServer
from lllaunch.timer.client import FileTimerClient, FileTimerRequest

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]
