"""Timers whose requests go through a FIFO: the three public names of torch's module."""

from __future__ import annotations

from lllaunch.timer.file_client import FileTimerClient
from lllaunch.timer.file_server import FileTimerServer
from lllaunch.timer.request import FileTimerRequest

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]
