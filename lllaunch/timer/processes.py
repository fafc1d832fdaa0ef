"""The processes that have set timers, each held by a pidfd: a number may be given to another."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import NamedTuple

from lllaunch.linux.process import open_pidfd, process_ended, send_signal

# Each costs a descriptor.
_LIMIT = 4096


class Process(NamedTuple):
    """A process that was alive when it was first seen.

    Attributes:
        pid: process id.
        owner: whose it is.
        pidfd: descriptor that is readable once it has ended.
    """

    pid: int
    owner: int
    pidfd: int


class Processes:
    """Processes by their ids.

    Args:
        owner_of: tells whose a process is; None if it is nobody's.
        limit: how many are kept at most.

    Raises:
        OSError: there are no descriptors left.
    """

    def __init__(self, owner_of: Callable[[int], int | None], limit: int = _LIMIT) -> None:
        self._owner_of = owner_of
        self._limit = limit
        self._known: dict[int, Process] = {}
        self._pids: dict[int, int] = {}
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """The descriptor that is readable when `ended` returns something."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Make `fileno` readable also when this descriptor is."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """The opposite of `watch`; before the descriptor is closed."""
        self._epoll.unregister(fd)

    def get(self, pid: int) -> Process | None:
        """A process that is known."""
        return self._known.get(pid)

    def admit(self, pid: int) -> Process | str | None:
        """A process, known or new.

        Returns:
            It, or why it is refused, or None if it has ended.
        """
        known = self._known.get(pid)
        if known is not None:
            return known
        if len(self._known) >= self._limit:
            return f"{self._limit} processes have timers already"
        try:
            pidfd = open_pidfd(pid)
        except (OSError, OverflowError, TypeError) as error:
            return f"process {pid!r} cannot be watched ({error})"
        if pidfd is None:
            return None
        owner = self._owner_of(pid)
        # Asked in this order: as it lives now, nobody else had its number in between.
        if owner is None or process_ended(pidfd):
            os.close(pidfd)
            return f"process {pid} is no worker's" if owner is None else None
        self._epoll.register(pidfd, select.EPOLLIN)
        self._pids[pidfd] = pid
        process = self._known[pid] = Process(pid, owner, pidfd)
        return process

    def ended(self) -> list[int]:
        """Ids of the processes that have ended since the last call; they are forgotten."""
        found = []
        for fd, _ in self._epoll.poll(0):
            pid = self._pids.pop(fd, None)
            if pid is not None:
                found.append(pid)
                self._epoll.unregister(fd)
                os.close(self._known.pop(pid).pidfd)
        return found

    def signal(self, pid: int, signum: int) -> bool:
        """Send a signal to a known process; False if it is not known or gone.

        Raises:
            OSError: it may not be signalled.
        """
        known = self._known.get(pid)
        return known is not None and send_signal(known.pidfd, signum)

    def close(self) -> None:
        """Let go of all of them; idempotent."""
        for known in self._known.values():
            os.close(known.pidfd)
        self._known.clear()
        self._pids.clear()
        self._epoll.close()
