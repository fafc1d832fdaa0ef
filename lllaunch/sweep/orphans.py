"""Waiting for what a launcher that was killed has left: processes that still hold its directory.

A job's process has the lock of its sweep's directory open and dies with its launcher, but not in
the same moment. The kernel tells that nobody holds the lock any more only to who waits in flock(2),
which knows no deadline; so a forked process waits there, and is killed when the time is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
from typing import NoReturn

from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, set_parent_death_signal, wait_pidfd
from lllaunch.run.files import naming
from lllaunch.spawner.forks import fork

_SIGNED = re.compile(r"pid (\d+) on (.*)\n?")


def launcher_is_dead(lock: str) -> bool:
    """Whether the launcher that signed a lock has ended; False if that cannot be found out.

    Args:
        lock: the lock's file, as `lllaunch.run.lock.lock_directory` makes it.
    """
    signed = _SIGNED.fullmatch(proc.read_text(lock))
    if signed is None or signed[2] != socket.gethostname():
        return False
    facts = proc.facts(int(signed[1]))
    return facts is None or facts.state in "ZX"


def holders(lock: str) -> list[int]:
    """Returns the process ids of others who have a file open, as far as this user may see."""
    try:
        wanted = os.stat(lock)
    except OSError:
        return []
    others = (found.pid for found in proc.processes() if found.pid != os.getpid())
    return sorted(pid for pid in others if _has_open(pid, wanted))


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                    return True
    return False


def await_release(lock: str, seconds: float) -> bool:
    """Waits until nobody holds a lock, or until the time is over.

    Args:
        lock: the lock's file.
        seconds: how long.

    Returns:
        Whether nobody held it a moment ago.

    Raises:
        OutputError: no process can be made; names the lock.
    """
    with naming(lock):
        pid, pidfd = _fork(lock)
    try:
        wait_pidfd(pidfd, seconds)
    finally:
        os.close(pidfd)
        status = _end(pid)
    return os.waitstatus_to_exitcode(status) == 0


def _fork(lock: str) -> tuple[int, int]:
    """Starts the process that waits."""
    parent = os.getpid()
    pid = fork()
    if pid == 0:
        # a signal to the process group is the launcher's alone: they stay blocked
        _wait(lock, parent)
    try:
        pidfd = open_pidfd(pid)
    except BaseException:
        _end(pid)
        raise
    assert pidfd is not None  # our own child, not waited for
    return pid, pidfd


def _end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _wait(lock: str, parent: int) -> NoReturn:
    """In the forked process: waits for the lock, and gives it back at once."""
    code = 1
    try:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            # shared: those who wait do not wait for each other
            fcntl.flock(os.open(lock, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
            code = 0
    finally:
        os._exit(code)
