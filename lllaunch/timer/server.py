"""What every timer server does, whatever its timers are kept in and its workers ended by."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from lllaunch.timer.process_local import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from typing import Any

    from lllaunch.timer.api import RequestQueue, TimerRequest


# So many requests are handled before timers are looked at again.
_BATCH = 10_000
# Seconds until a worker that could not be ended, or a queue that failed, is tried again.
_RETRY = 1.0
# Queues and threads cannot wait for ever; a longer wait is several of these.
_LONGEST_WAIT = 3600.0
_LARGEST = 1.7976931348623157e308


class ServerThread(ABC):
    """A thread that serves timers; ``max_interval`` is its longest wait, seconds."""

    def __init__(self, max_interval: float, daemon: bool) -> None:
        super().__init__()
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve, in a thread of its own; one that serves already goes on."""
        import threading  # noqa: PLC0415 - workers import this module and start no server

        if self._watchdog_thread is not None:
            return
        logger(__name__).info(
            "Starting %s... max_interval=%s, daemon=%s",
            type(self).__name__,
            self._max_interval,
            self._daemon,
        )
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name="lllaunch-timers", daemon=self._daemon
        )
        self._watchdog_thread.start()

    @abstractmethod
    def _watchdog_loop(self) -> None:
        """Serve until `stop`."""


class TimerServer(ServerThread):
    """Waits for requests and ends workers whose timers have expired.

    It is woken when a request comes and when the next timer expires, and compares nothing with the
    wall clock: requests are understood when they arrive, and setting the clock later changes no
    timer.

    ``max_interval``: the longest wait, seconds.
    """

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        import threading  # noqa: PLC0415 - workers import this module and start no server

        from lllaunch.timer.service import TimerRegistry  # noqa: PLC0415 - the same

        super().__init__(max_interval, daemon)
        self._request_queue = request_queue
        self._stopped = threading.Event()
        self._steady = SteadyTime()
        # Only tells when to look; which timers are over is up to the subclass.
        self._due: TimerRegistry[TimerRequest] = TimerRegistry()
        self._retry = False

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Takes note of requests, in order.

        ``timer_requests``: each sets a timer, or takes it back if its ``expiration_time`` is
        negative. Moments are those of a wall clock that nobody sets.
        """

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forgets all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Returns the timers that end at ``deadline`` or earlier, by worker.

        ``deadline``: seconds since the epoch, by a wall clock that nobody sets.
        """

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Ends a worker.

        Returns False if it could not be ended; it is tried again later. An exception counts as
        True.
        """

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:  # noqa: BLE001 - a subclass may raise anything; torch catches it too
            logger(__name__).exception("worker %s could not be ended, and is given up", worker_id)
            return True

    def stop(self) -> None:
        """Ends the thread; waits for it for ``max_interval`` at most. Idempotent."""
        logger(__name__).info("Stopping %s", type(self).__name__)
        self._stopped.set()
        if self._watchdog_thread is not None:
            # Not every queue can be woken; then the thread ends by itself after its wait.
            wake = getattr(self._request_queue, "wake", None)
            if wake is not None:
                wake()
            self._watchdog_thread.join(min(self._max_interval, _LONGEST_WAIT))
            self._watchdog_thread = None

    def _watchdog_loop(self) -> None:
        while not self._stopped.is_set():
            try:
                self._run_watchdog()
            except Exception:  # noqa: BLE001 - other workers' timers are still to be served
                logger(__name__).exception("the timers could not be looked at")
                # A queue that is closed fails at once, for ever.
                self._stopped.wait(_RETRY)

    def _run_watchdog(self) -> None:
        waiting = min(max(1, self._request_queue.size()), _BATCH)
        self.register_timers(self._noted(self._request_queue.get(waiting, self._wait())))
        now = self._steady.now()
        self._due.take_expired(now)
        self._retry = False
        ended = set()
        for worker_id, expired in self.get_expired_timers(now).items():
            scopes = [request.scope_id for request in expired]
            logger(__name__).info("Reaping worker_id=[%s]. Expired timers: %s", worker_id, scopes)
            if self._reap_worker_no_throw(worker_id):
                ended.add(worker_id)
            else:
                self._retry = True
                logger(__name__).error("worker %s could not be ended; trying again", worker_id)
        self.clear_timers(ended)

    def _wait(self) -> float:
        """Seconds to wait for requests."""
        waits = [self._max_interval, _LONGEST_WAIT]
        due = self._due.next_deadline()
        if due is not None:
            waits.append(due - self._steady.now())
        if self._retry:
            waits.append(_RETRY)
        return max(0.0, min(waits))

    def _noted(self, requests: Iterable[TimerRequest]) -> list[TimerRequest]:
        """Understand the moments of requests as those of the steady clock, and note when to look.

        What is no request is dropped: a worker can put anything into its queue.
        """
        correction = self._steady.correction()
        now = self._steady.now()
        found = []
        for request in requests:
            if not _is_request(request):
                logger(__name__).error("no request for a timer: %.200r", request)
                continue
            found.append(request)
            if request.expiration_time < 0:
                self._due.release(request.worker_id, request.scope_id)
                continue
            # Never negative, which would take it back.
            until = request.expiration_time = max(0.0, request.expiration_time + correction)
            self._due.acquire(request.worker_id, request.scope_id, until, now, request)
        return found


def _is_request(request: object) -> bool:
    """Whether it is a request that a server can work with; torch's class is as good as ours."""
    try:
        hash((request.worker_id, request.scope_id))  # type: ignore[attr-defined]
        expiration = request.expiration_time  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return False
    number = isinstance(expiration, (int, float)) and not isinstance(expiration, bool)
    # neither NaN nor infinite, nor an int that no float can hold
    return number and abs(expiration) <= _LARGEST


# Clocks that are adjusted slowly drift apart by less than this in the life of most timers.
_TOLERANCE = 0.001


class SteadyTime:
    """Goes on from what the wall clock showed when this was made, as the monotonic clock goes.

    ``clock``: the monotonic clock, seconds. ``wall_clock``: the wall clock, seconds since the
    epoch; somebody may set it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._offset = wall_clock() - clock()

    def now(self) -> float:
        """Returns what the wall clock would show had nobody set it, seconds since the epoch."""
        return self._clock() + self._offset

    def correction(self) -> float:
        """Returns seconds to add to a moment of the wall clock for the same moment here.

        0 as long as the two agree.
        """
        difference = self.now() - self._wall_clock()
        return difference if abs(difference) >= _TOLERANCE else 0.0
