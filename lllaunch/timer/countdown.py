"""``expires`` and ``deadline``: a timer around a block of code, or around a function.

A server knows a timer by its process and its name, so a name that is taken again while it is held
(by recursion, by threads, by asyncio's tasks) would set the first timer anew, and the first to
leave would take it from the others. Such timers get names of their own.
"""

from __future__ import annotations

import math
import os
import sys
import time
from heapq import heappop, heappush

from lllaunch.timer.process_local import this_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from lllaunch.timer.api import TimerClient

    F = TypeVar("F", bound=Callable[..., Any])


TIMER_FILE = "TORCHELASTIC_TIMER_FILE"


class Scopes:
    """The names of the timers that this process has set."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def take(self, scope: str) -> str:
        """Returns the name itself if it is free, else the first free one of ``scope (2)``, ..."""
        with this_process.lock:
            held = self._held.get(scope)
            if held is None:
                self._held[scope] = _Held()
                return scope
            while True:
                if held.freed:
                    number = heappop(held.freed)
                else:
                    number = held.next
                    held.next += 1
                name = f"{scope} ({number})"
                # Somebody may have chosen just that name, or have it from an earlier holder.
                if name not in self._held:
                    self._held[name] = _Held()
                    return name

    def free(self, scope: str, name: str) -> None:
        """Gives back a name that was taken; one that is free is no error.

        ``scope``: what was asked for.
        """
        with this_process.lock:
            self._held.pop(name, None)
            first = self._held.get(scope)
            if first is not None and name != scope:
                heappush(first.freed, int(name[len(scope) + 2 : -1]))

    def clear(self) -> None:
        """All names are free; called in each fork, which holds no timers."""
        self._held.clear()


_scopes = Scopes()
os.register_at_fork(after_in_child=_scopes.clear)
# What `configure` was given last; below it, clients by the value of TIMER_FILE.
_configured: list[TimerClient] = []
_defaults: dict[str, TimerClient] = {}


def configure(timer_client: TimerClient | None) -> None:
    """Set the default client of `expires` and `deadline`.

    ``timer_client``: the client; None restores the default of a new process.
    """
    from lllaunch.timer.process_local import logger  # noqa: PLC0415 - once in a process

    _configured[:] = [] if timer_client is None else [timer_client]
    logger(__name__).info("Timer client configured to: %s", type(timer_client).__name__)


def _client() -> TimerClient:
    """The client of `configure`, else one for the FIFO that the launcher serves."""
    if _configured:
        return _configured[0]
    path = os.environ.get(TIMER_FILE)
    if not path:
        raise RuntimeError(
            "Configure timer client before using countdown timers. "
            f"(lllaunch.timer.configure, or {TIMER_FILE} in the environment)"
        )
    client = _defaults.get(path)
    if client is None:
        from lllaunch.timer.file_client import FileTimerClient  # noqa: PLC0415 - it imports api

        client = _defaults[path] = FileTimerClient(path)
    return client


def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> Countdown:
    """Set a timer while a block of code runs; if it expires, this worker is ended.

    For ``with`` and ``async with``, and as a decorator::

        with expires(after=60):
            torch.distributed.all_reduce(...)

        @expires(after=60)
        async def fetch(): ...

    A decorated coroutine or generator has its timer from the first step to the end, suspensions
    included.

    As in torch a scope has one timer. Entered again, by recursion, threads or tasks, it replaces
    that timer, and the first to leave releases it. `deadline` gives each entry its own timer.

    Setting a timer takes microseconds, or some seconds if the server does not read, before the
    error below. With ``watchdog.timers`` lllaunch takes the stacks of all workers on expiry and
    ends the group as hung.

    ``after``: seconds from entering the block; 0 or less expires at once. ``scope``: name of the
    timer, shown in reports; default: ``FILE#LINE`` of the caller or of the decorated function.
    ``client``: sends the request; default: that of `configure`, else a `FileTimerClient` for
    TORCHELASTIC_TIMER_FILE.

    Raises:
        ValueError: ``after`` is infinite or not a number.
        RuntimeError: on entering: there is no client.
        OSError: on entering or leaving: the server cannot be reached, see `FileTimerClient`.
    """
    return _countdown("expires", after, scope, client, own=False)


def deadline(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Countdown:
    """Set a timer like `expires`, with its own timer for each entry of a scope.

    Use it in recursive functions, threads and asyncio tasks. Further entries are named
    ``SCOPE (2)``, ``SCOPE (3)``, ...

    Raises:
        ValueError: ``after`` is infinite or not a number.
        RuntimeError: on entering: there is no client.
        OSError: on entering or leaving: the server cannot be reached.
    """
    return _countdown("deadline", after, scope, client, own=True)


def _countdown(
    name: str, after: float, scope: str | None, client: TimerClient | None, *, own: bool
) -> Countdown:
    if not math.isfinite(after):
        raise ValueError(f"{name}: after={after!r} is not a number of seconds")
    chosen = scope
    if chosen is None:
        frame = sys._getframe(2)
        chosen = f"{frame.f_code.co_filename}#{frame.f_lineno}"
    return Countdown(after, chosen, client, scope is not None, own)


class Countdown:
    """What `expires` and `deadline` return. Can be entered again, but not while it is entered.

    ``client``: sends the request, or None for the configured one.
    """

    __slots__ = ("_after", "_client", "_entered", "_name", "_named", "_own", "_pid", "_scope")

    def __init__(
        self, after: float, scope: str, client: TimerClient | None, named: bool, own: bool
    ) -> None:
        self._after = after
        self._scope = scope
        self._client = client
        self._named = named
        self._own = own
        self._name = ""
        self._entered: TimerClient | None = None
        self._pid = 0

    def __enter__(self) -> None:
        if self._entered is not None:
            raise RuntimeError("this timer is running; make one for each block")
        client = self._client if self._client is not None else _client()
        name = _scopes.take(self._scope) if self._own else self._scope
        try:
            # Before the epoch would mean to take it back; at the epoch, it expires at once.
            client.acquire(name, max(0.0, time.time() + self._after))
        except BaseException:
            if self._own:
                _scopes.free(self._scope, name)
            raise
        self._entered, self._name, self._pid = client, name, this_process.pid

    def __exit__(self, *exc_info: object) -> None:
        client, self._entered = self._entered, None
        # A fork that leaves the block it began in has no timer: it is its parent's.
        if client is None or self._pid != this_process.pid:
            return
        try:
            client.release(self._name)
        finally:
            if self._own:
                _scopes.free(self._scope, self._name)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()

    def __call__(self, function: F) -> F:
        """Decorates a function, so that each call has a timer of its own.

        Raises:
            TypeError: it is none.
        """
        from lllaunch.timer.decorate import decorate, place_of  # noqa: PLC0415 - imports inspect

        scope = self._scope if self._named else place_of(function) or self._scope
        after, client, named, own = self._after, self._client, self._named, self._own
        return decorate(function, lambda: Countdown(after, scope, client, named, own))


class _Held:
    """A name that is held."""

    __slots__ = ("freed", "next")

    def __init__(self) -> None:
        self.freed: list[int] = []  # numbers that were given out with it and have come back, a heap
        self.next = 2
