"""Forking so that nothing is said twice and no handler runs in the wrong process."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys

from lllaunch.spawner.private_names import forget_exit_functions, take_over_multiprocessing

# Python ignores these itself, and a Python worker started by exec would have them so.
_IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_CANNOT_BE_SET = frozenset({signal.SIGKILL, signal.SIGSTOP})
BATCH_JOB = "LLLAUNCH_JOB"
"""Set in a cluster's batch job that lllaunch has submitted, to the job's id."""
NOTICE = signal.SIGUSR2
"""Announces the end of a batch job to all of its processes; only the launcher acts on it."""
STOP_AND_CONTINUE = frozenset({signal.SIGTSTP, signal.SIGCONT})
"""What a process blocks whose parent stops and continues it, so that neither is ever missed."""


def ignored_at_start() -> frozenset[signal.Signals]:
    """Signals that were ignored when this process was executed, by ``nohup`` for instance.

    In a batch job of ours the one that announces its end is always among them: a worker that does
    not handle it would end of it.
    """
    ignored = frozenset(
        signum
        for signum in signal.valid_signals()
        if isinstance(signum, signal.Signals)
        and signum not in _IGNORED_BY_PYTHON
        and signal.getsignal(signum) is signal.SIG_IGN
    )
    return ignored | {NOTICE} if BATCH_JOB in os.environ else ignored


def ignore_all() -> None:
    """Ignore every signal that can be ignored but SIGCHLD: only the socket commands the spawner."""
    for signum in signal.valid_signals() - _CANNOT_BE_SET - {signal.SIGCHLD}:
        # The C library keeps two real-time signals to itself.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    # of those that came since the interpreter was started, nothing is left
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reset(
    ignored: frozenset[signal.Signals],
    python: bool,
    blocked: frozenset[signal.Signals] = frozenset(),
) -> None:
    """Give a new worker the dispositions and the mask that it would have in a shell.

    ``ignored``: signals that stay ignored. ``blocked``: the mask; that of a shell is empty.
    """
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - _CANNOT_BE_SET:
        keep = signum in ignored or (python and signum in _IGNORED_BY_PYTHON)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN if keep else signal.SIG_DFL)
    if python and signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if python and faulthandler.is_enabled():
        # Its handlers were among those that were just reset.
        faulthandler.disable()
        faulthandler.enable(2)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def leave_terminal(parent: int) -> None:
    """In a fork, all signals blocked: begin a session of its own, which no terminal signals.

    A Ctrl-C between the fork and this was for the whole process group, and so for the launcher,
    which tells its jobs itself. It is dropped; what the parent has sent is not.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    for signum in signal.sigpending():
        came = signal.sigtimedwait({signum}, 0)
        if came is not None and came.si_pid == parent:
            os.kill(os.getpid(), signum)


def fork() -> int:
    """Forks this process with every signal blocked.

    One that came before the child has dispositions of its own would run our handlers in it.

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


def disown() -> None:
    """In a fork: forget what is the other process's to do: its exit functions and its children.

    Its objects are frozen, so that its open files are not flushed a second time at the end.
    """
    forget_exit_functions()
    take_over_multiprocessing()
    gc.freeze()


def flush_streams() -> None:
    """Writes what Python has buffered, which a fork would write again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()
