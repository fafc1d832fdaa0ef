"""Torch's process contexts, over `lllaunch.workers.group`, and what says where their output goes.

`start_processes` has torch's present signature and the older keywords.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import json
import logging
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from signal import SIGTERM, Signals
from typing import Any

from lllaunch.errors import NotPicklable, OutputError, PreloadFailed, SpawnerDied
from lllaunch.events import Exited, StartFailed
from lllaunch.failure import ProcessFailure
from lllaunch.files import naming
from lllaunch.signal_source import SignalException, SignalSource
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.evidence import RETURN_FILE
from lllaunch.spawner.protocol import Forked, Pickled, Program
from lllaunch.spec import Std, to_map
from lllaunch.workers import group
from lllaunch.workers.log_files import LogsDest, announce, destinations, make_attempt_dir
from lllaunch.workers.tail import Shown

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "get_std_cm",
    "start_processes",
    "to_map",
]

logger = logging.getLogger(__name__)


class LogsSpecs(abc.ABC):
    """Which streams go where, before it is known how many workers there are.

    ``redirects``: streams that go to files. ``tee``: streams that go to files and are shown.
    ``local_ranks_filter``: ranks whose output is shown; None or an empty set for all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abc.abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories of one attempt; may add to the environment of each worker."""

    @property
    @abc.abstractmethod
    def root_log_dir(self) -> str:
        """The directory under which files are written."""


class DefaultLogsSpecs(LogsSpecs):
    """Files in ``<log_dir>/<run id>_<random>/attempt_<N>/<local rank>/``, as torch lays them out.

    Unlike torch's, it never deletes an existing attempt; it takes the next free number.

    ``log_dir``: created if missing; a temporary directory if None or empty. With ``/dev/null`` no
    directory or file is made, and unredirected output stays on the console.

    Raises:
        NotADirectoryError: ``log_dir`` is a file.
        OutputError: it cannot be made.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if not log_dir:
            log_dir = _temporary_directory("lllaunch_", None)
        elif log_dir != os.devnull:
            if os.path.exists(log_dir) and not os.path.isdir(log_dir):
                raise NotADirectoryError(f"log_dir: {log_dir!r} is a file, not a directory")
            with naming(log_dir):
                os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str:
        """The directory given, or the temporary one that was made instead."""
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories of one attempt.

        Its number is TORCHELASTIC_RESTART_COUNT of rank 0, or the next that is free. Sets
        TORCHELASTIC_ERROR_FILE and LLLAUNCH_RESULT_FILE.

        Raises:
            OutputError: a directory cannot be made; names it, and the rank that it is for.
        """
        nprocs = len(envs)
        if not nprocs:
            logger.warning("no environments were given: no worker's output goes anywhere")
        shared = envs.get(0, {})
        if self._root_log_dir == os.devnull:
            attempt_dir = os.devnull
        else:
            if self._run_log_dir is None:
                # The id is part of one name: a slash in it must not lead elsewhere.
                run_id = shared.get("TORCHELASTIC_RUN_ID", "test_run_id").replace(os.sep, "_")
                with naming(self.root_log_dir):
                    os.makedirs(self.root_log_dir, exist_ok=True)
                self._run_log_dir = _temporary_directory(f"{run_id}_", self._root_log_dir)
                logger.info("log directory set to: %s", self._run_log_dir)
            number = shared.get("TORCHELASTIC_RESTART_COUNT", "0")
            first = int(number) if number.isdecimal() else 0
            attempt_dir, _ = make_attempt_dir(self._run_log_dir, first, nprocs)
        announce(envs, attempt_dir)
        return destinations(
            attempt_dir,
            to_map(self._redirects, nprocs),
            to_map(self._tee, nprocs),
            self._local_ranks_filter,
        )

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]  # holds sets and dicts


def _temporary_directory(prefix: str, parent: str | None) -> str:
    import tempfile  # noqa: PLC0415 - costs 5 ms, not needed where the run's directory is given

    with naming(os.path.join(parent or "the directory for temporary files", prefix)):
        return tempfile.mkdtemp(prefix=prefix, dir=parent)


# Exit codes of a program that could not be executed, as shells have them.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


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


def _failed(end: Exited | StartFailed) -> bool:
    return isinstance(end, StartFailed) or end.exitcode != 0


def validate_full_rank(mapping: Mapping[int, Any], nprocs: int, what: str) -> None:
    """Raise a RuntimeError unless a mapping has exactly the local ranks 0 to ``nprocs - 1``."""
    if set(mapping) != set(range(nprocs)):
        raise RuntimeError(
            f"{what}: local rank mapping mismatch, expected ranks 0 to {nprocs - 1},"
            f" got {sorted(mapping)}"
        )


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], contextlib.AbstractContextManager[None]]
) -> contextlib.AbstractContextManager[None]:
    """The redirect to a file, or a context that does nothing where the path is empty."""
    return redirect_fn(std_rd) if std_rd else contextlib.nullcontext()


class PContext(group.WorkerProcesses, abc.ABC):
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
        attempt: int = 0,
        progbar_events: Mapping[str, Any] | None = None,
    ) -> None:
        self.entrypoint = entrypoint
        self.args = args
        self.envs = {
            rank: {key: str(value) for key, value in env.items()} for rank, env in envs.items()
        }
        files = logs_specs.reify(self.envs)
        validate_full_rank(files.stdouts, len(args), "stdouts")
        validate_full_rank(files.stderrs, len(args), "stderrs")
        shown = Shown(
            log_line_prefixes,
            stdout_filters=duplicate_stdout_filters or (),
            stderr_filters=duplicate_stderr_filters or (),
            progbar_events=progbar_events,
        )
        super().__init__(name, len(args), files, shown, attempt=attempt)
        self._handle_signals = handle_signals
        self._handlers = contextlib.ExitStack()
        # return values by local rank; programs have none
        self._values: dict[int, Any] = dict.fromkeys(range(self.nprocs))

    def start(self) -> None:
        """Start the processes. They run when this returns, or `wait` reports their failure."""
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

        ``timeout``: seconds; negative waits forever, 0 does not wait. ``period``: not needed, an
        exit wakes this up. Returns None if the processes still run after ``timeout``.

        Raises:
            SignalException: a death signal arrived (see ``handle_signals``).
            SpawnerDied, PreloadFailed: see `result`.
        """
        if self._starter is None or not self._until(self._over, None if timeout < 0 else timeout):
            return None
        self.close()
        return self.result()

    def _over(self) -> bool:
        """Whether all succeeded or any failed."""
        if not self._released:
            self.dispatch()
        return not self.alive or any(map(_failed, self.exits.values()))

    def pids(self) -> dict[int, int]:
        """Process ids by local rank; waits for starts that are under way."""
        self._until(lambda: self._released or self.alive <= set(self._pids), None)
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
        failures = {}
        for rank, end in self.exits.items():
            found = self._failure(rank, end, (at_fault or {}).get(rank))
            if found is not None:
                failures[rank] = found
        failures = dict(sorted(failures.items(), key=lambda item: item[1].timestamp_ns))
        complete = at_fault is None and len(self.exits) == self.nprocs
        values = self._values if complete and not failures else {}
        return RunProcsResult(values, failures, self.stdouts, self.stderrs)

    def _failure(
        self, rank: int, end: Exited | StartFailed, blamed: str | None
    ) -> ProcessFailure | None:
        """The failure that an end is; None if it is a success, or ours."""
        error_file = self.error_files.get(rank, "")
        if isinstance(end, StartFailed):
            exitcode = _NOT_FOUND if end.errno == errno.ENOENT else _NOT_EXECUTABLE
            failure = ProcessFailure(rank, -1, exitcode, error_file, exit_time_ns=end.time_ns)
            where = f"{end.path!r}: " if end.path else ""
            failure.message = f"worker {rank} could not be started: {where}{end.reason}"
            return failure
        if blamed is None and end.exitcode in (0, -self._terminated_by.get(rank, 0)):
            return None
        failure = ProcessFailure(rank, end.pid, end.exitcode, error_file, exit_time_ns=end.time_ns)
        failure.message = failure.message if blamed is None else blamed
        return failure

    def release(self) -> None:
        """As `WorkerProcesses.release`; puts back handlers of signals."""
        super().release()
        self._handlers.close()


class ContextHandler:
    """What torch's ``SubprocessHandler`` and its ``Popen`` show of the process of one rank."""

    def __init__(self, context: PContext, rank: int) -> None:
        self.local_rank_id = rank
        self._context = context

    @property
    def proc(self) -> ContextHandler:
        """This itself."""
        return self

    @property
    def pid(self) -> int:
        """Process id; waits for a start that is under way. 0 if it could not be started."""
        return self._context.pids().get(self.local_rank_id, 0)

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it is not known to have ended."""
        end = self._context.exits.get(self.local_rank_id)
        # A program that could not be started has the exit status that shells give it.
        return None if end is None else getattr(end, "exitcode", _NOT_FOUND)

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        self._context.dispatch()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit status, once it ended; raises `subprocess.TimeoutExpired` as Popen does."""
        if not self._context._until(lambda: self.poll() is not None, timeout):
            raise subprocess.TimeoutExpired(str(self._context.entrypoint), timeout or 0.0)
        return self.returncode

    def close(self, death_sig: Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group."""
        self._context.signal(death_sig or SIGTERM, [self.local_rank_id])


def _numa_binding(name: str) -> Callable[..., Any]:
    """Torch's function; whoever passes NUMA options has imported torch to make them."""
    from torch.numa import binding  # noqa: PLC0415 - on request only: it imports torch

    return getattr(binding, name)  # type: ignore[no-any-return]


def call_bound(function: Callable[..., Any], args: tuple[Any, ...], gpu: int, options: Any) -> Any:
    """In a worker: bind to the NUMA node of a GPU, then call."""
    bind = _numa_binding("_maybe_wrap_with_numa_binding")
    return bind(function, gpu_index=gpu, numa_options=options)(*args)


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
        self.subprocess_handlers: dict[int, ContextHandler] = {}

    def _start(self) -> None:
        programs = {}
        for rank in range(self.nprocs):
            command = (str(self.entrypoint), *map(str, self.args[rank]))
            if self._numa_options is not None:
                bind = _numa_binding("_maybe_wrap_command_args_with_numa_binding")
                command = tuple(bind(command, gpu_index=rank, numa_options=self._numa_options))
            programs[rank] = Program(command[0], command[1:])
        group.start_processes(self, programs, self.envs)
        self.subprocess_handlers = {rank: ContextHandler(self, rank) for rank in programs}


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
        self._numa_options = numa_options
        self._scratch = ""

    def _start(self) -> None:
        self._scratch = _temporary_directory("lllaunch_", None)
        for rank, env in self.envs.items():
            env[RETURN_FILE] = os.path.join(self._scratch, f"{rank}.pkl")
        assert callable(self.entrypoint)
        numa = self._numa_options
        calls: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            rank: (self.entrypoint, args)
            if numa is None
            else (call_bound, (self.entrypoint, args, rank, numa))
            for rank, args in sorted(self.args.items())
        }
        if self.start_method == "fork":
            forked = {rank: Forked(*call) for rank, call in calls.items()}
            group.start_processes(self, forked, self.envs)
            return
        from lllaunch.spawner.pickling import dump  # noqa: PLC0415 - imports multiprocessing

        targets: dict[int, Pickled] = {}
        try:
            for rank, (function, args) in calls.items():
                targets[rank] = dump(function, args, self.start_method, f"worker {rank}")
        except NotPicklable:
            for fd in (fd for target in targets.values() for fd in target.fds):
                os.close(fd)
            raise
        group.start_processes(self, targets, self.envs, fresh=self.start_method == "spawn")
        assert isinstance(self._starter, Spawner)
        self._starter.flush()

    def _load(self, rank: int) -> Any:
        path = os.path.join(self._scratch, f"{rank}.pkl")
        try:
            if not os.path.exists(path):
                with open(os.path.join(self._scratch, f"{rank}.json"), "rb") as file:
                    return json.load(file)
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
            if len(self.exits) == self.nprocs and not any(map(_failed, self.exits.values())):
                self._values = {rank: self._load(rank) for rank in range(self.nprocs)}
        finally:
            super().release()
            shutil.rmtree(self._scratch, ignore_errors=True)


def context_of(entrypoint: Callable[..., Any] | str, start_method: str, **options: Any) -> PContext:
    """The context of a program or a function."""
    if isinstance(entrypoint, str):
        return SubprocessContext(entrypoint=entrypoint, **options)
    return MultiprocessContext(entrypoint=entrypoint, start_method=start_method, **options)


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, tuple[Any, ...]],
    envs: Mapping[int, Mapping[str, str]],
    logs_specs: LogsSpecs | str | os.PathLike[str] | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    redirects: Std | dict[int, Std] = Std.NONE,
    tee: Std | dict[int, Std] = Std.NONE,
    local_ranks_filter: set[int] | None = None,
    progbar_events: Mapping[str, Any] | None = None,
    interval_sec: float = 0.1,  # noqa: ARG001 - torch's, not needed
) -> PContext:
    """Start one process per entry of ``args``; ``wait()`` of what is returned waits for them.

    ``logs_specs``: where the streams go. A path here is the older signature's ``log_dir``.
    ``log_line_prefixes``: header of teed lines per local rank, in place of ``[<name><rank>]:``.
    ``start_method``: for functions: ``spawn``, ``forkserver`` or ``fork``. ``log_dir``,
    ``redirects``, ``tee``, ``local_ranks_filter``: older keywords, in place of ``logs_specs``.
    ``progbar_events``: two events, ``trigger_clear`` and ``cleared``, by which the caller removes
    its progress bar before a teed line is shown.

    Raises:
        RuntimeError: ranks are missing in ``args`` or ``envs``.
        TypeError: both ``logs_specs`` and ``log_dir`` are given.
        NotPicklable: the function or an argument cannot be sent to a worker.
        OSError: the program cannot be executed, or no file or process can be made; the others
            have been ended. FileNotFoundError or PermissionError where that is the reason.
    """
    nprocs = len(args)
    validate_full_rank(args, nprocs, "args")
    validate_full_rank(envs, nprocs, "envs")
    if logs_specs is not None and log_dir is not None:
        raise TypeError("start_processes: logs_specs and log_dir say the same; give one of them")
    if not isinstance(logs_specs, LogsSpecs):
        directory = log_dir if logs_specs is None else logs_specs
        path = None if directory is None else os.fspath(directory)
        logs_specs = DefaultLogsSpecs(path, redirects, tee, local_ranks_filter)
    context = context_of(
        entrypoint,
        start_method,
        name=name,
        args=args,
        envs=envs,
        logs_specs=logs_specs,
        log_line_prefixes=log_line_prefixes,
        numa_options=numa_options,
        duplicate_stdout_filters=duplicate_stdout_filters,
        duplicate_stderr_filters=duplicate_stderr_filters,
        progbar_events=progbar_events,
    )
    try:
        context.start()
        if isinstance(context, SubprocessContext):
            context.pids()  # which waits until all have started
    except BaseException:
        context.close()
        raise
    failed = [end for _, end in sorted(context.exits.items()) if isinstance(end, StartFailed)]
    if failed:
        context.close()
        raise OSError(failed[0].errno, failed[0].reason, failed[0].path)  # as subprocess.Popen
    return context
