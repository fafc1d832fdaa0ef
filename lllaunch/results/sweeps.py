"""Sweeps on the disk: what their files say, what became of each and of its jobs, and when.

`SweepFiles` is the one reader of journal and sweep.json for all that shows a sweep, `SweepView` is
all that is known of one. `sweep_in_time` and `tracks_of`, which lays tries out on the GPUs or cores
that they held, are pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import structs

from lllaunch.errors import ExitCode, LaunchError
from lllaunch.locks import is_held
from lllaunch.results.store import (
    BatchQueue,
    FoundDirectory,
    ListEntry,
    Signature,
    changed_ns,
    contents_of,
    hidden,
    lock_of,
    read_submitted,
    signature,
    state_of,
    state_of_code,
    told,
)
from lllaunch.run.submission import account_of, read_history, read_submission
from lllaunch.secret_names import redacted_overrides, redactor_of
from lllaunch.sweep.history import (
    JobHistory,
    SweepHistory,
    SweepResult,
    read_summary,
    summary_of,
)
from lllaunch.sweep.journal import (
    ARRAYS,
    JOURNAL,
    SUMMARY,
    EndedRecord,
    JournalReader,
    OverRecord,
    Resumed,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.objective import Direction, Objective, Objectives, objective_of
from lllaunch.sweep.pool import Lease
from lllaunch.words import MEANINGS, short_overrides

if TYPE_CHECKING:
    from lllaunch.results.history import TimeSpan
    from lllaunch.run.submission import Submission
    from lllaunch.sweep.journal import JournalEntry

# What they say


class SweepFiles:
    """The journal and the sweep.json of a sweep, each read as far as it has changed.

    sweep.json counts unless the journal is younger, which it is after a crash or during a resume:
    here alone it is decided.
    """

    def __init__(self, path: str) -> None:
        self._journal = os.path.join(path, JOURNAL)
        self._summary = os.path.join(path, SUMMARY)
        self._seen: tuple[Signature | None, Signature | None] | None = None
        self._read: Signature | None = None  # of the journal as far as it was read
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
            self._told = told(self._summary, lambda: read_summary(self._summary))
        self.result, self.error = self._told
        if journal is None or (self.result and (summary or journal)[2] >= journal[2]):
            return self.result
        if self._read is None or journal[0] != self._read[0] or journal[1] < self._read[1]:
            self._reader, self._history = JournalReader(self._journal), SweepHistory()
            self._last_ns = 0
        self._read = journal
        try:
            for at, record in self._reader.added():
                self._history.add(at, record)
                self._last_ns = max(at, self._last_ns)
        except LaunchError as problem:
            self.error = self.error or problem
        else:
            if self._history.known.sweep is not None:
                self.result = summary_of(self._history, self._last_ns)
        return self.result


@dataclass(frozen=True)
class SweepView:
    """All that is known of a sweep; `result` is None if nothing is."""

    path: str
    result: SweepResult | None
    error: LaunchError | None = None  # what is wrong with its files
    queue: BatchQueue = field(default_factory=BatchQueue)
    hide: Callable[[str], str] = str

    @cached_property
    def is_submitted(self) -> bool:
        """Whether its jobs are, or were, in the queue of a cluster."""
        return is_submitted(self.path)

    @cached_property
    def _state(self) -> str:
        """What its launcher does, or did."""
        state = state_of(lock_of("sweep", self.path))
        code = None if self.result is None else self.result.exit_code
        if state == "running" or code is None:
            return state
        return state_of_code(code) if code == 0 or code > 128 else "failed"

    @cached_property
    def entry(self) -> ListEntry:
        """What became of it."""
        path, result = self.path, self.result
        journal = os.path.join(path, JOURNAL)
        if result is None:
            began_ns = changed_ns(journal)
            return ListEntry("sweep", path, "unknown", started_ns=began_ns, error=self.error)
        state, started_ns, seconds = self._state, result.started_ns or None, result.seconds
        if state in {"running", "died"} and started_ns is not None:
            last = time.time_ns() if state == "running" else changed_ns(journal)
            seconds = max(0, (last or started_ns) - started_ns) / 1e9
        entry = ListEntry(
            "sweep",
            path,
            state,
            exit_code=result.exit_code,
            started_ns=started_ns,
            seconds=seconds,
            error=self.error,
            given=result.command,
        )
        if self.is_submitted:
            return _with_submitted(entry, self.jobs)
        counts = Counter(_state_of_job(job, state) for job in result.jobs)
        # a job is composed when it is its turn
        if (rest := result.planned - len(result.jobs)) > 0:
            counts["waiting" if state == "running" else "not_run"] += rest
        return structs.replace(entry, counts=counts)

    @cached_property
    def common(self) -> tuple[str, ...]:
        """The overrides that all of several jobs share, in the order of the first one's."""
        jobs = () if self.result is None else self.result.jobs
        if len(jobs) < 2:
            return ()
        shared = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs[1:]))
        return tuple(each for each in dict.fromkeys(jobs[0].overrides) if each in shared)

    @cached_property
    def jobs(self) -> tuple[ListEntry, ...]:
        """Its jobs by number; of those that were submitted their own directories tell."""
        return () if self.result is None else tuple(map(self._job, self.result.jobs))

    def _job(self, job: JobHistory) -> ListEntry:
        entry = entry_of_job(job, self.path, self._state)
        if not (self.is_submitted and job.directory):
            return entry
        found = FoundDirectory(entry.path, "run", contents_of(entry.path)[0])
        submission = read_submission(entry.path)
        if submission is None:
            if job.state != "started" or is_held(lock_of("run", entry.path)):
                return entry
            submission = self._submission_of(job.job, entry.path)
        if submission is None:
            # written down before it was submitted, which it was not
            state = "waiting" if self._state == "running" else "not_run"
            return structs.replace(entry, state=state)
        run, _ = read_submitted(found, submission, self.queue)
        return structs.replace(run, kind="job", number=entry.number, given=entry.given)

    @cached_property
    def _tasks(self) -> Mapping[int, tuple[Submission, int]]:
        """By number of a job the array that it was to go with, and its place in that."""
        # nearly no sweep that was submitted was broken off meanwhile
        from lllaunch.sweep.arrays import known_arrays  # noqa: PLC0415

        return {
            each.number: (array.submission, index)
            for array in known_arrays(os.path.abspath(self.path))
            for index, task in enumerate(array.tasks)
            for each in task
        }

    def _submission_of(self, number: int, directory: str) -> Submission | None:
        """Return what was submitted of a job whose launcher did not come to write it down.

        Returns None if it was not, as far as anybody knows.
        """
        if number not in self._tasks:
            return None
        array, index = self._tasks[number]
        of_array = array.job or self.queue.array_in(array.directory)
        known = f"{of_array}_{index}" if of_array else account_of(directory).job
        if not (known and self.queue.with_id(known)) and not read_history(directory):
            return None
        return structs.replace(array, job=known, directory="")

    @cached_property
    def timeline(self) -> SweepTimeline:
        """What happened when, as far as its journal can be read."""
        live = state_of(lock_of("sweep", self.path)) == "running"

        def entries() -> Iterator[JournalEntry]:
            with contextlib.suppress(LaunchError):
                yield from read_journal(os.path.join(self.path, JOURNAL))

        return sweep_in_time(entries(), time.time_ns() if live else None, self.hide)


def view_sweep(
    path: str, hide: Callable[[str], str] | None = None, queue: BatchQueue | None = None
) -> SweepView:
    """Read what became of a sweep, without secrets; never raises.

    ``hide``: what takes them out, if that is known already.
    """
    hide = redactor_of(path) if hide is None else hide
    files = SweepFiles(path)
    result = files.look()
    if result is not None and hide is not str:
        command = tuple(map(hide, redacted_overrides(result.command)))
        jobs = tuple(without_secrets(job, hide) for job in result.jobs)
        result = structs.replace(result, jobs=jobs, command=command)
    return SweepView(path, result, files.error, queue or BatchQueue(), hide)


def is_submitted(sweep: str) -> bool:
    """Return whether the jobs of a sweep are, or were, in the queue of a cluster."""
    return os.path.isdir(os.path.join(sweep, ARRAYS))


def _with_submitted(sweep: ListEntry, jobs: Sequence[ListEntry]) -> ListEntry:
    """Return what is known of a sweep whose jobs go on without its launcher."""
    counts = Counter(job.state for job in jobs)
    said = Counter(job.queue.partition(" (")[0] for job in jobs if job.queue)
    queue = ", ".join(f"{number} {state}" for state, number in sorted(said.items()))
    sweep = structs.replace(sweep, counts=counts, queue=queue)
    if queue:
        goes_on = sweep.state == "running" or counts["running"]
        seconds = None if sweep.started_ns is None else (time.time_ns() - sweep.started_ns) / 1e9
        state = "running" if goes_on else "queued"
        return structs.replace(sweep, state=state, exit_code=None, seconds=seconds)
    broken_off = sweep.state == "signalled" or (sweep.exit_code is None and counts["not_run"])
    if sweep.state == "running" or broken_off or counts.keys() <= {"waiting", "not_run"}:
        return sweep
    # its jobs went on without the launcher, which has written the last line long before
    ends = [job.started_ns + job.seconds * 1e9 for job in jobs if job.started_ns and job.seconds]
    if sweep.started_ns is not None and ends:
        seconds = max(sweep.seconds or 0.0, (max(ends) - sweep.started_ns) / 1e9)
        sweep = structs.replace(sweep, seconds=seconds)
    well = counts.keys() <= {"succeeded"}
    state, code = ("succeeded", ExitCode.SUCCESS) if well else ("failed", ExitCode.SWEEP)
    return structs.replace(sweep, state=state, exit_code=int(code))


def entry_of_job(job: JobHistory, sweep: str, sweep_state: str) -> ListEntry:
    """Return what the journal tells of a job that goes on with the launcher of its sweep."""
    ended, state = job.result, _state_of_job(job, sweep_state)
    seconds = None if ended is None else ended.seconds
    if state == "running" and job.started_ns:
        seconds = max(0, time.time_ns() - job.started_ns) / 1e9
    return ListEntry(
        "job",
        os.path.join(sweep, job.directory) if job.directory else sweep,
        state,
        exit_code=None if ended is None else ended.exit_code,
        started_ns=job.started_ns or None,
        seconds=seconds,
        attempts=job.tries,
        root_cause=(ended.root_cause if ended is not None else "") or job.reason,
        value=job.value,
        number=job.job,
        given=job.overrides,
    )


def without_common(job: ListEntry, common: Collection[str]) -> ListEntry:
    """Return a job without the overrides that all jobs share."""
    own = tuple(each for each in job.given or () if each not in common)
    return structs.replace(job, given=own)


def objectives_of(
    jobs: Sequence[ListEntry], direction: Direction | None, common: Collection[str]
) -> Objectives:
    """Return what is best, or the extremes, named by the overrides that not all jobs share."""
    good = ((objective_of(job.value), job) for job in jobs if job.state == "succeeded")
    known = (Objective(value, job.number or 0) for value, job in good if value is not None)
    found = Objectives(direction, known).extremes
    named = {job.number or 0: job for job in jobs} if found else {}
    names = ((each, short_overrides(named[each.job].overrides, common)) for _, each in found)
    return Objectives(direction, (each._replace(name=name) for each, name in names))


def _state_of_job(job: JobHistory, sweep: str) -> str:
    if job.state in {"composed", "skipped"}:
        return "waiting" if sweep == "running" else "not_run"
    if job.state == "started":
        return "running" if sweep == "running" else "died"
    return job.state if job.state in MEANINGS else "unknown"


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


# In time


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

    kind: str  # ``gpu``, ``cpu``, or ``job``: a place for jobs that held neither
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


def sweep_in_time(
    entries: Iterable[JournalEntry], now_ns: int | None, hide: Callable[[str], str] = str
) -> SweepTimeline:
    """Return what the entries of a journal come to; `now_ns` is the time if it goes on. Pure."""
    history = SweepHistory()
    first_ns = last_ns = 0
    over: list[tuple[JobHistory, int, str]] = []
    running: dict[int, JobHistory] = {}
    resumed_ns: list[int] = []
    for at, record in entries:
        first_ns, last_ns = min(at, first_ns or at), max(at, last_ns)
        if isinstance(record, (Resumed, OverRecord)):
            # of what was not told to have ended the launcher was gone before it
            over += [(job, at, "lost") for job in running.values()]
            running.clear()
        elif isinstance(record, StartedRecord) and record.job in running:
            over.append((running[record.job], at, "lost"))
        history.add(at, record)
        if isinstance(record, Resumed):
            resumed_ns.append(at)
        elif isinstance(record, StartedRecord):
            running[record.job] = history.jobs[record.job]
        elif isinstance(record, EndedRecord) and running.pop(record.job, None) is not None:
            over.append((history.jobs[record.job], at, record.result.state))
    end_ns, fate = max(last_ns, now_ns or 0), "lost" if now_ns is None else "running"
    over += [(job, end_ns, fate) for job in running.values()]
    tries = (
        JobTry(
            **structs.asdict(without_secrets(job, hide)),
            end_ns=max(job.started_ns, at),
            fate=fate,
        )
        for job, at, fate in over
    )
    return SweepTimeline(
        first_ns,
        end_ns,
        now_ns is None,
        tuple(sorted(tries, key=lambda each: (each.start_ns, each.job))),
        history.known.slots or Lease(),
        tuple(resumed_ns),
    )


_KINDS = ("gpu", "cpu", "job")


def tracks_of(timeline: SweepTimeline) -> tuple[SlotTrack, ...]:
    """Return tries on what they held: on each of its GPUs, else on each of its cores. Pure.

    A job that held nothing (on a cluster, or one that asks for nothing) is where there is room.
    What the sweep could have leased has a track even if nothing ran there.

    Returns GPUs, then cores, then places. If tries on one GPU overlap, which they do only if a
    clock was set meanwhile, it has several tracks.
    """
    found: dict[tuple[str, str], list[list[JobTry]]]
    found = {("gpu", gpu): [[]] for gpu in timeline.slots.gpus}
    on_cores = any(each.lease.cpus and not each.lease.gpus for each in timeline.tries)
    for core in timeline.slots.cpus if on_cores else ():
        found["cpu", str(core)] = [[]]
    for each in timeline.tries:
        gpus = [("gpu", name) for name in dict.fromkeys(each.lease.gpus)]
        cores = [("cpu", str(core)) for core in dict.fromkeys(each.lease.cpus)]
        for slot in gpus or cores or [("job", "")]:
            place(found.setdefault(slot, [[]]), each)
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


T = TypeVar("T", "JobTry", "TimeSpan")


def place(lines: list[list[T]], each: T) -> None:
    """Put what lasts on the first line that is free by then, a new one if none is."""
    for line in lines:
        if not line or line[-1].end_ns <= each.start_ns:
            line.append(each)
            return
    lines.append([each])
