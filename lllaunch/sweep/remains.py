"""What jobs leave behind: processes that still end, perhaps on the job's GPUs.

A spawner that a job had for itself becomes the launcher's child when the job is killed. It ends its
workers and then itself; until then the job's lease is not given back. The launcher adopts other
orphans, too: of what it had started before, or what its program was started beside. Those it leaves
alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from lllaunch.linux import proc
from lllaunch.linux.process import Subreaper, open_pidfd, process_ended
from lllaunch.spawner.orphans import is_of, kill_below, signal_process

_PAUSE_SECONDS = 0.01
_MAX_ROUNDS = 500


class Remains:
    """The processes that this one has adopted from jobs; a subreaper until `close`.

    Args:
        marks: gives the marks of jobs and of their spawners.

    Attributes:
        pidfds: of those that live, by process id.
    """

    def __init__(self, marks: Callable[[], Iterable[str]]) -> None:
        Subreaper.need()
        self._before = frozenset(proc.children(os.getpid()))
        self._marks = marks
        self.pidfds: dict[int, int] = {}

    def look(self, jobs: Collection[int]) -> bool:
        """Reap what has ended; whether something lives.

        Args:
            jobs: process ids of children that are not adopted.
        """
        for pid in proc.children(os.getpid()):
            if pid in self._before or pid in jobs:
                continue
            if pid not in self.pidfds and not self._is_of_a_job(pid, jobs):
                continue
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    self._watch(pid)
                    continue
            self._forget(pid)
        for pid in [pid for pid, pidfd in self.pidfds.items() if process_ended(pidfd)]:
            self._forget(pid)
        return bool(self.pidfds)

    def _is_of_a_job(self, pid: int, jobs: Collection[int]) -> bool:
        facts = proc.facts(pid)
        # each job has a session of its own
        if facts is not None and facts.session in jobs:
            return True
        return any(is_of(pid, mark) for mark in self._marks())

    def kill(self, jobs: Collection[int]) -> None:
        """End them all, and what they leave behind in turn; what cannot be ended is left."""
        for _ in range(_MAX_ROUNDS):
            if not self.look(jobs):
                return
            kill_below(self.pidfds)
            for pid in self.pidfds:
                facts = proc.facts(pid)
                if facts is not None:
                    signal_process(facts, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)

    def leave_alone(self, pid: int) -> None:
        """A child does not end although it was killed: it is not waited for any more."""
        self._before |= {pid}

    def close(self) -> None:
        """Adopt no more."""
        for pid in list(self.pidfds):
            self._forget(pid)
        Subreaper.release()

    def leave(self) -> None:
        """In a forked job: these are the launcher's."""
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        self.pidfds.clear()
        Subreaper.release()

    def _watch(self, pid: int) -> None:
        if pid not in self.pidfds:
            pidfd = open_pidfd(pid)
            if pidfd is not None:
                self.pidfds[pid] = pidfd

    def _forget(self, pid: int) -> None:
        pidfd = self.pidfds.pop(pid, -1)
        if pidfd >= 0:
            os.close(pidfd)
