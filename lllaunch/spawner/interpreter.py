"""Starting the spawner's interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping


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
