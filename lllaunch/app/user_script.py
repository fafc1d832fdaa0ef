"""The user's script in a worker: how it is imported there, and how a function of it is found.

A worker does not start as the user's script, it imports it: under the name ``__mp_main__``, as
multiprocessing's workers do, or under its own name where it was started with ``python -m``. It
stands in for ``__main__`` too: that is where the launcher's pickles look for the script's classes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from lllaunch.errors import ConfigError, Problem


@dataclass(frozen=True)
class Script:
    """How this process was started, and so what workers import first.

    Attributes:
        path: the script, absolute; empty where there is none.
        module: the module of ``python -m``; empty where there is none.
    """

    path: str = ""
    module: str = ""


class Reached(BaseException):
    """Ends the import of a script at its unguarded call of the function that workers run."""


class _State:
    """Whether this process is a worker of a user's own app, and is importing the script."""

    worker = False
    importing = False


def decline_call(name: str) -> None:
    """Stops a worker from starting the app that it is part of; does nothing elsewhere.

    Args:
        name: of the function that was called without a config.

    Raises:
        Reached: the script is being imported and calls the function at its end, without asking
            whether ``__name__`` is ``"__main__"``.
        RuntimeError: the function itself, running in the worker, called it.
    """
    if _State.importing:
        raise Reached
    if _State.worker:
        raise RuntimeError(
            f"{name}() was called without a config in a worker, which would launch workers from "
            f"workers; call {name}(cfg) to run the function itself"
        )


def started_as(main: ModuleType, needed: bool) -> Script:
    """Returns how a process was started.

    Args:
        main: its ``__main__``.
        needed: whether the function that workers run lives in it. A package's ``__main__.py`` is
            rarely guarded against being imported, and is left out unless it is needed.
    """
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else ""
    if name.rpartition(".")[2] == "__main__" and not needed:
        return Script()
    if name and name != "__main__":
        return Script(module=name)
    path = getattr(main, "__file__", None)
    return Script(path=os.path.abspath(path)) if path and os.path.isfile(path) else Script()


def import_script(script: Script) -> None:
    """Imports the user's script in this worker."""
    _State.worker = True
    if not script.path and not script.module:
        return
    module = _new_module(script)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    _State.importing = True
    try:
        _decline_hydra()
        _execute(module, script)
    except Reached:
        # all that stands above the call is there, and what stands below runs after the launch
        pass
    finally:
        _State.importing = False


def _decline_hydra() -> None:
    """Stops a plain Hydra app that is called by the script itself, too."""
    # hydra.main is the function; the module behind it has another reference to what runs the app
    module = sys.modules.get("hydra.main")
    original = getattr(module, "_run_hydra", None)
    if module is None or original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run_hydra(*args: Any, **kwargs: Any) -> Any:
        decline_call(getattr(kwargs.get("task_function"), "__name__", "main"))
        return original(*args, **kwargs)

    module._run_hydra = run_hydra  # type: ignore[attr-defined]


def _new_module(script: Script) -> ModuleType:
    if not script.module:
        module = ModuleType("__mp_main__")
        module.__file__ = script.path
        return module
    spec = importlib.util.find_spec(script.module)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {script.module!r}", name=script.module)
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.module] = module
    return module


def _execute(module: ModuleType, script: Script) -> None:
    if script.module:
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)
        return
    with io.open_code(script.path) as file:
        code = compile(file.read(), script.path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what is asked


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
    found = _attribute(reach.module, reach.qualname)
    for _ in range(reach.depth):
        found = getattr(found, "__wrapped__", None)
    if not callable(found):
        raise not_found(reach)
    return found  # type: ignore[no-any-return]


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
