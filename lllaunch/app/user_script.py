"""The user's script in a worker: how it runs there, and how a function of it is found.

A worker runs the user's script as Python would, as ``__main__`` and with what stands behind its
guard, up to the call that starts the app. There it runs the app's function instead, and afterwards
the script ends. docs/design/own-app.md says why.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from lllaunch.errors import ConfigError, Problem
from lllaunch.spawner.worker import execute_module, execute_script, library_directories


@dataclass(frozen=True)
class Script:
    """How this process was started, and so what workers run first.

    Attributes:
        path: the script, absolute; empty where there is none.
        module: the module of ``python -m``; empty where there is none.
        guarded: whether what stands behind its guard is left out in workers.
    """

    path: str = ""
    module: str = ""
    guarded: bool = False


class Reached(BaseException):
    """Ends the user's script in a worker: its app has been called, the rest is the launcher's."""


class _Task:
    """What a worker of a user's own app does in the place of the app.

    Args:
        reach: how its function is found.
        action: called with the function.

    Attributes:
        started: whether it has been started.
    """

    def __init__(self, reach: Reach, action: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._reach = reach
        self._action = action
        self._value: Any = None
        self._error: BaseException | None = None
        self.started = False

    def is_for(self, function: object) -> bool:
        """Whether a function is the one that this worker runs."""
        # where it is called from an import of its own module, that is not complete yet
        return _layer(self._reach) is function

    def run(self, function: Callable[[Any], Any] | None = None) -> None:
        """Runs it, and keeps what it returns or raises: the script's own code is not to see that.

        Args:
            function: the function, or None to find it.
        """
        self.started = True
        try:
            self._value = self._action(function or find_function(self._reach))
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error

    def result(self) -> Any:
        """Returns or raises what the function has."""
        if self._error is not None:
            raise self._error
        return self._value


class _State:
    """Whether this process is a worker of a user's own app, and what it has still to do."""

    worker = False
    task: _Task | None = None


def call_in_worker(function: Any) -> bool:
    """In a worker, where the user's script calls an app: runs what the worker is there for.

    Args:
        function: the app's, as it was decorated.

    Returns:
        Whether this is a worker, and another app than the one that it belongs to: the call does
        nothing. False elsewhere.

    Raises:
        Reached: the worker's task has been run; its script ends here.
        RuntimeError: the app was called by its own function, or after it.
    """
    if not _State.worker:
        return False
    task, name = _State.task, getattr(function, "__name__", "main")
    if task is None:
        raise RuntimeError(
            f"{name}() was called without a config in a worker, which would launch workers from "
            f"workers; call {name}(cfg) to run the function itself"
        )
    if task.is_for(function):
        _State.task = None
        task.run(function)
        raise Reached
    return True


def end_script_at_launch(function: Any) -> None:
    """In a worker whose script comes to start jobs by a way of its own: ends the script there.

    Does nothing elsewhere; a worker's function may run jobs.

    Args:
        function: the jobs' task function.

    Raises:
        Reached: it does.
    """
    if _State.task is not None:
        call_in_worker(function)
        # whoever has called this uses what it returns
        raise Reached


def started_as(main: ModuleType, needed: bool, direct: bool = True) -> Script:
    """Returns how a process was started.

    Args:
        main: its ``__main__``.
        needed: whether the function that workers run lives in it.
        direct: what `calls_directly` says. Where a library calls the function of another module,
            a test runner say, that is not to run in workers; nor is a package's ``__main__.py``,
            which often has no guard.
    """
    guarded = not needed and not direct
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else ""
    if name.rpartition(".")[2] == "__main__" and not needed:
        return Script()
    if name and name != "__main__":
        return Script(module=name, guarded=guarded)
    path = getattr(main, "__file__", None)
    if path and os.path.isfile(path):
        return Script(path=os.path.abspath(path), guarded=guarded)
    return Script()


def calls_directly(main: ModuleType) -> bool:
    """Whether the app was called by the script's own code, or that of its project.

    Args:
        main: the script.
    """
    frames = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    libraries = library_directories()
    below = False
    for frame in reversed(frames):
        below = below or frame.f_globals is vars(main)
        if below and str(frame.f_globals.get("__name__")).startswith(("hydra.", "lllaunch.")):
            return True
        if below and frame.f_code.co_filename.startswith(libraries):
            return False
    return False


def original_arguments(script: Script, cwd: str) -> tuple[str, ...]:
    """Returns ``sys.argv`` as it was before the script's own code, which may have changed it.

    Workers run that code again.

    Args:
        script: how this process was started.
        cwd: where.
    """
    module = script.module.removesuffix(".__main__")
    for place, word in enumerate(sys.orig_argv):
        if module:
            begins = word == module and sys.orig_argv[place - 1] == "-m"
        else:
            begins = place > 0 and os.path.abspath(os.path.join(cwd, word)) == script.path
        if begins:
            return (sys.argv[0], *sys.orig_argv[place + 1 :])
    return tuple(sys.argv)


def run_in_script(
    script: Script, reach: Reach, action: Callable[[Callable[[Any], Any]], Any]
) -> Any:
    """Runs the user's script in this worker, and an action where it calls its app.

    Args:
        script: the script; an empty one is passed over.
        reach: how the app's function is found.
        action: called with the function, in the place of the app; after the script if that ends
            without having called it.

    Returns:
        what the action returned.

    Raises:
        BaseException: what the action raised, or the script before it came to its app.
    """
    task = _Task(reach, action)
    _State.worker = True
    _State.task = task
    _take_the_place_of_hydra()
    try:
        _execute(script)
    except Reached:
        # what stands below the call runs in the launcher, after all workers
        pass
    except SystemExit as end:
        if not task.started and end.code not in {None, 0}:
            raise
    except BaseException:
        # the task's own verdict is what counts, if there is one
        if not task.started:
            raise
    finally:
        _State.task = None
    if not task.started:
        task.run()
    return task.result()


def _execute(script: Script) -> None:
    name = "__mp_main__" if script.guarded else "__main__"
    if script.module:
        execute_module(script.module, name)
    elif script.path:
        execute_script(script.path, name)


def _take_the_place_of_hydra() -> None:
    """Lets the calls of plain Hydra apps come to `call_in_worker`."""
    # hydra.main is the function; the module behind it has another reference to what runs the app.
    # Other decorators of that kind have theirs from where it is made, or call what it calls.
    for module in ("hydra.main", "hydra._internal.utils"):
        _wrap(sys.modules.get(module), "_run_hydra", _run_hydra)
    hydra = getattr(sys.modules.get("hydra._internal.hydra"), "Hydra", None)
    for name in ("run", "multirun"):
        _wrap(hydra, name, _run_or_multirun)


def _wrap(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return instead(original, args, kwargs)

    setattr(owner, name, wrapper)


def _run_hydra(original: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    declined = call_in_worker(kwargs.get("task_function"))
    return None if declined else original(*args, **kwargs)


def _run_or_multirun(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # of Hydra, and its arguments: the config's name, the function, the overrides
    end_script_at_launch(kwargs.get("task_function", args[2] if len(args) > 2 else None))
    return original(*args, **kwargs)


class Reach(NamedTuple):
    """How workers find a function.

    Attributes:
        module: name of the module that it is found in.
        qualname: its name there.
        depth: how many decorators lie around it: so often `__wrapped__` is taken.
    """

    module: str
    qualname: str
    depth: int = 0


def find_function(reach: Reach) -> Callable[[Any], Any]:
    """Returns the function that a launcher's `reach_of` told of.

    Raises:
        ConfigError: there is none of that name.
    """
    found = _layer(reach)
    if not callable(found):
        raise not_found(reach)
    return found  # type: ignore[no-any-return]


def _layer(reach: Reach) -> Any:
    found = _attribute(reach.module, reach.qualname)
    for _ in range(reach.depth):
        found = getattr(found, "__wrapped__", None)
    return found


def reach_of(function: Callable[..., Any]) -> Reach | None:
    """Returns how workers find a function; None if they do not: a closure, an object."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if module not in sys.modules or not isinstance(qualname, str):
        return None
    layer, depth = _attribute(module, qualname), 0
    while layer is not None and layer is not function:
        layer, depth = getattr(layer, "__wrapped__", None), depth + 1
    return None if layer is None else Reach(module, qualname, depth)


def check_reachable(function: Callable[[Any], Any]) -> Reach:
    """Returns how workers will find a function.

    Raises:
        ConfigError: it is not what stands there.
    """
    reach = reach_of(function)
    if reach is None:
        module = getattr(function, "__module__", None) or "?"
        raise not_found(Reach(module, getattr(function, "__qualname__", None) or repr(function)))
    return reach


def _attribute(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def not_found(reach: Reach) -> ConfigError:
    """The error that says that workers cannot find a function."""
    return ConfigError(
        (
            Problem(
                "lllaunch.main",
                f"{reach.module}:{reach.qualname}",
                "is not what workers find under that name",
                "decorate a function at the top level of its module, outside of any condition",
            ),
        )
    )
