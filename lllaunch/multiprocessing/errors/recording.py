"""The decorator that makes a worker's uncaught exception known to its launcher."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lllaunch.multiprocessing.errors.child_failed import ChildFailedError
from lllaunch.multiprocessing.errors.failure import NOT_AVAILABLE
from lllaunch.multiprocessing.errors.handlers import get_error_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.multiprocessing.errors.error_handler import ErrorHandler

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def record(
    fn: Callable[_P, _R], error_handler: ErrorHandler | None = None
) -> Callable[_P, _R | None]:
    """Records what ends a function: the decorator of a worker's ``main``, used once per process.

    - An `Exception` is written to the error file and raised on.
    - A `ChildFailedError` hands on the error file of the first failed child and is raised on.
    - ``SystemExit(0)`` becomes a return of None, so that a caller that collects a return value
      gets one; any other `SystemExit` (also the one without a code), and `KeyboardInterrupt`,
      pass unrecorded.

    Nothing that goes wrong while recording replaces the exception itself.

    Args:
        fn: the function.
        error_handler: what records; by default `get_error_handler`'s.

    Returns:
        The function, recorded; same arguments, same return value.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as exit_:
            if exit_.code == 0:
                return None
            raise
        except Exception as error:
            _record(handler, error)
            raise

    return wrapper


def _record(handler: ErrorHandler, error: Exception) -> None:
    try:
        if not isinstance(error, ChildFailedError):
            handler.record_exception(error)
            return
        rank, failure = error.get_first_failure()
        if failure.error_file == NOT_AVAILABLE:
            logger.info("worker %s failed without an error file; there is none to hand on", rank)
        else:
            handler.dump_error_file(failure.error_file, failure.exitcode)
    except Exception:
        with contextlib.suppress(Exception):  # a user's logging may fail, too
            logger.exception("recording an error failed; the error itself follows")
