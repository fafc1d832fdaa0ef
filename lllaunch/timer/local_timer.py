"""Timers whose requests go through a queue of multiprocessing's."""

from __future__ import annotations

import math
import os
import select
import time

from lllaunch.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer
from lllaunch.timer.process_local import logger, this_process

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

_SIGKILL = 9  # the module `signal` imports enum
# poll counts milliseconds in an int, enough for 24 days; locks cannot wait for ever either.
_LONGEST_WAIT = 3600.0


class LocalTimerClient(TimerClient):
    """Puts requests into the queue of a `LocalTimerServer`, or of torch's, on this machine.

    ``mp_queue``: the queue; of multiprocessing's, or with its ``put``.
    """

    def __init__(self, mp_queue: Any) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Sets a timer for this process."""
        self._mp_queue.put(TimerRequest(this_process.pid, scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """Takes back a timer of this process."""
        self._mp_queue.put(TimerRequest(this_process.pid, scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """A queue of multiprocessing's.

    ``mp_queue``: the queue, or something else with its ``get`` and ``qsize``.
    """

    def __init__(self, mp_queue: Any) -> None:
        super().__init__()
        self._mp_queue = mp_queue
        # Private, but there for ten years, and the only way to be woken by something else.
        self._reader = getattr(mp_queue, "_reader", None)
        self._wake = -1
        if self._reader is not None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def size(self) -> int:
        """Returns how many requests wait."""
        size: int = self._mp_queue.qsize()
        return size

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Takes requests out of the queue; see `RequestQueue`. It waits for an hour at most."""
        from queue import Empty  # noqa: PLC0415 - imports threading; workers never get

        until = time.monotonic() + min(timeout, _LONGEST_WAIT)
        found: list[TimerRequest] = []
        while len(found) < size:
            left = max(0.0, until - time.monotonic())
            if self._reader is not None and not self._readable(left):
                break
            try:
                found.append(self._mp_queue.get(block=left > 0, timeout=left))
            except Empty:
                break
        return found

    def _readable(self, seconds: float) -> bool:
        """Wait for a request; False if none came in time, or `wake` was called."""
        poll = select.poll()
        assert self._reader is not None
        poll.register(self._reader, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(math.ceil(seconds * 1000))]
        return bool(ready) and self._wake not in ready

    def wake(self) -> None:
        """Ends the wait of `get`, now and from now on; a queue without a descriptor cannot."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Closes what this opened, not the queue; idempotent."""
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1


class LocalTimerServer(TimerServer):
    """Serves the timers of `LocalTimerClient`, ours or torch's, on this machine.

    A process whose timer expires is sent SIGKILL. Timers of processes that have ended are
    forgotten, and a process that was given the number of such a one is never signalled.

    ``max_interval``: the longest wait of the thread, seconds; a bound only.
    """

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        from lllaunch.timer.service import TimedProcesses  # noqa: PLC0415 - workers start no server

        self._queue = MultiprocessingRequestQueue(mp_queue)
        super().__init__(self._queue, max_interval, daemon)
        self._timers: dict[tuple[int, str], TimerRequest] = {}
        self._processes = TimedProcesses(lambda pid: pid)

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Takes note of requests, in order. Those of processes that do not live are ignored."""
        self._forget_ended()
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
                continue
            process = self._processes.admit(request.worker_id)
            if isinstance(process, str):
                logger(__name__).error("a request for a timer was rejected: %s", process)
            elif process is not None:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forgets all timers of these processes."""
        for key in [key for key in self._timers if key[0] in worker_ids]:
            del self._timers[key]

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Returns the timers that end at ``deadline`` or earlier, by process id."""
        self._forget_ended()
        found: dict[Any, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                found.setdefault(request.worker_id, []).append(request)
        return found

    def _forget_ended(self) -> None:
        self.clear_timers(set(self._processes.ended()))

    def _reap_worker(self, worker_id: int) -> bool:
        try:
            there = self._processes.signal(worker_id, _SIGKILL)
        except OSError:
            logger(__name__).exception("Error terminating pid=%s", worker_id)
            return False
        if not there:
            logger(__name__).info("Process with pid=%s does not exist. Skipping", worker_id)
        return True

    def stop(self) -> None:
        """Ends the thread and closes what this opened, not the queue; idempotent."""
        thread = self._watchdog_thread
        super().stop()
        if thread is None or not thread.is_alive():
            self._queue.close()
            self._processes.close()
