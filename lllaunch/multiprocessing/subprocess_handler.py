"""Handles on processes that execute a program, and torch's NUMA binding of what a worker runs.

Names and signatures are those of torch's modules. Whoever passes NUMA options has imported torch to
make them; without options nothing here imports it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from lllaunch.linux.process import signal_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.multiprocessing.api import PContext

__all__ = ["SubprocessHandler", "get_subprocess_handler"]


def wrap_command(command: tuple[str, ...], gpu: int, options: Any) -> tuple[str, ...]:
    """The command, bound to the NUMA node of a GPU by torch's rules; unchanged without options.

    Raises:
        RuntimeError: this torch cannot bind commands.
    """
    if options is None:
        return command
    bind = _torch_function("_maybe_wrap_command_args_with_numa_binding")
    return tuple(bind(command, gpu_index=gpu, numa_options=options))


def call_bound(function: Callable[..., Any], args: tuple[Any, ...], gpu: int, options: Any) -> Any:
    """In a worker: bind to the NUMA node of a GPU, then call."""
    bind = _torch_function("_maybe_wrap_with_numa_binding")
    return bind(function, gpu_index=gpu, numa_options=options)(*args)


def _torch_function(name: str) -> Callable[..., Any]:
    from torch.numa import binding  # noqa: PLC0415 - on request only: it imports torch

    found = getattr(binding, name, None)
    if found is None:
        raise RuntimeError(f"numa_options: this version of torch has no torch.numa.binding.{name}")
    return found  # type: ignore[no-any-return]


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

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit status, once it ended; raises `subprocess.TimeoutExpired` as Popen does."""
        if not self._context._until(lambda: self.poll() is not None, timeout):
            raise subprocess.TimeoutExpired(str(self._context.entrypoint), timeout or 0.0)
        return self.returncode

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
        *,
        proc: ContextProcess | None = None,
    ) -> None:
        self.local_rank_id = local_rank_id
        self.proc: subprocess.Popen[bytes] | ContextProcess
        if proc is not None:
            self.proc = proc
            return
        command = wrap_command((entrypoint, *map(str, args)), local_rank_id, numa_options)
        with contextlib.ExitStack() as files:
            # The process has its own; ours would only keep the files open.
            out, err = (
                files.enter_context(open(path, "w")) if path else None for path in (stdout, stderr)
            )
            self.proc = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group."""
        signum = death_sig or signal.SIGTERM
        if isinstance(self.proc, ContextProcess):
            self.proc.send_signal(signum)
        elif self.proc.poll() is None:
            # poll() has just said that it is not waited for: the number is still its own.
            signal_group(self.proc.pid, signum)


get_subprocess_handler = SubprocessHandler
