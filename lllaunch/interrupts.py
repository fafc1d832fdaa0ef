"""Ctrl-C before a run or a sweep waits for signals itself: raised, and remembered.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a finalizer or in the
callback of a weak reference, which any import may call, it is printed and forgotten: the user's
first Ctrl-C would be lost. So it is remembered here, for who takes the signals over.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""The signals to a launcher that end a process which does not handle them."""

_seen = False


def remember_interrupts() -> None:
    """Remember SIGINT from now on; nothing is changed where somebody else handles it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def take_interrupt() -> bool:
    """Return whether there was one since the last call, raised in vain."""
    global _seen
    seen, _seen = _seen, False
    return seen


def _interrupt(_signum: int, _frame: FrameType | None) -> NoReturn:
    global _seen  # noqa: PLW0603 - a signal is the process's
    _seen = True
    raise KeyboardInterrupt
