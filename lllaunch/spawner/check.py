"""The last check of a function entrypoint: import it in a forked child and bind its arguments."""

from __future__ import annotations

import inspect
import os
import pickle
import select
import signal
import sys
from collections.abc import Iterable
from typing import NoReturn

from lllaunch.linux.process import open_pidfd, set_parent_death_signal, wait_pidfd
from lllaunch.spawner import signals
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.wire import Message
from lllaunch.spawner.worker import resolve

# What a pipe takes without a reader.
_MAX_TEXT = 4096


def check_in_child(
    message: Message, around: Surroundings, foreign: Iterable[int], launcher: tuple[int, int]
) -> str | None:
    """Import and bind in a child, so that nothing of it stays in the spawner.

    Args:
        message: what to check.
        around: what all children of this spawner have in common.
        foreign: descriptors that are not the child's.
        launcher: the launcher's pidfd and the connection to it: an import may take for ever, and
            the launcher may end meanwhile.

    Returns:
        What is wrong, one line; an empty string if nothing is; None if the launcher is gone.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _child(message, around, (read, *foreign), write)
        finally:
            os._exit(1)
    os.close(write)
    pidfd = open_pidfd(pid)
    assert pidfd is not None  # not waited for yet
    try:
        if not _wait(pidfd, launcher):
            return None
        _, status = os.waitpid(pid, 0)
        # Not to the end of the pipe: a process that the import started may hold it open.
        text = os.read(read, _MAX_TEXT) if status == 0 and wait_pidfd(read, 0) else b""
    finally:
        os.close(pidfd)
        os.close(read)
    # A child that died without a word (a crash at import) is no verdict: its attempt will tell.
    return text.decode(errors="replace")


def _wait(pidfd: int, launcher: tuple[int, int]) -> bool:
    """Wait for the child; False if the launcher went first."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(launcher[0], select.POLLIN)
    # Messages may wait there; only the end counts.
    poll.register(launcher[1], select.POLLRDHUP)
    return any(fd == pidfd for fd, _ in poll.poll())


def _child(message: Message, around: Surroundings, foreign: Iterable[int], write: int) -> NoReturn:
    problem = ""
    try:
        for fd in (*foreign, *around.private_fds):
            os.close(fd)
        set_parent_death_signal(signal.SIGKILL)
        signals.reset(around.ignored, python=True)
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
    os.write(write, problem.encode()[:_MAX_TEXT])
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
