"""What records an exception in a worker, under torch's name of the module."""

from lllaunch.error_file import ErrorHandler

__all__ = ["ErrorHandler"]
