"""The process context of functions."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from lllaunch.errors import NotPicklable, OutputError
from lllaunch.multiprocessing.context import PContext
from lllaunch.multiprocessing.logs import LogsSpecs
from lllaunch.multiprocessing.numa import wrap_function
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.environment import split
from lllaunch.spawner.values import RETURN_FILE

START_METHODS = ("spawn", "forkserver", "fork")


class MultiprocessContext(PContext):
    """Processes that call a function.

    Arguments may hold multiprocessing's queues, locks, events and connections, and torch's tensors;
    tensors are returned by value, on the CPU.

    Args:
        name, entrypoint, args, envs, logs_specs, log_line_prefixes, duplicate_stdout_filters,
            duplicate_stderr_filters: as for `PContext`.
        start_method: ``spawn``, a fresh interpreter per worker; ``forkserver``, forks of a fresh
            single-threaded process; ``fork``, forks of this process.
        numa_options: torch's NUMA binding options, applied by torch in the worker.

    Raises:
        ValueError: the start method is none of these.
        NotPicklable: raised by ``start``: the function or an argument cannot be sent.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        **options: Any,
    ) -> None:
        if start_method not in START_METHODS:
            raise ValueError(
                f"start_method: {start_method!r} is none of {', '.join(START_METHODS)}"
            )
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            **options,
        )
        self.start_method = start_method
        self._function = entrypoint
        self._numa_options = numa_options
        self._scratch = ""

    def _start(self) -> None:
        if self._starter is not None:
            raise ValueError(f"{self.name}: start() was called twice")
        self._scratch = tempfile.mkdtemp(prefix="lllaunch_")
        for rank, env in self.envs.items():
            env[RETURN_FILE] = self._return_file(rank)
        if self.start_method == "fork":
            self._fork()
        else:
            self._spawn()

    def _return_file(self, rank: int) -> str:
        return os.path.join(self._scratch, f"{rank}.pkl")

    def _call(self, rank: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return wrap_function(self._function, self.args[rank], rank, self._numa_options)

    def _fork(self) -> None:
        from lllaunch.spawner.forker import Forker  # noqa: PLC0415 - the rarest start method

        forker = Forker()
        self._starter = forker
        for rank in range(self.nprocs):
            self._keys[rank] = forker.spawn(
                rank,
                self._call(rank),
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
            )

    def _spawn(self) -> None:
        # Configured runs never pickle callables and do without multiprocessing.
        from lllaunch.spawner.pickling import dump  # noqa: PLC0415

        targets = {}
        try:
            for rank in range(self.nprocs):
                function, args = self._call(rank)
                targets[rank] = dump(function, args, self.start_method, f"worker {rank}")
        except NotPicklable:
            for target in targets.values():
                for fd in target.fds:
                    os.close(fd)
            raise
        divided = split(os.environ, self.envs)
        spawner = Spawner()
        self._starter = spawner
        spawner.configure(divided.base, os.getcwd())
        for rank, target in targets.items():
            self._keys[rank] = spawner.spawn(
                rank,
                target,
                cwd=os.getcwd(),
                env=divided.own[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
                fresh=self.start_method == "spawn" or rank in divided.fresh,
            )
        spawner.flush()

    def _return_values(self) -> dict[int, Any]:
        if self._values is None:
            self._values = {rank: self._load(rank) for rank in range(self.nprocs)}
        return self._values

    _values: dict[int, Any] | None = None

    def _load(self, rank: int) -> Any:
        path = self._return_file(rank)
        try:
            with open(path, "rb") as file:
                # Written by a function of the caller's own program.
                return pickle.load(file)  # noqa: S301
        except OSError as error:
            reason = f"its return value cannot be read: {error.strerror}"
            raise OutputError(path, reason, rank) from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise NotPicklable(f"the return value of worker {rank}", reason) from error

    def release(self) -> None:
        """As `PContext.release`; takes the return values and ends the spawner."""
        if self._released:
            return
        try:
            everyone = len(self.exits) == self.nprocs
            if everyone and all(getattr(end, "exitcode", 1) == 0 for end in self.exits.values()):
                self._return_values()
        finally:
            if self._starter is not None:
                self._starter.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
            super().release()
