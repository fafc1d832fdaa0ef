"""When workers are stalled or silent, or their heartbeats lost. Pure: looks are passed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lllaunch.spec import StallScope
from lllaunch.watchdog.findings import HeartbeatLost, Silent, Stalled

# A worker and all below it that use less of one core than this do nothing: threads that wake up to
# look around (of NCCL, of metric collectors) cost some, and must not hide that the work hangs.
IDLE_SHARE = 0.05


class WorkerActivity(NamedTuple):
    """What one look at a worker showed.

    Attributes:
        cpu: CPU seconds that it and all below it have used so far.
        output: bytes in the files that its output goes to.
        beat: moment of its last heartbeat, nanoseconds of the monotonic clock; 0 for none.
        state: its state letter in /proc, or an empty string.
    """

    cpu: float
    output: int = 0
    beat: int = 0
    state: str = ""


class StallDetector:
    """Finds workers that do nothing: no output, no CPU use, no heartbeat.

    Args:
        limit: seconds of that which are too long.
        scope: ``group``: all workers must do nothing; ``rank``: one is enough.
        starts: moment from which on idleness counts.

    Attributes:
        interval: seconds between two looks. In less a worker has no time to do something, and what
            its threads do that only wake up may look like work.
    """

    def __init__(self, limit: float, scope: StallScope, starts: float) -> None:
        self.interval = look_interval(limit)
        self._limit = limit
        self._scope = scope
        self._starts = starts
        self._last: dict[int, tuple[float, WorkerActivity]] = {}
        self._active: dict[int, float] = {}

    def forgive(self, until: float) -> None:
        """Count no idleness before a moment: nobody ran, the launcher neither."""
        self._starts = max(self._starts, until)

    def look(self, now: float, looks: Mapping[int, WorkerActivity]) -> Stalled | None:
        """Take note of a look at all live workers.

        Args:
            now: the moment of the look, seconds of the monotonic clock.
            looks: what was seen, by local rank.

        Returns:
            The stall, if there is one.
        """
        for rank, look in looks.items():
            before = self._last.get(rank)
            if before is None or _did_something(before[1], look, now - before[0]):
                self._active[rank] = now
            self._last[rank] = now, look
        idle = {rank: now - max(self._active[rank], self._starts) for rank in looks}
        long = tuple(sorted(rank for rank, seconds in idle.items() if seconds >= self._limit))
        if not long or (self._scope == "group" and len(long) < len(idle)):
            return None
        return Stalled(
            ranks=long,
            # The last one to stop, if the group did; the first, if one is enough.
            seconds=(min if self._scope == "group" else max)(idle[rank] for rank in long),
            scope=self._scope,
            asleep=tuple(rank for rank in long if looks[rank].state == "D"),
            stopped=tuple(rank for rank in long if looks[rank].state in ("T", "t")),
        )


class SilenceDetector:
    """Finds that nobody writes anything.

    Args:
        limit: seconds of that which are too long.
        starts: moment from which on silence counts.

    Attributes:
        interval: seconds between two looks.
    """

    def __init__(self, limit: float, starts: float) -> None:
        self.interval = look_interval(limit)
        self._limit = limit
        self._starts = starts
        self._output: dict[int, int] = {}

    def forgive(self, until: float) -> None:
        """Count no silence before a moment: nobody ran, the launcher neither."""
        self._starts = max(self._starts, until)

    def look(self, now: float, looks: Mapping[int, WorkerActivity]) -> Silent | None:
        """Take note of a look at all live workers; arguments as for `StallDetector.look`."""
        # what a process below a worker wrote is not counted any more when that has ended
        if any(look.output > self._output.get(rank, -1) for rank, look in looks.items()):
            self._starts = max(self._starts, now)
        self._output.update({rank: look.output for rank, look in looks.items()})
        silent = now - self._starts
        return Silent(silent) if looks and silent >= self._limit else None


def _did_something(before: WorkerActivity, now: WorkerActivity, seconds: float) -> bool:
    if before.output != now.output or before.beat != now.beat:
        return True
    return now.cpu - before.cpu > IDLE_SHARE * seconds


def heartbeats_lost(
    limit: float, now: float, beats: Mapping[int, int], starts: float
) -> HeartbeatLost | None:
    """Finds workers whose heartbeats have stopped.

    Args:
        limit: seconds without one that are too long.
        now: seconds of the monotonic clock.
        beats: moment of the last heartbeat, nanoseconds of the same clock, by local rank of live
            workers; 0 for one that never sent any, and need not.
        starts: moment from which on silence counts, seconds of the same clock.
    """
    silent = {
        rank: now - max(beat / 1e9, starts)
        for rank, beat in beats.items()
        if beat and now - max(beat / 1e9, starts) >= limit
    }
    return HeartbeatLost(tuple(sorted(silent)), max(silent.values())) if silent else None


def next_silence(limit: float, now: float, beats: Mapping[int, int], starts: float) -> float | None:
    """Seconds until a heartbeat can be lost, 0 if one is; None before the first heartbeat."""
    moments = [max(beat / 1e9, starts) + limit - now for beat in beats.values() if beat]
    return max(0.0, min(moments)) if moments else None


def look_interval(limit: float) -> float:
    """Seconds between two looks: rare, but often enough that a short limit is kept.

    Args:
        limit: the shortest time that a stall may take.
    """
    return min(max(5.0, limit / 20), limit / 4)
