"""The servers of timers, by torch's names: each ends workers whose timers have expired.

Both are threads around a `TimerService`, which a launch with ``watchdog.timers`` has in its own
event loop. Torch's base classes for servers of one's own are torch's, which is imported for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from lllaunch.linux.process import HasFileno, wait
from lllaunch.timer import client
from lllaunch.timer.client import *  # noqa: F403 - torch's module has them, too
from lllaunch.timer.client import FileTimerRequest, TimerRequest
from lllaunch.timer.service import Expired, TimerService, request_of

__all__ = ["FileTimerServer", "LocalTimerServer"]
__all__ += client.__all__

logger = logging.getLogger(__name__)

# So many requests are handled before timers are looked at again.
_BATCH = 10_000
# Seconds until a look that failed is tried again: a queue that is closed fails at once, for ever.
_RETRY = 1.0
# Queues and threads cannot wait for ever; a longer wait is several of these.
_LONGEST_WAIT = 3600.0


def __getattr__(name: str) -> Any:
    if name not in ("MultiprocessingRequestQueue", "RequestQueue", "TimerServer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.distributed.elastic.timer import local_timer  # noqa: PLC0415 - who asks needs torch

    return getattr(local_timer, name)


class _Server:
    """A thread that waits for what its `TimerService` has to do."""

    def __init__(self, service: TimerService, max_interval: float, daemon: bool) -> None:
        self._service = service
        self._max_interval = min(max_interval, _LONGEST_WAIT)
        self._daemon = daemon
        self._lock = threading.RLock()
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

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
        self._service.close()

    def _rouse(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def register_timers(self, timer_requests: list[Any]) -> None:
        """Set timers and take them back; those of processes that do not live are ignored."""
        with self._lock:
            self._service.register(timer_requests)
        self._rouse()

    def clear_timers(self, worker_ids: set[int]) -> None:
        """Forget all timers of these processes."""
        with self._lock:
            self._service.forget(worker_ids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that expire at ``deadline`` or earlier, by process id.

        ``deadline``: seconds since the epoch, by the wall clock as it is now.
        """
        with self._lock:
            return self._service.running(deadline)

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("the timers could not be looked at")
                wait((self._wake,), seconds=_RETRY)

    def _run_watchdog(self) -> None:
        self._wait()
        self._look()

    def _wait(self, *others: HasFileno) -> None:
        """Wait until there is something to do."""
        if self._wake in wait((self._service, self._wake, *others), seconds=self._next_in()):
            os.eventfd_read(self._wake)

    def _next_in(self) -> float:
        """Seconds until there is something to do, though nobody asks for it."""
        with self._lock:
            next_in = self._service.next_in()
        return self._max_interval if next_in is None else min(self._max_interval, next_in)

    def _dispatch(self) -> None:
        with self._lock:
            rejected = self._service.dispatch()
        for _, reason, text in rejected:
            logger.error("a request for a timer was rejected: %s: %s", reason, text)

    def _look(self) -> None:
        self._dispatch()
        with self._lock:
            found = self._service.expired()
        for each in found:
            self._expire(each)

    def _expire(self, expired: Expired) -> None:
        """Do what is to be done with a worker."""
        raise NotImplementedError

    def _signal(self, pid: int, signum: int) -> bool:
        """Send a signal; False if that cannot be."""
        try:
            with self._lock:
                there = self._service.signal(pid, signum)
        except OSError:
            logger.exception("Error terminating pid=%s", pid)
            return False
        if not there:
            logger.info("Process with pid=%s does not exist. Skipping", pid)
        return True


class LocalTimerServer(_Server):
    """Serves the timers of `LocalTimerClient`, ours or torch's, on this machine.

    A process whose timer expires is sent SIGKILL, at that moment. Timers of processes that have
    ended are forgotten, and a process that was given the number of such a one is never signalled.
    """

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(TimerService(None, owner_of=lambda pid: pid), max_interval, daemon)
        self._queue = mp_queue
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
        super().register_timers(requests)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that end at ``deadline`` or earlier, by process id."""
        self._dispatch()
        return super().get_expired_timers(deadline)

    def _run_watchdog(self) -> None:
        requests: list[TimerRequest] = []
        with contextlib.suppress(Empty):
            if self._reader is None:
                requests.append(self._queue.get(timeout=self._next_in()))
            else:
                self._wait(self._reader)
            while len(requests) < _BATCH:
                requests.append(self._queue.get(block=False))
        if requests:
            self.register_timers(requests)
        self._look()

    def _expire(self, expired: Expired) -> None:
        scopes = [request.scope_id for request in expired.requests]
        logger.info("Reaping worker_id=[%s]. Expired timers: %s", expired.pid, scopes)
        self._reap_worker(expired.pid)

    def _reap_worker(self, worker_id: int) -> bool:
        """End a process; False if it could not be signalled."""
        return self._signal(worker_id, signal.SIGKILL)


class FileTimerServer(_Server):
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
        super().__init__(service, max_interval, daemon)

    def start(self) -> None:
        """Begin to serve, as `LocalTimerServer.start` does."""
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

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget all timers of these processes."""
        super().clear_timers(worker_pids)

    def get_last_progress_time(self) -> int:
        """Return when the thread last went round, seconds since the epoch; at first: now."""
        return int(self._progress if self._service.received else time.time())

    def _look(self) -> None:
        super()._look()
        self._progress = time.time()

    def _expire(self, expired: Expired) -> None:
        pid, requests = expired.pid, expired.requests
        timers = {pid: [request.to_json() for request in requests]}
        logger.info("Timers expired for run:[%s] [%s].", self._run_id, timers)
        killing = None
        for request in requests:
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
        """End a process; False if it could not be signalled."""
        return self._signal(worker_pid, signal)
