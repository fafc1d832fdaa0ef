"""lllaunch, a config-driven experiment launcher.

The public names are loaded when they are first used: the spawner and every worker import this
package, and none of them shall pay for Hydra.
"""

from __future__ import annotations

# Type checkers know this name; importing it from typing takes longer than all that is here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from lllaunch.app.app import main
    from lllaunch.heartbeats import heartbeat, progress, report

    __version__: str

__all__ = ["__version__", "heartbeat", "main", "progress", "report"]


def __getattr__(name: str) -> object:
    if name == "main":
        from lllaunch.app.app import main  # noqa: PLC0415 - imports Hydra

        return main
    if name in {"heartbeat", "progress", "report"}:
        from lllaunch import heartbeats  # noqa: PLC0415 - most workers need none of it

        return getattr(heartbeats, name)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - 20 ms that are rarely needed

        return version("lllaunch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
