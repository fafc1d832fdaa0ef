"""lllaunch, a config-driven experiment launcher.

The public names are loaded when they are first used: the spawner and every worker import this
package, and none of them shall pay for Hydra.
"""

from __future__ import annotations

# Type checkers know this name; importing it from typing takes longer than all that is here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lllaunch.app.app import main
    from lllaunch.heartbeats import heartbeat, progress, report

    __version__: str

__all__ = ["__version__", "heartbeat", "main", "progress", "report"]


# Where they are. Named here and not imported: what stands below the app imports this package.
_MODULES = {
    "main": "lllaunch.app.app",
    "report": "lllaunch.heartbeats",
    "heartbeat": "lllaunch.heartbeats",
    "progress": "lllaunch.heartbeats",
}


def torchs(module: str, *names: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module for what is torch's own, in its module of that name.

    ``names``: what that is; by default all names.
    """

    def getattr_(name: str) -> object:
        if name.startswith("__") or (names and name not in names):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - few ask for torch's own

        return getattr(import_module(module.replace("lllaunch", "torch.distributed.elastic")), name)

    return getattr_


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module  # noqa: PLC0415 - most workers need none of them

        return getattr(import_module(_MODULES[name]), name)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - 20 ms that are rarely needed

        return version("lllaunch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
