"""torch's module of this name: timers whose requests go through a queue; all of it is torch's."""

from lllaunch import torchs

__getattr__ = torchs(__name__)
