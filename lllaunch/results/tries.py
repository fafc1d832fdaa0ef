"""The jobs of a sweep in time: each try of each job, on the GPUs or cores that it held.

`tries_of` makes them of the journal's records and `tracks_of` lays them out; both are pure.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from lllaunch.config.secrets import redacted_overrides
from lllaunch.errors import LaunchError
from lllaunch.results.store import lock_of, state_of, sweep_result
from lllaunch.sweep.directory import JOURNAL
from lllaunch.sweep.history import SweepResult, known_summary
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    Resumed,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.pool import Lease

if TYPE_CHECKING:
    from lllaunch.sweep.journal import JournalEntry, Record

NOTHING = Lease()
"""What a job holds that needs neither GPUs nor cores of its own."""

SlotKind = Literal["gpu", "cpu", "job"]
"""What tries are laid out on: GPUs, cores, or places for jobs that held neither."""


@dataclass(frozen=True)
class JobTry:
    """One try of one job."""

    job: int
    number: int
    start_ns: int
    end_ns: int  # when it had ended; of one that still goes on, the last moment that is known of
    fate: str  # the `state` of its result; ``running`` while it goes on, ``lost`` if nobody knows
    lease: Lease = NOTHING
    overrides: tuple[str, ...] = ()
    exit_code: int | None = None
    objective: float | None = None
    root_cause: str = ""


@dataclass(frozen=True)
class SlotTrack:
    """Tries that came one after the other."""

    kind: SlotKind
    name: str
    tries: tuple[JobTry, ...] = ()


@dataclass(frozen=True)
class SweepTimeline:
    """A sweep in time."""

    start_ns: int
    end_ns: int  # when it was over; of one that goes on, now; else the last moment that is known of
    over: bool
    tries: tuple[JobTry, ...] = ()
    slots: Lease = NOTHING
    resumed_ns: tuple[int, ...] = ()


def read_sweep_timeline(
    directory: str, document: str = "", hide: Callable[[str], str] = str
) -> SweepTimeline:
    """Read what happened when in a sweep; never raises for what its files hold.

    ``directory``: of the sweep. Where the journal cannot be read its sweep.json tells of the last
    try of each job. ``document``: its sweep.json under another name, which then tells all; else
    empty.
    """
    if document:
        return _of_summary(known_summary(document) or SweepResult(), hide)
    now_ns = time.time_ns()
    live = state_of(lock_of("sweep", directory)) == "running"
    found = tries_of(_readable(os.path.join(directory, JOURNAL)), now_ns if live else None, hide)
    result = None if found.tries else sweep_result(directory)
    return found if result is None else _of_summary(result, hide)


def _readable(journal: str) -> Iterator[JournalEntry]:
    """Yield what stands before a line that is damaged; one record at a time is in memory."""
    with contextlib.suppress(LaunchError):
        yield from read_journal(journal)


def tries_of(
    entries: Iterable[JournalEntry],
    now_ns: int | None = None,
    hide: Callable[[str], str] = str,
) -> SweepTimeline:
    """Return a sweep in time. Pure.

    ``now_ns``: the time, nanoseconds since the epoch, of a sweep that goes on; else None.
    """
    history = _Tries(hide)
    for at, record in entries:
        history.take(at, record)
    end = max(history.last_ns, now_ns or 0)
    history.lose(end, "lost" if now_ns is None else "running")
    found = sorted(history.over, key=lambda each: (each.start_ns, each.job))
    slots = Lease(tuple(history.gpus), tuple(sorted(history.cpus)))
    resumed = tuple(history.resumed_ns)
    return SweepTimeline(history.first_ns, end, now_ns is None, tuple(found), slots, resumed)


class _Tries:
    """What the records of a journal come to, one after the other."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self.first_ns = 0
        self.last_ns = 0
        self.over: list[JobTry] = []
        self.resumed_ns: list[int] = []
        self.gpus: dict[str, None] = {}
        self.cpus: set[int] = set()
        self._overrides: dict[int, tuple[str, ...]] = {}
        self._running: dict[int, JobTry] = {}
        self._count: Counter[int] = Counter()

    def take(self, at: int, record: Record) -> None:
        """See what follows from a record."""
        self.first_ns, self.last_ns = min(at, self.first_ns or at), max(at, self.last_ns)
        if isinstance(record, (Header, Resumed)):
            slots = record.slots or NOTHING
            self.gpus |= dict.fromkeys(slots.gpus)
            self.cpus.update(slots.cpus)
        if isinstance(record, Resumed):
            self.resumed_ns.append(at)
        if isinstance(record, (Resumed, OverRecord)):
            # of what was not told to have ended the launcher was gone before it
            self.lose(at, "lost")
        elif isinstance(record, ComposedRecord):
            self._overrides[record.job] = _shown(record.overrides, self._hide)
        elif isinstance(record, StartedRecord):
            self._start(at, record)
        elif isinstance(record, EndedRecord):
            self._end(at, record)

    def _start(self, at: int, record: StartedRecord) -> None:
        job = record.job
        if (before := self._running.pop(job, None)) is not None:
            self._add(before, at)
        overrides = self._overrides.get(job, ())
        number = self._count[job]
        self._count[job] += 1
        self._running[job] = JobTry(job, number, at, at, "lost", record.lease, overrides)

    def _end(self, at: int, record: EndedRecord) -> None:
        started = self._running.pop(record.job, None)
        if started is None:
            return
        result = record.result
        ended = replace(
            started,
            fate=result.state,
            exit_code=result.exit_code,
            objective=result.objective,
            root_cause=self._hide(result.root_cause),
        )
        self._add(ended, at)

    def lose(self, at: int, fate: str) -> None:
        """See that of the tries that go on nothing is told any more."""
        for each in self._running.values():
            self._add(replace(each, fate=fate), at)
        self._running.clear()

    def _add(self, each: JobTry, end_ns: int) -> None:
        self.over.append(replace(each, end_ns=max(each.start_ns, end_ns)))


def _shown(overrides: Iterable[str], hide: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(map(hide, redacted_overrides(tuple(overrides))))


def _of_summary(result: SweepResult, hide: Callable[[str], str]) -> SweepTimeline:
    tries = [
        JobTry(
            job.job,
            max(0, job.tries - 1),
            job.started_ns,
            max(job.started_ns, job.ended_ns),
            job.state if job.result is not None else "lost",
            job.lease,
            _shown(job.overrides, hide),
            None if job.result is None else job.result.exit_code,
            job.objective,
            "" if job.result is None else hide(job.result.root_cause),
        )
        for job in result.jobs
        if job.started_ns
    ]
    tries.sort(key=lambda each: (each.start_ns, each.job))
    start = min([each.start_ns for each in tries], default=result.started_ns)
    start = min(start, result.started_ns or start)
    end = max([start, result.ended_ns, *(each.end_ns for each in tries)])
    return SweepTimeline(start, end, over=True, tries=tuple(tries))


_KINDS: tuple[SlotKind, ...] = ("gpu", "cpu", "job")


def tracks_of(timeline: SweepTimeline) -> tuple[SlotTrack, ...]:
    """Return tries on what they held: on each of its GPUs, else on each of its cores. Pure.

    A job that held nothing (on a cluster, or one that asks for nothing) is where there is room.
    What the sweep could have leased has a track even if nothing ran there.

    Returns gPUs, then cores, then places. If tries on one GPU overlap, which they do only if a
    clock was set meanwhile, it has several tracks.
    """
    found: dict[tuple[SlotKind, str], list[list[JobTry]]] = {}
    for gpu in timeline.slots.gpus:
        found["gpu", gpu] = [[]]
    on_cores = any(each.lease.cpus and not each.lease.gpus for each in timeline.tries)
    for core in timeline.slots.cpus if on_cores else ():
        found["cpu", str(core)] = [[]]
    for each in timeline.tries:
        kind, names = _held(each)
        for name in names:
            place(found.setdefault((kind, name), [[]]), each)
    tracks = [
        SlotTrack(kind, str(at) if kind == "job" else name, tuple(line))
        for (kind, name), lines in found.items()
        for at, line in enumerate(lines)
    ]
    return tuple(sorted(tracks, key=_order))


def _order(track: SlotTrack) -> tuple[int, int, str]:
    number = int(track.name) if track.name.isdecimal() and track.name.isascii() else -1
    # as the sweep named its GPUs: those that have no numbers stay in its order
    return _KINDS.index(track.kind), number, "" if number < 0 else track.name


def _held(each: JobTry) -> tuple[SlotKind, Sequence[str]]:
    if each.lease.gpus:
        return "gpu", tuple(dict.fromkeys(each.lease.gpus))
    if each.lease.cpus:
        return "cpu", tuple(str(core) for core in dict.fromkeys(each.lease.cpus))
    return "job", ("",)


class _Lasting(Protocol):
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


T = TypeVar("T", bound=_Lasting)


def place(lines: list[list[T]], each: T) -> None:
    """Put what lasts on the first line that is free by then, a new one if none is."""
    for line in lines:
        if not line or line[-1].end_ns <= each.start_ns:
            line.append(each)
            return
    lines.append([each])
