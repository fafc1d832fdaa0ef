"""A worker's flight recorder: which collectives it has come to, for a launcher that asks.

torch keeps the last collectives of a process in memory, and has an HTTP server in C++ that tells
of them while Python code waits in one. It listens on a socket in the launcher's private directory.

It is started where torch.distributed is imported, in the worker alone: threads do not survive a
fork, so what the worker forks does not serve, and does not end what its parent serves. A program
that a worker executes is not Python's and has none.

Whatever fails here leaves the worker as it would be without.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

SOCKET = "LLLAUNCH_COLLECTIVES"
"""Environment variable, the path of the worker's socket; set by the launcher."""

TRACE_FILE = "collectives.json"
"""What the trace of a worker's collectives is called, beside its error.json."""

GROUPS = "lllaunch_groups"
"""Name of the handler that tells which ranks are in which process group."""

# The second is what the first was called up to torch 2.5, and is understood by later ones.
_BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE"
_SIZES = (_BUFFER_SIZE, "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ENTRIES = "2000"

# The first that torch.distributed imports once its part in C++ is there.
_TRIGGER = "torch.distributed.distributed_c10d"
# Signals that a thread brings on itself: blocked, they would end the process unseen.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
# As `lllaunch.spawner.dump` has it: the numbers that the worker's files get stay what they are.
_NUMBER = 1008
_ROOM = 16
# Of the levels of torch's own log.
_C10_ERROR = 2

# The process that serves: those that it forks inherit this.
_served: list[int] = []


def serve(path: str) -> None:
    """Let this process tell of its collectives, now or as soon as it imports torch.distributed.

    To be called in a worker before its own code runs.
    """
    if not any(name in os.environ for name in _SIZES):
        os.environ[_BUFFER_SIZE] = _ENTRIES
    if "torch.distributed" in sys.modules:
        _start(path)
    else:
        sys.meta_path.insert(0, _Observer(path))


class _Observer:
    """A finder that finds nothing: it sees which module is looked for.

    So no module gets another loader, and there is nothing to take back: it is asked once for each
    module that is not imported yet.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """See a module that is about to be imported."""
        del path, target
        if fullname == _TRIGGER and self._pid == os.getpid() and not _served:
            _start(self._path)


def _start(path: str) -> None:
    # torch's private names, a full disk, a thread too many: a worker runs without.
    with contextlib.suppress(Exception):
        import ctypes  # noqa: PLC0415 - torch has imported it

        from lllaunch.linux.process import short_address  # noqa: PLC0415 - few workers need it

        c10d = _c10d()
        with short_address(path) as address, _signals_blocked(), _quiet(ctypes), _high_numbers():
            server = c10d._WorkerServer(address, -1)
        _served.append(os.getpid())
        # Nobody may end it: a forked process would wait for threads that it does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        c10d._register_handler(GROUPS, _tell_groups)


def _c10d() -> Any:
    """Return torch's part in C++."""
    return sys.modules["torch._C"]._distributed_c10d


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let threads that are started meanwhile get no signals: they are the worker's own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet(ctypes: Any) -> Iterator[None]:
    """Keep torch from writing to standard error that it listens.

    Raises:
        OSError, ValueError: this torch cannot be kept from it.
    """
    library = ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD)
    level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    before = level.value
    level.value = max(before, _C10_ERROR)
    try:
        yield
    finally:
        level.value = before


@contextlib.contextmanager
def _high_numbers() -> Iterator[None]:
    """Let files that are opened meanwhile get numbers that nobody counts on."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = min(soft, _NUMBER + _ROOM) - _ROOM
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        while taken[-1] < least - 1:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for fd in taken:
            os.close(fd)


def _groups() -> dict[str, list[int]]:
    """Return the ranks of this process's groups, by the groups' names."""
    world = sys.modules[_TRIGGER]._world
    names, ranks = dict(world.pg_names), dict(world.pg_group_ranks)
    return {name: sorted(ranks[group]) for group, name in names.items() if group in ranks}


def _tell_groups(_: Any, response: Any) -> None:
    groups = {}
    with contextlib.suppress(Exception):
        groups = _groups()
    response.set_content(json.dumps(groups), "application/json")
    response.set_status(200)


def save(directory: str) -> None:
    """Write down the collectives of this process, which is about to end by an exception."""
    if os.getpid() not in _served:
        return
    c10d = _c10d()
    traces = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        with contextlib.suppress(Exception):
            traces.append(json.loads(getattr(c10d, name)()))
    if not any(trace.get("entries") for trace in traces):
        return
    groups = {}
    with contextlib.suppress(Exception):
        groups = _groups()
    path = os.path.join(directory, TRACE_FILE)
    # The launcher may write there at the same time.
    own = f"{path}.{os.getpid()}"
    with open(own, "w") as file:
        json.dump({"groups": groups, "traces": traces}, file)
    os.replace(own, path)
