"""Waits, before a restart, until the dead hold no memory on GPUs: a driver takes its time.

The driver is asked by a process of its own, as `lllaunch.linux.gpu_meter` does and for its reasons.
This is imported only where there is a driver, and something is started again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from lllaunch.linux.gpu_meter import DriverProcess
from lllaunch.linux.gpus import GpusUnknown, memory_holders
from lllaunch.supervisor.machine import GpuMemoryHeld

if TYPE_CHECKING:
    from lllaunch.linux.gpus import Nvml

# A wait of less is not worth a line, seconds.
_SILENT_SECONDS = 2.0
# Between two looks, seconds.
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class GpuMemoryWait:
    """Waits until processes hold no memory on GPUs, for an event loop.

    ``seconds``: how long is waited at most.
    """

    def __init__(self, process: DriverProcess, seconds: float) -> None:
        # whether there is nothing to wait for any more, as far as `events` has told
        self.over = False
        self._process: DriverProcess | None = process
        self._began = time.monotonic()
        self._until = self._began + seconds
        self._told = False
        # By process id, the GPUs; nothing as long as nobody has answered.
        self._held: dict[str, list[int]] = {}

    @classmethod
    def begin(cls, pids: Collection[int], seconds: float) -> GpuMemoryWait | None:
        """Begin to wait.

        Returns None if nobody can look.
        """
        process = DriverProcess.start(tell_holders, sorted(pids))
        return None if process is None else cls(process, seconds)

    def fileno(self) -> int:
        """Readable when `events` has something to tell."""
        assert self._process is not None
        return self._process.fileno()

    def next_in(self) -> float:
        """Return the seconds until `events` has something to tell though nothing is readable."""
        moment = self._until
        if self._held and not self._told:
            moment = min(moment, self._began + _SILENT_SECONDS)
        return max(0.0, moment - time.monotonic())

    def events(self) -> list[GpuMemoryHeld]:
        """Return what is to be said, without waiting."""
        assert self._process is not None
        lines, now = self._process.lines(), time.monotonic()
        if lines is None:
            # nothing is held, or nobody looks
            self.over = True
            return []
        if lines:
            self._held = json.loads(lines[-1])
        late = now >= self._until
        if late or (self._held and not self._told and now - self._began >= _SILENT_SECONDS):
            self.over, self._told = late, True
            gpus = {gpu for each in self._held.values() for gpu in each}
            pids = tuple(sorted(map(int, self._held)))
            return [GpuMemoryHeld(pids, tuple(sorted(gpus)), now - self._began, late)]
        return []

    def close(self) -> None:
        """Wait no longer; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def tell_holders(pids: Collection[int], sink: int = 1, nvml: Nvml | None = None) -> None:
    """Tell, in a process of its own, which of some processes hold memory, until none does.

    ``sink``: descriptor that gets a line of JSON for each look: the GPUs, by process id.
    """
    pause = _SHORTEST_PAUSE
    while True:
        try:
            held = memory_holders(pids, nvml)
        except GpusUnknown:
            return
        if not held:
            return
        os.write(sink, json.dumps(held).encode() + b"\n")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
