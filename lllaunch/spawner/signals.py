"""Signal dispositions: what the spawner ignores, and what its workers start with."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

# Python ignores these itself, and a Python worker started by exec would have them so.
_IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_CANNOT_BE_SET = frozenset({signal.SIGKILL, signal.SIGSTOP})
STOP_AND_CONTINUE = frozenset({signal.SIGTSTP, signal.SIGCONT})
"""What a process blocks whose parent stops and continues it, so that neither is ever missed."""


def ignored_at_start() -> frozenset[signal.Signals]:
    """Signals that were ignored when this process was executed, by ``nohup`` for instance."""
    return frozenset(
        signum
        for signum in signal.valid_signals()
        if isinstance(signum, signal.Signals)
        and signum not in _IGNORED_BY_PYTHON
        and signal.getsignal(signum) is signal.SIG_IGN
    )


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

    Args:
        ignored: signals that stay ignored.
        python: whether Python code follows (else another program is executed).
        blocked: the mask; that of a shell is empty.
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

    Args:
        parent: process id.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    for signum in signal.sigpending():
        came = signal.sigtimedwait({signum}, 0)
        if came is not None and came.si_pid == parent:
            os.kill(os.getpid(), signum)
