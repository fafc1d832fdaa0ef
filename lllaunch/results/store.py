"""Runs on the disk: where runs and sweeps are, and what became of each run.

Of a run only its result.json is read, and its overrides when they are asked for. Of many runs that
can be as good as all that there is to read, so nothing is read twice or before it is due.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from lllaunch.documents import Plain, Record, Time, as_object, isoformat, last_line, load_json
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError, OutputError, for_signal
from lllaunch.files import own_file, read_text
from lllaunch.locks import is_held
from lllaunch.results.index import DEPTH
from lllaunch.run.directory import (
    ATTEMPT,
    EVENTS,
    LOCK_NAME,
    PLAN,
    RESULT,
    SAMPLES,
    SUBMISSION,
    RankSample,
    RunSample,
    decode_sample,
    finite,
)
from lllaunch.run.result import RunResult, as_result
from lllaunch.run.submission import (
    LOG,
    BatchEnded,
    BatchSignalled,
    BatchStarted,
    Requeued,
    read_history,
    read_submission,
)
from lllaunch.secret_names import redacted_overrides
from lllaunch.sweep.journal import JOURNAL, SUMMARY
from lllaunch.sweep.journal import LOCK_NAME as SWEEP_LOCK_NAME
from lllaunch.text import first_line
from lllaunch.words import PUT_BACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lllaunch.run.submission import QueueEvent, Submission
    from lllaunch.watchdog.progress import Progress

    Contents = Callable[[str], tuple[frozenset[str], list[str]]]
    from lllaunch.cluster.slurm import QueuedJob

T = TypeVar("T")

NO_ANSWER = "no answer"
"""What stands in place of a batch job's state where the cluster cannot be asked."""

# How long it may take to submit a run and to write down its id, seconds; and how long a list of
# jobs is good for one that was submitted within that time.
_SUBMITTING, _FRESH = 150.0, 1.0
# Questions about single jobs that are over, in a list of runs.
_MOST_ENDINGS = 16


class BatchQueue:
    """What a cluster says of batch jobs; asked when it is first needed, of all of them at once.

    ``good_for``: seconds after which it is asked again; else somebody has to forget what it said.
    """

    def __init__(self, good_for: float = float("inf")) -> None:
        self._good_for = good_for
        self.forget()

    def forget(self) -> None:
        """Ask again."""
        self._jobs: dict[str, QueuedJob] | None = None
        self._others: dict[str, QueuedJob | None] = {}
        self._endings: dict[str, str] = {}
        self._answers, self._asked = True, 0.0

    @property
    def answers(self) -> bool:
        """Whether the cluster can be asked from here, and answers."""
        self._all()
        return self._answers

    def find(self, submission: Submission, *, own: bool = True) -> QueuedJob | None:
        """Return a batch job that is not over, None if it is."""
        job = self._find(submission, own=own)
        if job is None and self._answers and is_recent(submission):
            # it may have come into the queue after the others were asked for
            if time.monotonic() - self._asked > _FRESH:
                self._jobs = None
            job = self._find(submission, own=own)
        return job

    def array_in(self, directory: str) -> str:
        """Return the id of this user's array with a working directory; empty if it is over."""
        found = (job.id for job in self._all().values() if job.directory == directory)
        return next(found, "").partition("_")[0]

    def with_id(self, job: str) -> QueuedJob | None:
        """Return a job of this user's, None if it is not in the queue."""
        return self._all().get(job)

    def ending(self, job: str) -> str:
        """Return the state that a batch job ended in, ``CANCELLED``; empty if nobody knows it.

        Slurm forgets a job some minutes after its end. Of a long list the first ones are asked for.
        """
        if job not in self._endings and len(self._endings) < _MOST_ENDINGS and self.answers:
            facts = self._ask(lambda slurm: slurm.job_facts(job), None)
            self._endings[job] = "" if facts is None else facts.state
        return self._endings.get(job, "")

    def _find(self, submission: Submission, *, own: bool) -> QueuedJob | None:
        jobs, id_ = self._all(), submission.job
        if not id_:
            # who submitted it did not come to write down its id; tasks of an array share a
            # directory
            found = (job for job in jobs.values() if job.directory == submission.directory)
            return next((job for job in found if "_" not in job.id), None)
        if not (own or id_ in jobs or id_ in self._others) and self._answers:
            # another user's
            self._others[id_] = self._ask(lambda slurm: slurm.queued(id_).get(id_), None)
        return jobs.get(id_) or self._others.get(id_)

    def _all(self) -> dict[str, QueuedJob]:
        if self._jobs is not None and time.monotonic() - self._asked > self._good_for:
            self.forget()
        if self._jobs is None:
            self._answers = self._ask(lambda slurm: slurm.available(), False)
            self._jobs = self._ask(lambda slurm: slurm.queued(), {}) if self._answers else {}
            self._asked = time.monotonic()
        return self._jobs

    def _ask(self, question: Callable[[Any], T], otherwise: T) -> T:
        from lllaunch.cluster import slurm  # noqa: PLC0415 - most runs are of this machine

        try:
            return question(slurm)
        except LaunchError:
            self._answers = False
            return otherwise


def is_recent(submission: Submission) -> bool:
    """Return whether what was submitted may not have come into the queue yet."""
    return time.time_ns() - submission.time_ns < _SUBMITTING * 1e9


def queue_text(job: QueuedJob) -> str:
    """Return ``PENDING (Priority)`` of a batch job that waits, ``RUNNING (node1)`` of another."""
    where = job.nodes or job.reason
    return job.state if where in {"", "None"} else f"{job.state} ({where})"


_CANCELLED = for_signal(signal.SIGTERM)
"""Exit code of a run that SIGTERM ended; one that was cancelled in the queue gets it, too."""


def cancelled(history: Sequence[tuple[int, QueueEvent]]) -> BatchEnded:
    """Return how a run ended whose batch job was cancelled, if it has not said so itself."""
    last = history[-1][1] if history else None
    if isinstance(last, (BatchStarted, BatchSignalled)):
        return BatchEnded(_CANCELLED, "its batch job was cancelled, and was killed before its end")
    again = " again" if history else ""
    return BatchEnded(_CANCELLED, f"its batch job was cancelled before it started{again}")


class BatchFacts(Record, frozen=True):
    """The way of a run through a cluster's queue."""

    BESIDE = frozenset({"first_ns", "started_ns"})

    submitted_ns: Time = field(name="submitted")
    first_ns: int  # when it started first; 0 if it has not. The same holds for the last start
    started_ns: int
    starts: int
    nodes: tuple[str, ...]
    requeues: tuple[Requeued, ...]
    waited: float
    # for how long it ran in all, seconds. Of a start that was lost with its node nobody knows the
    # end; what it waited then is in it
    ran: float
    reason: str  # why it did not go back into the queue, or an empty string

    @property
    def text(self) -> str:
        """How often it started and why, if more than once: ``3; put back: preempted (2 times)``."""
        if self.starts < 2 and not self.requeues:
            return ""
        causes = Counter(PUT_BACK[back.cause] for back in self.requeues)
        parts = [why if times == 1 else f"{why} ({times} times)" for why, times in causes.items()]
        back = f"; put back into the queue: {', '.join(parts)}" if parts else ""
        return f"{self.starts}{back}"


def batch_facts(
    submission: Submission, history: Sequence[tuple[int, QueueEvent]], until_ns: int
) -> BatchFacts:
    """Return what the history of a submitted run comes to, until it was heard of last. Pure."""
    waited = ran = 0
    since, runs = submission.time_ns, False
    ends = [(at, each) for at, each in history if not isinstance(each, BatchSignalled)]
    if not ends or not isinstance(ends[-1][1], BatchEnded):
        ends.append((max(until_ns, history[-1][0] if history else 0), BatchEnded(0)))
    for time_ns, event in ends:
        passed = max(0, time_ns - since) if since else 0
        waited, ran = (waited, ran + passed) if runs else (waited + passed, ran)
        since, runs = time_ns, isinstance(event, BatchStarted)
    starts = [(at, event) for at, event in history if isinstance(event, BatchStarted)]
    last = history[-1][1] if history else None
    return BatchFacts(
        submission.time_ns,
        starts[0][0] if starts else 0,
        starts[-1][0] if starts else 0,
        len(starts),
        starts[-1][1].nodes if starts else (),
        tuple(event for _, event in history if isinstance(event, Requeued)),
        waited / 1e9,
        ran / 1e9,
        last.reason if isinstance(last, BatchEnded) else "",
    )


_TAIL = 16 * 1024  # bytes
# What Hydra writes, where YAML cannot mean anything but the text itself.
_PLAIN = re.compile(r"- ([A-Za-z0-9_+~][\w+~./@,-]*=[\w+~./@,=-]*)")


def read_overrides(directory: str) -> tuple[str, ...]:
    """Return the overrides of a run without secrets; none if they cannot be read."""
    text = read_text(os.path.join(directory, ".hydra", "overrides.yaml"))
    if not text:
        return ()
    lines = text.splitlines()
    plain = [_PLAIN.fullmatch(line) for line in lines]
    found = [match[1] for match in plain if match]
    return redacted_overrides(found if len(found) == len(lines) else _from_yaml(text))


def _from_yaml(text: str) -> tuple[str, ...]:
    # 15 ms to import, and most overrides are plain
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - PyYAML ships no types

    found: list[str] = []
    starts = 0
    try:
        # not built into a value: that of deeply nested ones ends the process
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            starts += isinstance(event, yaml.CollectionStartEvent)
            if starts > 1 or isinstance(event, yaml.MappingStartEvent):
                return ()
            if isinstance(event, yaml.ScalarEvent):
                found.append(event.value)
    except (yaml.YAMLError, ValueError):
        return ()
    return tuple(found) if starts else ()


def last_event_ns(directory: str) -> int:
    """Return the time of the last whole line of a run's events.jsonl, 0 if there is none."""
    at = (last_line(os.path.join(directory, EVENTS), _TAIL, as_object) or {}).get("time_ns")
    return at if isinstance(at, int) else 0


OF_A_RUN = frozenset({LOCK_NAME, EVENTS, PLAN, RESULT})
OF_A_SWEEP = frozenset({JOURNAL, SUMMARY})
# Within the directory of a run, and no runs themselves.
_PARTS = ("attempt_", "node_")


class FoundDirectory(NamedTuple):
    """The directory of a run or a sweep."""

    path: str
    kind: Literal["run", "sweep"]
    names: frozenset[str]


def find(root: str, contents: Contents | None = None) -> Iterator[FoundDirectory]:
    """Finds runs and sweeps in a directory and below it, in no order.

    Links are not followed, and what cannot be read is passed over. Nothing is looked for in a run
    or a sweep, unless that is the root itself; a sweep's journal tells of its jobs.

    ``contents``: tells what is in a directory; `contents_of` unless the caller knows more.
    """
    contents = contents or contents_of
    left = [(root, DEPTH)]
    while left:
        path, levels = left.pop()
        names, directories = contents(path)
        kind = _kind(names)
        if kind is not None:
            yield FoundDirectory(path, kind, names)
        if levels > 0 and (kind is None or (kind == "run" and path == root)):
            left += [
                (os.path.join(path, name), levels - 1)
                for name in directories
                if not (name.startswith(".") or (kind and name.startswith(_PARTS)))
            ]


def look(path: str, contents: Contents | None = None) -> FoundDirectory | None:
    """Return what a directory that was named is, None if it is neither a run nor a sweep."""
    names, _ = (contents or contents_of)(path)
    kind = _kind(names)
    if kind is None and any(name in OF_A_RUN or ATTEMPT.fullmatch(name) for name in names):
        kind = "run"
    return None if kind is None else FoundDirectory(path, kind, names)


def _kind(names: frozenset[str]) -> Literal["run", "sweep"] | None:
    """Return what a directory is for sure."""
    if names & OF_A_SWEEP:
        return "sweep"
    # other programs write a result.json or a plan.yaml, too: one name alone says little
    return "run" if len(names & OF_A_RUN) >= 2 else None


Signature: TypeAlias = tuple[int, int, int]


def signature(path: str) -> Signature | None:
    """Return inode, size and time of a file, which change with it; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


_DEEPEST = 64


def hidden(value: Any, hide: Callable[[str], str], depth: int = 0) -> Any:
    """Return JSON without secrets, and without what is nested deeper than any of ours."""
    if isinstance(value, str):
        return hide(value)
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {hide(key): hidden(each, hide, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [hidden(each, hide, depth + 1) for each in value]
    return value


def _result(
    found: FoundDirectory, hide: Callable[[str], str] = str
) -> tuple[RunResult | None, LaunchError | None]:
    """Return what the result.json of a run says; None, and why, if it makes no sense."""
    path = os.path.normpath(os.path.join(found.path, RESULT))

    def read() -> RunResult | None:
        document = load_json(path)
        result = as_result(document if hide is str else hidden(document, hide), found.path)
        if result is None and document is not None:
            raise ValueError("has no version, so it is not the result of a run")
        return result

    return told(path, read)


def told(path: str, read: Callable[[], T | None]) -> tuple[T | None, LaunchError | None]:
    """Return what a file says; None, and why, if it cannot be read or makes no sense."""
    try:
        return read(), None
    except OSError as error:
        return None, OutputError(path, error.strerror or str(error))
    except ValueError as error:
        return None, unreadable(path, str(error))


def _wrong(error: LaunchError) -> str:
    if isinstance(error, ConfigError):
        return first_line(f"{RESULT}: {'; '.join(each.message for each in error.problems)}")
    return first_line(str(error))


def unreadable(path: str, message: str) -> ConfigError:
    """Return the error of a file that makes no sense."""
    return ConfigError((Diagnostic("file", "report", repr(path), message),))


def contents_of(path: str) -> tuple[frozenset[str], list[str]]:
    """Return all names in a directory, and those of directories; none if it cannot be read."""
    names, directories = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names.append(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
    except OSError:
        return frozenset(), []
    return frozenset(names), directories


def lock_of(kind: str, path: str) -> str:
    """Return the file of the lock that is held while a run, a job or a sweep goes on."""
    if kind == "sweep":
        return os.path.join(path, SWEEP_LOCK_NAME)
    return own_file(os.path.join(path, LOCK_NAME))


def state_of(lock: str) -> str:
    """Return what a run or a sweep that has not ended does, as ``ls`` and ``show`` have it."""
    return {True: "running", False: "died", None: "unknown"}[is_held(lock)]


def plain(entry: ListEntry, path: str = "") -> dict[str, Any]:
    """Return what is known of a run, a sweep, a job or a rank as data for JSON.

    What is measured is there as far as it is known.
    """
    found = {
        "kind": entry.kind,
        "path": path or os.path.abspath(entry.path),
        "state": entry.state,
        "exit_code": entry.exit_code,
        "started": None if entry.started_ns is None else isoformat(entry.started_ns),
        "seconds": entry.seconds,
        "overrides": list(entry.overrides),
        "batch_job": entry.batch_job or None,
        "queue": entry.queue or None,
        **{name: value for name in _MEASURED if (value := getattr(entry, name)) or value == 0},
    }
    if entry.number is not None:
        found["rank" if entry.kind == "rank" else "job"] = entry.number
    if entry.batch is not None:
        found["submission"] = Plain()(entry.batch)
    if entry.kind == "sweep":
        return {**found, "counts": dict(sorted(entry.counts.items()))}
    if entry.step is None and entry.kind != "rank":
        found["progress"] = None if entry.progress is None else entry.progress._asdict()
    return {
        **found,
        "attempts": entry.attempts,
        "root_cause": entry.root_cause,
        "return_value": entry.value,
    }


_MEASURED = (
    *("step", "total", "rate", "eta", "idle", "slowest", "cpu", "memory", "gpus", "gpu_use"),
    *("gpu_memory", "metrics", "note", "pid", "node", "cpus"),
)
# After which a batch job's launcher should have said that it is there, seconds.
_SILENT = 60.0
# Hydra's, of the sweep itself.
MULTIRUN = "multirun.yaml"

LIVE = frozenset({"running", "queued"})
"""States of what is not over, as far as anybody knows."""


class ListEntry(Struct, frozen=True, dict=True):
    """A run, a sweep, a job of one, or a rank, as it is now; `lllaunch.results.live` has ranks."""

    kind: Literal["run", "sweep", "job", "rank"]
    path: str  # its directory; of a rank that of its run, of a job that has none that of its sweep
    # as `lllaunch.words.MEANINGS` has it; of a rank ``starting``, ``running``, ``ended`` or
    # ``failed``
    state: str
    exit_code: int | None = None  # of its launcher; of a rank its exit status
    started_ns: int | None = None
    # how long it took, or takes until now; of a run on a cluster in all of its starts
    seconds: float | None = None
    attempts: int | None = None  # how often its workers were started, or a job
    root_cause: str = ""
    value: Any = None  # what rank 0 returned, where that is short
    number: int | None = None
    counts: Mapping[str, int] = {}
    batch_job: str = ""
    # what the cluster says of that as long as it is not known to be over, such as ``PENDING
    # (Priority)``, or `NO_ANSWER`; of a sweep how many of its jobs are in which state there; else
    # empty
    queue: str = ""
    batch: BatchFacts | None = None
    # what is wrong with its result.json, or its sweep.json and journal
    error: LaunchError | None = None
    note: str = ""  # what is to be said of it unless there is a root cause
    step: float | None = None  # how far it is; of a sweep how many of its jobs have succeeded
    total: float | None = None
    rate: float | None = None
    eta: float | None = None
    idle: float | None = None  # seconds since the step changed
    slowest: int | None = None
    behind: float | None = None
    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[str, ...] = ()
    gpu_use: float | None = None  # share of the time that they are busy, on average
    gpu_memory: int | None = None
    metrics: Mapping[str, float] = {}
    pid: int | None = None
    node: str = ""
    cpus: tuple[int, ...] = ()  # numbers of the cores that a job holds
    # overrides of the command line; None of a run, whose directory has them
    given: tuple[str, ...] | None = None

    @cached_property
    def progress(self) -> Progress | None:
        """How far its workers are, of a run or a job that runs; None where that is not known."""
        if self.state != "running" or self.kind == "sweep":
            return None
        sample = sample_of(self.path)
        return None if sample is None else progress_of(sample.ranks.values())

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of the command line, as it was written down, without secrets."""
        if self.given is not None:
            return redacted_overrides(self.given)
        return read_overrides(self.path) if self.kind == "run" else ()

    @property
    def attempt(self) -> int | None:
        """Number of the last attempt; of a job, how often it was tried before."""
        return self.attempts - 1 if self.attempts else None

    @property
    def ended_ns(self) -> int | None:
        """When it ended; None if it has not, or if that is not known."""
        if self.is_live or self.started_ns is None or self.seconds is None:
            return None
        return self.started_ns + int(self.seconds * 1e9)

    @property
    def text(self) -> str:
        """What is to be said of it: its root cause, its queue, or what the watchdog found."""
        queue = f"{self.batch_job} {self.queue}".strip() if self.queue else ""
        return self.root_cause or queue or self.note

    @property
    def key(self) -> str:
        """What tells it from all others, also at another moment."""
        return f"{self.kind} {self.path} {'' if self.number is None else self.number}"

    @property
    def is_live(self) -> bool:
        """Whether it is not over."""
        return self.state in LIVE or self.state == "starting"


# A sample has two hundred bytes a rank, and there are hundreds of ranks at most.
_SAMPLES_TAIL = 256 << 10


def sample_of(path: str) -> RunSample | None:
    """Return the newest sample of the last run in a directory; an older one is of another run.

    Of several nodes the newest of each are made one. The files have the time of their file system,
    whatever the clock says here.
    """
    parts = ["", *sorted(name for name in contents_of(path)[0] if name.startswith("node_"))]
    files = {part: os.path.join(path, part, SAMPLES) for part in parts}
    changed = max(changed_ns(file) or 0 for file in files.values())
    if changed < (changed_ns(os.path.join(path, PLAN)) or 0):
        return None
    found = {
        part: sample
        for part, file in files.items()
        if (sample := last_line(file, _SAMPLES_TAIL, decode_sample)) is not None
    }
    if not found or "" in found:
        return found.get("")
    # those of nodes that are not in the last attempt are old
    attempt = max(sample.attempt for sample in found.values())
    latest = {name: sample for name, sample in found.items() if sample.attempt == attempt}
    return RunSample(
        max(sample.time for sample in latest.values()),
        attempt,
        {
            rank: replace(worker, gpus=tuple(f"{name}/{gpu}" for gpu in worker.gpus))
            for name, sample in latest.items()
            for rank, worker in sample.ranks.items()
        },
        {
            f"{name}/{gpu}": use
            for name, sample in latest.items()
            for gpu, use in sample.gpus.items()
        },
    )


def progress_of(workers: Iterable[RankSample]) -> Progress | None:
    """Return how far the worker is that is the furthest."""
    from lllaunch.watchdog.progress import Progress  # noqa: PLC0415 - most runs have ended

    steps = {finite(each.step): each for each in workers}
    furthest = max((step for step in steps if step is not None), default=None)
    if furthest is None:
        return None
    worker = steps[furthest]
    return Progress(
        furthest,
        finite(worker.total),
        finite(worker.rate),
        finite(worker.eta),
        finite(worker.idle) or 0.0,
        {name: value for name, value in worker.metrics.items() if finite(value) is not None},
    )


# Runs


def read_run(
    found: FoundDirectory, queue: BatchQueue | None = None, hide: Callable[[str], str] = str
) -> tuple[ListEntry, RunResult | None]:
    """Return what became of a run, and its result.json if there is one; never raises.

    `hide` takes secrets out of all that its result.json says.
    """
    submission = None
    if SUBMISSION in found.names:
        submission = read_submission(found.path)
    if submission is not None:
        return read_submitted(found, submission, queue or BatchQueue(), hide)
    return _read_local(found, hide)


def _read_local(
    found: FoundDirectory, hide: Callable[[str], str] = str
) -> tuple[ListEntry, RunResult | None]:
    path, error = found.path, None
    if RESULT in found.names:
        result, error = _result(found, hide)
        if result is not None:
            return _ended(result), result
    state = "unknown"
    if error is None:
        state = state_of(lock_of("run", path)) if LOCK_NAME in found.names else "died"
    started_ns = changed_ns(os.path.join(path, PLAN))
    entry = ListEntry(
        "run",
        path,
        state,
        started_ns=started_ns,
        seconds=_until(started_ns, path, state),
        attempts=_count_attempts(found),
        root_cause="" if error is None else _wrong(error),
        error=error,
    )
    return entry, None


def _count_attempts(found: FoundDirectory) -> int:
    # of several nodes each has a directory of its own
    nodes = (name for name in found.names if name.startswith("node_"))
    parts = [found.names, *(contents_of(os.path.join(found.path, name))[0] for name in nodes)]
    return max(sum(name.startswith("attempt_") for name in part) for part in parts)


# Runs on a cluster


def read_submitted(
    found: FoundDirectory,
    submission: Submission,
    queue: BatchQueue,
    hide: Callable[[str], str] = str,
) -> tuple[ListEntry, RunResult | None]:
    """Return the same as `read_run`, of a run of which it is known what was submitted."""
    path = found.path
    history = read_history(path)
    entry = _in_queue(found, submission, history, queue)
    if entry is not None:
        return entry, None
    # what it wrote between the first look and its end
    history, names = read_history(path), contents_of(path)[0]
    result = _result(found, hide)[0] if RESULT in names else None
    batch = batch_facts(submission, history, last_event_ns(path))
    if not batch.started_ns or (result is not None and result.ended_ns < batch.started_ns):
        result = None
    if result is None and is_held(lock_of("run", path)):
        # another run in its directory, of this machine
        return _read_local(found, hide)
    if result is None:
        state, code, cause = _end_of_job(submission, history, queue)
        entry = ListEntry(
            "run",
            path,
            state,
            exit_code=code,
            started_ns=submission.time_ns or None,
            root_cause=first_line(cause),
            attempts=_count_attempts(found),
        )
    else:
        entry = _ended(result)
        # that it was cancelled says more than which node that has ended
        causes = [entry.root_cause, first_line(batch.reason)]
        if result.state == "signalled" and batch.reason:
            del causes[0]
        cause = "; ".join(filter(None, causes))
        # those of earlier starts, too
        attempts = result.attempts[-1].number + 1 if result.attempts else _count_attempts(found)
        entry = replace(entry, root_cause=cause, attempts=attempts)
    return replace(
        entry,
        batch_job=submission.job,
        batch=batch,
        started_ns=batch.first_ns or entry.started_ns,
        # of all starts: of the last one alone it would become less
        seconds=batch.ran if batch.starts > (result is not None) else entry.seconds,
    ), result


def _in_queue(
    found: FoundDirectory,
    submission: Submission,
    history: Sequence[tuple[int, QueueEvent]],
    queue: BatchQueue,
) -> ListEntry | None:
    """Return what a submitted run does; None if its batch job is over."""
    last = history[-1][1] if history else None
    if isinstance(last, BatchEnded) or submission.refused:
        return None
    job = queue.find(submission, own=_is_own(found))
    if job is not None:
        started = isinstance(last, (BatchStarted, BatchSignalled)) and job.state != "PENDING"
        state, said = "running" if started else "queued", queue_text(job)
        runs = time.time() - job.start_time if job.start_time and job.state == "RUNNING" else 0.0
        if not started and runs > _SILENT:
            log = LOG if submission.directory else "the log of its array"
            said += f", no sign of its launcher for a minute: see {log}"
    elif not queue.answers:
        state = "running" if is_held(lock_of("run", found.path)) else "unknown"
        said = NO_ANSWER
    elif not submission.job and is_recent(submission):
        state, said = "queued", "being submitted"
    else:
        return None
    now_ns = time.time_ns()
    batch = batch_facts(submission, history, now_ns)
    began_ns = (batch.first_ns if state == "running" else 0) or submission.time_ns or None
    seconds = None if began_ns is None else max(0, now_ns - began_ns) / 1e9
    return ListEntry(
        "run",
        found.path,
        state,
        started_ns=began_ns,
        # of one that waits: for how long it does
        seconds=batch.ran if state == "running" and batch.starts else seconds,
        attempts=_count_attempts(found),
        batch_job=submission.job or (job.id if job is not None else ""),
        queue=said,
        batch=batch,
    )


def _is_own(found: FoundDirectory) -> bool:
    """Return whether this user has submitted a run."""
    try:
        return os.lstat(os.path.join(found.path, SUBMISSION)).st_uid == os.getuid()
    except OSError:
        return True


def _end_of_job(
    submission: Submission, history: Sequence[tuple[int, QueueEvent]], queue: BatchQueue
) -> tuple[str, int | None, str]:
    """Return a state, an exit code and why, of a batch job that has left no result."""
    last = history[-1][1] if history else None
    if submission.refused or not (submission.job or last):
        why = submission.refused or "its submission failed, or was broken off"
        return "not_submitted", int(ExitCode.ERROR), why
    said = (
        "" if isinstance(last, BatchEnded) or not submission.job else queue.ending(submission.job)
    )
    if said.startswith("CANCELLED"):
        last = cancelled(history)
    if isinstance(last, BatchEnded):
        state = state_of_code(last.exit_code)
        if not any(isinstance(each, BatchStarted) for _, each in history):
            state = "cancelled" if state == "signalled" else state
        return state, last.exit_code, last.reason
    if said:
        return "died", None, f"Slurm says of its batch job: {said}"
    started = isinstance(last, (BatchStarted, BatchSignalled))
    return "died", None, "" if started else "its batch job ended before the run started in it"


def state_of_code(code: int) -> str:
    """Return the state that an exit code of a launcher says."""
    if code > 128:  # 128 + a signal's number
        return "signalled"
    if code in {ExitCode.WORKERS_FAILED, ExitCode.WATCHDOG, ExitCode.NO_PROGRESS}:
        return "failed"
    return "error" if code else "succeeded"


def _ended(result: RunResult) -> ListEntry:
    value = result.return_values.get(0)
    return ListEntry(
        "run",
        result.directory,
        result.state,
        exit_code=result.exit_code,
        started_ns=result.started_ns or None,
        seconds=result.seconds if result.started_ns else None,
        attempts=len(result.attempts),
        root_cause=first_line(result.failure),
        value=None if value is None or value.json is None else json.loads(value.json),
    )


def _until(began_ns: int | None, path: str, state: str) -> float | None:
    """Return for how long a run without a result has run."""
    if state == "running":
        end = time.time_ns()
    else:
        # events may be far between
        end, sample = last_event_ns(path), sample_of(path)
        if sample is not None and 0 < sample.time < _LATEST:
            end = max(end, round(sample.time * 1e9))
    return max(0, end - began_ns) / 1e9 if began_ns is not None and end else None


_LATEST = 2.0**33  # seconds since the epoch; whatever is later is no time


def changed_ns(path: str) -> int | None:
    """Return when a file or a directory changed, by its file system; None if it is not there."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None
