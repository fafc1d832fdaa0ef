"""Looks at workers and all that runs below them: CPU use, memory, output. By way of psutil."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
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
        written: bytes that they have written, to whatever file; 0 where nobody asked.
        asleep: whether one of them is in uninterruptible sleep.
    """

    cpu: float
    rss: int
    state: str
    pids: tuple[int, ...]
    written: int = 0
    asleep: bool = False


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

    def written(self, pid: int) -> int:
        """Bytes that a process has written, to whatever file; 0 if that cannot be read."""
        try:
            return int(self._known[pid].io_counters().write_chars)
        except (self._psutil.Error, KeyError, OSError):
            return 0

    def share(self, pid: int) -> int | None:
        """Memory that only swapping or killing would free, bytes; None if it cannot be read.

        That is anonymous and shared memory, of what several processes share only this one's part
        (proc(5), smaps_rollup); pages of files are not among it, since the kernel drops them.
        """
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                fields = dict(line.split(":", 1) for line in file if line.startswith("Pss_"))
            return 1024 * sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
        except (OSError, KeyError, ValueError):
            return None

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

    def usage(self, workers: Mapping[int, int], writing: Collection[int] = ()) -> dict[int, Usage]:
        """What workers and all below them have used.

        Args:
            workers: process ids, by local rank.
            writing: local ranks of which it matters what they write.

        Returns:
            By local rank; those that are gone are left out.
        """
        everything = self._processes()
        states = {process.pid: process.state for process in everything}
        trees = {rank: tree(pid, everything) for rank, pid in workers.items() if pid in states}
        self.reader.forget({pid for pids in trees.values() for pid in pids})
        return {rank: self._sum(pids, states, rank in writing) for rank, pids in trees.items()}

    def _sum(self, pids: tuple[int, ...], states: Mapping[int, str], writing: bool) -> Usage:
        readings = [found for pid in pids if (found := self.reader.read(pid)) is not None]
        return Usage(
            cpu=sum(reading.cpu for reading in readings),
            rss=sum(reading.rss for reading in readings),
            state=states[pids[0]],
            pids=pids,
            written=sum(map(self.reader.written, pids)) if writing else 0,
            asleep=any(states.get(pid) == "D" for pid in pids),
        )

    def shared_out(self, usage: Usage) -> int:
        """Memory of a worker and all below it, bytes; what they share is counted once.

        That takes a while, so it is asked for only when the plain sum is over a limit. Where a
        process cannot be asked, or sleeps in the kernel, so that asking could hang as well, the
        plain sum counts.
        """
        if usage.asleep:
            return usage.rss
        total = 0
        for pid in usage.pids:
            part = self.reader.share(pid)
            if part is not None:
                total += part
            elif self.reader.read(pid) is not None:
                return usage.rss
        return min(usage.rss, total)


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
