"""The worker's side: requests, the clients that send them, `expires` and `deadline`.

One request through the FIFO is one ``os.write`` of at most PIPE_BUF bytes, which the kernel never
mixes with others'. The FIFO is opened and closed for each, as torch's client does: torch's server
waits in ``readline`` for as long as any writer is there.

A server knows a timer by its process and its name, so a name that is taken again while it is held
(by recursion, by threads, by asyncio's tasks) would set the first timer anew, and the first to
leave would take it from the others. `deadline` gives such timers names of their own.

Every worker imports this: it imports nothing that Python has not loaded itself.
"""

from __future__ import annotations

import errno
import math
import os
import select
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections import namedtuple
from contextlib import suppress
from functools import lru_cache, wraps

from lllaunch import torchs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "TimerClient",
    "configure",
    "deadline",
    "expires",
]

__getattr__ = torchs(__name__, "RequestQueue", "TimerRequest", "TimerServer")

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"

_SIGKILL = 9  # the module `signal` imports enum
_TRIES = 10
_PAUSE = 0.1
# Seconds without any room in a full FIFO: its server reads nothing.
_STUCK = 1.0


# Names of the timers that `deadline` has set and who holds them, by process: a fork holds none.
_held: dict[tuple[int, str], Countdown] = {}


def _take(scope: str, holder: Countdown) -> str:
    """Return the name itself if it is free, else the first free one of ``scope (2)``, ..."""
    name, number = scope, 1
    # one step for threads and signal handlers, which may use timers too
    while _held.setdefault((os.getpid(), name), holder) is not holder:
        number += 1
        name = f"{scope} ({number})"
    return name


class TimerClient(ABC):
    """The worker's side: sets and releases timers."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer that ends at a time since the epoch, replacing one of the same name."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Release a timer; a missing one is no error."""


class FileTimerRequest(
    namedtuple(  # noqa: PYI024 - the other one takes as long to import as all that is here
        "_Fields", ("worker_pid", "scope_id", "expiration_time", "signal"), defaults=(0,)
    )
):
    """A worker's wish to set a timer, or with a negative ``expiration_time`` to take one back."""

    __slots__ = ()
    version = 1

    def to_json(self) -> str:
        """Returns the request as it is written into the FIFO, without the newline."""
        # Several times as fast as a dict that json writes; a worker waits for it.
        return (
            f'{{"version": {self.version}, "pid": {self.worker_pid}, '
            f'"scope_id": {_quoted(self.scope_id)}, '
            f'"expiration_time": {self.expiration_time!r}, "signal": {int(self.signal)}}}'
        )


@lru_cache(1024)
def _quoted(text: str) -> str:
    """A JSON string; what is no text, as in a path, cannot be written as JSON."""
    import json  # noqa: PLC0415 - 5 ms that a worker's client pays when it needs them

    return json.dumps(text.encode(errors="backslashreplace").decode())


class FileTimerClient(TimerClient):
    """Send requests to whoever serves a FIFO on this machine: a launcher, or torch's server.

    It works in several threads, and in forks of the process that made it.

    ``signal``: signal that the server sends this process on expiry; 0 or less: none.

    Raises:
        BrokenPipeError: from `acquire` and `release`: no server reads the FIFO for a second.
        BlockingIOError: the FIFO is full and its server read nothing for a second.
        RuntimeError: the request is larger than PIPE_BUF bytes; nothing was sent.
        ValueError: the expiration is infinite or not a number.
    """

    def __init__(self, file_path: str, signal: int = _SIGKILL) -> None:
        super().__init__()
        self._file_path = file_path
        self.signal = signal  # what the server shall send

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer; the request has been written when this returns."""
        if not math.isfinite(expiration_time):
            raise ValueError(f"timer {scope_id!r}: expiration_time is {expiration_time!r}")
        until = float(expiration_time)
        self._send(FileTimerRequest(os.getpid(), scope_id, until, self.signal))

    def release(self, scope_id: str) -> None:
        """Take a timer back."""
        self._send(FileTimerRequest(os.getpid(), scope_id, -1))

    def _send(self, request: FileTimerRequest) -> None:
        data = f"{request.to_json()}\n".encode()
        if len(data) > select.PIPE_BUF:
            raise RuntimeError(
                f"FileTimerRequest larger than {select.PIPE_BUF} bytes is not supported: "
                f"{len(data)} bytes, {data[:200].decode()}..."
            )
        for left in range(_TRIES - 1, -1, -1):
            try:
                self._write(data)
            except BlockingIOError:
                raise
            except OSError as error:
                # The server has gone; there may be another by now.
                if not left:
                    why = error.strerror or error
                    message = f"no timer server reads this FIFO, the request was not sent ({why})"
                    raise BrokenPipeError(errno.EPIPE, message, self._file_path) from error
                time.sleep(_PAUSE)
            else:
                return

    def _write(self, data: bytes) -> None:
        """Write a request; whole or, raising an OSError, not at all."""
        fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is no FIFO")
            while True:
                with suppress(BlockingIOError):
                    os.write(fd, data)
                    return
                # Others wait for room, too, and may be faster.
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                if not poll.poll(_STUCK * 1000):
                    raise BlockingIOError(
                        errno.EAGAIN,
                        f"the timer server's FIFO was full for {_STUCK:g} s, "
                        "the request was not sent",
                        self._file_path,
                    )
        finally:
            os.close(fd)


# What `configure` was given last.
_configured: list[TimerClient] = []


def configure(timer_client: TimerClient | None) -> None:
    """Set the default client of `expires` and `deadline`; None restores that of a new process."""
    import logging  # noqa: PLC0415 - once in a process; 10 ms that others need not pay

    _configured[:] = [] if timer_client is None else [timer_client]
    name = type(timer_client).__name__
    logging.getLogger(__name__).info("Timer client configured to: %s", name)


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
    return FileTimerClient(path)


def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> Countdown:
    """Set a timer while a block of code runs; if it expires, this worker is ended.

    For ``with`` and ``async with``, and as a decorator::

        with expires(after=60):
            torch.distributed.all_reduce(...)

        @expires(after=60)
        async def fetch(): ...

    As in torch a scope has one timer. Entered again, by recursion, threads or tasks, it replaces
    that timer, and the first to leave releases it. `deadline` gives each entry its own timer.
    With ``watchdog.timers`` lllaunch takes the stacks of all workers on expiry and ends the group
    as hung.

    ``after``: seconds from entering the block; 0 or less expires at once. ``scope``: name of the
    timer, shown in reports; default: ``FILE#LINE`` of the caller or of the decorated function.
    ``client``: sends the request; default: that of `configure`, else a `FileTimerClient` for
    TORCHELASTIC_TIMER_FILE.

    Raises:
        ValueError: ``after`` is infinite or not a number.
        RuntimeError: on entering: there is no client.
        OSError: on entering or leaving: the server cannot be reached, see `FileTimerClient`.
    """
    return Countdown(after, scope, client, own=False)


def deadline(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Countdown:
    """Set a timer like `expires`, with its own timer for each entry of a scope.

    Use it in recursive functions, threads and asyncio tasks. Further entries are named
    ``SCOPE (2)``, ``SCOPE (3)``, ...
    """
    return Countdown(after, scope, client, own=True)


class Countdown:
    """What `expires` and `deadline` return. Can be entered again, but not while it is entered."""

    __slots__ = ("_after", "_client", "_entered", "_name", "_named", "_own", "_pid", "_scope")

    def __init__(
        self, after: float, scope: str | None, client: TimerClient | None, *, own: bool
    ) -> None:
        if not math.isfinite(after):
            name = "deadline" if own else "expires"
            raise ValueError(f"{name}: after={after!r} is not a number of seconds")
        self._named = scope is not None
        if scope is None:
            frame = sys._getframe(2)
            scope = f"{frame.f_code.co_filename}#{frame.f_lineno}"
        self._after, self._scope, self._client, self._own = after, scope, client, own
        self._name = ""
        self._entered: TimerClient | None = None
        self._pid = 0

    def __enter__(self) -> None:
        if self._entered is not None:
            raise RuntimeError("this timer is running; make one for each block")
        client = self._client if self._client is not None else _client()
        name = self._scope
        if self._own:
            name = _take(name, self)
        try:
            # Before the epoch would mean to take it back; at the epoch, it expires at once.
            client.acquire(name, max(0.0, time.time() + self._after))
        except BaseException:
            if self._own:
                del _held[os.getpid(), name]
            raise
        self._entered, self._name, self._pid = client, name, os.getpid()

    def __exit__(self, *exc_info: object) -> None:
        client, self._entered = self._entered, None
        # A fork that leaves the block it began in has no timer: it is its parent's.
        if client is None or self._pid != os.getpid():
            return
        try:
            client.release(self._name)
        finally:
            if self._own:
                del _held[self._pid, self._name]

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()

    def __call__(self, function: F) -> F:
        """Decorate a function or a coroutine function: each call has a timer of its own.

        Raises:
            TypeError: it is neither. In a generator use a ``with`` block.
        """
        import inspect  # noqa: PLC0415 - few workers decorate

        steps = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if isinstance(function, type) or not callable(function) or steps:
            raise TypeError(f"a timer decorates functions, not {function!r}")
        scope = self._scope
        code = getattr(inspect.unwrap(function), "__code__", None)
        if not self._named and code is not None:
            scope = f"{code.co_filename}#{code.co_firstlineno}"

        def countdown() -> Countdown:
            return Countdown(self._after, scope, self._client, own=self._own)

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with countdown():
                return function(*args, **kwargs)

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with countdown():
                return await function(*args, **kwargs)

        return awaited if inspect.iscoroutinefunction(function) else wrapper  # type: ignore[return-value]
