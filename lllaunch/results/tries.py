"""What a journal comes to: the jobs of a sweep, and each try of each job in time.

`SweepFiles` is the one reader of journal and sweep.json for all that shows a sweep. `SweepTries`
and `tracks_of`, which lays tries out on the GPUs or cores that they held, are pure.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from msgspec import structs

from lllaunch.errors import LaunchError, OutputError
from lllaunch.results.history import AppendedLines
from lllaunch.results.store import Signature, hidden, lock_of, signature, state_of, unreadable
from lllaunch.secret_names import redacted_overrides
from lllaunch.sweep.history import (
    JobHistory,
    SweepHistory,
    SweepResult,
    read_summary,
    summary_of,
)
from lllaunch.sweep.journal import (
    JOURNAL,
    SUMMARY,
    EndedRecord,
    OverRecord,
    Resumed,
    StartedRecord,
    decode,
    read_journal,
)
from lllaunch.sweep.pool import Lease

if TYPE_CHECKING:
    from lllaunch.sweep.journal import Record

# all of it: its header stands first
_MOST_BYTES, _LONGEST_RECORD = 1 << 62, 64 << 20

SlotKind = Literal["gpu", "cpu", "job"]
"""What tries are laid out on: GPUs, cores, or places for jobs that held neither."""


class JobTry(JobHistory, frozen=True):
    """One try of one job: what was known of the job by then, without secrets."""

    end_ns: int = 0  # when it had ended; of one that goes on, the last moment that is known of
    fate: str = ""  # the `state` of its result; ``running`` while it goes on, ``lost`` if unknown

    @property
    def start_ns(self) -> int:
        """When it began."""
        return self.started_ns

    @property
    def number(self) -> int:
        """Which try of the job it is, from 0."""
        return max(0, self.tries - 1)


@dataclass(frozen=True)
class SlotTrack:
    """Tries that came one after the other."""

    kind: SlotKind
    name: str
    tries: tuple[JobTry, ...] = ()


class SweepTimeline(NamedTuple):
    """A sweep in time."""

    start_ns: int
    end_ns: int  # when it was over; of one that goes on, now; else the last moment that is known of
    over: bool
    tries: tuple[JobTry, ...] = ()
    slots: Lease = Lease()
    resumed_ns: tuple[int, ...] = ()


class SweepTries:
    """What the records of a journal come to, one after the other."""

    def __init__(self) -> None:
        self.history = SweepHistory()
        self.first_ns = self.last_ns = 0
        self._over: list[tuple[JobHistory, int, str]] = []
        self._running: dict[int, JobHistory] = {}
        self._resumed_ns: list[int] = []

    def take(self, at: int, record: Record) -> None:
        """See what follows from a record."""
        self.first_ns, self.last_ns = min(at, self.first_ns or at), max(at, self.last_ns)
        if isinstance(record, (Resumed, OverRecord)):
            # of what was not told to have ended the launcher was gone before it
            self._over += [(job, at, "lost") for job in self._running.values()]
            self._running.clear()
        elif isinstance(record, StartedRecord) and record.job in self._running:
            self._over.append((self._running[record.job], at, "lost"))
        self.history.add(at, record)
        if isinstance(record, Resumed):
            self._resumed_ns.append(at)
        elif isinstance(record, StartedRecord):
            self._running[record.job] = self.history.jobs[record.job]
        elif isinstance(record, EndedRecord) and record.job in self._running:
            del self._running[record.job]
            self._over.append((self.history.jobs[record.job], at, record.result.state))

    def timeline(self, now_ns: int | None, hide: Callable[[str], str] = str) -> SweepTimeline:
        """Return the sweep in time; `now_ns` is the time if it goes on, else None."""
        end, fate = max(self.last_ns, now_ns or 0), "lost" if now_ns is None else "running"
        tries = [*self._over, *((job, end, fate) for job in self._running.values())]
        return SweepTimeline(
            self.first_ns,
            end,
            now_ns is None,
            _tries(tries, hide),
            self.history.known.slots or Lease(),
            tuple(self._resumed_ns),
        )


def without_secrets(job: JobHistory, hide: Callable[[str], str]) -> JobHistory:
    """Return what is known of a job without secrets."""
    value = job.return_value
    return structs.replace(
        job,
        overrides=tuple(map(hide, redacted_overrides(job.overrides))),
        reason=hide(job.reason),
        root_cause=hide(job.root_cause),
        return_value=None if value is None else json.dumps(hidden(json.loads(value), hide)),
    )


def _tries(
    found: Iterable[tuple[JobHistory, int, str]], hide: Callable[[str], str]
) -> tuple[JobTry, ...]:
    """Return tries of what is known of a job by then, when each ended, and its fate."""
    tries = (
        JobTry(
            **structs.asdict(without_secrets(job, hide)),
            end_ns=max(job.started_ns, end_ns),
            fate=fate,
        )
        for job, end_ns, fate in found
    )
    return tuple(sorted(tries, key=lambda each: (each.start_ns, each.job)))


class SweepFiles:
    """The journal and the sweep.json of a sweep, each read as far as it has changed.

    sweep.json counts unless the journal is younger, which it is after a crash or during a resume:
    here alone it is decided.
    """

    def __init__(self, path: str) -> None:
        self._journal = os.path.join(path, JOURNAL)
        self._lock = lock_of("sweep", path)
        self._summary = os.path.join(path, SUMMARY)
        self._file = AppendedLines(self._journal, _MOST_BYTES, _LONGEST_RECORD)
        self._tries = SweepTries()
        self._problem: LaunchError | None = None
        self._seen: tuple[Signature | None, Signature | None] | None = None
        self._told: tuple[SweepResult | None, LaunchError | None] = None, None
        self.result: SweepResult | None = None
        self.error: LaunchError | None = None  # what is wrong with its files, as of the last look

    def look(self) -> SweepResult | None:
        """Return what they tell, the same object as before if they are as they were."""
        journal, summary = signature(self._journal), signature(self._summary)
        before, self._seen = self._seen, (journal, summary)
        if before == self._seen:
            return self.result
        if before is None or before[1] != summary:
            self._told = self._read_summary()
        self.result, self.error = self._told
        if journal is None or (self.result and (summary or journal)[2] >= journal[2]):
            return self.result
        self._grow()
        if self._problem is None and self._tries.history.known.sweep is None:
            self._check()
        if self._problem is not None:
            self.error = self.error or self._problem
        elif self._tries.history.known.sweep is not None:
            self.result = summary_of(self._tries.history, self._tries.last_ns)
        return self.result

    def timeline(self, hide: Callable[[str], str] = str) -> SweepTimeline:
        """Return what happened when, as far as there is a journal."""
        self.look()
        self._grow()
        live = state_of(self._lock) == "running"
        return self._tries.timeline(time.time_ns() if live else None, hide)

    def _read_summary(self) -> tuple[SweepResult | None, LaunchError | None]:
        try:
            return read_summary(self._summary), None
        except OSError as problem:
            return None, OutputError(self._summary, problem.strerror or str(problem))
        except ValueError as problem:
            return None, unreadable(self._summary, str(problem))

    def _grow(self) -> None:
        """Read what was added to the journal; what stands before a damaged line counts."""
        for another, line in self._file.added():
            if another:
                self._tries, self._problem = SweepTries(), None
            if self._problem is not None:
                return
            try:
                entry = decode(line)
            except ValueError:
                self._check()
                if self._problem is not None:
                    return
                continue
            if entry is not None:
                self._tries.take(*entry)

    def _check(self) -> None:
        """Find out what is wrong with the journal, if anything is: it may have grown meanwhile."""
        try:
            for _ in read_journal(self._journal):
                pass
        except LaunchError as problem:
            self._problem = problem


_KINDS: tuple[SlotKind, ...] = ("gpu", "cpu", "job")


def tracks_of(timeline: SweepTimeline) -> tuple[SlotTrack, ...]:
    """Return tries on what they held: on each of its GPUs, else on each of its cores. Pure.

    A job that held nothing (on a cluster, or one that asks for nothing) is where there is room.
    What the sweep could have leased has a track even if nothing ran there.

    Returns GPUs, then cores, then places. If tries on one GPU overlap, which they do only if a
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
