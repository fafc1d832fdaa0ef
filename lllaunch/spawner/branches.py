"""Spawners that were forked from a spawner: warm ones, for launchers that share what it imported.

A branch is a spawner like any other: it has a launcher and a connection of its own, ends
everything below it when that launcher ends, and adopts what its workers orphan. When it dies
itself, the kernel gives the orphans to the spawner that it was forked from, which ends them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from lllaunch.spawner.sweep import Sweep
from lllaunch.spawner.wakeups import Wakeups


class Branches:
    """The branches of one spawner.

    Args:
        wakeups: what the spawner's loop waits for.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        # The pidfd of the launcher of each.
        self._launchers: dict[int, int] = {}
        # Ends what one that has ended may have left behind.
        self._sweep: Sweep | None = None

    @property
    def pids(self) -> Iterable[int]:
        """Process ids of those that live."""
        return self._launchers.keys()

    @property
    def launchers(self) -> Iterable[int]:
        """The pidfds of their launchers."""
        return self._launchers.values()

    def add(self, pid: int, launcher: int) -> None:
        """Take note of a new one.

        Args:
            pid: its process id.
            launcher: pidfd of its launcher; closed in the end.
        """
        self._launchers[pid] = launcher
        self._wakeups.add(launcher)

    def launcher_ended(self, fd: int) -> None:
        """A pidfd is readable: let its branch, if it was stopped, see that as well."""
        for pid, launcher in self._launchers.items():
            if launcher == fd:
                self._wakeups.remove(fd)
                os.kill(pid, signal.SIGCONT)  # a child that has not been waited for
                return

    def ended(self, pid: int) -> None:
        """Take note of a child that was reaped and is no worker."""
        launcher = self._launchers.pop(pid, None)
        if launcher is not None:
            self._wakeups.remove(launcher)
            os.close(launcher)
            self._sweep = Sweep(settle=0.0)

    def next_in(self) -> float | None:
        """Return in how many seconds `end_strays` is to be called; None if it need not be."""
        return None if self._sweep is None else self._sweep.next_in()

    def end_strays(self, orphans: Callable[[], list[int]]) -> None:
        """Kill what ended branches left behind; to be called again until nothing is left.

        Args:
            orphans: tells the children that nobody knows.
        """
        # What is below them comes here when they have died.
        if self._sweep is not None and self._sweep.go_on(orphans()):
            self._sweep = None


def leave_behind(private: Iterable[int], foreign: Iterable[int]) -> None:
    """In a fork of a spawner that becomes one itself: drop what is the other's.

    Args:
        private: descriptors of its own.
        foreign: descriptors of its workers', and of what was sent along for them.
    """
    os.setsid()
    for fd in (*private, *foreign):
        os.close(fd)
