"""The private names of CPython and torch that spawners and workers use, each behind what it does.

A test sees that there are no others, and that this Python has those of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TORCH_DISTRIBUTED = "torch.distributed.distributed_c10d"
"""The first module that torch.distributed imports once its part in C++ is there."""

# The class of `os.environ`.
Environ = os._Environ


# The end of an interpreter


def join_threads() -> None:
    """Join the threads that are no daemons, and shut executors down."""
    threading._shutdown()  # type: ignore[attr-defined]


def run_exit_functions() -> None:
    """Run what was registered with atexit."""
    atexit._run_exitfuncs()


def forget_exit_functions() -> None:
    """In a fork: forget what the other process does at its end."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # What is started here is joined at the end, as ever.
        atexit.register(util._exit_function)


def forget_finalizers_of(module: str) -> None:
    """Drop what a module would undo at the end of an interpreter."""
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer, info in list(registry.items()):
        if getattr(info.func, "__module__", None) == module:
            del registry[finalizer]


# How it was started


def x_options() -> dict[str, Any]:
    """Return what followed ``-X`` on the command line of this interpreter."""
    return sys._xoptions


def interpreter_flags() -> list[str]:
    """Return the options of this interpreter's command line, as multiprocessing gives them on."""
    import subprocess  # noqa: PLC0415 - only for who starts an interpreter

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]


def handled_exception(thread: int) -> tuple[Any, Any, Any] | None:
    """Return type, value and traceback of what a thread handles, in ``finally`` also."""
    found = sys._current_exceptions().get(thread)
    if isinstance(found, BaseException):  # from Python 3.12 on
        return type(found), found, found.__traceback__
    return None if found is None or found[0] is None else found


# multiprocessing


def take_over_multiprocessing() -> None:
    """In a fork: drop what it keeps for the process that was forked, where it is imported."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children.clear()
        # Taken when it is imported: what a worker's children start from is its own.
        vars(process)["ORIGINAL_DIR"] = os.getcwd()


@contextlib.contextmanager
def refusing_to_start_processes() -> Iterator[None]:
    """In the block it explains to who starts a process that a main module needs a guard."""
    from multiprocessing import process  # noqa: PLC0415 - only for Python's objects

    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


def tracker_fd() -> int | None:
    """Return the descriptor of the resource tracker, None if there is none."""
    from multiprocessing import resource_tracker  # noqa: PLC0415 - as above

    return getattr(resource_tracker._resource_tracker, "_fd", None)


def use_tracker(fd: int) -> None:
    """Use another process's resource tracker."""
    from multiprocessing import resource_tracker  # noqa: PLC0415 - as above

    resource_tracker._resource_tracker._fd = fd  # type: ignore[attr-defined]


# torch.distributed


def start_recorder_server(address: str) -> object:
    """Start torch's HTTP server; it ends with what is returned."""
    return _c10d()._WorkerServer(address, -1)


def answer_at(name: str, answer: Callable[[Any, Any], None]) -> None:
    """Let that server answer requests for a name."""
    _c10d()._register_handler(name, answer)


def recorder_traces() -> list[Callable[[], bytes]]:
    """Return what dumps the collectives of this process, as JSON: of gloo, and of NCCL."""
    names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
    return [getattr(_c10d(), name) for name in names if hasattr(_c10d(), name)]


def process_groups() -> tuple[dict[Any, str], dict[Any, dict[int, int]]]:
    """Return names and ranks of torch's process groups."""
    world = sys.modules[TORCH_DISTRIBUTED]._world
    return dict(world.pg_names), dict(world.pg_group_ranks)


def _c10d() -> Any:
    """Return torch's part in C++."""
    return sys.modules["torch._C"]._distributed_c10d
