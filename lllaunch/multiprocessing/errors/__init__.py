"""Torch's names of `lllaunch.failure`: what is recorded in workers, and read again."""

from lllaunch.error_file import ErrorHandler
from lllaunch.failure import ChildFailedError, ProcessFailure, get_error_handler, record

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "get_error_handler",
    "record",
]
