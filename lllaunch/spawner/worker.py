"""A Python worker: from the call of what it runs to the end of its interpreter.

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

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pickle
import signal
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from lllaunch.failure import ErrorHandler, record, users_part
from lllaunch.files import have_room
from lllaunch.linux.process import flush_c_streams
from lllaunch.spawner import private_names
from lllaunch.spawner.evidence import (
    CRASH_FILE,
    EXIT_FILE,
    SOCKET,
    WATCHED,
    arm,
    catch_crashes,
    save,
    save_return_value,
    serve,
)
from lllaunch.spawner.protocol import Forked, Function, Module, Pickled, PythonTarget, Script


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


def _clear(namespace: dict[str, Any]) -> None:
    names = [name for name in namespace if name != "__builtins__"]
    # As the interpreter does it: private names first, they depend on public ones.
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        namespace[name] = None


def _clear_user_modules(before: frozenset[str]) -> None:
    libraries = library_directories()
    for name in reversed([name for name in sys.modules if name not in before]):
        module = sys.modules.get(name)
        # Anything can stand in sys.modules.
        if name.startswith("lllaunch") or not _is_a(module, ModuleType):
            continue
        # without loading a lazy one
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
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

    ``signum``: end by this signal instead, so that the parent sees why.
    """
    try:
        _attempt(private_names.join_threads)
        _attempt(private_names.run_exit_functions)
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


def _fresh_main(file: str) -> ModuleType:
    """A ``__main__`` that stays: pickling by name and atexit functions need it to the end."""
    module = ModuleType("__main__")
    module.__file__ = file
    module.__dict__["__builtins__"] = builtins
    vars(module).update(__annotations__={})
    module.__dict__["__cached__"] = None
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        # multiprocessing, where it is imported, has made this another name of the spawner's main
        # module, and unpickles by it what its own children send.
        sys.modules["__mp_main__"] = module
    return module


def execute_script(path: str) -> None:
    """Execute a file as ``__main__``."""
    full = os.path.abspath(path)
    with io.open_code(full) as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    module = _fresh_main(full)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
    exec(code, module.__dict__)  # noqa: S102 - running it is the task


def _set_command(words: list[str]) -> None:
    if "-c" in sys.orig_argv:
        sys.orig_argv[sys.orig_argv.index("-c") :] = words


def _unless_safe(directory: str) -> list[str]:
    """What ``python`` puts before all else on its path, unless -P, -I or PYTHONSAFEPATH forbid."""
    return [] if getattr(sys.flags, "safe_path", sys.flags.isolated) else [directory]


def execute_module(module_name: str) -> None:
    """Execute a module, or a package's ``__main__``, as ``__main__``."""
    # As python -m has it while the parent packages are imported.
    sys.argv[:1] = ["-m"]
    spec = importlib.util.find_spec(module_name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module_name}.__main__")
        if spec is None:
            raise ImportError(f"{module_name} is a package without a __main__ module")
    loader: Any = spec.loader if spec else None
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ImportError(f"No module named {module_name}")
    module = _fresh_main(spec.origin or "")
    sys.argv[0] = spec.origin or module_name
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    exec(code, module.__dict__)  # noqa: S102 - running it is the task


def resolve(module: str, qualname: str) -> Callable[..., Any]:
    """Import a module and take a callable out of it.

    Raises:
        ImportError, AttributeError: it is not there.
        TypeError: it is there but cannot be called.
    """
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{module}:{qualname} is a {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]


def check(module: str, qualname: str, call: bytes, answer: str) -> NoReturn:
    """Import a function and bind its arguments; what is wrong is written to a file."""
    import inspect  # noqa: PLC0415 - in the check only: every spawner imports this module

    # A failing import is the attempt's to report.
    with contextlib.suppress(BaseException), open(answer, "w", errors="backslashreplace") as file:
        try:
            function = resolve(module, qualname)
        except (ImportError, AttributeError, TypeError) as error:
            file.write(f"{type(error).__name__}: {error}")
            raise
        args, kwargs = pickle.loads(call)  # noqa: S301 - the launcher's own bytes
        signature = inspect.signature(function)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            file.write(f"the arguments do not fit {module}:{qualname}{signature}: {error}")
    os._exit(0)


def _dispatch(target: PythonTarget, base_path: list[str]) -> None:
    match target:
        case Script():
            # as ``python -u path argv...``
            sys.argv = [target.path, *target.argv]
            _set_command(sys.argv)
            directory = os.path.dirname(os.path.realpath(target.path))
            sys.path[:] = [*_unless_safe(directory), *base_path]
            execute_script(target.path)
        case Module():
            # as ``python -u -m name argv...``
            sys.path[:] = [*_unless_safe(os.getcwd()), *base_path]
            sys.argv = ["-m", *target.argv]
            _set_command(["-m", target.name, *target.argv])
            execute_module(target.name)
        case Function():
            sys.path[:] = [os.getcwd(), *base_path]
            args, kwargs = pickle.loads(target.call)  # noqa: S301 - the launcher's own bytes
            function = resolve(target.module, target.qualname)
            # functions are recorded always, as in torch's elastic multiprocessing
            save_return_value(record(function)(*args, **kwargs))
        case Forked():
            save_return_value(record(target.function)(*target.args))
        case Pickled():
            # Only workers started through the Python API need multiprocessing.
            from lllaunch.spawner.pickling import load  # noqa: PLC0415

            function, args = load(target)
            save_return_value(record(function)(*args))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off a SIGTERM that would end the process at once.

    When all workers fail alike, the launcher ends the others for the first one's sake. What they
    have raised by then shall be told.
    """
    came: list[int] = []
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda signum, _: came.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), signal.SIGTERM)


def _status(end: SystemExit) -> int:
    code = 0 if end.code is None else end.code
    with contextlib.suppress(Exception):
        # It only explains the exit status; or why others wait in vain, who are in a group with it.
        distributed = sys.modules.get("torch.distributed")
        if code != 0 or (distributed is not None and distributed.is_initialized()):
            _record_exit(end, code)
    if isinstance(code, int):
        return code & 0xFF
    _print(code)
    return 1


def _record_exit(end: SystemExit, code: object) -> None:
    """Leave exit.json: what a worker's code exited with, and where."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    frames = traceback.extract_tb(users_part(end))
    if path in ("", os.devnull) or not frames:
        return
    libraries = ("<frozen", *library_directories())
    theirs = [frame for frame in frames if not frame.filename.startswith(libraries)]
    # The user's line that called, say, a parser of arguments rather than the line in there.
    frame = (theirs or frames)[-1]
    called = {
        "code": code if isinstance(code, int) else str(code),
        "file": frame.filename,
        "line": frame.lineno,
        "function": frame.name,
    }
    with open(os.path.join(os.path.dirname(path), EXIT_FILE), "w") as file:
        json.dump(called, file)


def _print(text: object) -> None:
    with contextlib.suppress(BaseException):
        # The worker may have closed it, or it is a file on a full disk.
        print(text, file=sys.stderr)


def _show(error: BaseException) -> int:
    """Show an uncaught exception as the interpreter does; the exit status."""
    error.__traceback__ = users_part(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as end:
        # The hook's own verdict counts.
        return _status(end)
    except BaseException:  # noqa: BLE001 - a user's excepthook may fail, the traceback must be seen
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    return 1


def _record(error: BaseException) -> None:
    """Leave error.json for a script or module that did not do so itself."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or path == os.devnull or os.path.exists(path):
        return
    for _ in range(2):
        try:
            error.__traceback__ = users_part(error)
            ErrorHandler().record_exception(error)
        except Exception as another:  # noqa: BLE001 - it must not be masked by a full disk
            # Torch's handler of SIGCHLD raises wherever it strikes, and tells why the first came.
            error = another
        else:
            return
    _print(f"lllaunch: {path}: the error could not be recorded")


def run(target: PythonTarget, base_path: list[str]) -> NoReturn:
    """Run a target to the end of this process."""
    # the modules of a call of the process that was forked are that one's
    clear = not isinstance(target, Forked)
    try:
        if os.environ.get(WATCHED):
            arm()
        if os.environ.get(CRASH_FILE):
            catch_crashes(os.environ[CRASH_FILE])
        if os.environ.get(SOCKET):
            # What it starts is another process.
            serve(os.environ.pop(SOCKET))
        before = frozenset(sys.modules) - {"__main__"}
        code = signum = 0
        try:
            _dispatch(target, base_path)
        except SystemExit as end:
            code = _status(end)
        except KeyboardInterrupt as error:
            _show(error)
            # Python ends by the signal itself, after all else, so that its parent can see why.
            code, signum = 130, signal.SIGINT
        except BaseException as error:  # noqa: BLE001 - all that user code raises ends here
            with _undisturbed():
                have_room()
                _record(error)
                # the error must not be masked by a full disk, or by another torch's insides
                with contextlib.suppress(Exception):
                    save()
                code = _show(error)
        finish(code, before, signum=signum, clear=clear)
    except BaseException as error:  # noqa: BLE001 - raised by the handler of a signal that came late
        _show(error)
    finally:
        # This may be a fork of the spawner, which must not go on as a second one.
        os._exit(1)


def boot(fd: int) -> NoReturn:
    """Entry of a fresh interpreter (start method ``spawn``): the order is in the file ``fd``."""
    with os.fdopen(fd, "rb") as file:
        target, base_path = pickle.load(file)  # noqa: S301 - the spawner's own bytes
    run(target, base_path)
