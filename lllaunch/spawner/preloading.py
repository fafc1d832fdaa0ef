"""What workers shall find imported when they are forked.

Once an OpenMP runtime has run a parallel region it owns a pool of threads that a fork does not
copy, and the first region in the child waits for them for ever. ``omp_pause_resource_all`` (OpenMP
5.0, section 3.6.2) gives the pool up; the next region makes a new one. It is called on every
runtime that is loaded, before each fork. Whether that was enough is tried out once per preload set:
a forked canary computes something.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from lllaunch.errors import PreloadFailed
from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal, wait_readable
from lllaunch.spawner.private_names import Environ, forget_finalizers_of

_RUNTIME = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.so[^/]*$")
_OMP_PAUSE_HARD = 2
_CANARY_SECONDS = 5.0
# So often one that has no core to compute on gets that time again.
_CANARY_CHANCES = 10
_SIGKILL = 9


def loaded_runtimes() -> list[ctypes.CDLL]:
    """The OpenMP runtimes that are mapped into this process."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        # The sixth field is the path, blanks and all.
        fields = (line.rstrip("\n").split(maxsplit=5) for line in file)
        paths = {field[5] for field in fields if len(field) == 6}
    return [ctypes.CDLL(path) for path in sorted(paths) if _RUNTIME.search(path)]


def pause(runtimes: Sequence[ctypes.CDLL]) -> None:
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
    """Whether a forked child can compute; takes five seconds at most where a core is free."""
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
    lives = wait_readable(pidfd, _CANARY_SECONDS)
    for _ in range(_CANARY_CHANCES):
        seen = None if lives else proc.facts(pid)
        # one that hangs sleeps, or spins
        if seen is None or seen.state != "R" or seen.cpu >= _CANARY_SECONDS:
            break
        lives = wait_readable(pidfd, _CANARY_SECONDS)
    if not lives:
        send_signal(pidfd, _SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return lives and status == 0


# What every Python worker needs, so that none of them has to import it.
_OWN_MODULES = (
    "lllaunch.spawner.worker",
    "lllaunch.spawner.values",
    "lllaunch.failure",
)


class Preloaded(NamedTuple):
    """What preloading came to."""

    seconds: float = 0.0
    fork_safe: bool = True
    # OpenMP runtimes that must be paused before each fork
    runtimes: Sequence[ctypes.CDLL] = ()
    read: frozenset[str] = frozenset()  # names of the variables that were asked for


class _Recorder(Environ[str]):
    """What `os.environ` is while modules are imported: it notes the names that are asked for.

    A copy of all, which asks for each in turn, asks for none.
    """

    read: ClassVar[set[str]] = set()
    _next: ClassVar[list[str]] = []

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        self._next[:] = reversed(names)
        return iter(names)

    def __getitem__(self, name: str) -> str:
        if not self._next or self._next.pop() != name:
            self._next.clear()
            self.read.add(name)
        return super().__getitem__(name)


def preload(cwd: str, modules: Sequence[str]) -> Preloaded:
    """Import ``modules`` with ``cwd`` first on sys.path, and make this process ready to fork.

    Raises:
        PreloadFailed: one of them cannot be imported, or initialised CUDA.
    """
    started = time.monotonic()
    if modules:
        try:
            os.chdir(cwd)
        except OSError as error:
            raise PreloadFailed(modules[0], f"{cwd!r}: {error.strerror}") from error
        sys.path[:] = [cwd, *(path for path in sys.path if path != cwd)]
    os.environ.__class__ = _Recorder
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            raise PreloadFailed(module, f"{type(error).__name__}: {error}", text) from error
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            reason = "it initialised CUDA, which cannot be used after a fork"
            raise PreloadFailed(module, reason)
    os.environ.__class__ = Environ  # type: ignore[assignment]
    for module in _OWN_MODULES:
        importlib.import_module(module)
    # They take operators out of the dispatcher's tables one by one, though all ends with that:
    # 30 ms, and thousands of pages that a fork must copy for it.
    forget_finalizers_of("torch.library")
    runtimes = loaded_runtimes() if modules else []
    pause(runtimes)
    fork_safe = not runtimes or canary()
    # Keeps the children's collections from touching, and so copying, what they share.
    gc.freeze()
    read = frozenset(_Recorder.read)
    return Preloaded(time.monotonic() - started, fork_safe, runtimes, read)
