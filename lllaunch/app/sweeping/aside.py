"""Calls a function in a process of its own, so that what it sets and imports is gone with it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

from lllaunch.errors import LaunchError

T = TypeVar("T")


class AsideFailed(LaunchError):
    """The process ended without an answer."""

    def __str__(self) -> str:
        return "jobs were composed, and the process that did so was killed or failed"


def aside(function: Callable[[], T]) -> T:
    """Calls a function in a fork of this process.

    Args:
        function: what it returns can be pickled.

    Raises:
        AsideFailed: it raised, which standard error shows, or its process was killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _answer(function, write)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as file:
            answer = file.read()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.waitpid(pid, 0)
    if not answer:
        raise AsideFailed
    found: T = pickle.loads(answer)  # noqa: S301 - of our own fork
    return found


def _answer(function: Callable[[], object], write: int) -> NoReturn:
    """In the fork: never returns into the code that was forked."""
    try:
        data = pickle.dumps(function())
        with os.fdopen(write, "wb") as file:
            file.write(data)
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
