"""Arming a Python worker: when it is asked, or dies in native code, it writes where it stands.

`faulthandler` does that from within the signal's handler, in C, so it works while other code holds
the interpreter's lock or two threads wait for each other's. It writes into a memory file of the
worker's own, which whoever collects the stacks opens through /proc. Nothing is written before the
signal comes, and nothing of the worker's output is touched.

What it writes when a fatal signal ends it must outlive it, so that goes to a file of the attempt's,
which is removed if it stayed empty.

The signal is one that no program uses, since its default action is to end the process. It is for
the collector alone, which sends it only to a process that catches it at that moment.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal

# Set for workers that are watched. The others have no descriptor and no handler more than they
# would have without lllaunch.
WATCHED = "LLLAUNCH_WATCHED"
# Python's names end at SIGRTMIN; the C library keeps the numbers below it to itself, and debuggers
# and profilers take the first ones above.
SIGNUM = int(signal.SIGRTMIN) + 15
MEMFD = "lllaunch-stacks"
# How /proc/PID/fd shows it.
MEMFD_LINK = f"/memfd:{MEMFD} (deleted)"

# Names the file for fatal signals, and what it is called.
CRASH_FILE = "LLLAUNCH_CRASH_FILE"
CRASH = "crash.txt"

# The files get numbers from here on, or near the limit of open files if that is lower: the
# numbers that the worker's own files get stay what they are without them.
_NUMBER = 1008
_ROOM = 16

# The descriptor, of this process or the one it was forked from.
_memfd: list[int] = []


def arm() -> None:
    """Let this process write its stacks on `SIGNUM`.

    To be called in a worker before its own code runs. Where it cannot be done (no memory file, no
    descriptor) the worker goes on without. In a process that inherited this from one it was forked
    from, it gets a memory file of its own.
    """
    try:
        if _memfd:
            # It believes to be registered still, though its signals may have been reset since.
            faulthandler.unregister(SIGNUM)
            _close(_memfd.pop())
        _memfd.append(_open())
        faulthandler.register(SIGNUM, file=_memfd[0], all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        # Its stacks are read from outside then, as those of any program.
        return


def catch_crashes(path: str) -> None:
    """Let this process write its stacks to a file when SIGSEGV, SIGXCPU or the like ends it.

    Where that cannot be done (a full disk) it goes on without. If Python was told to do the same
    to standard error (PYTHONFAULTHANDLER), it does that.
    """
    if faulthandler.is_enabled():
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        fd = _raised(os.open(path, flags, 0o666))
        faulthandler.enable(file=fd, all_threads=True)
        faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)


def open_memory(pid: int) -> int:
    """Open the memory file that a worker writes its stacks to; -1 if it has none."""
    directory = f"/proc/{pid}/fd"
    try:
        # Ours has one of the highest numbers.
        names = sorted(os.listdir(directory), key=int, reverse=True)
    except OSError:
        return -1
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{name}") == MEMFD_LINK:
                return os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return -1


def dumped(pid: int) -> int:
    """How many bytes of stacks a worker, and the processes that it forked, have written so far."""
    memory = open_memory(pid)
    if memory < 0:
        return 0
    try:
        return os.fstat(memory).st_size
    finally:
        os.close(memory)


def _open() -> int:
    # Processes that the worker forks share it, and the position in it.
    return _raised(os.memfd_create(MEMFD, os.MFD_CLOEXEC))


def _raised(low: int) -> int:
    """The same file under a number that nobody counts on."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _NUMBER)
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(3, min(soft, _NUMBER) - _ROOM))
    finally:
        os.close(low)


def _close(inherited: int) -> None:
    # Who forked this process may have closed it, and the number may be that of another file.
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{inherited}") == MEMFD_LINK:
            os.close(inherited)
