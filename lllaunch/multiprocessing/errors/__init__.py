"""Errors of workers, carried from process to process in files.

A worker's exception cannot be caught by the process that started it. A function decorated with
`record` therefore writes its uncaught exception to the file that ``TORCHELASTIC_ERROR_FILE``
names; the launcher reads the files of all workers into `ProcessFailure` objects and names the one
that happened first as the root cause (`ChildFailedError`).

Public names, signatures and the file's format are those of
``torch.distributed.elastic.multiprocessing.errors``: either side reads what the other wrote.
Imports nothing outside the standard library.
"""

from lllaunch.error_file import ErrorHandler
from lllaunch.multiprocessing.errors.failure import (
    ChildFailedError,
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
