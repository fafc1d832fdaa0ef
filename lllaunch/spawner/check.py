"""The last check of a function entrypoint: import it in a forked child and bind its arguments."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from typing import NoReturn

from lllaunch.linux.process import set_parent_death_signal, wait_pidfd
from lllaunch.spawner import signals
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.tree import kill_with_below
from lllaunch.spawner.wire import Message
from lllaunch.spawner.workers import Send

# What a pipe takes without a reader.
_MAX_TEXT = 4096


class Checks:
    """The checks that are under way in a spawner, each in a child: nothing of it stays here.

    Args:
        send: tells the launcher something.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        # By process id, the number of the check and the pipe with what is wrong.
        self._running: dict[int, tuple[int, int]] = {}

    @property
    def pids(self) -> Iterable[int]:
        """Process ids of the children."""
        return self._running.keys()

    @property
    def pipes(self) -> list[int]:
        """The pipes that they tell by."""
        return [pipe for _, pipe in self._running.values()]

    def start(self, message: Message, around: Surroundings, foreign: Iterable[int]) -> None:
        """Import and bind in a child; what is wrong is told when it ends.

        Args:
            message: what to check.
            around: what all children of this spawner have in common.
            foreign: descriptors that are not the child's.
        """
        number = message.header["check"]
        try:
            read, write = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._tell(number, "")
            return
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            self._tell(number, "")
        else:
            if pid == 0:
                try:
                    _child(message, around, write, (read, *foreign))
                finally:
                    os._exit(1)
            self._running[pid] = number, read
        finally:
            os.close(write)

    def ended(self, pid: int, status: int) -> bool:
        """Tell of a child that was waited for; False if it is none of these.

        Args:
            pid: its process id.
            status: its wait status.
        """
        if pid not in self._running:
            return False
        number, pipe = self._running.pop(pid)
        # Not to the end of the pipe: a process that the import started may hold it open.
        text = os.read(pipe, _MAX_TEXT) if status == 0 and wait_pidfd(pipe, 0) else b""
        os.close(pipe)
        # A child that died without a word (a crash at import) is no verdict: its attempt will tell.
        self._tell(number, text.decode(errors="replace"))
        return True

    def cancel(self, number: int) -> None:
        """End a check, and what its import has started."""
        kill_with_below([pid for pid, (each, _) in self._running.items() if each == number])

    def _tell(self, number: int, problem: str) -> None:
        self._send({"fact": "checked", "check": number, "problem": problem})


def _child(message: Message, around: Surroundings, write: int, foreign: Iterable[int]) -> NoReturn:
    try:
        problem = b""
        # A failing import is the attempt's to report.
        with contextlib.suppress(BaseException):
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
            problem = _problem(message).encode()[:_MAX_TEXT]
        os.write(write, problem)
    finally:
        os._exit(0)


def _problem(message: Message) -> str:
    import inspect  # noqa: PLC0415 - in the child only: every spawner imports this module
    import pickle  # noqa: PLC0415

    from lllaunch.spawner.worker import resolve  # noqa: PLC0415

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
