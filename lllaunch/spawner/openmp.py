"""OpenMP and fork: making a preloaded numerical library usable in a forked worker.

Once an OpenMP runtime has run a parallel region it owns a pool of threads that a fork does not
copy, and the first region in the child waits for them for ever. ``omp_pause_resource_all`` (OpenMP
5.0, section 3.6.2) gives the pool up; the next region makes a new one. It is called on every
runtime that is loaded, before each fork. Whether that was enough is tried out once per preload set:
a forked canary computes something.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys

from lllaunch.linux.process import open_pidfd, send_signal, wait_pidfd

_RUNTIME = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.so[^/]*$")
_OMP_PAUSE_HARD = 2
_CANARY_SECONDS = 5.0
_SIGKILL = 9


def loaded_runtimes() -> list[ctypes.CDLL]:
    """The OpenMP runtimes that are mapped into this process."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        # The sixth field is the path, blanks and all.
        fields = (line.rstrip("\n").split(maxsplit=5) for line in file)
        paths = {field[5] for field in fields if len(field) == 6}
    return [ctypes.CDLL(path) for path in sorted(paths) if _RUNTIME.search(path)]


def pause(runtimes: list[ctypes.CDLL]) -> None:
    """Give up the runtimes' thread pools; for use right before a fork."""
    for runtime in runtimes:
        function = getattr(runtime, "omp_pause_resource_all", None)
        if function is not None:
            function(_OMP_PAUSE_HARD)


def _compute() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        matrix = torch.ones(256, 256)
        (matrix @ matrix).sum().item()
        return
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        matrix = numpy.ones((256, 256))
        (matrix @ matrix).sum()


def canary() -> bool:
    """Whether a forked child can compute; takes at most five seconds."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            gc.disable()
            _compute()
        finally:
            os._exit(0)
    pidfd = open_pidfd(pid)
    assert pidfd is not None  # not waited for yet, so its number is its own
    lives = wait_pidfd(pidfd, _CANARY_SECONDS)
    if not lives:
        send_signal(pidfd, _SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return lives and status == 0
