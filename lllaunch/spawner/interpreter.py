"""The spawner's interpreter: how it is started, and which variables must be right by then.

A forked worker cannot take back what its spawner read when it started or imported. So such
variables are set in the spawner before it preloads; a rank that needs other values gets a fresh
interpreter.

CUDA_VISIBLE_DEVICES acts when CUDA is initialised, which no spawner does. Each worker is told it,
so that a spawner serves jobs with different GPUs; the spawner's own is for what its preloads ask.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

# Read by the interpreter, the dynamic linker or the C library when a process starts.
_AT_EXEC = ("PYTHON", "LD_", "MALLOC_")
_AT_EXEC_NAMES = frozenset({"GLIBC_TUNABLES"})
# Read when numerical libraries are loaded.
_AT_IMPORT = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "GOMP_",
    "GOTO_",
    "BLIS_",
    "NUMEXPR_",
    "VECLIB_",
    "NUMBA_",
    "TORCH_",
    "PYTORCH_",
    "JAX_",
    "XLA_",
    "TF_",
    "ATEN_",
)
# Part of the contract between launcher and worker, though the name looks like one of the above.
_PER_WORKER = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})
# Of what a spawner has in its environment, each worker is told this all the same.
_ALWAYS_TOLD = "CUDA_VISIBLE_DEVICES"


def acts_at_exec(name: str) -> bool:
    """Whether a variable must be right when the interpreter is executed."""
    return name.startswith(_AT_EXEC) or name in _AT_EXEC_NAMES


def acts_at_import(name: str) -> bool:
    """Whether a variable must be right before modules are preloaded, or earlier."""
    return acts_at_exec(name) or (name.startswith(_AT_IMPORT) and name not in _PER_WORKER)


class Shared(NamedTuple):
    """What the workers of a spawner have in common.

    Attributes:
        environ: the spawner's whole environment.
        cwd: working directory of its preloads.
        preload: the modules that it imports.
    """

    environ: dict[str, str]
    cwd: str
    preload: tuple[str, ...]

    def serves(self, wanted: Shared) -> bool:
        """Whether a spawner that has this can start workers for whom another is wanted.

        Their CUDA_VISIBLE_DEVICES may differ: they are told theirs. That it is not set they cannot
        be told.
        """
        if _ALWAYS_TOLD in self.environ and _ALWAYS_TOLD not in wanted.environ:
            return False
        return self._compared() == wanted._compared()

    def _compared(self) -> Shared:
        others = {name: text for name, text in self.environ.items() if name != _ALWAYS_TOLD}
        return self._replace(environ=others)


class Split(NamedTuple):
    """The environment of a worker group, divided between the spawner and its workers.

    Attributes:
        base: the spawner's whole environment.
        own: per rank, what differs from ``base``; and CUDA_VISIBLE_DEVICES, if it is set.
        fresh: ranks that need a fresh interpreter, because a variable of theirs acts at import.
    """

    base: dict[str, str]
    own: dict[int, dict[str, str]]
    fresh: frozenset[int]


def split(outer: Mapping[str, str], envs: Mapping[int, Mapping[str, str]]) -> Split:
    """Divide the variables of all ranks, each on top of ``outer``, the launcher's own environment.

    A variable that acts at import and has one value in all ranks goes to the spawner.
    """
    ranks = sorted(envs)
    shared = {
        name: value
        for name, value in (envs[ranks[0]].items() if ranks else ())
        if acts_at_import(name) and all(envs[rank].get(name) == value for rank in ranks)
    }
    base = {**outer, **shared}
    own = {
        rank: {name: value for name, value in env.items() if base.get(name) != value}
        for rank, env in envs.items()
    }
    for rank, env in own.items():
        told = envs[rank].get(_ALWAYS_TOLD, outer.get(_ALWAYS_TOLD))
        if told is not None:
            env[_ALWAYS_TOLD] = told
    fresh = frozenset(rank for rank, env in own.items() if any(map(acts_at_import, env)))
    return Split(base, own, fresh)


def exec_part(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that act when an interpreter is executed."""
    return {name: value for name, value in environ.items() if acts_at_exec(name)}


def interpreter_command() -> tuple[str, ...]:
    """The command line of an interpreter like this one, unbuffered."""
    # What multiprocessing starts its interpreters with.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for name, value in sys._xoptions.items():
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


def start_interpreter(sock: socket.socket, environ: Mapping[str, str]) -> int:
    """Start a spawner; its process id.

    posix_spawn runs no Python code in the child, so this is safe in a process with threads.

    Args:
        sock: the spawner's end of the connection.
        environ: its whole environment.
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
    # Until it has a parent-death signal, its socket sends it SIGCONT when this process ends or
    # writes: should it be stopped, it sees that.
    fcntl.fcntl(sock, fcntl.F_SETOWN, pid)
    fcntl.fcntl(sock, fcntl.F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)
    return pid
