"""Locks and progress bars that others own and that stand before a destination.

Each wait for them is bounded: a tail goes on without them rather than not at all.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# How long a lock or a progress bar that others own is waited for, seconds.
_PATIENCE_S = 1.0


class LockLike(Protocol):
    """A lock of `threading` or `multiprocessing`."""

    def acquire(self, *, timeout: float = ...) -> bool:
        """Takes the lock; False if it could not be had in time (seconds)."""

    def release(self) -> None:
        """Gives the lock back."""


class EventLike(Protocol):
    """An event of `threading` or `multiprocessing`."""

    def set(self) -> None:
        """Sets the event."""

    def clear(self) -> None:
        """Resets the event."""

    def is_set(self) -> bool:
        """Whether it is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for it, at most so many seconds; whether it is set."""


class BarGate:
    """The older interface to a progress bar that someone else draws at the bottom.

    Before writing, ``trigger_clear`` is set and ``cleared`` waited for, which says that the bar
    is off the screen; after writing, ``trigger_clear`` is reset. Where nobody answers, that is
    waited for once.

    Args:
        events: the two events.

    Raises:
        KeyError: one of them is missing.
    """

    def __init__(self, events: Mapping[str, EventLike]) -> None:
        self.events = events
        # One asks at a time; else one's question would wipe out the answer to another's.
        self._lock = threading.Lock()
        self._trigger = events["trigger_clear"]
        self._cleared = events["cleared"]
        self._answered = True

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """While inside, the bar is off the screen, if there is one."""
        with self._lock:
            expected = self._answered or self._cleared.is_set()
            self._cleared.clear()
            self._trigger.set()
            try:
                self._answered = self._cleared.wait(_PATIENCE_S if expected else 0)
                yield
            finally:
                self._trigger.clear()


_gates: weakref.WeakValueDictionary[int, BarGate] = weakref.WeakValueDictionary()


def gate_of(events: Mapping[str, EventLike]) -> BarGate:
    """The gate of a progress bar, one for all who were given its events.

    Args:
        events: ``trigger_clear`` and ``cleared``.

    Returns:
        The gate.

    Raises:
        KeyError: an event is missing.
    """
    gate = BarGate(events)
    return _gates.setdefault(id(events["trigger_clear"]), gate)


# In a forked child, the threads that may have held a gate's lock are not there.
os.register_at_fork(after_in_child=_gates.clear)


@contextmanager
def _held(lock: LockLike) -> Iterator[None]:
    """Holds somebody else's lock, or goes on without it when it cannot be had."""
    taken = lock.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if taken:
            lock.release()


@contextmanager
def guarded(lock: LockLike | None, gate: BarGate | None) -> Iterator[None]:
    """While inside, somebody else's lock is held and somebody else's bar is off the screen."""
    with ExitStack() as stack:
        if lock is not None:
            stack.enter_context(_held(lock))
        if gate is not None:
            stack.enter_context(gate.lifted())
        yield
