"""Forking so that nothing is said twice and no handler runs in the wrong process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def fork() -> int:
    """Forks this process with every signal blocked.

    One that came before the child has dispositions of its own would run our handlers in it.

    Returns:
        The process id of the child. In the child 0, and signals stay blocked there until
        `lllaunch.spawner.signals.reset` lifts the mask.

    Raises:
        OSError: no process can be made.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def flush_streams() -> None:
    """Writes what Python has buffered, which a fork would write again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()
