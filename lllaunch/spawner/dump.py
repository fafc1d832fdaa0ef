"""Arming a Python worker: on one signal it writes where all its threads stand.

`faulthandler` does that from within the signal's handler, in C, so it works while other code holds
the interpreter's lock or two threads wait for each other's. It writes into a memory file of the
worker's own, which whoever collects the stacks opens through /proc. Nothing is written before the
signal comes, and nothing of the worker's output is touched.

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

# The memory file gets a number from here on, or near the limit of open files if that is lower: the
# numbers that the worker's own files get stay what they are without it.
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


def _open() -> int:
    # Processes that the worker forks share it, and the position in it.
    low = os.memfd_create(MEMFD, os.MFD_CLOEXEC)
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
