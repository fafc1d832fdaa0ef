"""Process contexts of programs and of configured targets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lllaunch.multiprocessing.context import PContext
from lllaunch.multiprocessing.numa import wrap_command
from lllaunch.multiprocessing.subprocess_handler import SubprocessHandler
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.environment import split
from lllaunch.spawner.protocol import Program, StartFailed, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lllaunch.multiprocessing.logs import LogsSpecs


class TargetContext(PContext):
    """Processes of targets that are plain data: what a configured run starts.

    Args:
        name: as for `PContext`.
        targets: what each local rank runs.
        envs: variables per local rank.
        logs_specs: as for `PContext`.
        spawner: the spawner to use; it stays open. None: one of its own.
        start_method: ``forkserver`` or ``spawn``.
        preload: modules that the spawner imports before it forks.
        cwd: working directory of the workers; None: this process's.
        spawner_cwd: that of the preloads; None: the workers'.
        entrypoint: what to call it in messages.
        log_line_prefixes, duplicate_stdout_filters, duplicate_stderr_filters, handle_signals: as
        for
            `PContext`.
    """

    def __init__(
        self,
        name: str,
        targets: Mapping[int, Target],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        *,
        spawner: Spawner | None = None,
        start_method: str = "forkserver",
        preload: Sequence[str] = (),
        cwd: str | None = None,
        spawner_cwd: str | None = None,
        entrypoint: str = "",
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        handle_signals: bool = True,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            dict.fromkeys(targets, ()),
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            handle_signals=handle_signals,
        )
        self.targets = dict(targets)
        self._given_spawner = spawner
        self._start_method = start_method
        self._preload = tuple(preload)
        self._cwd = cwd or os.getcwd()
        self._spawner_cwd = spawner_cwd or self._cwd

    def _start(self) -> None:
        spawner = self._given_spawner or Spawner()
        divided = split(os.environ, self.envs)
        spawner.configure(divided.base, self._spawner_cwd, self._preload)
        self._starter = spawner
        for rank in range(self.nprocs):
            self._keys[rank] = spawner.spawn(
                rank,
                self.targets[rank],
                cwd=self._cwd,
                env=divided.own[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
                fresh=self._start_method == "spawn" or rank in divided.fresh,
            )

    def release(self) -> None:
        """As `PContext.release`; ends the spawner if it is this context's own."""
        if self._starter is not None and self._given_spawner is None:
            self._starter.close()
        super().release()


class SubprocessContext(PContext):
    """Processes that execute a program.

    Args:
        name, entrypoint, args, envs, logs_specs, log_line_prefixes, duplicate_stdout_filters,
            duplicate_stderr_filters: as for `PContext`; arguments are turned into text.
        numa_options: torch's NUMA binding options; the command is wrapped by torch.
    """

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        **options: Any,
    ) -> None:
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
        self._program = entrypoint
        self._numa_options = numa_options
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start(self) -> None:
        if self._starter is not None:
            raise ValueError(f"{self.name}: start() was called twice")
        divided = split(os.environ, self.envs)
        spawner = Spawner()
        self._starter = spawner
        spawner.configure(divided.base, os.getcwd())
        for rank in range(self.nprocs):
            plain = (self._program, *map(str, self.args[rank]))
            command = wrap_command(plain, rank, self._numa_options)
            self._keys[rank] = spawner.spawn(
                rank,
                Program(command[0], command[1:]),
                cwd=os.getcwd(),
                env=divided.own[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
            )
            self.subprocess_handlers[rank] = SubprocessHandler.of_context(self, rank)

    def check_started(self) -> None:
        """Wait until all programs have started.

        Raises:
            OSError: one could not be, as `subprocess.Popen` raises it.
        """
        self.pids()
        for _, end in sorted(self.exits.items()):
            if isinstance(end, StartFailed):
                raise OSError(end.errno, end.reason, end.path)

    def release(self) -> None:
        """As `PContext.release`; ends the spawner."""
        if self._starter is not None:
            self._starter.close()
        super().release()
