"""Death signals of a process that manages workers: an exception in its main thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

logger = logging.getLogger(__name__)

# Comma-separated names; torch's variable.
SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class SignalException(Exception):
    """A death signal arrived.

    Whoever catches it ends the workers, for instance with ``PContext.close(e.sigval)``. Swallowing
    it keeps the process alive.

    Attributes:
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.sigval))


def raise_signal_exception(signum: int, _frame: FrameType | None) -> None:
    """Signal handler that raises `SignalException` in the main thread."""
    received = signal.Signals(signum)
    raise SignalException(f"process {os.getpid()} received {received.name}", sigval=received)


def named_signals(text: str) -> list[signal.Signals]:
    """The signals of a comma-separated list; unknown names are logged and left out."""
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(signal.Signals[name])
        except KeyError:
            logger.warning("%s: %r is not a signal's name", SIGNALS_TO_HANDLE, name)
    return found


class DeathSignals:
    """Installs the handlers and puts back what was there."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Handle the signals that TORCHELASTIC_SIGNALS_TO_HANDLE names, in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            # Only the main thread may set handlers. Workers cannot be orphaned all the same.
            logger.debug("not in the main thread: death signals are left to the program")
            return
        for signum in named_signals(os.environ.get(SIGNALS_TO_HANDLE, DEFAULT_SIGNALS)):
            if signal.getsignal(signum) is signal.SIG_IGN:
                # Started under nohup, for instance: it stays ignored.
                continue
            try:
                self._before[signum] = signal.signal(signum, raise_signal_exception)
            except (OSError, ValueError):
                logger.warning("%s cannot be handled", signum.name)

    def restore(self) -> None:
        """Put back the handlers that were there; only where ours still stand."""
        if threading.current_thread() is not threading.main_thread():
            return
        while self._before:
            signum, handler = self._before.popitem()
            if signal.getsignal(signum) is raise_signal_exception:
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)
