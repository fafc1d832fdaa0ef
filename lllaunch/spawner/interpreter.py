"""The spawner's interpreter: how it is started, which variables it has by then, what it imports.

A forked worker cannot take back what its spawner read when it started or imported. So the spawner
has what the config says for all workers before it preloads. Each worker is told all of its own; one
that needs another value of what was read by then gets a fresh interpreter.

CUDA_VISIBLE_DEVICES acts when CUDA is initialised, which no spawner does. So a spawner serves jobs
with different GPUs; its own is for what its preloads ask.

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
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from lllaunch.errors import PreloadFailed
from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal, wait_readable
from lllaunch.spawner.private_names import (
    Environ,
    forget_finalizers_of,
    interpreter_flags,
    x_options,
)

# Read by the interpreter, the dynamic linker or the C library when a process starts.
_AT_EXEC = re.compile("(PYTHON|LD_|MALLOC_|LC_|LANG|GLIBC_TUNABLES)")
# Read by native code of numerical libraries, which nobody sees, when they are loaded.
_AT_IMPORT = re.compile(
    "(OMP|MKL|OPENBLAS|KMP|GOMP|GOTO|BLIS|NUMEXPR|VECLIB|NUMBA|TORCH|PYTORCH|JAX|XLA|TF|ATEN)_"
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"

_CONTRACT = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
# Told to each worker, whoever has read it before; but a config may set them.
_TOLD = frozenset({_VISIBLE, "TORCH_NCCL_ASYNC_ERROR_HANDLING"})


def is_of_contract(name: str) -> bool:
    """Whether a variable is set for every worker by the launcher; a config may not set it."""
    return name in _CONTRACT or name.startswith(("TORCHELASTIC_", "LLLAUNCH_"))


def acts_at_exec(name: str) -> bool:
    """Whether a variable must be right when the interpreter is executed."""
    return _AT_EXEC.match(name) is not None


def acts_at_import(name: str) -> bool:
    """Whether a variable must be right before modules are preloaded, or earlier."""
    return acts_at_exec(name) or (_AT_IMPORT.match(name) is not None and name not in _TOLD)


def comes_too_late(env: Mapping[str, str], read: frozenset[str]) -> bool:
    """Whether a fork of this process would not have all variables of a worker in time."""
    return any(
        acts_at_import(name) or (name in read - _TOLD and not is_of_contract(name))
        for name, value in env.items()
        if os.environ.get(name) != value
    )


class Shared(NamedTuple):
    """What the workers of a spawner have in common."""

    environ: dict[str, str]
    cwd: str
    preload: tuple[str, ...]

    def serves(self, wanted: Shared) -> bool:
        """Whether a spawner that has this can start workers for whom another is wanted.

        Their CUDA_VISIBLE_DEVICES may differ: they are told theirs. That it is not set they cannot
        be told.
        """
        if _VISIBLE in self.environ and _VISIBLE not in wanted.environ:
            return False
        hidden = {_VISIBLE: ""}
        wanted = wanted._replace(environ=wanted.environ | hidden)
        return self._replace(environ=self.environ | hidden) == wanted


def told(env: Mapping[str, str]) -> dict[str, str]:
    """What a worker is told: all of its environment, since its spawner may be another job's."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("LLLAUNCH_")}
    return ours | dict(env)


def in_common(envs: Collection[Mapping[str, str]]) -> dict[str, str]:
    """The variables that have one value in all of these, but for CUDA_VISIBLE_DEVICES."""
    first = next(iter(envs), {})
    names = (name for name in first if name != _VISIBLE)
    return {name: first[name] for name in names if all(e.get(name) == first[name] for e in envs)}


def exec_part(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that act when an interpreter is executed."""
    return {name: value for name, value in environ.items() if acts_at_exec(name)}


def interpreter_command() -> tuple[str, ...]:
    """The command line of an interpreter like this one, unbuffered."""
    options = interpreter_flags()
    for name, value in x_options().items():
        option = name if value is True else f"{name}={value}"
        if option not in options:
            # One that it does not know: pycache_prefix, or a program's own.
            options += ["-X", option]
    return (sys.executable, *options, "-u")


def importing(module: str, name: str) -> str:
    """Code for ``python -c`` that imports a name of this package, wherever that lies.

    The package's place goes first for that import: it may be on no path there. The empty entry that
    stands for the working directory goes: what lies there must not shadow the standard library.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return (
        f"import sys; sys.path[:] = [{root!r}, *filter(None, sys.path)]; "
        f"from {module} import {name}; del sys.path[0]"
    )


def start_interpreter(sock: socket.socket, environ: Mapping[str, str]) -> tuple[int, int]:
    """Start a spawner; its process id, and a pidfd of it.

    posix_spawn runs no Python code in the child, so this is safe in a process with threads.
    """
    code = f"{importing('lllaunch.spawner.server', 'main')}; main({sock.fileno()}, {os.getpid()})"
    os.set_inheritable(sock.fileno(), True)
    pid = os.posix_spawn(
        sys.executable,
        [*interpreter_command(), "-c", code],
        environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        # Ctrl-C is for the launcher, also while the interpreter starts
        setsid=True,
        # Signals wait until it ignores them. What this thread blocks would stay so otherwise
        # (SIGCHLD, where a program waits for it by signalfd).
        setsigmask=signal.valid_signals() - {signal.SIGCHLD},
    )
    return pid, os.pidfd_open(pid)


# Preloads

_RUNTIME = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.so[^/]*$")
_OMP_PAUSE_HARD = 2
_CANARY_SECONDS = 5.0
# So often one that has no core to compute on gets that time again.
_CANARY_CHANCES = 10


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
    library = sys.modules.get("torch") or sys.modules.get("numpy")
    if library is not None:
        matrix = library.ones((256, 256))
        (matrix @ matrix).sum().item()


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
        send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    return lives and status == 0


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
    # what every Python worker needs, so that none of them has to import it
    importlib.import_module("lllaunch.spawner.worker")
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
