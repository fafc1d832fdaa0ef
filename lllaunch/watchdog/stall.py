"""When workers stall, spin, are silent or use too much memory. Pure: looks are passed in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from lllaunch.spec import StallScope
from lllaunch.watchdog.evidence import bare
from lllaunch.watchdog.findings import (
    HeartbeatLost,
    KernelSleep,
    OverMemory,
    Silent,
    Spinning,
    Stalled,
)

if TYPE_CHECKING:
    from lllaunch.watchdog.evidence import Frame, RankStack
    from lllaunch.watchdog.sampling import Usage

    Frames: TypeAlias = tuple[Frame, ...]

Longest: TypeAlias = Callable[[], float | None]

# A worker and all below it that use less of one core than this do nothing: threads that wake up to
# look around (of NCCL, of metric collectors) cost some, and must not hide that the work hangs.
IDLE_SHARE = 0.05
# The same of bytes read or written per second: NCCL asks the store on rank 0 once a second for each
# rank, some fifty bytes, and metric collectors read what the kernel tells.
IDLE_BYTES = 1024
# Written bytes say more: the store answers each question with one byte, and what wakes up another
# thread writes eight (eventfd). So that many in each write are nothing, and beyond one in each
# write that many a second.
IDLE_WRITTEN = 8
# With progress known a stall is reported after so many seconds, or times the longest step.
LEAST_LEARNED = 60.0
_STEPS = 20
# In the second half of the time of a spin it is looked so often where workers are, and at least so
# often at all: one that works may be at its slowest line in nine looks of ten.
_LOOKS = 20
_LEAST_LOOKS = 5
# Looks at where workers are that are spread over less of the time prove nothing.
_LEAST_SHARE = 0.4
_SHORTEST_PAUSE = 0.05
_GOLDEN = 0.6180339887498949
CANNOT_RUN = frozenset("DTt")
"""State letters of processes that run no code, so that they stand wherever they stood."""
# A thread other than the main one that is elsewhere in more of the looks works; in less, it is one
# that wakes up now and then (of progress bars, of metrics).
_WAKES_UP = 0.25
# Python's own modules in which threads wait for others.
_WAITS = re.compile(r"/(threading|selectors|queue|socket|multiprocessing/connection)\.py$")


class Detector(ABC):
    """Finds something in looks that are taken one after another.

    ``limit``: seconds of it that are too long. ``starts``: moment from which on it counts.
    """

    def __init__(self, limit: float, starts: float) -> None:
        self._limit = limit
        self._starts = starts

    @property
    def interval(self) -> float:
        """Seconds between two looks.

        In less a worker has no time to do something, and what its threads do that only wake up may
        look like work.
        """
        return look_interval(self._limit)

    def forgive(self, until: float) -> None:
        """Count nothing before a moment: nobody ran, the launcher neither."""
        self._starts = max(self._starts, until)

    @abstractmethod
    def look(self, now: float, looks: Mapping[int, Usage]) -> object | None:
        """Take note of a look at all live workers, by local rank; return what is wrong.

        ``now``: the moment of the look, seconds of the monotonic clock.
        """


class HeartbeatDetector(Detector):
    """Finds workers that have sent a heartbeat, and send none any more."""

    def __init__(self, limit: float, starts: float) -> None:
        super().__init__(limit, starts)
        self._rest = limit

    @property
    def interval(self) -> float:
        """Seconds until the first of them can be late."""
        return self._rest

    def look(self, now: float, looks: Mapping[int, Usage]) -> HeartbeatLost | None:
        """Take note of a look; return who is late."""
        waited = {
            rank: now - max(look.beat / 1e9, self._starts)
            for rank, look in sorted(looks.items())
            if look.beat
        }
        self._rest = max(self._limit - max(waited.values(), default=0.0), _SHORTEST_PAUSE)
        late = {rank: seconds for rank, seconds in waited.items() if seconds >= self._limit}
        return HeartbeatLost(tuple(late), max(late.values())) if late else None


class KernelDetector(Detector):
    """Finds workers that are in uninterruptible sleep for too long; who starts them is none."""

    def __init__(self, limit: float, starter: Callable[[], int] = int) -> None:
        super().__init__(limit, 0.0)
        self._starter = starter
        self._since: dict[int, float] = {}

    def look(self, now: float, looks: Mapping[int, Usage]) -> KernelSleep | None:
        """Take note of a look; return who sleeps for too long."""
        asleep = {look.pids[0] for look in looks.values() if look.state == "D"} - {self._starter()}
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        long = {pid: now - at for pid, at in self._since.items() if now - at >= self._limit}
        return KernelSleep(long) if long else None


class MemoryDetector(Detector):
    """Finds a worker that uses more memory than it may, with all below it.

    ``shared_out``: measures exactly what the plain sum says is too much.
    """

    interval = 1.0

    def __init__(self, limit: int, shared_out: Callable[[Usage], int]) -> None:
        super().__init__(limit, 0.0)
        self._most, self._shared_out = limit, shared_out
        # When each worker was last seen below its limit.
        self._below: dict[int, float] = {}

    def look(self, now: float, looks: Mapping[int, Usage]) -> OverMemory | None:
        """Take note of a look; return who uses too much."""
        for rank, used in sorted(looks.items()):
            exact = self._shared_out(used) if used.rss > self._most else 0
            if exact > self._most:
                below = self._below.get(rank)
                return OverMemory(rank, exact, self._most, None if below is None else now - below)
            self._below[rank] = now
        return None


class StallDetector(Detector):
    """Finds workers that do nothing: no output, no CPU use, no heartbeat.

    ``scope``: ``group``: all workers must do nothing; ``rank``: one is enough. ``longest``: seconds
    of the longest step that was made before, None while none is known: a stall is found as soon as
    it is long beside that.
    """

    def __init__(
        self, limit: float, scope: StallScope, starts: float, longest: Longest = lambda: 0.0
    ) -> None:
        super().__init__(limit, starts)
        self._scope, self._least, self._longest = scope, limit, longest
        self._last: dict[int, tuple[float, Usage]] = {}
        self._active: dict[int, float] = {}

    def look(self, now: float, looks: Mapping[int, Usage]) -> Stalled | None:
        """Take note of a look; return the stall, if there is one."""
        longest = self._longest()
        self._limit = max(self._least, _STEPS * (LEAST_LEARNED if longest is None else longest))
        for rank, look in looks.items():
            at, before = self._last.get(rank, (now, None))
            if (
                before is None
                or (before.output, before.beat) != (look.output, look.beat)
                or look.cpu - before.cpu > IDLE_SHARE * (now - at)
            ):
                self._active[rank] = now
            self._last[rank] = now, look
        idle = {rank: now - max(self._active[rank], self._starts) for rank in looks}
        long = tuple(sorted(rank for rank, seconds in idle.items() if seconds >= self._limit))
        busy = self._scope == "group" and len(long) < len(idle)
        if not long or busy or longest is None:
            return None
        return Stalled(
            ranks=long,
            # The last one to stop, if the group did; the first, if one is enough.
            seconds=(min if self._scope == "group" else max)(idle[rank] for rank in long),
            scope=self._scope,
            asleep=tuple(rank for rank in long if looks[rank].state == "D"),
            stopped=tuple(rank for rank in long if looks[rank].state in ("T", "t")),
        )


class SilenceDetector(Detector):
    """Finds that nobody writes anything."""

    def __init__(self, limit: float, starts: float) -> None:
        super().__init__(limit, starts)
        self._output: dict[int, int] = {}

    def look(self, now: float, looks: Mapping[int, Usage]) -> Silent | None:
        """Take note of a look; return the silence, if there is one."""
        # what a process below a worker wrote is not counted any more when that has ended
        if any(look.output > self._output.get(rank, -1) for rank, look in looks.items()):
            self.forgive(now)
        self._output |= {rank: look.output for rank, look in looks.items()}
        silent = now - self._starts
        return Silent(silent) if looks and silent >= self._limit else None


class SpinDetector(Detector):
    """Finds a group that gets nowhere, however busy it is, as in a collective that hangs on a GPU.

    There is no output, no heartbeat and next to no I/O of any worker, and whenever somebody looked
    where they are, the main thread of each was at the same lines of Python, and its others nearly
    always. Looking there costs workers something, so it is asked for only when all else has stood
    still for half of the limit, and not of those who are left to others. Where a worker leaves the
    work to others, a program below it or a thread, and these are busy, nobody can tell.

    ``idle``: whether a group that does nothing at all counts, too.
    """

    def __init__(self, limit: float, starts: float, *, idle: bool) -> None:
        super().__init__(limit, starts)
        # whether it is to be told where the workers are now; `compare` takes it
        self.wants_stacks = False
        self._idle = idle
        self._last: tuple[float, Mapping[int, Usage]] = (0.0, {})
        # The look at which all stood still.
        self._first: tuple[float, Mapping[int, Usage]] = self._last
        # Moments at which it was seen where the workers are, and what was seen of each: its main
        # thread, and how often the others were where.
        self._seen: list[float] = []
        self._frames: dict[int, Frames] = {}
        self._others: defaultdict[int, Counter[tuple[Frames, ...]]] = defaultdict(Counter)

    @property
    def interval(self) -> float:
        """Seconds between two looks, of no fixed length while it is looked where workers are.

        What they repeat with a period would be seen at the same point again and again.
        """
        rarely = super().interval
        if not self._seen:
            return rarely
        often = self._limit / 2 / _LOOKS * (0.5 + len(self._seen) * _GOLDEN % 1.0)
        return min(rarely, max(_SHORTEST_PAUSE, often))

    def forgive(self, until: float) -> None:
        """Count nothing before a moment."""
        super().forgive(until)
        self._first = self._last
        for each in (self._seen, self._frames, self._others):
            each.clear()

    def look(self, now: float, looks: Mapping[int, Usage]) -> None:
        """Take note of a look; only `compare` finds something."""
        (then, before), self._last = self._last, (now, looks)
        if _moved(before, looks, now - then):
            self.forgive(now)
        still = bool(looks) and now - self._starts >= self._limit / 2
        self.wants_stacks = still and (self._idle or self._busy(now, looks))

    def compare(self, now: float, stands: Mapping[int, RankStack]) -> Spinning | None:
        """Take note of where the workers are.

        ``now``: a moment right after the last `look`. ``stands``: where each is, by local rank.
        That of a worker which cannot run (it is stopped, or sleeps uninterruptibly) need not be
        known.
        """
        self.wants_stacks = False
        _, looks = self._last
        known = {rank: stands[rank] for rank in looks if rank in stands and stands[rank].frames}
        agrees = bool(known) and all(
            look.state in CANNOT_RUN for rank, look in looks.items() if rank not in known
        )
        for rank, stack in known.items():
            frames = bare(stack.frames)
            agrees = agrees and self._frames.setdefault(rank, frames) == frames
            self._others[rank][(*(bare(each.frames) for each in stack.threads[1:]),)] += 1
        if (
            not agrees
            or any(map(_varies, self._others.values()))
            or any(self._leaves_work(now, looks[rank], stack) for rank, stack in known.items())
        ):
            self.forgive(now)
            return None
        self._seen.append(now)
        still = now - self._starts
        if (
            still < self._limit
            or now - self._seen[0] < _LEAST_SHARE * self._limit
            or len(self._seen) < _LEAST_LOOKS
            or not (self._idle or self._busy(now, looks))
        ):
            return None
        return Spinning(tuple(sorted(looks)), still, len(self._seen))

    def _leaves_work(self, now: float, look: Usage, stands: RankStack) -> bool:
        """Whether a worker waits for others that have used CPU since all stood still.

        These are programs below it, or threads of its own that stand in no wait.
        """
        then, looks = self._first
        first = looks.get(stands.rank)
        if first is None or stands.process not in look.own_cpu:
            return False
        idle = IDLE_SHARE * (now - then)
        own = look.own_cpu[stands.process] - first.own_cpu.get(stands.process, 0.0)
        if own <= idle:
            return look.cpu - first.cpu - own > idle
        return _waits(stands.frames) and not all(_waits(each.frames) for each in stands.threads[1:])

    def _busy(self, now: float, looks: Mapping[int, Usage]) -> bool:
        """Whether one of them has used CPU since all stood still."""
        then, first = self._first
        return any(
            look.cpu - first[rank].cpu > IDLE_SHARE * (now - then)
            for rank, look in looks.items()
            if rank in first
        )


def _moved(before: Mapping[int, Usage], now: Mapping[int, Usage], seconds: float) -> bool:
    """Whether any worker wrote, read or sent a heartbeat; or one of them came or went."""
    # of less than a second: what comes once a second may have come
    seconds = max(1.0, seconds)
    if before.keys() != now.keys():
        return True
    for then, look in ((before[rank], look) for rank, look in now.items()):
        written, writes = look.written - then.written, look.writes - then.writes
        # more than what threads tell each other
        wrote = written > IDLE_WRITTEN * max(0, writes) or written - writes > IDLE_WRITTEN * seconds
        spoke = (then.output, then.beat) != (look.output, look.beat)
        if wrote or spoke or abs(look.io - then.io) > IDLE_BYTES * seconds:
            return True
    return False


def _varies(places: Counter[tuple[Frames, ...]]) -> bool:
    """Whether threads have been elsewhere more often than those that only wake up are."""
    looks = places.total()
    return looks - max(places.values()) > max(1.0, _WAKES_UP * looks)


def _waits(frames: Frames) -> bool:
    """Whether a thread waits for others, in Python's own code."""
    return bool(frames) and _WAITS.search(frames[0].file) is not None


def look_interval(limit: float) -> float:
    """Seconds between two looks: rare, but often enough that a short limit is kept."""
    return min(max(5.0, limit / 20), limit / 4)
