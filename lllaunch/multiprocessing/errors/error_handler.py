"""What a worker does about its own uncaught exception: write it to its error file."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from lllaunch.errors import LaunchError
from lllaunch.moments import boot_id, since_boot_ns
from lllaunch.multiprocessing.errors.files import read_error_file, write_error_file

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ErrorHandler"]

logger = logging.getLogger(__name__)

# Where a worker begins, before it comes to the user's code.
_OWN = ("lllaunch.", "importlib.", "_frozen_importlib")


class ErrorHandler:
    """Writes exceptions to the error file that ``TORCHELASTIC_ERROR_FILE`` names, as torch's does.

    Where the variable is unset or empty, what would have been written is logged instead. A
    subclass may override `initialize` and `record_exception`.
    """

    def _get_error_file_path(self) -> str | None:
        """Path of this process's error file, or None to log instead."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE") or None

    def initialize(self) -> None:
        """Prepares the process before the code whose errors are recorded: crashes print stacks.

        Where they do already, it stays as it is: a worker of lllaunch's has a file for them.
        """
        if faulthandler.is_enabled():
            return
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError):
            # sys.stderr is no file (a notebook, a test's capture): the descriptor may still be.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                faulthandler.enable(file=2, all_threads=True)

    def record_exception(self, e: BaseException) -> None:
        """Writes an exception to the error file.

        An error file that cannot be written (a full disk) is logged and not raised, so that the
        exception itself is what the user sees.

        Args:
            e: the exception, with its traceback.
        """
        self._write(json.dumps(describe_exception(e, time.time_ns(), since_boot_ns())))

    def override_error_code_in_rootcause_data(
        self,
        rootcause_error_file: str,
        rootcause_error: dict[str, Any],
        error_code: int = 0,
    ) -> None:
        """Puts the exit code of a child into the data of its error file, where there is a place.

        A child ended by a signal cannot have written its own.

        Args:
            rootcause_error_file: where the data come from, for the log.
            rootcause_error: the data; changed in place.
            error_code: exit status, negative for a signal.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            logger.warning(
                "%s holds no structured message; exit code %s is not added to it",
                rootcause_error_file,
                error_code,
            )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Makes a child's error file this process's own.

        A child's file that cannot be read is replaced by a message that says so.

        Args:
            rootcause_error_file: error file of the child.
            error_code: exit status of the child; 0 where it is not known.
        """
        record = read_error_file(rootcause_error_file)
        data = record.data
        if record.problem:
            data = {
                "message": f"the error file {rootcause_error_file!r} is unreadable: "
                f"{record.problem} (exit code {error_code})",
                "timestamp": str(record.time_ns // 1_000_000_000),
                "timestamp_ns": str(record.time_ns),
            }
        elif error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        self._keep_what_is_there()
        self._write(json.dumps(data))

    def _keep_what_is_there(self) -> None:
        """Logs an error file that is about to be overwritten; it may have another cause in it."""
        path = self._get_error_file_path()
        if path is None or not os.path.isfile(path):
            return
        record = read_error_file(path)
        contents = record.problem or json.dumps(record.data, indent=2)
        logger.warning("%s is overwritten with the root cause; it was: %s", path, contents)

    def _write(self, text: str) -> None:
        path = self._get_error_file_path()
        if path is None:
            logger.info("TORCHELASTIC_ERROR_FILE is not set; not written: %s", text)
            return
        try:
            write_error_file(path, text)
        except OSError as error:
            logger.error("the error file %r cannot be written: %s", path, error)  # noqa: TRY400 - the user's own traceback follows; ours would hide it


def describe_exception(error: BaseException, time_ns: int, boot_ns: int) -> dict[str, Any]:
    """The contents of an error file.

    Args:
        error: the exception, with its traceback.
        time_ns: when it happened, nanoseconds since the epoch.
        boot_ns: the same since the machine was started.

    Returns:
        Plain data in torch's form, with ``timestamp_ns``, ``since_boot_ns`` and ``boot_id`` added.
    """
    try:
        summary = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a broken __str__ of the user's must not hide the error
        summary = f"{type(error).__name__}: <its text cannot be made: {sys.exc_info()[0]}>"
    callstack = "".join(traceback.format_exception(type(error), error, users_part(error)))
    return {
        "message": {
            "message": summary,
            "extraInfo": {
                "py_callstack": callstack,
                "timestamp": str(time_ns // 1_000_000_000),
                "timestamp_ns": str(time_ns),
                "since_boot_ns": str(boot_ns),
                "boot_id": boot_id(),
            },
        }
    }


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback of an exception from the user's first frame on, as the interpreter shows it.

    A script that cannot be compiled, or a module that is not there, has no frame of the user's.
    """
    if isinstance(error, LaunchError):
        # It says all there is to say; where we raised it helps nobody.
        error.__cause__, error.__suppress_context__ = None, True
        return None
    inner = error.__traceback__
    while inner and str(inner.tb_frame.f_globals.get("__name__")).startswith(_OWN):
        inner = inner.tb_next
    if inner is None and not isinstance(error, (SyntaxError, ImportError, OSError)):
        return error.__traceback__
    return inner
