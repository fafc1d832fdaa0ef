"""Torch's names of `lllaunch.failure`: what is recorded in workers, and read again."""

from lllaunch.failure import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    get_error_handler,
    record,
)

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "get_error_handler",
    "record",
]
