"""A program in a session of its own: torch's, which is imported for it."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    torchs = import_module("torch.distributed.elastic.multiprocessing.subprocess_handler")
    return getattr(torchs, name)
