"""The servers of timers, by torch's names: each ends workers whose timers have expired.

A launch with ``watchdog.timers`` needs none of them: `lllaunch.timer.service` serves its workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Empty
from typing import Any

from lllaunch.linux.process import wait
from lllaunch.timer import client
from lllaunch.timer.client import *  # noqa: F403 - torch's module has them, too
from lllaunch.timer.client import FileTimerRequest, TimerRequest
from lllaunch.timer.service import TimerService, request_of

__all__ = [
    "FileTimerServer",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerServer",
]
__all__ += client.__all__

logger = logging.getLogger(__name__)

# So many requests are handled before timers are looked at again.
_BATCH = 10_000
# Seconds until a look that failed is tried again: a queue that is closed fails at once, for ever.
_RETRY = 1.0
# Queues and threads cannot wait for ever; a longer wait is several of these.
_LONGEST_WAIT = 3600.0


class RequestQueue(ABC):
    """Where a `TimerServer` gets its requests from."""

    @abstractmethod
    def size(self) -> int:
        """Return how many requests wait; by the time of a `get` there may be more, not fewer."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Take ``size`` requests at most, and wait for them ``timeout`` seconds at most."""


class MultiprocessingRequestQueue(RequestQueue):
    """A queue of multiprocessing's, or something else with its ``get`` and ``qsize``."""

    def __init__(self, mp_queue: Any) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def size(self) -> int:
        """Return how many requests wait."""
        size: int = self._mp_queue.qsize()
        return size

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Take requests out of the queue, as `RequestQueue` says."""
        until = time.monotonic() + timeout
        found: list[TimerRequest] = []
        with contextlib.suppress(Empty):
            while len(found) < size:
                left = max(0.0, until - time.monotonic())
                found.append(self._mp_queue.get(block=left > 0, timeout=left))
        return found


class TimerServer(ABC):
    """Waits for requests and ends workers whose timers have expired.

    It looks when requests come, and after ``max_interval`` seconds at the latest. A request sets a
    timer, or takes it back if its ``expiration_time`` is negative.
    """

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        self._request_queue = request_queue
        self._max_interval = min(max_interval, _LONGEST_WAIT)
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Take note of requests, in order."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that end at ``deadline``, seconds since the epoch, or earlier."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """End a worker; False if that has to be tried again. An exception counts as True."""

    def start(self) -> None:
        """Begin to serve, in a thread of its own; one that serves already goes on.

        Raises:
            RuntimeError: it has been stopped.
        """
        if self._stop_signaled:
            raise RuntimeError("a timer server that was stopped cannot be started again")
        if self._watchdog_thread is None:
            name = type(self).__name__
            logger.info("Starting %s... max_interval=%s", name, self._max_interval)
            self._watchdog_thread = threading.Thread(
                target=self._watchdog_loop, name="lllaunch-timers", daemon=self._daemon
            )
            self._watchdog_thread.start()

    def stop(self) -> None:
        """End the thread, waiting ``max_interval`` at most; close what it needs. Idempotent."""
        logger.info("Stopping %s", type(self).__name__)
        if self._end_thread():
            self._close()

    def _end_thread(self) -> bool:
        """End the thread; whether it has ended."""
        self._stop_signaled = True
        self._rouse()
        thread, self._watchdog_thread = self._watchdog_thread, None
        if thread is None:
            return True
        thread.join(max(self._max_interval, _RETRY))
        return not thread.is_alive()

    def _close(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _rouse(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("the timers could not be looked at")
                wait((self._wake,), seconds=_RETRY)

    def _run_watchdog(self) -> None:
        waiting = min(max(1, self._request_queue.size()), _BATCH)
        self.register_timers(self._request_queue.get(waiting, self._timeout()))
        ended = set()
        for worker_id, expired in self.get_expired_timers(time.time()).items():
            scopes = [request.scope_id for request in expired]
            logger.info("Reaping worker_id=[%s]. Expired timers: %s", worker_id, scopes)
            try:
                if not self._reap_worker(worker_id):
                    logger.error("worker %s could not be ended; trying again", worker_id)
                    continue
            except Exception:
                logger.exception("worker %s could not be ended, and is given up", worker_id)
            ended.add(worker_id)
        self.clear_timers(ended)

    def _timeout(self) -> float:
        """Seconds that the queue may wait for requests."""
        return self._max_interval


class _ServiceServer(TimerServer):
    """Keeps its timers in a `TimerService`, which knows no threads."""

    def __init__(
        self, request_queue: Any, max_interval: float, daemon: bool, service: TimerService
    ) -> None:
        super().__init__(request_queue, max_interval, daemon)
        self._service = service
        self._lock = threading.RLock()

    def _dispatch(self) -> None:
        with self._lock:
            rejected = self._service.dispatch()
        for _, reason, text in rejected:
            logger.error("a request for a timer was rejected: %s: %s", reason, text)

    def _next_in(self) -> float:
        """Seconds until there is something to do, though nobody asks for it."""
        with self._lock:
            next_in = self._service.next_in()
        return self._max_interval if next_in is None else min(self._max_interval, next_in)

    def _signal(self, pid: int, signum: int) -> None:
        with self._lock:
            there = self._service.signal(pid, signum)
        if not there:
            logger.info("Process with pid=%s does not exist. Skipping", pid)

    def _close(self) -> None:
        super()._close()
        self._service.close()


class LocalTimerServer(_ServiceServer):
    """Serves the timers of `LocalTimerClient`, ours or torch's, on this machine.

    A process whose timer expires is sent SIGKILL, at that moment. Timers of processes that have
    ended are forgotten, and a process that was given the number of such a one is never signalled.
    """

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        service = TimerService(None, owner_of=lambda pid: pid)
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon, service)
        # Private, but there for ten years, and the only way to be woken by something else, too.
        self._reader = getattr(mp_queue, "_reader", None)

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Take note of requests, in order. Those of processes that do not live are ignored."""
        requests = []
        for request in timer_requests:
            try:  # torch's class is as good as ours
                pid, until = request.worker_id, request.expiration_time
                requests.append(request_of(pid, request.scope_id, until, signal.SIGKILL))
            except (AttributeError, ValueError) as error:
                # A worker can put anything into its queue.
                logger.error("no request for a timer: %.200r (%s)", request, error)  # noqa: TRY400
        self._dispatch()
        self._service.register(requests)

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these processes."""
        self._service.forget(worker_ids)

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that end at ``deadline`` or earlier, by process id."""
        self._dispatch()
        return {pid: [*requests] for pid, requests in self._service.running(deadline).items()}

    def _reap_worker(self, worker_id: int) -> bool:
        self._signal(worker_id, signal.SIGKILL)
        return True

    def _timeout(self) -> float:
        if self._reader is None:
            return self._next_in()
        wait((self._reader, self._service, self._wake), seconds=self._next_in())
        return 0.0


class FileTimerServer(_ServiceServer):
    """Serve the timers of `FileTimerClient`, ours or torch's, on this machine.

    The kernel wakes its thread for requests, ended processes and expired timers. Timers of ended
    processes are dropped, and invalid requests logged.

    Unlike torch's, it does not send the signal to its own process, and accepts no timers of its own
    process.

    ``max_interval``: the longest wait of the thread, seconds. ``log_event``: called in the thread
    with an event and its request: ``watchdog started``, ``watchdog stopped`` (None), ``timer
    expired``, ``kill worker process``.

    Raises:
        OSError: the FIFO cannot be made; names the path.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._run_id = run_id
        self._log_event = log_event if log_event is not None else lambda _name, _request: None
        self._progress = 0.0  # when the thread last went round
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        itself = os.getpid()
        service = TimerService(file_path, owner_of=lambda pid: None if pid == itself else pid)
        super().__init__(None, max_interval, daemon, service)

    def start(self) -> None:
        """Begin to serve, in a thread of its own, as `TimerServer.start` says."""
        begins = self._watchdog_thread is None
        super().start()
        if begins:
            self._log_event("watchdog started", None)

    def stop(self) -> None:
        """End the thread and remove the FIFO; idempotent."""
        super().stop()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Handle what has been requested, and stop: for tests."""
        self._end_thread()
        # Who writes without a pause keeps no server from its end.
        began = time.monotonic()
        while self._service.read_until < began:
            self._look()
        self._close()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Return whether there is such a process that this one may signal."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:  # type: ignore[override]
        """Set timers and take them back; those of processes that do not live are ignored."""
        with self._lock:
            self._service.register(timer_requests)
        self._rouse()

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget all timers of these processes."""
        with self._lock:
            self._service.forget(worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:  # type: ignore[override]
        """Return the timers that expire at ``deadline`` or earlier, by process id.

        ``deadline``: seconds since the epoch, by the wall clock as it is now.
        """
        with self._lock:
            return self._service.running(deadline)

    def get_last_progress_time(self) -> int:
        """Return when the thread last went round, seconds since the epoch; at first: now."""
        return int(self._progress if self._service.received else time.time())

    def _run_watchdog(self) -> None:
        self._look()
        self._progress = time.time()
        if self._wake in wait((self._service, self._wake), seconds=self._next_in()):
            os.eventfd_read(self._wake)

    def _look(self) -> None:
        self._dispatch()
        with self._lock:
            found = self._service.expired()
        if found:
            timers = {each.pid: [request.to_json() for request in each.requests] for each in found}
            logger.info("Timers expired for run:[%s] [%s].", self._run_id, timers)
        for each in found:
            pid, killing = each.pid, None
            for request in each.requests:
                self._log_event("timer expired", request)
                if request.signal > 0:
                    killing = request
                    break
            if killing is None:
                logger.info("No signal specified with worker=[%s]. Do not reap it.", pid)
            elif self._reap_worker(pid, killing.signal):
                logger.info("Successfully reaped worker=[%s] with signal=%s", pid, killing.signal)
                self._log_event("kill worker process", killing)
            else:
                logger.error("Error reaping worker=[%s].", pid)

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:  # type: ignore[override]
        """End a process; False if it could not be signalled."""
        try:
            self._signal(worker_pid, signal)
        except OSError:
            logger.exception("Error terminating pid=%s", worker_pid)
            return False
        return True
