"""Importing what workers share, before they are forked."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lllaunch.errors import PreloadFailed
from lllaunch.spawner import openmp

# What every Python worker needs, so that none of them has to import it.
_OWN_MODULES = (
    "lllaunch.spawner.worker",
    "lllaunch.spawner.values",
    "lllaunch.multiprocessing.errors",
)


@dataclass(frozen=True)
class Preloaded:
    """What preloading came to.

    Attributes:
        seconds: how long it took.
        fork_safe: whether a forked canary could compute.
        runtimes: OpenMP runtimes that must be paused before each fork.
    """

    seconds: float = 0.0
    fork_safe: bool = True
    runtimes: list[ctypes.CDLL] = field(default_factory=list)


def preload(cwd: str, modules: Sequence[str]) -> Preloaded:
    """Import ``modules`` with ``cwd`` first on sys.path, and make this process ready to fork.

    Raises:
        PreloadFailed: one of them cannot be imported, or initialised CUDA.
    """
    started = time.monotonic()
    if modules:
        try:
            os.chdir(cwd)
        except OSError as error:
            raise PreloadFailed(modules[0], f"{cwd!r}: {error.strerror}") from error
        sys.path[:] = [cwd, *(path for path in sys.path if path != cwd)]
    for module in modules:
        _import(module)
    for module in _OWN_MODULES:
        importlib.import_module(module)
    _forget_finalizers()
    runtimes = openmp.loaded_runtimes() if modules else []
    openmp.pause(runtimes)
    fork_safe = not runtimes or openmp.canary()
    # Keeps the children's collections from touching, and so copying, what they share.
    gc.freeze()
    return Preloaded(time.monotonic() - started, fork_safe, runtimes)


def _forget_finalizers() -> None:
    """Drops what torch would undo at the end of every worker, though all of it ends with that.

    They take operators out of the dispatcher's tables one by one: 30 ms, and thousands of pages
    that a fork must copy for it.
    """
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer, info in list(registry.items()):
        if getattr(info.func, "__module__", None) == "torch.library":
            del registry[finalizer]


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        raise PreloadFailed(module, f"{type(error).__name__}: {error}", text) from error
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise PreloadFailed(module, "it initialised CUDA, which cannot be used after a fork")
