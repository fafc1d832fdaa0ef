"""Signals to the launcher as something that an event loop can wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from lllaunch.interrupts import take_interrupt
from lllaunch.multiprocessing.signals import (
    DEFAULT_SIGNALS,
    SIGNALS_TO_HANDLE,
    SignalException,
    named_signals,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class SignalSource:
    """A context in which chosen signals are noted instead of acted on.

    So is a Ctrl-C before it that came to nothing (`lllaunch.interrupts`).

    Handlers can be set in the main thread only; elsewhere this notes nothing. Handlers and the
    wakeup descriptor that were there are put back. A signal that is ignored stays ignored.

    Args:
        signals: which; None for those that TORCHELASTIC_SIGNALS_TO_HANDLE names.
    """

    def __init__(self, signals: Sequence[signal.Signals] | None = None) -> None:
        if signals is None:
            signals = named_signals(os.environ.get(SIGNALS_TO_HANDLE, DEFAULT_SIGNALS))
        self._signals = tuple(signals)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._read = self._write = -1
        self._raise = False

    def fileno(self) -> int:
        """Readable when `received` has something to tell."""
        return self._read

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for signum in self._signals:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._handle)
            if signal.SIGINT in self._before and take_interrupt():
                os.write(self._write, bytes([signal.SIGINT]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup_before)
            while self._before:
                signum, handler = self._before.popitem()
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        os.close(self._read)
        os.close(self._write)
        self._read = self._write = -1

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._raise:
            received = signal.Signals(signum)
            raise SignalException(f"the agent received {received.name}", sigval=received)

    def received(self) -> list[int]:
        """The signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._read, 4096)
            return [number for number in numbers if number in self._before]
        return []

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """While code runs that nothing else wakes: signals raise `SignalException`."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False


def forwards() -> bool:
    """Whether a signal has to be forwarded: Slurm sends it to all processes of a step itself."""
    return "SLURM_STEP_ID" not in os.environ
