"""The last check of a function entrypoint: import it in a forked child and bind its arguments."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from typing import NoReturn

from lllaunch.spawner import signals
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.wire import Message
from lllaunch.spawner.worker import resolve


def check_in_child(message: Message, around: Surroundings) -> str:
    """Import and bind in a child, so that nothing of it stays in the spawner.

    Returns:
        What is wrong, one line or a traceback; an empty string if nothing is.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _child(message, around, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    # A child that died without a word (a crash at import) is no verdict: its attempt will tell.
    return text if status == 0 else ""


def _child(message: Message, around: Surroundings, write: int) -> NoReturn:
    problem = ""
    try:
        signals.reset(around.ignored, python=True)
        for fd in around.private_fds:
            os.close(fd)
        os.environ.update(message.header["env"])
        os.chdir(message.header["cwd"])
        sys.path[:] = [message.header["cwd"], *around.base_path]
        null = os.open(os.devnull, os.O_RDWR)
        # Its workers will show what the import prints.
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        problem = _problem(message)
    except BaseException:  # noqa: BLE001 - a failing import is the attempt's to report
        problem = ""
    os.write(write, problem.encode())
    os._exit(0)


def _problem(message: Message) -> str:
    module, qualname = message.header["module"], message.header["qualname"]
    try:
        function = resolve(module, qualname)
    except (ImportError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    args, kwargs = pickle.loads(message.payload)  # noqa: S301 - the launcher's own bytes
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"the arguments do not fit {module}:{qualname}{signature}: {error}"
    return ""
