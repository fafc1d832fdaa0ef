"""`start_processes`, with torch's present signature and the older keywords."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lllaunch.multiprocessing.context import (
    MultiprocessContext,
    PContext,
    SubprocessContext,
    validate_full_rank,
)
from lllaunch.multiprocessing.logs import DefaultLogsSpecs, LogsSpecs
from lllaunch.std import Std

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    interval_sec: float = 0.1,
) -> PContext:
    """Start one process per entry of ``args``.

    ``logs_specs``: where the streams go. A path here is the older signature's ``log_dir``.
    ``log_line_prefixes``: header of teed lines per local rank, in place of ``[<name><rank>]:``.
    ``start_method``: for functions: ``spawn``, ``forkserver`` or ``fork``. ``log_dir``: older
    keyword: directory of the logs, in place of ``logs_specs``. ``local_ranks_filter``: ranks whose
    output reaches the console, with ``log_dir``. ``progbar_events``: two events, ``trigger_clear``
    and ``cleared``, by which the caller removes its progress bar before a teed line is shown.
    Returns the running processes. ``wait()`` waits for them.

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
    common: dict[str, Any] = {
        "name": name,
        "args": args,
        "envs": envs,
        "logs_specs": logs_specs,
        "log_line_prefixes": log_line_prefixes,
        "numa_options": numa_options,
        "duplicate_stdout_filters": duplicate_stdout_filters,
        "duplicate_stderr_filters": duplicate_stderr_filters,
        "progbar_events": progbar_events,
        "interval_sec": interval_sec,
    }
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(entrypoint=entrypoint, **common)
    else:
        context = MultiprocessContext(entrypoint=entrypoint, start_method=start_method, **common)
    try:
        context.start()
        if isinstance(context, SubprocessContext):
            context.check_started()
    except BaseException:
        context.close()
        raise
    return context
