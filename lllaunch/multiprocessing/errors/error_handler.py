"""What records an exception in a worker, under torch's name of the module."""

from lllaunch.failure import ErrorHandler

__all__ = ["ErrorHandler"]
