"""All that is known of one run or one sweep, for whatever shows it; without secrets.

Its files are read when they are asked for, and once. What workers and people wrote passes through
what takes secrets out where it is read. Nothing here raises for what files hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import structs

from lllaunch.console.report import fate_text
from lllaunch.errors import ConfigError
from lllaunch.files import read_bytes, read_text, within, working_directory
from lllaunch.results.history import (
    MOST_WORKERS,
    AttemptTimeline,
    Lane,
    Mark,
    NodeHistory,
    RunHistory,
    TimeSpan,
)
from lllaunch.results.store import BatchQueue, ListEntry, read_run
from lllaunch.run.directory import PLAN, RESULT, SAMPLES, RunSample, decode_sample, finite
from lllaunch.run.excerpts import LINES, tail
from lllaunch.run.result import Failed, Victim, WorkerResult
from lllaunch.secret_names import redactor_of
from lllaunch.text import clean, printable
from lllaunch.watchdog.frames import TREE
from lllaunch.words import exit_text, ranks

if TYPE_CHECKING:
    from lllaunch.results.store import FoundDirectory, ListEntry
    from lllaunch.run.result import (
        AttemptResult,
        Excerpt,
        Hang,
        NodeResult,
        RootCause,
        RunResult,
    )

_LONGEST_PLAN = 256 * 1024
_LOG_LINES = 80
_MOST_WORKERS = 12
_MOST_ATTEMPTS = 6
_MOST_NODES = 8
_TREE_LINES = 300
_STREAMS = ("stderr", "stdout")


class Log(NamedTuple):
    """The end of a worker's log; `path` is relative to the directory of the report."""

    stream: str  # ``stdout`` or ``stderr``; empty if it is not what a worker has written
    path: str
    lines: tuple[str, ...]
    cut: bool = False  # whether there is more before them
    attempt: int = 0
    rank: int = 0
    blamed: bool = False


@dataclass(frozen=True)
class RunView:
    """All that is known of a run; `result` is its result.json."""

    found: FoundDirectory
    entry: ListEntry
    result: RunResult | None
    hide: Callable[[str], str] = str

    @property
    def path(self) -> str:
        """Its directory."""
        return self.found.path

    @property
    def attempts(self) -> tuple[AttemptResult, ...]:
        """As its result.json has them."""
        return () if self.result is None else self.result.attempts

    @property
    def root(self) -> RootCause | None:
        """What the run failed for."""
        return None if self.result is None else self.result.root_cause

    @property
    def blamed(self) -> WorkerResult | None:
        """The worker that a run failed because of, if it did."""
        bad = self.result is not None and self.result.state != "succeeded"
        return blamed(self.result) if bad and self.result is not None else None

    @property
    def problem(self) -> str:
        """What is wrong with its result.json, or an empty string."""
        error = self.entry.error
        if error is None:
            return ""
        why = f"cannot be read: {error}"
        if isinstance(error, ConfigError):
            why = "; ".join(each.message for each in error.problems)
        return clean(self.hide(f"its {RESULT} {why}"))

    @cached_property
    def outcome(self) -> RunResult | None:
        """Its result as its own end told it: with the end of the log."""
        root = self.root
        if self.result is None or root is None or root.traceback:
            return self.result
        excerpt = self.end(root.stderr, LINES)
        return self.result if excerpt is None else structs.replace(self.result, excerpt=excerpt)

    @cached_property
    def cwd(self) -> str:
        """The directory that paths below it are shown relative to."""
        return working_directory()

    @cached_property
    def timeline(self) -> RunTimeline:
        """What happened when."""
        return read_timeline(self.found, self.entry, self.result, self.hide)

    @cached_property
    def plan(self) -> str | None:
        """The text of its plan.yaml."""
        path = within(self.path, os.path.join(self.path, PLAN))
        text = None if path is None else read_text(path)
        return None if text is None else self.hide(text)[:_LONGEST_PLAN]

    def end(self, path: str, lines: int) -> Excerpt | None:
        """Return the last lines of a file in its directory."""
        found = within(self.path, path) if path else None
        return None if found is None else tail(path, lines, self.hide)

    def logs_of(self, worker: WorkerResult, lines: int, attempt: int = 0) -> tuple[Log, ...]:
        """Return the ends of what a worker has written, the most telling first."""
        found = []
        for stream in _STREAMS:
            path = getattr(worker, stream)
            if (excerpt := self.end(path, lines)) is not None:
                shown = self.hide(os.path.relpath(path, self.path))
                of = attempt, worker.rank, worker is self.blamed
                found.append(Log(stream, shown, excerpt.lines, excerpt.cut, *of))
        return tuple(found)

    def telling(self) -> list[tuple[int, WorkerResult]]:
        """Return the workers of the last attempt, each with its number, the most telling first.

        Those are the blamed one, those that failed, and those that failed after it.
        """

        def order(worker: WorkerResult) -> tuple[bool, bool, bool, int]:
            failed, victim = isinstance(worker, Failed), isinstance(worker, Victim)
            return worker is not self.blamed, not failed, not victim, worker.rank

        if self.result is not None:
            last = self.attempts[-1:]
            return [(at.number, worker) for at in last for worker in sorted(at.workers, key=order)]
        number, place = max(numbered(self.path, "attempt_"), default=(0, ""))
        return [
            (number, WorkerResult(rank=rank, stdout=f"{at}/stdout.log", stderr=f"{at}/stderr.log"))
            for rank, at in (sorted(numbered(place, "")) if place else ())
        ]

    @cached_property
    def logs(self) -> tuple[Log, ...]:
        """The ends of the logs that tell most, the most telling first; without empty ones."""
        return tuple(
            log
            for number, worker in self.telling()[:_MOST_WORKERS]
            for log in self.logs_of(worker, _LOG_LINES, number)
            if log.lines
        )

    @cached_property
    def stacks(self) -> tuple[Log, ...]:
        """The beginning of what says where all ranks were, of the newest attempts of each node."""
        places = [self.path, *(path for _, path in sorted(numbered(self.path, "node_")))]
        numbers = {number for place in places for number, _ in numbered(place, "attempt_")}
        found = []
        for attempt in sorted(numbers, reverse=True)[:_MOST_ATTEMPTS]:
            for place in places[: _MOST_NODES + 1]:
                name = os.path.join(place, f"attempt_{attempt}", TREE)
                path = within(self.path, name)
                text = None if path is None else read_text(path)
                if text:
                    lines = self.hide(text).splitlines()
                    shown, cut = tuple(lines[:_TREE_LINES]), len(lines) > _TREE_LINES
                    found.append(Log("", os.path.relpath(name, self.path), shown, cut, attempt))
        return tuple(found)


def view_run(found: FoundDirectory, queue: BatchQueue | None = None) -> RunView:
    """Read what became of a run, without secrets; those in this environment are known."""
    hide = redactor_of(found.path)
    return RunView(found, *read_run(found, queue, hide), hide)


def node_state(node: NodeResult) -> str:
    """Return what a node's state is called: one may have ended well and never said so."""
    return "not heard of" if node.state == "lost" else node.state


def blamed(result: RunResult) -> WorkerResult | None:
    """Return the worker whose logs tell most of a run that did not succeed, None if there is none.

    That is the root cause; of several that hung the first; where no worker is to blame the first.
    """
    root = result.root_cause
    last = result.attempts[-1:]
    if root is not None:
        last = tuple(each for each in result.attempts if each.number == root.attempt) or last
    workers = {worker.rank: worker for attempt in last for worker in attempt.workers}
    ranks = [] if root is None else [root.rank, *(root.hang.hung if root.hang is not None else ())]
    named = (workers[rank] for rank in ranks if rank in workers)
    return next(named, next(iter(workers.values()), None))


def numbered(directory: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Yield number and path of each entry of a directory whose name is a prefix and a number."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isdecimal() and number.isascii() and len(number) < 7:
            yield int(number), os.path.join(directory, name)


@dataclass(frozen=True)
class Series:
    """Something that was measured every few seconds."""

    # ``cpu`` (cores), ``rss`` and ``output`` (bytes), ``read`` and ``written`` (bytes per second),
    # ``step``, ``gpu_use`` (share), ``gpu_memory`` (bytes) or ``gpu_power`` (watts); or of a
    # metric, what the worker calls it
    name: str
    of: str  # ``rank 3``, or ``GPU 0``; of several nodes, with the node's name before that of a GPU
    attempt: int
    # when (nanoseconds since the epoch) and how much, in order; all finite
    points: tuple[tuple[int, float], ...]
    metric: bool = False
    node: str = ""


@dataclass(frozen=True)
class RunTimeline:
    """A run in time; where its directory has seen several, the last one."""

    start_ns: int
    # when it was over; of one that goes on, now; of one that was lost, the last moment that is
    # known of
    end_ns: int
    over: bool
    attempts: tuple[AttemptTimeline, ...] = ()
    series: tuple[Series, ...] = ()
    nodes: tuple[str, ...] = ()


# Reading

_MOST_SAMPLES = 4 << 20  # they are kept within 2 MiB


def read_timeline(
    found: FoundDirectory,
    entry: ListEntry,
    outcome: RunResult | None,
    hide: Callable[[str], str] = str,
) -> RunTimeline:
    """Read what happened when in a run; never raises for what its files hold.

    The entry and the outcome are without secrets.
    """
    parts = () if outcome is None else outcome.nodes
    nodes = {
        os.path.basename(node.directory): (node.name, node.clock_offset or 0.0) for node in parts
    }
    history = RunHistory(found.path, hide).look(found.names, nodes)
    records = []
    for part, node in history.current:
        samples = _samples(os.path.join(found.path, part, SAMPLES))
        if node.began_ns:
            began = (node.began_ns + node.ahead_ns) / 1e9
            samples = [sample for sample in samples if sample.time >= began]
        records.append((node, samples))
    return timeline_of(records, outcome, time.time_ns() if entry.state == "running" else None)


def _samples(path: str) -> list[RunSample]:
    try:
        lines = read_bytes(path, _MOST_SAMPLES).split(b"\n")
    except (OSError, ValueError):
        return []
    return [sample for line in lines if line and (sample := decode_sample(line)) is not None]


def _line(text: str) -> str:
    return printable(text, 300)


# What became of it


NodeRecords: TypeAlias = tuple[NodeHistory, Sequence[RunSample]]
"""What one node has written: its events, and its samples."""


def timeline_of(
    records: Sequence[NodeRecords], outcome: RunResult | None, now_ns: int | None = None
) -> RunTimeline:
    """Return what happened when in a run. Pure.

    ``now_ns``: the time, nanoseconds since the epoch, of a run that goes on; else None.
    """
    live = now_ns is not None and outcome is None
    series = tuple(_series(records))
    end = max(
        (now_ns if live else 0) or 0,
        0 if outcome is None else outcome.ended_ns,
        *(node.last_ns for node, _ in records),
        *(each.points[-1][0] for each in series),
    )
    nodes = tuple(node.name for node, _ in records) if len(records) > 1 else ()
    if outcome is not None and len(outcome.nodes) > 1:
        nodes = (*nodes, *(node.name for node in outcome.nodes if node.name not in nodes))
    attempts = []
    for node, _ in records:
        for attempt in node.in_time(end, live=live):
            attempt.node = node.name if nodes else ""
            attempts.append(attempt)
    if outcome is not None:
        _add_result(attempts, outcome, nodes)
    for attempt in attempts:
        _complete(attempt, end, outcome)
    attempts.sort(key=lambda each: (each.number, nodes.index(each.node) if each.node else 0))
    starts = [node.first_ns for node, _ in records]
    starts += [0 if outcome is None else outcome.started_ns, *(each.start_ns for each in attempts)]
    start = min((each for each in starts if each), default=end)
    return RunTimeline(start, max(start, end), not live, tuple(attempts), series, nodes)


def _add_result(
    attempts: list[AttemptTimeline], outcome: RunResult, nodes: tuple[str, ...]
) -> None:
    """Add the workers that result.json knows and no events told."""
    # ranks count through the nodes in their order
    names: list[str] = []
    for node in sorted(outcome.nodes if nodes else (), key=lambda node: node.group_rank):
        names += [node.name] * (min(node.nproc, MOST_WORKERS) if node.group_rank >= 0 else 0)
    skews = {node.name: round((node.clock_offset or 0.0) * 1e9) for node in outcome.nodes}
    first = nodes[0] if nodes else ""
    for told in outcome.attempts:
        number, start, end = told.number, told.started_ns, max(told.started_ns, told.ended_ns)
        here = {each.node: each for each in attempts if each.number == number}
        known = {each.base_rank + rank for each in here.values() for rank in each.workers}
        added = []
        if not here and not told.workers:
            added.append(AttemptTimeline(number, start, end, node=first, spawn_ns=start))
        for worker in told.workers:
            if worker.rank in known:
                continue
            name = names[worker.rank] if 0 <= worker.rank < len(names) else first
            if name not in here:
                base = worker.rank - worker.local_rank
                here[name] = AttemptTimeline(
                    number, start, end, node=name, base_rank=base, spawn_ns=start
                )
                added.append(here[name])
            ahead_ns, began, ended = skews.get(name, 0), worker.started_ns, worker.ended_ns
            here[name].workers[worker.rank - here[name].base_rank] = Lane(
                worker.local_rank,
                started_ns=None if began is None else began - ahead_ns,
                ended_ns=end if ended is None else ended - ahead_ns,
                exitcode=worker.exitcode,
            )
        attempts += added
        for each in (*here.values(), *added):
            each.state = told.state


def _complete(attempt: AttemptTimeline, end_ns: int, outcome: RunResult | None) -> None:
    """Tell of an attempt and its workers what became of them, and lay it out in time."""
    end, live = end_ns if attempt.end_ns is None else attempt.end_ns, attempt.end_ns is None
    told = root = None
    if outcome is not None:
        told = next((each for each in outcome.attempts if each.number == attempt.number), None)
        root = None if told is None else told.root_cause
        if outcome.root_cause and outcome.root_cause.attempt == attempt.number:
            root = outcome.root_cause
    after = told is not None and told.root_cause is not None
    results = {} if told is None else {worker.rank: worker for worker in told.workers}
    failed = [each for each in attempt.lanes if each.exitcode and each.ending_ns is None]
    first = min(failed, key=lambda each: each.ended_ns or 0, default=None)
    of_all = [mark for mark in attempt.marks if mark.rank is None]
    lanes = {}
    for local_rank, lane in sorted(attempt.workers.items()):
        rank = lane.rank = attempt.base_rank + local_rank
        lanes[rank], lane.node, lane.attempt = lane, attempt.node, attempt.number
        lane.fate, lane.text = _fate_so_far(lane, first, live=live)
        lane.spans = _spans_of(lane, attempt, end, None if root is None else root.hang)
        marks = [mark for mark in attempt.marks if mark.rank == rank]
        if (result := results.get(rank)) is not None:
            # which knows for sure who failed first
            marks = [mark for mark in marks if mark.kind != "root_cause"]
            lane.fate, lane.text = result.fate, _line(fate_text(result, after_root=after))
            lane.local_rank, lane.exitcode = result.local_rank, result.exitcode
        if root is not None and rank in root.ranks:
            at = root.time_ns or lane.spans[-1].end_ns
            marks.append(Mark("root_cause", at, _line(str(root.cause)), rank))
        lane.marks = tuple(_in_order(marks))
    if root is not None and not root.ranks and root.node in {"", attempt.node or root.node}:
        of_all.append(Mark("root_cause", root.time_ns or end, _line(str(root.cause))))
    attempt.workers, attempt.marks = lanes, _in_order(of_all)
    attempt.spans.sort(key=lambda span: span.start_ns)


def _in_order(marks: Iterable[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: mark.time_ns)


def _fate_so_far(worker: Lane, first: Lane | None, *, live: bool) -> tuple[str, str]:
    """Return what became of a worker as far as events tell, and how that is said."""
    if worker.not_started:
        return "failed", f"could not be started: {worker.not_started}"
    if worker.ended_ns is None and live:
        return "running", "is being started" if worker.started_ns is None else "running"
    if worker.ended_ns is None and worker.started_ns is None:
        return "not_started", "not started"
    text = exit_text(worker.exitcode)
    if worker.exitcode is None:
        return "lost", text
    if worker.ending_ns is not None:
        return "ended", f"ended by the launcher: {text}"
    return ("succeeded" if not worker.exitcode else "failed" if worker is first else "victim"), text


def _spans_of(
    worker: Lane, attempt: AttemptTimeline, end_ns: int, hang: Hang | None
) -> tuple[TimeSpan, ...]:
    started, ended = worker.started_ns, worker.ended_ns
    over = end_ns if ended is None else ended
    if started is None:
        begun = attempt.spawn_ns
        return (TimeSpan("spawn", begun, max(begun, over), worker.not_started),)
    end = max(started, over)
    until = end if worker.ending_ns is None else min(max(started, worker.ending_ns), end)
    spans = [
        TimeSpan("spawn", min(attempt.spawn_ns, started), started),
        TimeSpan("run", started, end),
    ]
    since, of_ranks, text = attempt.hang or (until, (), "")
    if of_ranks and worker.local_rank not in of_ranks:
        text = ""
    if hang is not None and hang.since_ns is not None:
        # the watchdog knows who only waited
        since = hang.since_ns
        finding = str(hang.finding)
        texts = dict.fromkeys(hang.named, finding)
        texts |= {rank: f"only waited for {ranks(hang.hung)}" for rank in hang.waiting if hang.hung}
        texts |= dict.fromkeys(hang.hung, f"hung: {finding}")
        text = _line(texts.get(worker.rank, "" if texts else finding))
    if text and since < until:
        spans.append(TimeSpan("hang", max(started, since), until, text))
    if until < end:
        spans.append(TimeSpan("grace", until, end))
    return tuple(spans)


# Curves

_OF_RANK = ("cpu", "rss", "read", "written", "output", "step")
_OF_GPU = ("use", "memory", "power")
_LONGEST_NAME = 60


def _series(records: Sequence[NodeRecords]) -> Iterator[Series]:
    """Yield what the samples of all nodes tell, in order."""
    points: dict[tuple[int, bool, int, str, bool, str, int], list[tuple[int, float]]] = {}
    for place, (node, samples) in enumerate(records):
        for sample in samples:
            at = round(sample.time * 1e9) - node.ahead_ns
            for what, told in _values(sample) if sample.time > 0 else ():
                if (value := finite(told)) is not None:
                    points.setdefault((sample.attempt, *what, place), []).append((at, value))
    for key, found in sorted(points.items(), key=lambda item: item[0]):
        number, of_gpu, rank, gpu, metric, name, place = key
        node = records[place][0]
        where = node.name if len(records) > 1 else ""
        of = f"GPU {where}/{gpu}" if where else f"GPU {gpu}"
        of = node.line(of) if of_gpu else f"rank {rank}"
        shown = f"gpu_{name}" if of_gpu else printable(node.line(name), _LONGEST_NAME)
        # clocks may be set meanwhile
        yield Series(shown, of, number, tuple(sorted(found)), metric, where)


def _values(
    sample: RunSample,
) -> Iterator[tuple[tuple[bool, int, str, bool, str], float | None]]:
    """Yield the numbers of a sample, each with what it is of: such that they sort."""
    for rank, worker in sample.by_rank.items():
        for name in _OF_RANK:
            yield (False, rank, "", False, name), getattr(worker, name)
        for name, metric in worker.metrics.items():
            yield (False, rank, "", True, name), metric
    for gpu, use in sample.gpus.items():
        for name in _OF_GPU:
            yield (True, 0, gpu, False, name), getattr(use, name)
