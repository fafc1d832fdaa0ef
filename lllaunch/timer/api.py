"""The servers of timers, by torch's names: each ends workers whose timers have expired.

A launch with ``watchdog.timers`` needs none of them: `lllaunch.timer.service` serves its workers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Empty
from typing import Any

from lllaunch.linux.process import wait
from lllaunch.timer.client import (
    FileTimerClient,
    FileTimerRequest,
    LocalTimerClient,
    TimerClient,
    TimerRequest,
    configure,
    deadline,
    expires,
)
from lllaunch.timer.service import TimedProcesses, TimerService

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "deadline",
    "expires",
]

logger = logging.getLogger(__name__)

# So many requests are handled before timers are looked at again.
_BATCH = 10_000
# Seconds until what failed is tried again: a worker that could not be ended, a queue, a look.
_RETRY = 1.0
# Queues and threads cannot wait for ever; a longer wait is several of these.
_LONGEST_WAIT = 3600.0
# What `log_event` does is not known; nobody waits for it longer than this.
_JOIN_SECONDS = 10.0
# Clocks that are adjusted slowly drift apart by less than this in the life of most timers.
_TOLERANCE = 0.001


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


class ServerThread(ABC):
    """A thread that serves timers; ``max_interval`` is its longest wait, seconds."""

    def __init__(self, max_interval: float, daemon: bool) -> None:
        super().__init__()
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to serve, in a thread of its own; one that serves already goes on."""
        if self._watchdog_thread is not None:
            return
        logger.info(
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

    def _reaped(self, worker_id: Any, send: Callable[[], bool]) -> bool:
        """Whether a worker could be signalled, or is gone."""
        try:
            there = send()
        except OSError:
            logger.exception("Error terminating pid=%s", worker_id)
            return False
        if not there:
            logger.info("Process with pid=%s does not exist. Skipping", worker_id)
        return True


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
        super().__init__(max_interval, daemon)
        self._request_queue = request_queue
        self._stopped = threading.Event()
        self._steady = SteadyTime()
        # Only tells when to look; which timers are over is up to the subclass.
        self._due: dict[tuple[Any, str], float] = {}
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
        except Exception:
            logger.exception("worker %s could not be ended, and is given up", worker_id)
            return True

    def stop(self) -> None:
        """Ends the thread; waits for it for ``max_interval`` at most. Idempotent."""
        logger.info("Stopping %s", type(self).__name__)
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
            except Exception:
                logger.exception("the timers could not be looked at")
                # A queue that is closed fails at once, for ever.
                self._stopped.wait(_RETRY)

    def _run_watchdog(self) -> None:
        waiting = min(max(1, self._request_queue.size()), _BATCH)
        waits = [self._max_interval, _LONGEST_WAIT, _RETRY if self._retry else _LONGEST_WAIT]
        if self._due:
            waits.append(min(self._due.values()) - self._steady.now())
        self.register_timers(self._noted(self._request_queue.get(waiting, max(0.0, min(waits)))))
        now = self._steady.now()
        self._due = {key: at for key, at in self._due.items() if at > now}
        self._retry = False
        ended = set()
        for worker_id, expired in self.get_expired_timers(now).items():
            scopes = [request.scope_id for request in expired]
            logger.info("Reaping worker_id=[%s]. Expired timers: %s", worker_id, scopes)
            if self._reap_worker_no_throw(worker_id):
                ended.add(worker_id)
            else:
                self._retry = True
                logger.error("worker %s could not be ended; trying again", worker_id)
        self.clear_timers(ended)

    def _noted(self, requests: list[TimerRequest]) -> list[TimerRequest]:
        """Understand the moments of requests as those of the steady clock, and note when to look.

        What is no request is dropped: a worker can put anything into its queue.
        """
        correction = self._steady.correction()
        found = []
        for request in requests:
            try:  # torch's class is as good as ours
                key = request.worker_id, request.scope_id
                hash(key)
                until = request.expiration_time
                number = isinstance(until, (int, float)) and not isinstance(until, bool)
                wrong = not number or not math.isfinite(until)
            except (AttributeError, TypeError, OverflowError):
                wrong = True
            if wrong:
                logger.error("no request for a timer: %.200r", request)
                continue
            found.append(request)
            if until < 0:
                self._due.pop(key, None)
            else:
                # Never negative, which would take it back.
                self._due[key] = request.expiration_time = max(0.0, until + correction)
        return found


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
        until = time.monotonic() + min(timeout, _LONGEST_WAIT)
        found: list[TimerRequest] = []
        while len(found) < size:
            left = max(0.0, until - time.monotonic())
            if self._reader is not None:
                ready = wait((self._reader, self._wake), seconds=left)
                if not ready or self._wake in ready:
                    break
            try:
                found.append(self._mp_queue.get(block=left > 0, timeout=left))
            except Empty:
                break
        return found

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
                logger.error("a request for a timer was rejected: %s", process)
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
        return self._reaped(worker_id, lambda: self._processes.signal(worker_id, signal.SIGKILL))

    def stop(self) -> None:
        """Ends the thread and closes what this opened, not the queue; idempotent."""
        thread = self._watchdog_thread
        super().stop()
        if thread is None or not thread.is_alive():
            self._queue.close()
            self._processes.close()


class FileTimerServer(ServerThread):
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
        super().__init__(max_interval, daemon)
        self._run_id = run_id
        self._log_event = log_event if log_event is not None else lambda _name, _request: None
        # Guards the service, which knows no threads.
        self._lock = threading.RLock()
        self._stopping = False
        self._progress = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        itself = os.getpid()
        self._service = TimerService(file_path, owner_of=lambda pid: None if pid == itself else pid)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        """Begin to serve, in a thread of its own; one that serves already goes on.

        Raises:
            RuntimeError: it has been stopped.
        """
        if self._wake < 0:
            raise RuntimeError("a timer server that was stopped cannot be started again")
        if self._watchdog_thread is None:
            super().start()
            self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Ends the thread and removes the FIFO; idempotent."""
        logger.info("Stopping %s", type(self).__name__)
        self._end_thread()
        self._close()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Handles what has been requested, and stops: for tests."""
        self._end_thread()
        # Who writes without a pause keeps no server from its end.
        began = time.monotonic()
        while self._service.read_until < began:
            self._run_watchdog()
        self._close()

    def _end_thread(self) -> None:
        self._stopping = True
        thread, self._watchdog_thread = self._watchdog_thread, None
        if thread is not None:
            self._rouse()
            thread.join(min(max(self._max_interval, _JOIN_SECONDS), _LONGEST_WAIT))

    def _close(self) -> None:
        with self._lock:
            self._service.close()
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _rouse(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Returns whether there is such a process that this one may signal."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Sets timers and takes them back.

        ``timer_requests``: each sets a timer, or takes it back if its ``expiration_time`` is
        negative. Those of processes that do not live are ignored.
        """
        with self._lock:
            self._service.register(timer_requests)
            self._rouse()

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forgets all timers of these processes."""
        with self._lock:
            self._service.forget(worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Returns the timers that expire at ``deadline`` or earlier, by process id.

        ``deadline``: seconds since the epoch, by the wall clock as it is now.
        """
        with self._lock:
            return self._service.running(deadline)

    def get_last_progress_time(self) -> int:
        """Returns when the thread last went round; seconds since the epoch.

        It does so once in ``max_interval`` at least. Before the first request: now.
        """
        if not self._service.received:
            return int(time.time())
        return int(time.time() - (time.monotonic() - self._progress))

    def _watchdog_loop(self) -> None:
        while not self._stopping:
            try:
                self._run_watchdog()
                with self._lock:
                    next_in = self._service.next_in()
                seconds = min(self._max_interval, _LONGEST_WAIT if next_in is None else next_in)
            except Exception:
                logger.exception("the timers could not be looked at")
                time.sleep(_RETRY)
                seconds = 0.0
            self._progress = time.monotonic()
            wait((self._service, self._wake), seconds=seconds)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _run_watchdog(self) -> None:
        with self._lock:
            rejected = self._service.dispatch()
            found = self._service.expired()
        for _, reason, text in rejected:
            logger.error("a request for a timer was rejected: %s: %s", reason, text)
        if found:
            timers = {each.pid: [request.to_json() for request in each.requests] for each in found}
            logger.info("Timers expired for run:[%s] [%s].", self._run_id, timers)
        for each in found:
            pid, killing = each.pid, None
            logger.info(
                "Reaping worker_pid=[%s]. Expired timers: %s",
                pid,
                [request.scope_id for request in each.requests],
            )
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

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """Ends a process; False if it could not be signalled."""
        with self._lock:
            return self._reaped(worker_pid, lambda: self._service.signal(worker_pid, signal))
