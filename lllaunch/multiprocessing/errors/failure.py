"""What is known about one failed worker."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from lllaunch.multiprocessing.errors.files import read_error_file

NOT_AVAILABLE = "<N/A>"
_NS = 1_000_000_000


@dataclass
class ProcessFailure:
    """A worker that failed, with what it recorded in its error file.

    Names and meaning are those of torch's class of this name. Beyond it: times are known in
    nanoseconds, and an error file that cannot be read never raises, it is reported in ``message``.

    Attributes:
        local_rank: local rank of the worker.
        pid: its process id.
        exitcode: its exit status, or the negative number of the signal that ended it.
        error_file: path of its error file; ``<N/A>`` where it left none.
        exit_time_ns: when its end was observed, nanoseconds since the epoch, or None. It dates
            failures that have no error file.
        error_file_data: the contents of the error file, else ``{"message": "<NONE>"}`` with
            torch's ``errorTraits`` where there is nothing better.
        message: text; or, with an error file, what stands there under ``message``: text or
            ``{"message", "extraInfo": {"py_callstack", "timestamp"}}``.
        timestamp: when it failed, whole seconds since the epoch.
        timestamp_ns: the same in nanoseconds: what the error file says, else ``exit_time_ns``,
            else now. Of an error file that knows whole seconds only (torch's), the moment at
            which it was written.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: str | dict[str, Any] = field(init=False)
    timestamp: int = field(init=False)
    timestamp_ns: int = field(init=False)
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
