"""What goes on: runs, sweeps, their jobs and ranks as they are at this moment, for ``top``.

All of it is read from what they write, and nothing is changed. Whoever shows it looks once a
second, so `LiveReader` keeps what it has read: of events and journals only what was added, of
samples the last one if it is another, of a directory its names while its time is the same. What is
over is not looked into again. The rest is pure: rows, and what of them is shown.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from lllaunch.documents import isoformat, signal_name
from lllaunch.results.history import (
    Lane,
    RunHistory,
)
from lllaunch.results.locate import NoSuchRun, entry_of
from lllaunch.results.store import (
    BatchQueue,
    FoundDirectory,
    ListEntry,
    changed_ns,
    contents_of,
    find,
    look,
    plain,
    progress_of,
    sample_of,
    signature,
)
from lllaunch.results.sweeps import SweepFiles, SweepView, objectives_of, without_common
from lllaunch.run.directory import ATTEMPT, SAMPLES, RankSample, RunSample, finite
from lllaunch.sweep.objective import Objectives
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.schedule import Durations, expected_left
from lllaunch.text import first_line
from lllaunch.watchdog.progress import Progress
from lllaunch.words import STATES, State, ranks

if TYPE_CHECKING:
    from lllaunch.sweep.history import SweepResult

RECENT_SECONDS = 600.0
"""For how long what has ended is shown among what lives."""
MOST_RECENT = 5
"""How much of that."""


Watched: TypeAlias = FoundDirectory | tuple[str, ...]
"""What is looked at: a run, a sweep, or whatever goes on below some directories."""


@dataclass(frozen=True)
class LiveView:
    """What is looked at: a run with its ranks, a sweep with its jobs, or whatever goes on."""

    time_ns: int
    rows: tuple[ListEntry, ...]
    # the run or the sweep; None for what goes on below some directories
    subject: ListEntry | None = None
    roots: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    objectives: Objectives | None = None
    slots: Lease = field(default_factory=Lease)  # what a sweep may lease

    @cached_property
    def unseen(self) -> Mapping[str, int]:
        """Of a sweep, how many jobs by state are in no row: they are not composed yet."""
        left = Counter({} if self.subject is None else self.subject.counts)
        left.subtract(row.state for row in self.rows)
        return +left if self.kind == "sweep" else {}

    @property
    def kind(self) -> Literal["run", "sweep", "all"]:
        """What is looked at."""
        if self.subject is None:
            return "all"
        return "sweep" if self.subject.kind == "sweep" else "run"

    @property
    def is_over(self) -> bool:
        """Whether nothing in it will change any more."""
        return self.subject is not None and not self.subject.is_live


# Pure: from what was read to rows


_OF_LIFE = ("rate", "eta", "idle", "cpu", "memory", "gpu_use", "gpu_memory")


def _measured(
    workers: Collection[RankSample], sample: RunSample | None, age: float, *, live: bool
) -> dict[str, Any]:
    """Return the fields of a row that samples of its workers tell; of what is over not the last."""
    names = tuple(dict.fromkeys(name for worker in workers for name in worker.gpus))
    gpus = [sample.gpus[name] for name in names if name in sample.gpus] if sample else []
    uses = _finite(gpu.use for gpu in gpus)
    fields: dict[str, Any] = {
        "cpu": _sum(worker.cpu for worker in workers),
        "memory": _integer(_sum(worker.rss for worker in workers)),
        "gpus": names,
        "gpu_use": sum(uses) / len(uses) if uses else None,
        "gpu_memory": _integer(_sum(gpu.memory for gpu in gpus)),
    }
    progress = progress_of(workers)
    if progress is None:
        fields |= {**dict.fromkeys(Progress._fields), "metrics": {}}
    else:
        # all are done when the last one is
        lefts = [left for left in _finite(each.eta for each in workers) if left >= 0]
        eta = max(0.0, max(lefts) - age) if lefts else None
        fields |= {**progress._asdict(), "eta": eta, "idle": progress.idle + age}
    return fields if live else fields | dict.fromkeys(_OF_LIFE)


def with_now(row: ListEntry, now: _LiveRun) -> ListEntry:
    """Return a run or a job with what its files tell that it does."""
    ranks = {} if now.sample is None else now.sample.by_rank
    slowest, behind = slowest_of(ranks) or (None, None)
    # of a job it is the number of its tries, which its run knows nothing of
    known = now.number is None or row.kind == "job"
    said = now.said()
    return replace(
        row,
        attempts=row.attempts if known else (now.number or 0) + 1,
        slowest=slowest,
        behind=behind,
        note=said[-1] if said else "",
        **_measured(ranks.values(), now.sample, now.age, live=row.is_live),
    )


def rank_rows(run: ListEntry, now: _LiveRun) -> list[ListEntry]:
    """Return a row for each rank of the attempt that runs, or ran last."""
    sampled = {} if now.sample is None else now.sample.by_rank
    # each with the name of its node's directory
    workers = {
        each.base_rank + rank: (part, worker)
        for part, each in now.attempts(now.number)
        for rank, worker in each.workers.items()
    }
    found = []
    for rank in sorted({*workers, *sampled}):
        node, worker = workers.get(rank) or ("", Lane(rank, started_ns=1))
        if worker.ended_ns is not None:
            state = "failed" if worker.has_failed else "ended"
        elif worker.started_ns is None:
            state = "starting"
        else:
            state = "running" if run.is_live else "ended"
        live = state in {"running", "starting"}
        code = worker.exitcode
        how = "" if not code else signal_name(-code) if code < 0 else f"exit code {code}"
        found.append(
            ListEntry(
                "rank",
                run.path,
                state,
                number=rank,
                attempts=None if now.number is None else now.number + 1,
                note=how,
                exit_code=worker.exitcode,
                pid=worker.pid,
                node=node,
                **_measured([sampled.get(rank) or RankSample()], now.sample, now.age, live=live),
            )
        )
    return found


def slowest_of(ranks: Mapping[int, RankSample]) -> tuple[int, float] | None:
    """Return the rank that is behind all others and its step; None if none is."""
    steps = {rank: finite(worker.step) for rank, worker in ranks.items()}
    known = {rank: step for rank, step in steps.items() if step is not None}
    slowest = min(known, key=lambda rank: known[rank], default=-1)
    if not known or known[slowest] == max(known.values()):
        return None
    return slowest, known[slowest]


def _finite(numbers: Iterable[float | None]) -> list[float]:
    return [known for number in numbers if (known := finite(number)) is not None]


def _sum(numbers: Iterable[float | None]) -> float | None:
    known = _finite(numbers)
    return sum(known) if known else None


def _integer(number: float | None) -> int | None:
    return None if number is None else int(number)


def by_urgency(row: ListEntry) -> tuple[int, int, int]:
    """Return a key that sorts jobs: those that run, that failed of late, that wait, and the rest.

    Waiting ones follow by number, what ended the latest first.
    """
    return STATES.get(row.state, State()).order, -(row.ended_ns or 0), row.number or 0


def sweep_left(jobs: Sequence[ListEntry], waiting: int) -> float | None:
    """Return how long a sweep will take about until all its jobs are over, seconds.

    As the table of the sweep itself has it (`expected_left`).
    """
    running = [
        (job.seconds, job.eta) for job in jobs if job.state == "running" and job.seconds is not None
    ]
    return expected_left(running, waiting, _took(jobs, "succeeded"), _took(jobs, "failed"))


def _took(jobs: Iterable[ListEntry], state: str) -> Durations:
    known = [job.seconds for job in jobs if job.state == state and job.seconds is not None]
    return Durations(len(known), sum(known))


def plain_view(view: LiveView) -> dict[str, Any]:
    """Return a view as data for JSON."""
    document: dict[str, Any] = {"time": isoformat(view.time_ns), "kind": view.kind}
    if view.subject is not None:
        document |= {view.kind: plain(view.subject)}
    else:
        document["roots"] = [os.path.abspath(root) for root in view.roots]
    if view.findings:
        document["findings"] = list(view.findings)
    name = {"run": "ranks", "sweep": "jobs", "all": "rows"}[view.kind]
    return {**document, name: [plain(row) for row in view.rows]}


# What is read, and kept

_MOST_FINDINGS = 20
# A directory's time may stay as it is when something is added within a tick of the file system's
# clock; a cluster is not to be asked too often. Seconds.
_SETTLED, _QUEUE_PAUSE = 2.0, 5.0


class _LiveRun(RunHistory):
    """What the files of a run tell beside its state, each read as far as it has changed."""

    _sampled: tuple[object, ...] = ()
    _newest: RunSample | None = None
    number: int | None = None  # of the attempt that runs, or ran last
    sample: RunSample | None = None  # the last one of the attempt
    age = 0.0  # of the last sample, seconds

    def see(self, names: Collection[str]) -> _LiveRun:
        """Read what is new; `names` is what is in its directory."""
        nodes = self.look(names).nodes
        sampled = tuple(signature(os.path.join(self.path, part, SAMPLES)) for part in nodes)
        if sampled != self._sampled:
            self._sampled, self._newest = sampled, sample_of(self.path)
        self.number, sample = self.attempt, self._newest
        if self.number is None:
            numbers = (int(match[1]) for name in names if (match := ATTEMPT.fullmatch(name)))
            self.number = max(numbers, default=None)
        self.sample = None if sample is None or sample.attempt != self.number else sample
        self.age = 0.0 if sample is None else max(0.0, time.time() - sample.time)
        return self

    def said(self) -> tuple[str, ...]:
        """Return what the watchdog found and how attempts failed; of former ones with a number."""
        notes = [
            (each.number, mark)
            for _, node in self.current
            for each in node.attempts.values()
            for mark in each.marks
            if mark.kind in {"finding", "root_cause"}
        ]
        notes.sort(key=lambda pair: (pair[0], pair[1].time_ns))
        return tuple(
            ("" if of == self.number else f"attempt {of}: ")
            + ("" if mark.rank is None else f"{ranks([mark.rank])}: ")
            + first_line(mark.text, 200)
            for of, mark in notes[-_MOST_FINDINGS:]
        )


@dataclass
class _KnownSweep:
    """What is kept of a sweep: rows of jobs that do not run are made once."""

    files: SweepFiles
    result: SweepResult | None = None
    objectives: Objectives | None = None
    asked: float = float("-inf")
    entry: ListEntry | None = None
    rows: tuple[ListEntry, ...] = ()  # of its jobs, as the last look found them


class LiveReader:
    """Reads what goes on, as often as somebody looks."""

    def __init__(self) -> None:
        self._queue = BatchQueue(good_for=_QUEUE_PAUSE)
        self._contents: dict[str, tuple[int | None, tuple[frozenset[str], list[str]]]] = {}
        self._over: dict[str, tuple[int, ListEntry]] = {}
        self._runs: dict[str, _LiveRun] = {}
        self._sweeps: dict[str, _KnownSweep] = {}

    # What is looked at

    def everything(self, roots: Sequence[str]) -> LiveView:
        """Return what goes on below some directories, and what has ended there of late.

        Sweeps are followed by those of their jobs that run.
        """
        found: dict[str, FoundDirectory] = {}
        for root in roots:
            for each in find(root, contents=self._contents_of):
                found.setdefault(os.path.realpath(each.path), each)
        now_ns = time.time_ns()
        rows = [self._row(each) for each in found.values()]
        live = [row for row in rows if row.is_live]
        over = sorted(
            (row for row in rows if now_ns - (row.ended_ns or 0) < RECENT_SECONDS * 1e9),
            key=lambda row: row.ended_ns or 0,
            reverse=True,
        )
        live.sort(key=lambda row: row.seconds or 0.0)
        shown: list[ListEntry] = []
        for row in live:
            shown.append(row)
            if row.kind == "sweep":
                shown += [job for job in self._sweeps[row.path].rows if job.state == "running"]
        return LiveView(now_ns, (*shown, *over[:MOST_RECENT]), roots=tuple(roots))

    def view(self, what: Watched) -> LiveView:
        """Look at a run or a sweep, or at `everything` below some directories."""
        if not isinstance(what, FoundDirectory):
            return self.everything(what)
        return self.sweep(what.path) if what.kind == "sweep" else self.run(what.path)

    def run(self, path: str) -> LiveView:
        """Return a run or a job with its ranks.

        Raises:
            NoSuchRun: it is gone.
        """
        found = look(path, self._contents_of)
        if found is None:
            raise NoSuchRun(path, "is gone")
        entry = entry_of(found, self._queue)
        now = self._run_now(path, found.names)
        row = with_now(entry, now)
        rows = tuple(rank_rows(row, now))
        # of what is over its root cause tells
        said = now.said() if row.is_live or not entry.root_cause else ()
        return LiveView(time.time_ns(), rows, subject=row, findings=said)

    def sweep(self, path: str) -> LiveView:
        """Return a sweep with its jobs."""
        row, known = self._sweep_row(path), self._sweeps[path]
        return LiveView(
            time.time_ns(),
            tuple(sorted(known.rows, key=by_urgency)),
            subject=row,
            objectives=known.objectives,
            slots=(known.result and known.result.slots) or Lease(),
        )

    # How it is read

    def _contents_of(self, path: str) -> tuple[frozenset[str], list[str]]:
        """Return what is in a directory, as long as its time stays the same from memory."""
        settled = _settled_ns(path)
        known = self._contents.get(path)
        if known is None or known[0] is None or known[0] != settled:
            known = self._contents[path] = settled, contents_of(path)
        return known[1]

    def _row(self, found: FoundDirectory) -> ListEntry:
        """Return what is to be known of a run or a sweep in a list; what is over is read once."""
        settled = _settled_ns(found.path)
        known = self._over.get(found.path)
        if known is not None and known[0] == settled:
            return known[1]
        if found.kind == "sweep":
            row = self._sweep_row(found.path)
        else:
            row = entry_of(found, self._queue)
            if row.state == "running":
                row = with_now(row, self._run_now(found.path, found.names))
        if not row.is_live and row.state != "unknown" and settled is not None:
            self._over[found.path] = settled, row
            self._runs.pop(found.path, None)
            self._sweeps.pop(found.path, None)
        return row

    def _run_now(self, path: str, names: Collection[str]) -> _LiveRun:
        return self._runs.setdefault(path, _LiveRun(path)).see(names)

    def _sweep_row(self, path: str) -> ListEntry:
        """Read a sweep and its jobs; return its row."""
        known = self._sweeps.setdefault(path, _KnownSweep(SweepFiles(path)))
        result, before, now = known.files.look(), known.entry, time.monotonic()
        view = SweepView(path, result, known.files.error, self._queue)
        changed = known.result is not result
        # of one on a cluster each job is looked at
        if before is None or not view.is_submitted or now - known.asked > _QUEUE_PAUSE:
            known.asked, known.entry = now, view.entry
            changed_state = before is None or before.state != view.entry.state
            if view.is_submitted or changed or changed_state or not known.rows:
                known.rows = tuple(without_common(job, view.common) for job in view.jobs)
                for job in known.rows:
                    if job.state != "running":
                        self._runs.pop(job.path, None)
        row = known.entry or view.entry
        if changed and result is not None:
            known.objectives = objectives_of(view.jobs, result.direction, view.common)
        known.result = result
        leases = {job.job: job.lease for job in (() if result is None else result.jobs)}
        known.rows = tuple(
            self._job_now(job, leases.get(job.number or 0)) if job.state == "running" else job
            for job in known.rows
        )
        counts = row.counts
        left = sweep_left(known.rows, counts.get("waiting", 0)) if row.state == "running" else None
        return replace(
            row,
            step=float(counts.get("succeeded", 0)),
            total=sum(counts.values()),
            eta=left,
        )

    def _job_now(self, row: ListEntry, lease: Lease | None) -> ListEntry:
        """Return a job that runs as its own files tell of it."""
        row = with_now(row, self._run_now(row.path, self._contents_of(row.path)[0]))
        # the row may be older
        if row.started_ns is not None:
            row = replace(row, seconds=max(0, time.time_ns() - row.started_ns) / 1e9)
        return row if lease is None else replace(row, gpus=lease.gpus or row.gpus, cpus=lease.cpus)


def _settled_ns(path: str) -> int | None:
    """Return when a directory changed; None if that was a moment ago, or it is gone."""
    changed = changed_ns(path)
    old = changed is not None and time.time_ns() - changed > _SETTLED * 1e9
    return changed if old else None
