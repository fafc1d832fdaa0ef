"""After the spawner's death: ending the orphans that the kernel gave to the launcher.

The launcher is a child subreaper, so what the spawner's death orphans becomes its child. It ends
those that carry the run's mark in their environment, or descend from a worker it was told of, and
no others: the launcher may be somebody's own program with children of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from lllaunch.linux import proc
from lllaunch.spawner.tree import kill_below, signal_process

_PAUSE_SECONDS = 0.01
# Orphans appear while their parents die; this many rounds without one mean that none is left.
_QUIET_ROUNDS = 2
_MAX_ROUNDS = 1000


def _ours(mark: bytes, workers: Collection[int]) -> list[proc.ProcessFacts]:
    found = []
    for pid in proc.children(os.getpid()):
        process = proc.facts(pid)
        if process is None:
            continue
        # A session's number is not given to others while a member lives, even after its leader
        # died.
        known = pid in workers or process.session in workers
        if known or proc.environment_holds(pid, mark):
            found.append(process)
    return found


def end_adopted(mark: bytes, workers: Collection[int]) -> None:
    """Kill and reap the adopted processes of one spawner, repeatedly until none is left.

    Args:
        mark: ``NAME=value`` that the spawner had in its environment.
        workers: process ids of the workers that it had started.
    """
    quiet = 0
    for _ in range(_MAX_ROUNDS):
        adopted = _ours(mark, workers)
        alive = [process for process in adopted if process.state != "Z"]
        kill_below([process.pid for process in alive])
        for process in alive:
            signal_process(process, signal.SIGKILL)
        quiet = 0 if alive else quiet + 1
        if quiet >= _QUIET_ROUNDS:
            return
        time.sleep(_PAUSE_SECONDS)
        for process in adopted:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
