"""What is known about failed workers, and `record`, which makes a worker's exception known."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lllaunch.error_file import ErrorHandler, read_error_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


NOT_AVAILABLE = "<N/A>"
_NS = 1_000_000_000


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
    timestamp: int = field(init=False)  # when it failed, whole seconds since the epoch
    timestamp_ns: int = field(init=False)
    # when its end was observed, nanoseconds since the epoch, or None
    exit_time_ns: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.error_file_data = {"message": "<NONE>"}
        self.message = ""
        if os.path.isfile(self.error_file):
            problem = self._take_error_file()
        else:
            problem = ""
            self.error_file = NOT_AVAILABLE
            self._date(time.time_ns() if self.exit_time_ns is None else self.exit_time_ns)
        if not self.message:
            self.message = self._describe_exit(problem)

    def _take_error_file(self) -> str:
        """Fills in what the error file says; returns why it cannot be read, or an empty string."""
        record = read_error_file(self.error_file)
        if record.problem and self.exit_time_ns is not None:
            self._date(self.exit_time_ns)
        else:
            self._date(record.time_ns)
        if record.problem:
            return f"its error file {self.error_file!r} is unreadable: {record.problem}"
        self.error_file_data = record.data
        self.message = record.message
        return ""

    def _date(self, time_ns: int) -> None:
        self.timestamp_ns = time_ns
        self.timestamp = time_ns // _NS

    def _describe_exit(self, problem: str) -> str:
        if self.exitcode < 0:
            text = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
            return f"{text}; {problem}" if problem else text
        # Schedulers that read torch's replies look for these traits.
        self.error_file_data["errorTraits"] = {
            "category": "system_terminated_error",
            "retryability": "False",
        }
        text = f"exit status {self.exitcode} of PID {self.pid}"
        if problem:
            return f"{text}; {problem}"
        return (
            f"{text}; it left no error file: decorate the entrypoint with "
            "lllaunch.multiprocessing.errors.record to see its traceback here"
        )

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
_WIDEST_RULE = 60


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
        """The failures as text, the root cause last.

        Returns several lines, with an empty one before, so that it stands free in a log.
        """
        title = f"{self.name} FAILED"
        root, _ = self.get_first_failure()
        shown = {
            rank: _describe(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *(line for text in shown.values() for line in text.split("\n"))]
        width = min(_WIDEST_RULE, max(len(line) for line in lines))
        border, section = boarder_delim * width, section_delim * width
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


logger = logging.getLogger(__name__)

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
