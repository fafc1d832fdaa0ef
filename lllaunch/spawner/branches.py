"""Spawners that were forked from a spawner: warm ones, for launchers that share what it imported.

A branch is a spawner like any other: it has a launcher and a connection of its own, ends
everything below it when that launcher ends, and adopts what its workers orphan. When it dies
itself, the kernel gives the orphans to the spawner that it was forked from, which ends them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from lllaunch.spawner.sweep import kill_orphans


class Branches:
    """The branches of one spawner.

    Attributes:
        pids: process ids of those that live.
        bereaved: whether one has ended, and may have left something behind.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.bereaved = False

    def ended(self, pid: int) -> None:
        """Take note of a child that was reaped and is no worker."""
        if pid in self.pids:
            self.pids.remove(pid)
            self.bereaved = True

    def end_strays(self, orphans: Callable[[], list[int]]) -> None:
        """Kill what ended branches left behind; to be called again until nothing is left.

        Args:
            orphans: tells the children that nobody knows.
        """
        if not self.bereaved:
            return
        strays = orphans()
        kill_orphans(strays)
        # What is below them comes here when they have died.
        self.bereaved = bool(strays)


def leave_behind(private: Iterable[int], foreign: Iterable[int]) -> None:
    """In a fork of a spawner that becomes one itself: drop what is the other's.

    Args:
        private: descriptors of its own.
        foreign: descriptors of its workers', and of what was sent along for them.
    """
    os.setsid()
    for fd in (*private, *foreign):
        os.close(fd)
