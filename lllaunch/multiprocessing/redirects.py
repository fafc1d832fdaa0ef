"""Redirects of this process's own stdout and stderr to files: torch's, which is imported for it."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    torchs = import_module("torch.distributed.elastic.multiprocessing.redirects")
    return getattr(torchs, name)
