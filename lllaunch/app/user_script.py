"""The user's script in a worker: how it is imported there, and how a function of it is found.

A worker does not start as the user's script, it imports it: under the name ``__mp_main__``, as
multiprocessing's workers do, or under its own name where it was started with ``python -m``. It
stands in for ``__main__`` too: that is where the launcher's pickles look for the script's classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from lllaunch.errors import ConfigError, Problem

# Marks what `lllaunch.main` returns.
MARK = "__lllaunch_main__"


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
        _execute(module, script)
    except Reached:
        # all that stands above the call is there, and what stands below runs after the launch
        pass
    finally:
        _State.importing = False


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


def find_function(module: str, qualname: str) -> Callable[[Any], Any]:
    """Returns the function that `lllaunch.main` was applied to, from the module it is found in.

    Raises:
        ConfigError: there is none of that name.
    """
    found = _attribute(module, qualname)
    layer = found
    while layer is not None and not getattr(layer, MARK, False):
        layer = getattr(layer, "__wrapped__", None)
    function = found if layer is None else layer.__wrapped__
    if not callable(function):
        raise not_found(module, qualname)
    return function  # type: ignore[no-any-return]


def check_reachable(function: Callable[[Any], Any]) -> tuple[str, str]:
    """Returns the module and qualified name by which workers will find a function.

    Raises:
        ConfigError: it is not what stands there.
    """
    module = getattr(function, "__module__", None) or "?"
    qualname = getattr(function, "__qualname__", None) or repr(function)
    if module not in sys.modules or find_function(module, qualname) is not function:
        raise not_found(module, qualname)
    return module, qualname


def _attribute(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def not_found(module: str, qualname: str) -> ConfigError:
    """The error that says that workers cannot find a function."""
    return ConfigError(
        (
            Problem(
                "lllaunch.main",
                f"{module}:{qualname}",
                "is not what workers find under that name",
                "decorate a function at the top level of its module, outside of any condition",
            ),
        )
    )
