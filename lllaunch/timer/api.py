"""What clients and servers of timers have in common: requests, the two sides, the queue between.

The names and signatures are those of ``torch.distributed.elastic.timer.api``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from lllaunch.timer.countdown import configure, deadline, expires
from lllaunch.timer.server import TimerServer

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "deadline",
    "expires",
]


class TimerRequest:
    """A worker's wish to set a timer or to take one back.

    ``expiration_time``: when it ends, seconds since the epoch (``time.time()``); negative takes the
    timer back.
    """

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimerRequest):
            return False
        return (self.worker_id, self.scope_id, self.expiration_time) == (
            other.worker_id,
            other.scope_id,
            other.expiration_time,
        )

    # It can be changed, so it is no key.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = f"{self.worker_id!r}, {self.scope_id!r}, {self.expiration_time!r}"
        return f"{type(self).__name__}({fields})"


class TimerClient(ABC):
    """The worker's side: sets and releases timers."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer, replacing one of the same name.

        ``expiration_time``: when it expires, seconds since the epoch.
        """

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Release a timer; a missing one is no error."""


class RequestQueue(ABC):
    """Where a `TimerServer` gets its requests from."""

    @abstractmethod
    def size(self) -> int:
        """Returns how many requests wait; by the time of a `get` there may be more, not fewer."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Takes requests out of the queue.

        ``size``: how many, at most. ``timeout``: seconds to wait for them, at most; what waits
        already comes without.
        """
