"""Handles on processes that execute a program; names and signatures of torch's module."""

from lllaunch.multiprocessing.subprocess_handler.handlers import get_subprocess_handler
from lllaunch.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
