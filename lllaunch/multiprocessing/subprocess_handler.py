"""Handles on processes that execute a program; names and signatures of torch's module."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from lllaunch.linux.process import signal_group, wait_readable
from lllaunch.multiprocessing.numa import wrap_command

if TYPE_CHECKING:
    from lllaunch.multiprocessing.context import PContext

__all__ = ["SubprocessHandler", "get_subprocess_handler"]


class ContextProcess:
    """The process of one rank of a context, with what handlers show of ``subprocess.Popen``."""

    def __init__(self, context: PContext, rank: int) -> None:
        self._context = context
        self._rank = rank

    @property
    def pid(self) -> int:
        """Process id; waits for a start that is under way. 0 if it could not be started."""
        return self._context.pids().get(self._rank, 0)

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it is not known to have ended."""
        end = self._context.exits.get(self._rank)
        # A program that could not be started has the exit status that shells give it.
        return None if end is None else getattr(end, "exitcode", 127)

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        self._context.dispatch()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, once it ended.

        Raises:
            subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self._context.entrypoint), timeout or 0.0)
            wait_readable(self._context, left)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal to its process group."""
        self._context.signal(sig, [self._rank])


class SubprocessHandler:
    """Starts a program in a session of its own and keeps what belongs to it.

    ``stdout``: file for standard output; empty or None for this process's own. ``proc``: the
    process, a ``subprocess.Popen`` or, within a context, its likeness.
    """

    def __init__(
        self,
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: Any = None,
    ) -> None:
        self.local_rank_id = local_rank_id
        command = wrap_command((entrypoint, *map(str, args)), local_rank_id, numa_options)
        files = [open(path, "w") if path else None for path in (stdout, stderr)]  # noqa: SIM115
        try:
            self.proc: subprocess.Popen[bytes] | ContextProcess = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
            )
        finally:
            # The process has its own; ours would only keep the files open.
            for file in files:
                if file is not None:
                    file.close()

    @classmethod
    def of_context(cls, context: PContext, rank: int) -> SubprocessHandler:
        """The handle of a process that a context started."""
        handler = cls.__new__(cls)
        handler.local_rank_id = rank
        handler.proc = ContextProcess(context, rank)
        return handler

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group."""
        signum = death_sig or signal.SIGTERM
        if isinstance(self.proc, ContextProcess):
            self.proc.send_signal(signum)
        elif self.proc.poll() is None:
            # poll() has just said that it is not waited for: the number is still its own.
            signal_group(self.proc.pid, signum)


get_subprocess_handler = SubprocessHandler
