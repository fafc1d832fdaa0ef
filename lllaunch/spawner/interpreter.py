"""The spawner's interpreter: how it is started, and which variables must be right by then.

A forked worker cannot take back what its spawner read when it started or imported. So the spawner
has what the config says for all workers before it preloads. Each worker is told all of its own; one
that needs another value of what was read by then gets a fresh interpreter.

CUDA_VISIBLE_DEVICES acts when CUDA is initialised, which no spawner does. So a spawner serves jobs
with different GPUs; its own is for what its preloads ask.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

from lllaunch.spawner.private_names import interpreter_flags, x_options

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


def start_interpreter(sock: socket.socket, environ: Mapping[str, str]) -> int:
    """Start a spawner; its process id.

    posix_spawn runs no Python code in the child, so this is safe in a process with threads.
    """
    code = f"{importing('lllaunch.spawner.server', 'main')}; main({sock.fileno()}, {os.getpid()})"
    os.set_inheritable(sock.fileno(), True)
    return os.posix_spawn(
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
