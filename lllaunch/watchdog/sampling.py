"""Looks at workers and all that runs below them: CPU use, memory, I/O."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.linux import proc
from lllaunch.linux.proc import ProcessFacts, ProcessTable

if TYPE_CHECKING:
    from lllaunch.linux.gpus import GpuUse
    from lllaunch.watchdog.progress import Progress

logger = logging.getLogger(__name__)

# torch's variable: seconds of uninterruptible sleep after which a worker counts as stuck.
TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"


class Usage(NamedTuple):
    """What a worker and all below it have used so far, and what else one look at it showed."""

    cpu: float  # CPU seconds
    rss: int = 0  # resident memory, bytes; what processes share is counted for each
    state: str = ""  # its state letter in /proc
    pids: tuple[int, ...] = ()
    written: int = 0  # bytes that they have written, to whatever file
    asleep: bool = False  # whether one of them is in uninterruptible sleep
    # bytes that they have read or written, from and to whatever file; what those of them that have
    # ended read and wrote is part of it once their parent has waited for them
    io: int = 0
    writes: int = 0
    # CPU seconds of each process itself, without its children, by process id
    own_cpu: Mapping[int, float] = MappingProxyType({})
    output: int = 0  # bytes in the files that its output goes to
    beat: int = 0  # moment of its last heartbeat, nanoseconds of the monotonic clock; 0 for none


class WorkerSample(NamedTuple):
    """What a worker and all below it do at a moment."""

    cpu: float  # share of one core since the sample before, or since the attempt began
    rss: int  # resident memory, bytes; what processes share is counted for each
    read: float  # bytes read in a second, over the same time
    written: float  # bytes written in a second
    output: int | None  # bytes in the files of its output so far; None if it goes to none
    gpus: tuple[str, ...] = ()


class Sample(NamedTuple):
    """What all workers of an attempt do at a moment."""

    workers: Mapping[int, WorkerSample]  # by local rank, those that have started and live
    gpus: Mapping[str, GpuUse] = MappingProxyType({})
    # how far the workers are, of those that show it
    progress: Mapping[int, Progress] = MappingProxyType({})


def between(
    then: float, before: Usage, now: float, used: Usage, output: int | None
) -> WorkerSample:
    """What a worker did between two looks, with the bytes in the files of its output."""

    # what an orphan had used is counted no more when it has ended
    def rate(first: float, second: float) -> float:
        return max(0.0, second - first) / max(now - then, 0.001)

    return WorkerSample(
        cpu=rate(before.cpu, used.cpu),
        rss=used.rss,
        read=rate(before.io - before.written, used.io - used.written),
        written=rate(before.written, used.written),
        output=output,
    )


class Sampler:
    """Looks at all workers in one pass over /proc."""

    def __init__(self, table: ProcessTable | None = None) -> None:
        self._table = table or ProcessTable()
        # What was below the workers at the last look. Nothing else can have come there since but
        # what is new: a parent is only ever changed for one that is further up.
        self._below: frozenset[int] = frozenset()

    def usage(self, workers: Mapping[int, int]) -> dict[int, Usage]:
        """What workers and all below them have used.

        ``workers``: process ids, by local rank. Returns by local rank; those that are gone are left
        out, and all of them where nothing can be read for want of descriptors.
        """
        try:
            everything = self._table.look(self._below.union(workers.values()))
        except OSError:
            return {}
        known = {process.pid: process for process in everything}
        found = trees(known.keys() & workers.values(), everything)
        self._below = frozenset(pid for pids in found.values() for pid in pids)
        return {
            rank: self._sum([known[each] for each in found[pid]])
            for rank, pid in workers.items()
            if pid in found
        }

    def _sum(self, processes: Sequence[ProcessFacts]) -> Usage:
        transferred = [self._table.transferred(process.pid) for process in processes]
        written = sum(out for _, out, _ in transferred)
        return Usage(
            cpu=sum(process.cpu for process in processes),
            rss=sum(process.rss for process in processes),
            state=processes[0].state,
            pids=tuple(process.pid for process in processes),
            written=written,
            asleep=any(process.state == "D" for process in processes),
            io=written + sum(read for read, _, _ in transferred),
            writes=sum(writes for _, _, writes in transferred),
            own_cpu={process.pid: process.own_cpu for process in processes},
        )

    def shared_out(self, usage: Usage) -> int:
        """Memory of a worker and all below it, bytes; what they share is counted once.

        That takes a while, so it is asked for only when the plain sum is over a limit. Where a
        process cannot be asked, or sleeps in the kernel, so that asking could hang as well, the
        plain sum counts.
        """
        if usage.asleep:
            return usage.rss
        parts = {pid: self._table.share(pid) for pid in usage.pids}
        if any(part is None and self._table.is_there(pid) for pid, part in parts.items()):
            return usage.rss
        return min(usage.rss, sum(filter(None, parts.values())))


def trees(workers: Iterable[int], everything: Iterable[ProcessFacts]) -> dict[int, tuple[int, ...]]:
    """Process ids of each worker and of all that it started, also of what was orphaned since."""
    known = list(everything)
    families = proc.by_parent(known)
    session: dict[int, set[int]] = {worker: set() for worker in workers}
    for process in known:
        if process.session in session and process.state not in "ZX":
            session[process.session].add(process.pid)
    found = {}
    for worker, members in session.items():
        below = {process.pid for process in proc.below(worker, families)}
        found[worker] = (worker, *sorted((below | members) - {worker}))
    return found


def size_of(paths: Iterable[str]) -> int:
    """Bytes in files; those that are not there count as empty."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += os.stat(path).st_size
    return total


def kernel_sleep(timeout: float | None = None) -> float:
    """Seconds of uninterruptible sleep that are too long; None: as the environment says.

    Returns 0 if none are.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "0")
    try:
        return float(text) if timeout is None else timeout
    except ValueError:
        logger.warning("%s: %r is not a number of seconds", TIMEOUT_VARIABLE, text)
        return 0.0
