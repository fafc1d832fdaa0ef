"""Looks at workers and all that runs below them: CPU use, memory, output. By way of psutil."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from lllaunch.linux import proc
from lllaunch.linux.proc import ProcessFacts


class Reading(NamedTuple):
    """What one process has used.

    Attributes:
        cpu: CPU seconds, of children that it has waited for too.
        rss: resident memory, bytes.
        start: when it was started, which tells it from another of the same number.
    """

    cpu: float
    rss: int
    start: float


class Usage(NamedTuple):
    """What a worker and all below it have used.

    Attributes:
        cpu: CPU seconds.
        rss: resident memory, bytes; what processes share is counted for each.
        state: the worker's state letter.
        pids: the processes.
    """

    cpu: float
    rss: int
    state: str
    pids: tuple[int, ...]


class PsutilReader:
    """Reads processes through psutil; the place where tests put their own."""

    def __init__(self) -> None:
        # 10 ms that only a watched run pays for, and not at its start.
        import psutil  # noqa: PLC0415

        self._psutil = psutil
        self._known: dict[int, Any] = {}

    def read(self, pid: int) -> Reading | None:
        """What a process has used, or None if it is gone."""
        try:
            process = self._known.get(pid)
            if process is None or not process.is_running():
                process = self._known[pid] = self._psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                started = process.create_time()
        except self._psutil.Error:
            self._known.pop(pid, None)
            return None
        cpu = times.user + times.system + times.children_user + times.children_system
        return Reading(cpu, memory.rss, started)

    def share(self, pid: int) -> int:
        """Resident memory of a process, bytes, of what it shares only its part (PSS)."""
        try:
            return int(self._psutil.Process(pid).memory_full_info().pss)
        except (self._psutil.Error, AttributeError):
            return 0

    def forget(self, others_than: Iterable[int]) -> None:
        """Remember only these processes."""
        keep = set(others_than)
        self._known = {pid: known for pid, known in self._known.items() if pid in keep}


class Sampler:
    """Looks at all workers in one pass over /proc.

    Args:
        reader: reads one process; None for psutil.
        processes: lists all processes.
    """

    def __init__(
        self,
        reader: PsutilReader | None = None,
        processes: Callable[[], list[ProcessFacts]] = proc.processes,
    ) -> None:
        self._reader = reader
        self._processes = processes

    @property
    def reader(self) -> PsutilReader:
        """Reads one process."""
        if self._reader is None:
            self._reader = PsutilReader()
        return self._reader

    def usage(self, workers: Mapping[int, int]) -> dict[int, Usage]:
        """What workers and all below them have used.

        Args:
            workers: process ids, by local rank.

        Returns:
            By local rank; those that are gone are left out.
        """
        everything = self._processes()
        states = {process.pid: process.state for process in everything}
        trees = {rank: tree(pid, everything) for rank, pid in workers.items() if pid in states}
        self.reader.forget({pid for pids in trees.values() for pid in pids})
        return {rank: self._sum(pids, states[workers[rank]]) for rank, pids in trees.items()}

    def _sum(self, pids: tuple[int, ...], state: str) -> Usage:
        readings = [found for pid in pids if (found := self.reader.read(pid)) is not None]
        return Usage(
            cpu=sum(reading.cpu for reading in readings),
            rss=sum(reading.rss for reading in readings),
            state=state,
            pids=pids,
        )

    def shared_out(self, usage: Usage) -> int:
        """Memory of a worker and all below it, bytes; what they share is counted once.

        That takes a while, so it is asked for only when the plain sum is over a limit. A worker
        that sleeps in the kernel is not asked: reading its maps could hang as well.
        """
        if usage.state == "D":
            return usage.rss
        return min(usage.rss, sum(self.reader.share(pid) for pid in usage.pids))


def tree(worker: int, everything: Iterable[ProcessFacts]) -> tuple[int, ...]:
    """Process ids of a worker and of all that it started, also of what was orphaned since.

    Args:
        worker: its process id; it leads a session.
        everything: all processes.
    """
    known = list(everything)
    below = {process.pid for process in proc.descendants(worker, known)}
    session = {p.pid for p in known if p.session == worker and p.state not in "ZX"}
    return (worker, *sorted((below | session) - {worker}))


def size_of(paths: Iterable[str]) -> int:
    """Bytes in files; those that are not there count as empty."""
    total = 0
    for path in paths:
        try:
            total += os.stat(path).st_size
        except OSError:
            continue
    return total
