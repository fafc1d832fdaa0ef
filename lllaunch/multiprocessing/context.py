"""Torch's process contexts, over `lllaunch.workers.group`."""

from __future__ import annotations

import abc
import contextlib
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lllaunch.errors import NotPicklable, OutputError, PreloadFailed, SpawnerDied
from lllaunch.events import Exited, StartFailed
from lllaunch.linux.process import wait_readable
from lllaunch.multiprocessing.errors import ProcessFailure
from lllaunch.multiprocessing.logs import LogsSpecs
from lllaunch.multiprocessing.numa import wrap_command, wrap_function
from lllaunch.multiprocessing.subprocess_handler import SubprocessHandler
from lllaunch.signal_source import SignalSource
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import Forked, Pickled, Program
from lllaunch.spawner.values import RETURN_FILE
from lllaunch.workers.group import WorkerProcesses, start_processes

# Exit codes of a program that could not be executed, as shells have them.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_ENOENT = 2


@dataclass
class RunProcsResult:
    """Results of processes started with `start_processes`; every field is by local rank."""

    # what functions returned; None for programs
    return_values: dict[int, Any] = field(default_factory=dict)
    # the workers that failed, without those that were ended because another failed
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    # path of the file that stdout went to; empty if it was not redirected
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any worker failed."""
        return bool(self.failures)


def judge(
    exits: Mapping[int, Exited | StartFailed],
    error_files: Mapping[int, str],
    terminated_by: Mapping[int, int],
    at_fault: Mapping[int, str] | None = None,
) -> dict[int, ProcessFailure]:
    """The failures among the ends of workers, the root cause first."""
    found, blamed = {}, at_fault or {}
    for rank, end in exits.items():
        error_file = error_files.get(rank, "")
        if isinstance(end, StartFailed):
            exitcode = _NOT_FOUND if end.errno == _ENOENT else _NOT_EXECUTABLE
            failure = ProcessFailure(rank, -1, exitcode, error_file, exit_time_ns=end.time_ns)
            where = f"{end.path!r}: " if end.path else ""
            failure.message = f"worker {rank} could not be started: {where}{end.reason}"
        elif rank not in blamed and end.exitcode in (0, -terminated_by.get(rank, 0)):
            continue
        else:
            failure = ProcessFailure(
                rank, end.pid, end.exitcode, error_file, exit_time_ns=end.time_ns
            )
            failure.message = blamed.get(rank, failure.message)
        found[rank] = failure
    return dict(sorted(found.items(), key=lambda item: item[1].timestamp_ns))


def validate_full_rank(mapping: Mapping[int, Any], nprocs: int, what: str) -> None:
    """Check that a mapping has exactly the local ranks 0 to ``nprocs - 1``.

    Raises:
        RuntimeError: ranks are missing or too many.
    """
    expected = set(range(nprocs))
    if set(mapping) != expected:
        missing, extra = sorted(expected - set(mapping)), sorted(set(mapping) - expected)
        raise RuntimeError(
            f"{what}: local rank mapping mismatch, expected ranks 0 to {nprocs - 1};"
            f" missing: {missing}, too many: {extra}"
        )


class PContext(WorkerProcesses, abc.ABC):
    """A set of processes to wait for; public attributes and methods are torch's.

    ``name``: short name, the default header of teed lines. ``log_line_prefixes``: header of teed
    lines per local rank, in place of ``[<name><rank>]:``. ``duplicate_stdout_filters``: teed lines
    of stdout with one of these texts also go to ``filtered_stdout``. ``handle_signals``: install
    handlers that raise `SignalException` when `start` is called from the main thread (torch's
    behaviour); False for a caller with its own handling.

    Raises:
        RuntimeError: ranks are missing.
        OutputError: a log directory or file cannot be made.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        *,
        handle_signals: bool = True,
        **options: Any,
    ) -> None:
        self.entrypoint = entrypoint
        self.args = args
        self.envs = {
            rank: {key: str(value) for key, value in env.items()} for rank, env in envs.items()
        }
        files = logs_specs.reify(self.envs)
        validate_full_rank(files.stdouts, len(args), "stdouts")
        validate_full_rank(files.stderrs, len(args), "stderrs")
        super().__init__(
            name,
            len(args),
            files,
            log_line_prefixes=log_line_prefixes,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            **options,
        )
        self._handle_signals = handle_signals
        self._handlers = contextlib.ExitStack()

    def start(self) -> None:
        """Start the processes. They run when this returns, or `wait` reports their failure.

        Raises:
            ValueError: they were started before.
        """
        if self._starter is not None:
            raise ValueError(f"{self.name}: start() was called twice")
        if self._handle_signals:
            self._handlers.enter_context(SignalSource(raises=True))
        self._start()

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the processes."""

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:  # noqa: ARG002
        """Wait until all processes succeed or one fails; then end the others.

        ``timeout``: seconds; negative waits forever, 0 does not wait. ``period``: torch's polling
        interval. Accepted, not needed: an exit wakes this up. Returns the result, or None if the
        processes still run after ``timeout``.

        Raises:
            SignalException: a death signal arrived (see ``handle_signals``).
            SpawnerDied, PreloadFailed: see `result`.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            found = self._poll()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            wait_readable(self, left)

    def _poll(self) -> RunProcsResult | None:
        """The result if all succeeded or any failed, after ending the others; else None."""
        if self._starter is None:
            return None
        if not self._released:
            self.dispatch()
        # one that could not be started has no exit code
        if self.alive and not any(getattr(end, "exitcode", 1) for end in self.exits.values()):
            return None
        self.close()
        return self.result()

    def pids(self) -> dict[int, int]:
        """Process ids by local rank; waits for starts that are under way."""
        while self._starter is not None and not self._released:
            waiting = self.alive - frozenset(self._pids)
            if not waiting:
                break
            wait_readable(self)
            self.dispatch()
        return dict(sorted(self._pids.items()))

    def result(self, at_fault: Mapping[int, str] | None = None) -> RunProcsResult:
        """What became of the processes, once none is alive.

        ``at_fault``: local ranks that this process ended because they hung, and so failed, with a
        message for each; None if nothing like that was.

        Raises:
            SpawnerDied: the spawner was killed; nothing is known of the workers but that they are
            dead. PreloadFailed: a preload could not be imported.
        """
        if self._broken is not None:
            raise PreloadFailed(self._broken.module, self._broken.reason, self._broken.traceback)
        if self._gone is not None and len(self.exits) < self.nprocs:
            raise SpawnerDied(self._gone.pid, self._gone.status, self._gone.detail)
        failures = judge(self.exits, self.error_files, self._terminated_by, at_fault)
        complete = at_fault is None and len(self.exits) == self.nprocs
        values = self._return_values() if complete and not failures else {}
        return RunProcsResult(values, failures, self.stdouts, self.stderrs)

    def _return_values(self) -> dict[int, Any]:
        """Return values by local rank; programs have none."""
        return dict.fromkeys(range(self.nprocs))

    def release(self) -> None:
        """As `WorkerProcesses.release`; puts back handlers of signals."""
        super().release()
        self._handlers.close()


class SubprocessContext(PContext):
    """Processes that execute a program."""

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
        filters = duplicate_stdout_filters, duplicate_stderr_filters
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters, **options
        )
        self._numa_options = numa_options
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start(self) -> None:
        programs = {}
        for rank in range(self.nprocs):
            plain = (str(self.entrypoint), *map(str, self.args[rank]))
            command = wrap_command(plain, rank, self._numa_options)
            programs[rank] = Program(command[0], command[1:])
        start_processes(self, programs, self.envs)
        self.subprocess_handlers = {
            rank: SubprocessHandler.of_context(self, rank) for rank in programs
        }

    def check_started(self) -> None:
        """Wait until all programs have started.

        Raises:
            OSError: one could not be, as `subprocess.Popen` raises it.
        """
        self.pids()
        for _, end in sorted(self.exits.items()):
            if isinstance(end, StartFailed):
                raise OSError(end.errno, end.reason, end.path)


START_METHODS = ("spawn", "forkserver", "fork")


class MultiprocessContext(PContext):
    """Processes that call a function.

    Arguments may hold multiprocessing's queues, locks, events and connections, and torch's tensors;
    tensors are returned by value, on the CPU.

    ``start_method``: ``spawn``, a fresh interpreter per worker; ``forkserver``, forks of a fresh
    single-threaded process; ``fork``, forks of this process.

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
        filters = duplicate_stdout_filters, duplicate_stderr_filters
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters, **options
        )
        self.start_method = start_method
        self._function = entrypoint
        self._numa_options = numa_options
        self._scratch = ""

    def _start(self) -> None:
        self._scratch = tempfile.mkdtemp(prefix="lllaunch_")
        for rank, env in self.envs.items():
            env[RETURN_FILE] = self._return_file(rank)
        if self.start_method == "fork":
            calls = {rank: Forked(*self._call(rank)) for rank in range(self.nprocs)}
            start_processes(self, calls, self.envs)
        else:
            self._pickle_and_spawn()

    def _return_file(self, rank: int) -> str:
        return os.path.join(self._scratch, f"{rank}.pkl")

    def _call(self, rank: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return wrap_function(self._function, self.args[rank], rank, self._numa_options)

    def _pickle_and_spawn(self) -> None:
        from lllaunch.spawner.pickling import dump  # noqa: PLC0415 - imports multiprocessing

        targets: dict[int, Pickled] = {}
        try:
            for rank in range(self.nprocs):
                function, args = self._call(rank)
                targets[rank] = dump(function, args, self.start_method, f"worker {rank}")
        except NotPicklable:
            for fd in (fd for target in targets.values() for fd in target.fds):
                os.close(fd)
            raise
        start_processes(self, targets, self.envs, fresh=self.start_method == "spawn")
        assert isinstance(self._starter, Spawner)
        self._starter.flush()

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
        """As `PContext.release`; takes the return values."""
        if self._released:
            return
        try:
            everyone = len(self.exits) == self.nprocs
            if everyone and all(getattr(end, "exitcode", 1) == 0 for end in self.exits.values()):
                self._return_values()
        finally:
            super().release()
            shutil.rmtree(self._scratch, ignore_errors=True)
