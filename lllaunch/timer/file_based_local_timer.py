"""Timers whose requests go through a FIFO: the three public names of torch's module."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time

from lllaunch.timer.file_client import FileTimerClient, FileTimerRequest
from lllaunch.timer.process_local import logger
from lllaunch.timer.server import ServerThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


# Seconds until the next look after one that failed.
_RETRY_SECONDS = 1.0
# What `log_event` does is not known; nobody waits for it longer than this.
_JOIN_SECONDS = 10.0
# poll counts milliseconds in an int, enough for 24 days; a longer wait is several of these.
_LONGEST_WAIT = 3600.0


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
        import threading  # noqa: PLC0415 - workers import this module and start no server

        from lllaunch.timer.service import TimerService  # noqa: PLC0415 - the same

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
        logger(__name__).info("Stopping %s", type(self).__name__)
        self._end_thread()
        self._close()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Handles what has been requested, and stops: for tests."""
        self._end_thread()
        self._run_watchdog()
        while self._service.behind:
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
        poll = select.poll()
        poll.register(self._service, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                self._run_watchdog()
                with self._lock:
                    next_in = self._service.next_in()
                waits = [self._max_interval, _LONGEST_WAIT]
                wait = min(waits if next_in is None else [*waits, next_in])
            except Exception:  # noqa: BLE001 - other workers' timers are still to be served
                logger(__name__).exception("the timers could not be looked at")
                time.sleep(_RETRY_SECONDS)
                wait = 0.0
            self._progress = time.monotonic()
            # Rounded up: to wake early would be to spin through the last millisecond. And poll
            # takes less than 0 for ever.
            poll.poll(max(0, math.ceil(wait * 1000)))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _run_watchdog(self) -> None:
        with self._lock:
            rejected = self._service.dispatch()
            found = self._service.expired()
        log = logger(__name__)
        for _, reason, text in rejected:
            log.error("a request for a timer was rejected: %s: %s", reason, text)
        if found:
            timers = {each.pid: [request.to_json() for request in each.requests] for each in found}
            log.info("Timers expired for run:[%s] [%s].", self._run_id, timers)
        for each in found:
            pid, killing = each.pid, None
            log.info("Reaping worker_pid=[%s]. Expired timers: %s", pid, each.scopes)
            for request in each.requests:
                self._log_event("timer expired", request)
                if request.signal > 0:
                    killing = request
                    break
            if killing is None:
                log.info("No signal specified with worker=[%s]. Do not reap it.", pid)
            elif self._reap_worker(pid, killing.signal):
                log.info("Successfully reaped worker=[%s] with signal=%s", pid, killing.signal)
                self._log_event("kill worker process", killing)
            else:
                log.error("Error reaping worker=[%s].", pid)

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
