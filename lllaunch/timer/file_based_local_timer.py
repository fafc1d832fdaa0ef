"""Timers whose requests go through a FIFO: the three public names of torch's module."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time

from lllaunch.timer.debug_info_logging import log_debug_info_for_expired_timers
from lllaunch.timer.file_client import FileTimerClient
from lllaunch.timer.process_local import logger
from lllaunch.timer.request import FileTimerRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from lllaunch.timer.service import Expired


# Seconds until the next look after one that failed.
_RETRY_SECONDS = 1.0
# What `log_event` does is not known; nobody waits for it longer than this.
_JOIN_SECONDS = 10.0
# poll counts milliseconds in an int, enough for 24 days; a longer wait is several of these.
_LONGEST_WAIT = 3600.0


class FileTimerServer:
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
        import threading  # noqa: PLC0415 - workers import this module and start no server

        from lllaunch.timer.service import TimerService  # noqa: PLC0415 - the same

        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event if log_event is not None else lambda _name, _request: None
        self._watchdog_thread: threading.Thread | None = None
        # Guards the service, which knows no threads.
        self._lock = threading.RLock()
        self._stopping = False
        self._once: float | None = None
        self._progress = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        self._service = TimerService(file_path, owner_of=self._owner_of)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @staticmethod
    def _owner_of(pid: int) -> int | None:
        return None if pid == os.getpid() else pid

    def start(self) -> None:
        """Begin to serve, in a thread of its own; one that serves already goes on.

        Raises:
            RuntimeError: it has been stopped.
        """
        import threading  # noqa: PLC0415 - see above

        if self._wake < 0:
            raise RuntimeError("a timer server that was stopped cannot be started again")
        if self._watchdog_thread is not None:
            return
        logger(__name__).info(
            "Starting %s... max_interval=%s, daemon=%s, file_path=%s",
            type(self).__name__,
            self._max_interval,
            self._daemon,
            self._file_path,
        )
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name="lllaunch-timers", daemon=self._daemon
        )
        self._watchdog_thread.start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Ends the thread and removes the FIFO; idempotent."""
        logger(__name__).info("Stopping %s", type(self).__name__)
        self._stopping = True
        self._end()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Handles what has been requested, and stops: for tests."""
        self._once = time.monotonic()
        self._end()

    def _end(self) -> None:
        thread, self._watchdog_thread = self._watchdog_thread, None
        if thread is not None:
            self._rouse()
            thread.join(min(max(self._max_interval, _JOIN_SECONDS), _LONGEST_WAIT))
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
        poll = select.poll()
        poll.register(self._service, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            once = self._once
            try:
                self._run_watchdog()
                wait = self._next_wait()
                done = once is not None and self._service.read_until >= once
            except Exception:  # noqa: BLE001 - other workers' timers are still to be served
                logger(__name__).exception("the timers could not be looked at")
                time.sleep(_RETRY_SECONDS)
                wait = 0.0
                done = once is not None
            if done:
                break
            self._progress = time.monotonic()
            # Rounded up: to wake early would be to spin through the last millisecond.
            poll.poll(math.ceil(wait * 1000))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _next_wait(self) -> float:
        with self._lock:
            wait = self._service.next_in()
        longest = min(self._max_interval, _LONGEST_WAIT)
        # poll takes less than 0 for ever.
        return max(0.0, longest if wait is None else min(longest, wait))

    def _run_watchdog(self) -> None:
        with self._lock:
            rejected = self._service.dispatch()
            found = self._service.expired()
        for _, reason, text in rejected:
            logger(__name__).error("a request for a timer was rejected: %s: %s", reason, text)
        if not found:
            return
        log_debug_info_for_expired_timers(
            self._run_id,
            {each.pid: [request.to_json() for request in each.requests] for each in found},
        )
        for each in found:
            self._expire(each)

    def _expire(self, expired: Expired) -> None:
        pid, signum = expired.pid, expired.signum
        logger(__name__).info("Reaping worker_pid=[%s]. Expired timers: %s", pid, expired.scopes)
        killing = None
        for request in expired.requests:
            self._log_event("timer expired", request)
            if request.signal > 0:
                killing = request
                break
        if killing is None:
            logger(__name__).info("No signal specified with worker=[%s]. Do not reap it.", pid)
        elif self._reap_worker(pid, signum):
            logger(__name__).info("Successfully reaped worker=[%s] with signal=%s", pid, signum)
            self._log_event("kill worker process", killing)
        else:
            logger(__name__).error("Error reaping worker=[%s].", pid)

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """Ends a process; False if it could not be signalled."""
        try:
            with self._lock:
                there = self._service.signal(worker_pid, signal)
        except OSError:
            logger(__name__).exception("Error terminating pid=%s", worker_pid)
            return False
        if not there:
            logger(__name__).info("Process with pid=%s does not exist. Skipping", worker_pid)
        return True


__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]
