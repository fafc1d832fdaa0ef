"""How a Python worker ends: quickly, and without losing what its user expects to be done.

A forked worker that ends as an interpreter usually does spends seconds on tearing down modules that
it shares with its siblings. ``os._exit`` alone is fast but loses unflushed files. So the steps of
an interpreter's end that users can see are taken one by one, and only the rest is left out:

1. non-daemon threads are joined and executors shut down (``threading._shutdown``);
2. atexit functions run;
3. ``__main__`` and the user's modules are cleared, so that objects held by globals are finalised
   (an open ``ZipFile`` writes its directory in ``__del__``). Modules of the standard library and of
   installed packages are not cleared: they hold library state, and clearing them is what is slow;
4. every live io object is flushed. The collector's permanent generation (what the spawner froze
   before the fork) holds none of the worker's;
5. C's stdio buffers are flushed, and the process exits.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from lllaunch.linux.process import flush_c_streams


def library_directories() -> tuple[str, ...]:
    """Directories of the standard library and of installed packages."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    paths.add(site.getusersitepackages())
    return tuple(os.path.join(path, "") for path in paths if path)


# Base of all that io has, its own C classes included; `io.IOBase` knows those by registration only.
_IO_BASE = io.IOBase.__mro__[1]
_TEXT_BASE = io.TextIOBase.__mro__[1]
# What the interpreter exits with when it cannot flush standard output.
_STREAMS_LOST = 120


def _is_a(item: object, kind: type) -> bool:
    """Whether an object is an instance by its type.

    `isinstance` asks an object for its class, too: proxies of what is gone raise then, and lazy
    ones make what they stand for.
    """
    return issubclass(type(item), kind)


def _namespace(module: object) -> dict[str, Any]:
    """The names of a module, a lazy one's without loading it; empty for anything else."""
    if not _is_a(module, ModuleType):
        return {}
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return names


def _clear(namespace: dict[str, Any]) -> None:
    names = [name for name in namespace if name != "__builtins__"]
    # As the interpreter does it: private names first, they depend on public ones.
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        namespace[name] = None


def _clear_user_modules(before: frozenset[str]) -> None:
    libraries = library_directories()
    for name in reversed([name for name in sys.modules if name not in before]):
        # Anything can stand in sys.modules.
        names = _namespace(sys.modules.get(name))
        if not names or name.startswith("lllaunch"):
            continue
        file = names.get("__file__")
        theirs = isinstance(file, str) and not file.startswith(libraries)
        if theirs or name in ("__main__", "__mp_main__"):
            _clear(names)


def _flush_open_files() -> None:
    files = [item for item in gc.get_objects() if _is_a(item, _IO_BASE)]
    # A text layer writes into its buffer: flush the outer ones first.
    for file in sorted(files, key=lambda file: not _is_a(file, _TEXT_BASE)):
        # Closed, detached, or of a user's class that fails: there is nothing to save.
        with contextlib.suppress(Exception):
            file.flush()


def _flush_standard_streams() -> bool:
    """Flush what the interpreter flushes at its end; whether nothing was lost."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException:  # noqa: BLE001 - a user's stream may raise anything
            flushed = False
            if stream is sys.stdout:
                with contextlib.suppress(BaseException):
                    print(f"Exception ignored in: {stream!r}", file=sys.stderr)
                    traceback.print_exc()
    return flushed


def _attempt(step: Callable[[], object]) -> None:
    """Take one step of the end, whatever it raises: the next ones are due all the same."""
    try:
        step()
    except BaseException:  # noqa: BLE001 - the exit status is decided already
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())


def finish(
    code: int,
    before: frozenset[str] = frozenset(),
    *,
    signum: int = 0,
    clear: bool = True,
) -> NoReturn:
    """End this process.

    Args:
        code: exit status, 0 to 255; 120 takes its place where the standard streams cannot be
            flushed, as the interpreter has it.
        before: names of the modules that were there before the worker's own code ran.
        signum: end by this signal instead, so that the parent sees why.
        clear: whether the user's modules are this process's own to clear.
    """
    try:
        _attempt(threading._shutdown)  # type: ignore[attr-defined]
        _attempt(atexit._run_exitfuncs)
        if not _flush_standard_streams():
            code = _STREAMS_LOST
        # A daemon thread that lives would fail for want of its globals, where an interpreter's end
        # stops it first.
        if clear and threading.active_count() == 1:
            _attempt(lambda: _clear_user_modules(before))
        _attempt(gc.collect)
        _attempt(_flush_open_files)
        _flush_standard_streams()
        flush_c_streams()
        if signum:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
    finally:
        os._exit(code)
