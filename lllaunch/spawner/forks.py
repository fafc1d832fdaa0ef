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
    if pid == 0:
        reseed()
    return pid


def reseed() -> None:
    """Give every global generator of random numbers a seed of its own, in a forked child.

    It would repeat in all children what it yields in one. The standard library's reseeds itself
    after a fork. CUDA's generators get their seeds when CUDA is initialised, each process its own,
    unless one was asked for before: torch then keeps that request, and the next one replaces it.
    """
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    # One that is half imported, or takes no seed, is left alone: nothing may be raised between a
    # fork and what ends the child.
    with contextlib.suppress(Exception):
        if numpy_random is not None:
            # without a seed it would import what takes 25 ms
            numpy_random.seed(list(memoryview(os.urandom(16)).cast("I")))
    with contextlib.suppress(Exception):
        if torch is not None:
            torch.seed()


def flush_streams() -> None:
    """Writes what Python has buffered, which a fork would write again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()
