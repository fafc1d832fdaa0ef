"""Which error handler a process uses."""

from __future__ import annotations

from lllaunch.error_file import ErrorHandler

__all__ = ["get_error_handler"]


def get_error_handler() -> ErrorHandler:
    """A new handler, the one that `record` uses unless it is given another."""
    return ErrorHandler()
