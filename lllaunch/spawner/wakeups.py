"""What wakes the spawner's loop: the launcher's socket, the launcher's end, children, and files."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator

from lllaunch.linux.process import wait_pidfd


class Wakeups:
    """Waits for all of them at once.

    Args:
        channel: descriptor of the connection to the launcher.
        launcher: pidfd of the launcher, since a forked child of it may hold the other end of the
            connection open.

    Attributes:
        launcher: the same.
        private: descriptors that are nobody else's, closed in every child.
    """

    def __init__(self, channel: int, launcher: int) -> None:
        self.launcher = launcher
        self._children, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.private = (channel, launcher, self._children, write)
        self._quiet = frozenset({channel, self._children})
        self._poll = select.poll()
        for fd in (channel, launcher, self._children):
            self._poll.register(fd, select.POLLIN)

    def add(self, fd: int) -> None:
        """Wake up when this is readable, too."""
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Do not, any more; also if it was not added."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)

    def wait_child(self, seconds: float) -> None:
        """Wait until a child ends, no longer than ``seconds``."""
        if wait_pidfd(self._children, seconds):
            os.read(self._children, 4096)

    def wait(self, milliseconds: int | None) -> Iterator[int]:
        """Wait; which of the added descriptors are readable, and the launcher's if it has ended."""
        for fd, _ in self._poll.poll(milliseconds):
            if fd == self._children:
                os.read(fd, 4096)
            elif fd not in self._quiet:
                yield fd
