"""What a Python worker tells of itself: stacks, collectives, its return value.

**Stacks.** When it is asked, or dies in native code, it writes where it stands. `faulthandler` does
that from within the signal's handler, in C, so it works while other code holds the interpreter's
lock or two threads wait for each other's. It writes into a memory file of the worker's own, which
whoever collects the stacks opens through /proc. Nothing is written before the signal comes, and
nothing of the worker's output is touched. What it writes when a fatal signal ends it must outlive
it, so that goes to a file of the attempt's, which is removed if it stayed empty. The signal is one
that no program uses, since its default action is to end the process. It is for the collector alone,
which sends it only to a process that catches it at that moment.

**Collectives.** torch keeps the last collectives of a process in memory, and has an HTTP server in
C++ that tells of them while Python code waits in one. It listens on a socket in the launcher's
private directory. It is started where torch.distributed is imported, in the worker alone: threads
do not survive a fork, so what the worker forks does not serve, and does not end what its parent
serves. A program that a worker executes is not Python's and has none.

**Return values.** ``return.json`` holds a function's where it is JSON and small. Else, or if it
would come back as something else than it is, ``return.pkl`` does, and ``return.meta.json`` its type
and size, so that the launcher can tell of it without unpickling anything.

What fails of stacks and collectives leaves the worker as it would be without.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from lllaunch.errors import NotPicklable, OutputError
from lllaunch.files import replace_file
from lllaunch.spawner import private_names

# Set for workers that are watched. The others have no descriptor and no handler more than they
# would have without lllaunch.
WATCHED = "LLLAUNCH_WATCHED"
# Python's names end at SIGRTMIN; the C library keeps the numbers below it to itself, and debuggers
# and profilers take the first ones above.
SIGNUM = int(signal.SIGRTMIN) + 15
MEMFD = "lllaunch-stacks"
# How /proc/PID/fd shows it.
MEMFD_LINK = f"/memfd:{MEMFD} (deleted)"

# Names the file for fatal signals, and what it is called.
CRASH_FILE = "LLLAUNCH_CRASH_FILE"
CRASH = "crash.txt"

# The descriptor, of this process or the one it was forked from.
_memfd: list[int] = []


def arm() -> None:
    """Let this process write its stacks on `SIGNUM`.

    To be called in a worker before its own code runs. Where it cannot be done (no memory file, no
    descriptor) the worker goes on without. In a process that inherited this from one it was forked
    from, it gets a memory file of its own.
    """
    try:
        if _memfd:
            # It believes to be registered still, though its signals may have been reset since.
            faulthandler.unregister(SIGNUM)
            inherited = _memfd.pop()
            # Who forked this process may have closed it, and the number be that of another file.
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{inherited}") == MEMFD_LINK:
                    os.close(inherited)
        # Processes that the worker forks share it, and the position in it.
        _memfd.append(os.memfd_create(MEMFD, os.MFD_CLOEXEC))
        faulthandler.register(SIGNUM, file=_memfd[0], all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        # Its stacks are read from outside then, as those of any program.
        return


def catch_crashes(path: str) -> None:
    """Let this process write its stacks to a file when SIGSEGV, SIGXCPU or the like ends it.

    Where that cannot be done (a full disk) it goes on without. If Python was told to do the same
    to standard error (PYTHONFAULTHANDLER), it does that.
    """
    if faulthandler.is_enabled():
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        fd = os.open(path, flags, 0o666)
        faulthandler.enable(file=fd, all_threads=True)
        faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)


def open_memory(pid: int) -> int:
    """Open the memory file that a worker writes its stacks to; -1 if it has none."""
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return -1
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{name}") == MEMFD_LINK:
                return os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return -1


def dumped(pid: int) -> int:
    """How many bytes of stacks a worker, and the processes that it forked, have written so far."""
    memory = open_memory(pid)
    if memory < 0:
        return 0
    try:
        return os.fstat(memory).st_size
    finally:
        os.close(memory)


# Collectives

SOCKET = "LLLAUNCH_COLLECTIVES"
"""Environment variable, the path of the worker's socket; set by the launcher."""

TRACE_FILE = "collectives.json"
"""What the trace of a worker's collectives is called, beside its error.json."""

GROUPS = "lllaunch_groups"
"""Name of the handler that tells what is Python's: ranks of groups, and what is being handled."""

_MOST_TEXT = 300  # characters of an exception

# The second is what the first was called up to torch 2.5, and is understood by later ones.
_BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE"
_SIZES = (_BUFFER_SIZE, "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ENTRIES = "2000"

# Signals that a thread brings on itself: blocked, they would end the process unseen.
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
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
        if fullname == private_names.TORCH_DISTRIBUTED and self._pid == os.getpid() and not _served:
            _start(self._path)


def _start(path: str) -> None:
    # torch's private names, a full disk, a thread too many: a worker runs without.
    with contextlib.suppress(Exception):
        import ctypes  # noqa: PLC0415 - torch has imported it

        from lllaunch.linux.process import short_address  # noqa: PLC0415 - few workers need it

        with short_address(path) as address, _signals_blocked(), _quiet(ctypes):
            server = private_names.start_recorder_server(address)
        _served.append(os.getpid())
        # Nobody may end it: a forked process would wait for threads that it does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        private_names.answer_at(GROUPS, _tell_groups)


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


def _groups() -> dict[str, list[int]]:
    """Return the ranks of this process's groups, by their names; none if torch keeps no such."""
    with contextlib.suppress(Exception):
        names, ranks = private_names.process_groups()
        return {name: sorted(ranks[group]) for group, name in names.items() if group in ranks}
    return {}


def _handled() -> str:
    """Return what the main thread has raised and still handles, in one line; empty if nothing."""
    with contextlib.suppress(Exception):  # its text is made by the user's code
        found = private_names.handled_exception(threading.main_thread().ident or 0)
        if found is not None:
            kind, value, trace = found
            (call, *_) = reversed(traceback.extract_tb(trace))
            text = f"{kind.__name__}: {value}".partition("\n")[0]
            return f"{text[:_MOST_TEXT]} ({call.filename}:{call.lineno})"
    return ""


def _tell_groups(_: Any, response: Any) -> None:
    told = {"groups": _groups(), "handled": _handled()}
    response.set_content(json.dumps(told), "application/json")
    response.set_status(200)


def save() -> None:
    """Write down the collectives of this process, which is about to end by an exception."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if os.getpid() not in _served or error_file in ("", os.devnull):
        return
    traces = []
    for dump in private_names.recorder_traces():
        with contextlib.suppress(Exception):
            traces.append(json.loads(dump()))
    if not any(trace.get("entries") for trace in traces):
        return
    path = os.path.join(os.path.dirname(error_file), TRACE_FILE)
    # The launcher may write there at the same time.
    own = f"{path}.{os.getpid()}"
    with open(own, "w") as file:
        json.dump({"groups": _groups(), "traces": traces}, file)
    os.replace(own, path)


# Return values

# Names the file for the return value; set by the launcher. Without it, it is the error file's
# neighbour.
RETURN_FILE = "LLLAUNCH_RETURN_FILE"
# Beside the error file: what a worker's code exited with, and where.
EXIT_FILE = "exit.json"
# What result.json may hold of one value, bytes.
INLINE_LIMIT = 64 * 1024


class _ByValue(pickle.Pickler):
    """Tensors go by value and on the CPU: the launcher has no GPU and may outlive the worker."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(obj, torch.Tensor) or obj.device.type == "cpu":
            return NotImplemented
        return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def dumps(value: object) -> bytes:
    """Pickle a return value."""
    buffer = io.BytesIO()
    _ByValue(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def save_return_value(value: object) -> None:
    """Leave a return value where the launcher finds it.

    Raises:
        NotPicklable: it cannot be pickled.
        OutputError: the file cannot be written, and the value is not None.
    """
    path, error_file = os.environ.get(RETURN_FILE), os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path and error_file in ("", os.devnull):
        return
    path = path or os.path.join(os.path.dirname(error_file), "return.pkl")
    whose = f"the return value ({type(value).__qualname__}) of worker {os.environ.get('RANK', '?')}"
    try:
        data = dumps(value)
    except Exception as error:
        raise NotPicklable(whose, f"{type(error).__name__}: {error}") from error
    try:
        stem, text = path.removesuffix(".pkl"), _as_json(value)
        # A function that reported a value and returns nothing has said what it has to say.
        if text is not None and not (value is None and os.path.exists(f"{stem}.json")):
            replace_file(f"{stem}.json", text)
        if text is not None and dumps(json.loads(text)) == data:
            return
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        meta = {"type": kind, "size": len(data), "json": text is not None}
        replace_file(f"{stem}.meta.json", json.dumps(meta).encode())
        replace_file(path, data)
    except OSError as error:
        if value is None:
            # Nothing is lost: the function has done its work, whatever the disk has room for.
            return
        raise OutputError(path, f"{whose} cannot be written: {error.strerror}") from error


def _as_json(value: object) -> bytes | None:
    try:
        text = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= INLINE_LIMIT and json.loads(text) == value else None
