"""Following any number of growing files from one thread: the machinery of the tee.

The thread sleeps until the kernel says that a file has changed (inotify) or that it is to stop
(an eventfd). Only files that inotify cannot watch are looked at once a second.
"""

from __future__ import annotations

import collections
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, TextIO

from lllaunch.linux.cgroup import shortage
from lllaunch.multiprocessing.followed import FollowedFile
from lllaunch.multiprocessing.guards import gate_of
from lllaunch.multiprocessing.output import Destination
from lllaunch.multiprocessing.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lllaunch.multiprocessing.guards import EventLike, LockLike

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

# After something was shown, so long nothing is, milliseconds: what is written line by line then
# comes in blocks, and costs a hundred looks a second at most.
_GATHER_MS = 10
# stop() gives up on a destination that takes nothing for so long, seconds.
_PATIENCE_S = 10.0


class Follower:
    """Shows files as they grow, whole lines only, each with a prefix; one thread for all of them.

    Args:
        name: name of the thread.
        poll_interval: seconds between looks at files that inotify cannot watch.
    """

    def __init__(self, name: str = "tail", poll_interval: float = 1.0) -> None:
        self._name = name
        self._added: collections.deque[FollowedFile] = collections.deque()
        self._files: list[FollowedFile] = []
        self._destinations: dict[int, tuple[TextIO, Destination]] = {}
        self._poll_interval = poll_interval
        # Reentrant: a signal handler may call stop() while its thread is in one of these methods.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._wake: int | None = None
        self._stopping = False
        self._given_up = False
        self._done = threading.Event()

    def add(
        self,
        path: str,
        prefix: bytes,
        dst: TextIO,
        line_filter: Callable[[str], bool] | None = None,
        *,
        lock: LockLike | None = None,
        progbar_events: Mapping[str, EventLike] | None = None,
    ) -> None:
        """Adds a file, before `start` or after.

        Args:
            path: the file; it need not exist yet, nor its directory. ``/dev/null`` shows nothing.
            prefix: put before every line.
            dst: where its lines go.
            line_filter: says of a line, as text with its newline, whether it is shown; None for
                all. It sees the first 64 MiB of a line.
            lock: held while writing, besides the destination's own.
            progbar_events: events ``trigger_clear`` and ``cleared`` of a progress bar that is to
                be taken off the screen while writing.

        Raises:
            RuntimeError: it was stopped.
            KeyError: an event is missing.
        """
        if path == os.devnull:
            return
        with self._lock:
            if self._stopping:
                raise RuntimeError("a stopped Follower takes no more files")
            _, destination = self._destinations.setdefault(id(dst), (dst, Destination(dst)))
            gate = None if progbar_events is None else gate_of(progbar_events)
            self._added.append(
                FollowedFile(path, prefix, destination, line_filter, lock=lock, gate=gate)
            )
            self._notify()

    def start(self) -> Follower:
        """Starts the thread; does nothing the second time.

        Returns:
            Itself.

        Raises:
            OSError: no descriptor is left.
            RuntimeError: no thread can be started, or it was stopped.
        """
        with self._lock:
            if self._stopping:
                raise RuntimeError("a stopped Follower cannot be started again")
            if self._thread is None:
                wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                # A daemon: a destination that blocks for ever must not keep the process alive.
                thread = threading.Thread(
                    target=self._run, args=(wake,), name=self._name, daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    os.close(wake)
                    raise
                self._wake, self._thread = wake, thread
        return self

    def stop(self, *, join: bool = True) -> None:
        """Shows everything that was written before this call, then ends; idempotent.

        Last lines without a newline get one. Returns earlier only if a destination takes nothing
        for ten seconds; that is logged, and nothing is lost from the files.

        Args:
            join: whether the thread is waited for. When all is shown it has only an inotify
                descriptor left to close, for which the kernel takes 8 to 16 ms.
        """
        with self._lock:
            self._stopping = True
            self._notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._wait()
            if join and not self._given_up:
                thread.join()

    def stopped(self) -> bool:
        """Whether it was stopped and nothing more is shown."""
        running = self._thread is not None and not self._done.is_set()
        return self._stopping and (self._given_up or not running)

    def _notify(self) -> None:
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def _wait(self) -> None:
        while not self._done.is_set() and not self._given_up:
            before = self._progress()
            self._done.wait(_PATIENCE_S)
            if not self._done.is_set() and self._progress() == before:
                self._given_up = True
                # A louder message would go to the console that takes nothing, and wait there.
                logger.debug("the console takes no output of the workers; it is in the files")

    def _progress(self) -> int:
        taken = sum(destination.taken for _, destination in list(self._destinations.values()))
        return taken + sum(file.blocks for file in self._files)

    def _run(self, wake: int) -> None:
        # the main thread is to stop for it (`SignalSource.stop_until_continued`)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        watching: Watching | None = None
        try:
            watching = Watching(wake, self._poll_interval)
            while not self._stopping:
                self._take_added(watching)
                busy = self._look(watching)
                watching.wait(self._due(), gather_ms=_GATHER_MS if busy else 0)
            self._take_added(watching)
            self._finish()
        except Exception as error:
            if short := shortage(error):
                logger.error("the output is not shown any more, it is in the files: %s", short)  # noqa: TRY400 - the reason says it all
            else:
                logger.exception("the tail ended by an error of its own; the files are complete")
        finally:
            for file in self._files:
                file.close()
            with self._lock:
                os.close(wake)
                self._wake = None
            self._done.set()
            if watching is not None:
                watching.close()

    def _take_added(self, watching: Watching) -> None:
        while self._added:
            file = self._added.popleft()
            self._files.append(file)
            watching.add(file)

    def _look(self, watching: Watching) -> bool:
        """Takes one turn: a block of every file that has changed. Whether there was any."""
        busy = False
        now = time.monotonic()
        for file in watching.changed():
            try:
                if file.drain():
                    busy = True
                    if file.behind:
                        watching.more(file)
            except OSError as error:
                watching.drop(file, error)
        for file in self._files:
            if file.due is not None and file.due <= now:
                file.tick()
        return busy

    def _due(self) -> float | None:
        """When a line in the making is to be shown, by `time.monotonic`."""
        return min((file.due for file in self._files if file.due is not None), default=None)

    def _finish(self) -> None:
        # All sizes first: what is written after this moment need not be shown, so that a worker
        # that never stops writing cannot keep us here.
        ends = []
        for file in self._files:
            try:
                if not file.dropped and (file.is_open or file.open()):
                    ends.append((file, file.size()))
            except OSError as error:
                logger.debug("%s cannot be followed: %s", file.path, error)
        for file, end in ends:
            try:
                file.drain_to(end)
            except OSError as error:
                logger.error("%s cannot be read: %s", file.path, error)  # noqa: TRY400 - the reason says it all
