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
from types import ModuleType
from typing import NoReturn

from lllaunch.linux.process import flush_c_streams


def library_directories() -> tuple[str, ...]:
    """Directories of the standard library and of installed packages."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    paths.add(site.getusersitepackages())
    return tuple(os.path.join(path, "") for path in paths if path)


def _clear(module: ModuleType) -> None:
    names = [name for name in vars(module) if name != "__builtins__"]
    # As the interpreter does it: private names first, they depend on public ones.
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        module.__dict__[name] = None


def _clear_user_modules(before: frozenset[str]) -> None:
    libraries = library_directories()
    for name in reversed([name for name in sys.modules if name not in before]):
        module = sys.modules.get(name)
        # Anything can stand in sys.modules, and answer for any attribute.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(module, ModuleType) or name.startswith("lllaunch"):
            continue
        theirs = isinstance(file, str) and not file.startswith(libraries)
        if theirs or name in ("__main__", "__mp_main__"):
            _clear(module)


def _flush_open_files() -> None:
    found = [item for item in gc.get_objects() if isinstance(item, io.IOBase)]
    # A text layer writes into its buffer: flush the outer ones first.
    for layer in (io.TextIOBase, io.IOBase):
        for file in found:
            if isinstance(file, layer):
                _flush(file)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _flush(stream)


def _flush(file: object) -> None:
    # Closed, detached, or of a user's class that fails: there is nothing to save.
    with contextlib.suppress(Exception):
        file.flush()  # type: ignore[attr-defined]


def finish(
    code: int,
    before: frozenset[str] = frozenset(),
    *,
    signum: int = 0,
    clear: bool = True,
) -> NoReturn:
    """End this process.

    Args:
        code: exit status, 0 to 255.
        before: names of the modules that were there before the worker's own code ran.
        signum: end by this signal instead, so that the parent sees why.
        clear: whether the user's modules are this process's own to clear.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001 - whatever a thread's end raises was already printed
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    # A daemon thread that lives would fail for want of its globals, where an interpreter's end
    # stops it first.
    if clear and threading.active_count() == 1:
        _clear_user_modules(before)
    gc.collect()
    _flush_open_files()
    flush_c_streams()
    if signum:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    os._exit(code)
