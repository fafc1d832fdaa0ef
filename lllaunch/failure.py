"""Errors of workers: ``error.json`` as a worker writes it, read again, and `record`.

The format is that of ``torch.distributed.elastic.multiprocessing.errors``: a JSON object whose
``message`` is either text or ``{"message", "extraInfo": {"py_callstack", "timestamp"}}``, the
timestamp in whole seconds since the epoch, as text. Ours adds to ``extraInfo`` the nanoseconds, as
``timestamp_ns``, and the same on a clock that nobody sets, as ``since_boot_ns`` of a ``boot_id``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from lllaunch.clock import boot_id, from_boot, since_boot_ns
from lllaunch.errors import LaunchError
from lllaunch.files import have_room, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
# Later than any clock of a machine that runs this; what is beyond cannot be shown as a date.
_LATEST = (1 << 34) * _NS
# A timestamp in whole seconds and the file's own time belong together within this many ns.
_SETTLING = 5 * _NS


class ErrorRecord(NamedTuple):
    """What an error file says."""

    message: str | dict[str, Any]  # text, or the mapping under ``message``
    # when the error happened, nanoseconds since the epoch; on the scale of `lllaunch.clock.now_ns`
    # if the file tells
    time_ns: int
    data: dict[str, Any]
    # why the file could not be read, or an empty string; the other fields are then placeholders,
    # except ``time_ns``, which is still the best that is known
    problem: str = ""


def read_error_file(path: str) -> ErrorRecord:
    """Read an error file written by us or by torch; never raise for what is in it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            changed_ns = os.fstat(file.fileno()).st_mtime_ns
            text = file.read()
    except (OSError, MemoryError) as error:
        return ErrorRecord("", time.time_ns(), {}, f"{type(error).__name__}: {error}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "it is empty" if not text.strip() else f"it is no whole JSON document: {error}"
        return ErrorRecord("", changed_ns, {}, kind)
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, (str, dict)):
        return ErrorRecord("", changed_ns, {}, "it holds no 'message' in the expected form")
    extra = message.get("extraInfo") if isinstance(message, dict) else data
    return ErrorRecord(message, _time_of(extra, changed_ns), data)


def _time_of(extra: object, changed_ns: int) -> int:
    """When the error happened, as exactly as the file allows."""

    def moment(name: str, latest: int, unit: int = 1) -> int:
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            number = int(known.get(name, 0)) * unit
            return number if 0 < number < latest else 0
        return 0

    known: dict[str, Any] = extra if isinstance(extra, dict) else {}
    # Two workers that failed one after the other may have a step of the wall clock between them.
    since_boot = moment("since_boot_ns", since_boot_ns())
    if since_boot and known.get("boot_id") == boot_id():
        return from_boot(since_boot)
    # Torch knows whole seconds only; the file was written right after the error, so its own time
    # says which of two failures within one second was first. A copied file is recognised by a gap.
    seconds = moment("timestamp", _LATEST, _NS)
    refined = changed_ns if 0 <= changed_ns - seconds < _SETTLING else seconds
    return moment("timestamp_ns", _LATEST) or refined or changed_ns


# Where a worker begins, before it comes to the user's code.
_OWN = ("lllaunch.", "importlib.", "_frozen_importlib")


class ErrorHandler:
    """Writes exceptions to the error file that ``TORCHELASTIC_ERROR_FILE`` names, as torch's does.

    Where the variable is unset or empty, what would have been written is logged instead. A
    subclass may override `initialize` and `record_exception`.
    """

    def initialize(self) -> None:
        """Prepares the process before the code whose errors are recorded: crashes print stacks.

        A worker of lllaunch's has a file for them, which stays in use.
        """
        if "LLLAUNCH_CRASH_FILE" in os.environ and faulthandler.is_enabled():
            return
        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:  # noqa: BLE001 - sys.stderr may be anything
            warnings.warn(f"crashes will print no stacks: {error!r}", stacklevel=2)

    def record_exception(self, e: BaseException) -> None:
        """Writes an exception to the error file.

        An error file that cannot be written (a full disk) is logged and not raised, so that the
        exception itself is what the user sees.
        """
        have_room()
        time_ns, boot_ns = time.time_ns(), since_boot_ns()
        try:
            summary = f"{type(e).__name__}: {e}"
        except Exception:  # noqa: BLE001 - a broken __str__ of the user's must not hide the error
            summary = f"{type(e).__name__}: <its text cannot be made: {sys.exc_info()[0]}>"
        extra = {
            "py_callstack": "".join(traceback.format_exception(type(e), e, users_part(e))),
            "timestamp": str(time_ns // _NS),
            "timestamp_ns": str(time_ns),
            "since_boot_ns": str(boot_ns),
            "boot_id": boot_id(),
        }
        self._write({"message": {"message": summary, "extraInfo": extra}})

    def override_error_code_in_rootcause_data(
        self,
        rootcause_error_file: str,
        rootcause_error: dict[str, Any],
        error_code: int = 0,
    ) -> None:
        """Puts the exit code of a child into the data of its error file, in place.

        A child ended by a signal cannot have written its own.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            text = "%s holds no structured message; exit code %s is not added to it"
            logger.warning(text, rootcause_error_file, error_code)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Makes a child's error file this process's own.

        A child's file that cannot be read is replaced by a message that says so.
        """
        record = read_error_file(rootcause_error_file)
        data = record.data
        if record.problem:
            data = {
                "message": f"the error file {rootcause_error_file!r} is unreadable: "
                f"{record.problem} (exit code {error_code})",
                "timestamp": str(record.time_ns // _NS),
                "timestamp_ns": str(record.time_ns),
            }
        elif error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        self._write(data)

    def _write(self, data: dict[str, Any]) -> None:
        """Write the error file so that a reader sees all of it or what was there before.

        What is no regular file (a pipe, ``/dev/null``) is written to in place, and so is a file
        whose directory takes no new ones.
        """
        path, text = os.environ.get("TORCHELASTIC_ERROR_FILE"), json.dumps(data)
        if not path:
            logger.info("TORCHELASTIC_ERROR_FILE is not set; not written: %s", text)
            return None
        target = os.path.realpath(path)
        try:
            if os.path.isfile(target) or not os.path.lexists(target):
                with contextlib.suppress(PermissionError):
                    return replace_file(target, text.encode())
            with open(target, "w", encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            logger.error("the error file %r cannot be written: %s", path, error)  # noqa: TRY400 - the user's own traceback follows; ours would hide it


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


# What is known about failed workers


NOT_AVAILABLE = "<N/A>"


@dataclass
class ProcessFailure:
    """A worker that failed, with the contents of its error file.

    Names and meaning are those of torch's class. In addition, times have nanoseconds, and an
    unreadable error file is reported in ``message`` and never raises.
    """

    local_rank: int
    pid: int
    exitcode: int  # its exit status, or the negative number of the signal that ended it
    error_file: str  # path of its error file, or ``<N/A>``
    # the contents of the error file, else ``{"message": "<NONE>"}`` with torch's ``errorTraits``
    error_file_data: dict[str, Any] = field(init=False)
    # text, or the ``message`` of the error file: text or ``{"message", "extraInfo":
    # {"py_callstack", "timestamp"}}``
    message: str | dict[str, Any] = field(init=False)
    timestamp_ns: int = field(init=False)
    # when its end was observed, nanoseconds since the epoch, or None
    exit_time_ns: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.error_file_data, self.message = {"message": "<NONE>"}, ""
        self.timestamp_ns = time.time_ns() if self.exit_time_ns is None else self.exit_time_ns
        problem = ""
        if os.path.isfile(self.error_file):
            record = read_error_file(self.error_file)
            if self.exit_time_ns is None or not record.problem:
                self.timestamp_ns = record.time_ns
            if record.problem:
                problem = f"its error file {self.error_file!r} is unreadable: {record.problem}"
            else:
                self.error_file_data, self.message = record.data, record.message
        else:
            self.error_file = NOT_AVAILABLE
        if self.message:
            return
        if self.exitcode < 0:
            text = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        else:
            # Schedulers that read torch's replies look for these traits.
            traits = {"category": "system_terminated_error", "retryability": "False"}
            self.error_file_data["errorTraits"] = traits
            text = f"exit status {self.exitcode} of PID {self.pid}"
            problem = problem or (
                "it left no error file: decorate the entrypoint with "
                "lllaunch.multiprocessing.errors.record to see its traceback here"
            )
        self.message = f"{text}; {problem}" if problem else text

    @property
    def timestamp(self) -> int:
        """When it failed, whole seconds since the epoch."""
        return self.timestamp_ns // _NS

    def signal_name(self) -> str:
        """The name of the signal that ended the worker (``SIGKILL``), or ``<N/A>``."""
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """The time of the failure in local time, as ``YYYY-MM-DD_HH:MM:SS``."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))

    def traceback(self) -> str:
        """The traceback in the error file, else the message as text."""
        if isinstance(self.message, str):
            return self.message
        extra = self.message.get("extraInfo")
        callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
        text = callstack if callstack is not None else self.message.get("message", NOT_AVAILABLE)
        return text if isinstance(text, str) else repr(text)


GlobalRank = int
_RULE = 60  # columns


class ChildFailedError(Exception):
    """Workers failed. Raised under `record`, it passes the root cause to the parent process.

    `record` copies the error file of the first failure to that of the raising process, so the
    traceback at the top is the worker's.
    """

    def __init__(self, name: str, failures: Mapping[GlobalRank, ProcessFailure]) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)  # the failures by global rank, at least one
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[GlobalRank, ProcessFailure]:
        """The root cause: the failure that happened first, by nanoseconds, and its global rank."""
        rank = min(self.failures, key=lambda each: self.failures[each].timestamp_ns)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The failures as text, the root cause last, after an empty line: it stands in a log."""
        title = f"{self.name} FAILED"
        root, _ = self.get_first_failure()
        shown = {
            rank: _describe(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        border, section = boarder_delim * _RULE, section_delim * _RULE
        others = [text for rank, text in shown.items() if rank != root]
        parts = ["", border, title, section, "Failures:"]
        parts += others or ["  <NO_OTHER_FAILURES>"]
        parts += [section, "Root Cause (first observed failure):", shown[root], border]
        return "\n".join(parts)


def _describe(index: int, rank: GlobalRank, failure: ProcessFailure) -> str:
    signal_name = failure.signal_name()
    how = "" if signal_name == NOT_AVAILABLE else f" ({signal_name})"
    fields = {
        "time": failure.timestamp_isoformat(),
        # The name the kernel has; asking a name server here could take longer than the run.
        "host": os.uname().nodename,
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": f"{failure.exitcode} (pid: {failure.pid}){how}",
        "error_file": failure.error_file,
        "traceback": failure.traceback().replace("\n", "\n  "),
    }
    return "\n".join([f"[{index}]:", *(f"  {key:<10}: {value}" for key, value in fields.items())])


_P = ParamSpec("_P")
_R = TypeVar("_R")


def get_error_handler() -> ErrorHandler:
    """A new handler, the one that `record` uses unless it is given another."""
    return ErrorHandler()


def record(
    fn: Callable[_P, _R], error_handler: ErrorHandler | None = None
) -> Callable[_P, _R | None]:
    """Record the exception that ends a function; decorate a worker's ``main`` with it, once.

    - An `Exception` is written to the error file and raised again.
    - A `ChildFailedError` copies the error file of the first failed child and is raised again.
    - ``SystemExit(0)`` becomes a return of None. Any other `SystemExit`, and `KeyboardInterrupt`,
      are not recorded.

    A failure to record never replaces the exception.

    ``error_handler``: records the exception; default: `get_error_handler`.
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
