"""torch's module of this name: timers whose requests go through a FIFO; the server is torch's."""

from lllaunch import torchs
from lllaunch.timer.api import FileTimerClient, FileTimerRequest

__all__ = ["FileTimerClient", "FileTimerRequest"]

__getattr__ = torchs(__name__)
