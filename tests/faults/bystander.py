"""A process that is none of lllaunch's: it lives on, and writes down every signal that it gets.

It is run as ``python -I -S bystander.py RECORD [SECONDS]``. After so many seconds it makes a daemon
of its own, whose parent is then whoever adopts orphans, and which does the same as it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def _watch(record: str, daemon_after: float | None) -> None:
    # SIGCHLD is of its own making
    everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"alive {os.getpid()}\n".encode())
    deadline = None if daemon_after is None else time.monotonic() + daemon_after
    while True:
        left = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if (info := signal.sigtimedwait(everything, left)) is not None:
            line = f"signal {info.si_signo} to {os.getpid()} from {info.si_pid}\n"
            os.write(file, line.encode())
        elif deadline is not None:
            deadline = None
            if _daemonised():
                os.write(file, f"alive {os.getpid()}\n".encode())


def _daemonised() -> bool:
    """Whether this is the daemon now, not who made it."""
    if pid := os.fork():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True


if __name__ == "__main__":
    _watch(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else None)
