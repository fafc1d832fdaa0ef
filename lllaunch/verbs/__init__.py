"""The verbs of ``python -m lllaunch``: each a function of its words, imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Those that are not in a module of their own name.
_MODULES = {"init": "plan", "job": "rerun", "stacks": "logs", "wait": "stop"}


def verb(name: str) -> Callable[[Sequence[str]], int]:
    """Return what performs a verb with the words that follow it, and returns its exit code."""
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    return getattr(module, name)  # type: ignore[no-any-return]
