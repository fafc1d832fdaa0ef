"""What happened when in a run, for all who draw it: attempts, ranks, and what was measured.

`timeline_of` is pure. Events (`lllaunch.results.history`) tell when, of a live run, too;
result.json says better what became of each worker; samples have the curves. What is missing,
torn, or of another version is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace as replace_struct

from lllaunch.console.report import fate_text
from lllaunch.files import read_bytes
from lllaunch.results.history import (
    MOST_WORKERS,
    Mark,
    NodeHistory,
    RunHistory,
    SeenAttempt,
    SeenWorker,
    TimeSpan,
)
from lllaunch.results.store import read_run
from lllaunch.run.directory import SAMPLES
from lllaunch.run.events import RunSample, decode_sample, finite
from lllaunch.text import printable
from lllaunch.words import exit_text, ranks

if TYPE_CHECKING:
    from lllaunch.results.store import FoundDirectory, ListEntry
    from lllaunch.run.result import AttemptResult, RunResult, WorkerResult


@dataclass(frozen=True)
class Lane:
    """One worker of one attempt in time."""

    rank: int
    local_rank: int
    node: str
    attempt: int
    fate: str  # as result.json calls it; ``running`` while it lives
    # ``spawn``, then ``run``, and within that ``hang`` and ``grace``: in order of their beginnings.
    # Spans of one kind do not overlap; each of the latter two lies within that of the run, and they
    # do not overlap either
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
    text: str = ""
    # exit status, or the negative number of the signal that ended it; None if unknown
    exitcode: int | None = None


@dataclass(frozen=True)
class AttemptTimeline:
    """One attempt on one node in time."""

    number: int
    node: str
    start_ns: int
    end_ns: int | None  # when its last worker was gone, None while it goes on
    # ``succeeded``, ``failed``, ``stopped`` (by a signal to the launcher), ``running``, or ``lost``
    # if nobody knows
    state: str
    lanes: tuple[Lane, ...] = ()
    # of the group, in order of their beginnings: ``preload``, ``rendezvous``, ``preflight``, and
    # the ``pause`` that follows it. Those of one kind do not overlap
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Series:
    """Something that was measured every few seconds."""

    # ``cpu`` (cores), ``rss``, ``read``, ``written``, ``output``, ``step``, ``gpu_use``,
    # ``gpu_memory`` or ``gpu_power``; or of a metric, what the worker calls it
    name: str
    unit: str
    of: str  # number of the rank, or name of the GPU; of several nodes, with the node's before it
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
    hide: Callable[[str], str] = str,
    known: tuple[ListEntry, RunResult | None] | None = None,
) -> RunTimeline:
    """Read what happened when in a run; never raises for what its files hold.

    `known` is what `lllaunch.results.store.read_run` returns for it, if that is known already, and
    is without secrets.
    """
    entry, outcome = known or read_run(found, hide=hide)
    if found.file:
        return timeline_of((), outcome)
    nodes = (
        {}
        if outcome is None
        else {
            os.path.basename(node.directory): (node.name, node.clock_offset or 0.0)
            for node in outcome.nodes
        }
    )
    history = RunHistory(found.path, hide).look(found.names, nodes)
    records = []
    for part, node in history.current:
        samples = _samples(os.path.join(found.path, part, SAMPLES), hide)
        if node.began_ns:
            began = (node.began_ns + node.ahead_ns) / 1e9
            samples = [sample for sample in samples if sample.time >= began]
        records.append((node, samples))
    return timeline_of(records, outcome, time.time_ns() if entry.state == "running" else None)


def _samples(path: str, hide: Callable[[str], str]) -> list[RunSample]:
    try:
        lines = read_bytes(path, _MOST_SAMPLES).split(b"\n")
    except (OSError, ValueError):
        return []
    found = [sample for line in lines if line and (sample := decode_sample(line)) is not None]
    return found if hide is str else [_hidden(sample, hide) for sample in found]


def _hidden(sample: RunSample, hide: Callable[[str], str]) -> RunSample:
    """Return a sample without secrets in the names that workers made up."""
    ranks_ = {
        rank: replace_struct(each, metrics={hide(name): of for name, of in each.metrics.items()})
        for rank, each in sample.ranks.items()
    }
    gpus = {hide(name): each for name, each in sample.gpus.items()}
    return replace_struct(sample, ranks=ranks_, gpus=gpus)


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
    attempts = [
        _attempt(attempt, node.name if nodes else "", node, end, live=live)
        for node, _ in records
        for attempt in node.attempts.values()
    ]
    if outcome is not None:
        attempts = _judged(attempts, outcome, nodes)
    attempts.sort(key=lambda each: (each.number, nodes.index(each.node) if each.node else 0))
    starts = [node.first_ns for node, _ in records]
    starts += [0 if outcome is None else outcome.started_ns, *(each.start_ns for each in attempts)]
    start = min((each for each in starts if each), default=end)
    return RunTimeline(start, max(start, end), not live, tuple(attempts), series, nodes)


def _attempt(
    attempt: SeenAttempt, name: str, node: NodeHistory, end_ns: int, *, live: bool
) -> AttemptTimeline:
    current = attempt is node.current
    goes_on = live and not node.finished and current and attempt.end_ns is None
    end = end_ns if attempt.end_ns is None else attempt.end_ns
    spans = [*attempt.spans, *(node.open_spans(end_ns) if current else ())]
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    return AttemptTimeline(
        number=attempt.number,
        node=name,
        start_ns=attempt.start_ns,
        end_ns=None if goes_on else end,
        state=attempt.state or ("running" if live and current else "lost"),
        lanes=_lanes(attempt, name, end, live=goes_on),
        spans=_apart(spans),
        marks=_in_order(mark for mark in attempt.marks if mark.rank is None),
    )


def _in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: mark.time_ns))


def _lanes(attempt: SeenAttempt, node: str, end_ns: int, *, live: bool) -> tuple[Lane, ...]:
    workers = [worker for _, worker in sorted(attempt.workers.items())]
    failed = [each for each in workers if each.exitcode and each.ending_ns is None]
    first = min(failed, key=lambda each: each.ended_ns or 0, default=None)
    lanes = []
    for worker in workers:
        rank = attempt.base_rank + worker.local_rank
        fate, text = _fate_so_far(worker, first, live=live)
        marks = [mark for mark in attempt.marks if mark.rank == rank]
        if worker is first:
            marks.append(Mark("root_cause", worker.ended_ns or end_ns, text, rank))
        lanes.append(
            Lane(
                rank=rank,
                local_rank=worker.local_rank,
                node=node,
                attempt=attempt.number,
                fate=fate,
                spans=_spans_of(worker, attempt, end_ns),
                marks=_in_order(marks),
                text=text,
                exitcode=worker.exitcode,
            )
        )
    return tuple(lanes)


def _fate_so_far(worker: SeenWorker, first: SeenWorker | None, *, live: bool) -> tuple[str, str]:
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


def _spans_of(worker: SeenWorker, attempt: SeenAttempt, end_ns: int) -> tuple[TimeSpan, ...]:
    started, ended = worker.started_ns, worker.ended_ns
    over = end_ns if ended is None else ended
    if started is None:
        begun = attempt.spawn_ns
        return (TimeSpan("spawn", begun, max(begun, over), worker.not_started),)
    end = max(started, over)
    spans = [
        TimeSpan("spawn", min(attempt.spawn_ns, started), started),
        TimeSpan("run", started, end),
    ]
    grace = []
    if worker.ending_ns is not None and worker.ending_ns < end:
        grace = [TimeSpan("grace", max(started, worker.ending_ns), end)]
    until = grace[0].start_ns if grace else end
    hangs = []
    for hang in attempt.hangs:
        if not hang.ranks or worker.local_rank in hang.ranks:
            begun = min(max(started, hang.start_ns), until)
            # what is only reported was seen until then
            last = until if hang.ends else min(max(started, hang.end_ns), until)
            if begun < last:
                hangs.append(TimeSpan("hang", begun, last, hang.text))
    return (*spans, *_apart(sorted(hangs, key=_start_of)), *grace)


def _start_of(span: TimeSpan) -> tuple[int, int]:
    return span.start_ns, span.end_ns


def _apart(spans: Iterable[TimeSpan]) -> tuple[TimeSpan, ...]:
    """Return spans of which those of one kind that overlap are one, with the last one's text."""
    found: list[TimeSpan] = []
    last: dict[str, int] = {}
    for span in spans:
        place = last.get(span.kind)
        if place is not None and span.start_ns < found[place].end_ns:
            before = found[place]
            end = max(before.end_ns, span.end_ns)
            found[place] = replace(before, end_ns=end, text=span.text or before.text)
        else:
            last[span.kind] = len(found)
            found.append(span)
    return tuple(found)


# What result.json knows better


def _judged(
    attempts: Sequence[AttemptTimeline], outcome: RunResult, nodes: tuple[str, ...]
) -> list[AttemptTimeline]:
    """Return attempts with what became of them; those of nodes that left no events are added."""
    found = {(each.number, each.node): each for each in attempts}
    for told in outcome.attempts:
        missing = {worker.rank: worker for worker in told.workers}
        of_this = [key for key in found if key[0] == told.number]
        for key in of_this:
            lanes = [_of(lane, missing.pop(lane.rank, None), told) for lane in found[key].lanes]
            found[key] = replace(found[key], state=told.state, lanes=tuple(lanes))
        by_node = dict(_by_node(missing.values(), outcome, nodes))
        if not of_this and not by_node:
            by_node = {nodes[0] if nodes else "": []}
        for node, workers in by_node.items():
            key, added = (told.number, node), _without_events(told, node, workers, outcome)
            lanes = [*(found[key].lanes if key in found else ()), *added.lanes]
            lanes.sort(key=lambda lane: lane.rank)
            found[key] = replace(found.get(key, added), lanes=tuple(lanes))
    return [_with_hang(_with_root(each, outcome), outcome) for each in found.values()]


def _of(lane: Lane, worker: WorkerResult | None, attempt: AttemptResult) -> Lane:
    """Return a lane with what result.json says of its worker."""
    if worker is None:
        return lane
    known = attempt.root_cause is not None
    return replace(
        lane,
        local_rank=worker.local_rank,
        fate=worker.fate,
        text=_line(fate_text(worker, after_root=known)),
        exitcode=worker.exitcode,
        # who failed first is known for sure
        marks=tuple(mark for mark in lane.marks if mark.kind != "root_cause"),
    )


def _by_node(
    workers: Iterable[WorkerResult], outcome: RunResult, nodes: tuple[str, ...]
) -> Iterator[tuple[str, list[WorkerResult]]]:
    """Yield workers with the name of their node: ranks count through the nodes in their order."""
    names: list[str] = []
    if nodes:
        for node in sorted(outcome.nodes, key=lambda node: node.group_rank):
            names += [node.name] * (min(node.nproc, MOST_WORKERS) if node.group_rank >= 0 else 0)
    found: dict[str, list[WorkerResult]] = {}
    for worker in workers:
        first = nodes[0] if nodes else ""
        name = names[worker.rank] if 0 <= worker.rank < len(names) else first
        found.setdefault(name, []).append(worker)
    yield from found.items()


def _without_events(
    attempt: AttemptResult, node: str, workers: Sequence[WorkerResult], outcome: RunResult
) -> AttemptTimeline:
    """Return an attempt of a node as result.json alone tells it."""
    offsets = {each.name: each.clock_offset for each in outcome.nodes}
    ahead = round((offsets.get(node) or 0.0) * 1e9)
    lanes = []
    for worker in workers:
        spans: tuple[TimeSpan, ...] = ()
        if worker.started_ns is not None:
            started = worker.started_ns - ahead
            ended = started if worker.ended_ns is None else worker.ended_ns - ahead
            if worker.ended_ns is None:
                ended = max(attempt.ended_ns, started)
            spans = (TimeSpan("run", started, max(started, ended)),)
        lane = Lane(worker.rank, worker.local_rank, node, attempt.number, "", spans)
        lanes.append(_of(lane, worker, attempt))
    end = max(attempt.started_ns, attempt.ended_ns)
    order = tuple(sorted(lanes, key=lambda lane: lane.rank))
    return AttemptTimeline(attempt.number, node, attempt.started_ns, end, attempt.state, order)


def _with_root(attempt: AttemptTimeline, outcome: RunResult) -> AttemptTimeline:
    """Return an attempt with a mark at what it failed for."""
    told = next((each for each in outcome.attempts if each.number == attempt.number), None)
    root = None if told is None else told.root_cause
    final = outcome.root_cause
    if final is not None and final.attempt == attempt.number:
        root = final
    if root is None:
        return attempt
    text = _line(str(root.cause))
    blamed = root.ranks
    if not blamed:
        if attempt.node and root.node and attempt.node != root.node:
            return attempt
        at = root.time_ns or attempt.end_ns or attempt.start_ns
        return replace(attempt, marks=_in_order([*attempt.marks, Mark("root_cause", at, text)]))
    lanes = []
    for lane in attempt.lanes:
        if lane.rank in blamed:
            at = root.time_ns or (lane.spans[-1].end_ns if lane.spans else attempt.start_ns)
            mark = Mark("root_cause", at, text, lane.rank)
            lane = replace(lane, marks=_in_order([*lane.marks, mark]))  # noqa: PLW2901 - the same
        lanes.append(lane)
    return replace(attempt, lanes=tuple(lanes))


def _with_hang(attempt: AttemptTimeline, outcome: RunResult) -> AttemptTimeline:
    """Return an attempt with what the watchdog found on all nodes; it knows who only waited."""
    root = outcome.root_cause
    hang = None if root is None or root.attempt != attempt.number else root.hang
    if hang is None or hang.since_ns is None:
        return attempt
    texts = {rank: f"only waited for {ranks(hang.hung)}" for rank in hang.waiting if hang.hung}
    texts |= dict.fromkeys(hang.hung, f"hung: {hang.finding}")
    named = {*hang.named, *hang.hung, *hang.waiting}
    lanes = tuple(
        _hung(lane, hang.since_ns, texts.get(lane.rank, str(hang.finding)))
        if not named or lane.rank in named
        else lane
        for lane in attempt.lanes
    )
    return replace(attempt, lanes=lanes)


def _hung(lane: Lane, since_ns: int, text: str) -> Lane:
    run = next((span for span in lane.spans if span.kind == "run"), None)
    if run is None:
        return lane
    grace = next((span for span in lane.spans if span.kind == "grace"), None)
    until = run.end_ns if grace is None else grace.start_ns
    start = min(max(since_ns, run.start_ns), until)
    if start >= until:
        return lane
    before = [span for span in lane.spans if span.kind == "hang"]
    hang = TimeSpan("hang", start, until, _line(text))
    others = [span for span in lane.spans if span.kind not in ("hang", "grace")]
    hangs = _apart(sorted([*before, hang], key=_start_of))
    return replace(lane, spans=(*others, *hangs, *(() if grace is None else (grace,))))


# Curves

_UNITS = {
    "cpu": "cores",
    "rss": "bytes",
    "read": "bytes/s",
    "written": "bytes/s",
    "output": "bytes",
    "step": "steps",
}
_OF_GPU = {"use": "share", "memory": "bytes", "power": "watts"}
_LONGEST_NAME = 60


def _series(records: Sequence[NodeRecords]) -> Iterator[Series]:
    """Yield what the samples of all nodes tell, in order."""
    several = len(records) > 1
    points: dict[tuple[int, int, int, str, bool, str, int], list[tuple[int, float]]] = {}
    for place, (node, samples) in enumerate(records):
        for sample in samples:
            if sample.time > 0:
                at = round(sample.time * 1e9) - node.ahead_ns
                for what, value in _values(sample):
                    points.setdefault((sample.attempt, *what, place), []).append((at, value))
    for key, found in sorted(points.items(), key=lambda item: item[0]):
        number, of_gpu, _, of, metric, name, place = key
        unit = "" if metric else _OF_GPU[name] if of_gpu else _UNITS[name]
        where = records[place][0].name if several else ""
        of = _line(f"{where}/{of}" if of_gpu and where else of)
        shown = f"gpu_{name}" if of_gpu else printable(name, _LONGEST_NAME)
        # clocks may be set meanwhile
        yield Series(shown, unit, of, number, tuple(sorted(found)), metric, where)


def _values(sample: RunSample) -> Iterator[tuple[tuple[int, int, str, bool, str], float]]:
    """Yield the finite numbers of a sample, each with what it is of: such that they sort."""
    for rank, worker in sample.by_rank.items():
        for name in _UNITS:
            if (value := finite(getattr(worker, name))) is not None:
                yield (0, rank, str(rank), False, name), value
        for name, metric in worker.metrics.items():
            if (value := finite(metric)) is not None:
                yield (0, rank, str(rank), True, name), value
    for gpu, use in sample.gpus.items():
        for name in _OF_GPU:
            if (value := finite(getattr(use, name))) is not None:
                yield (1, 0, gpu, False, name), value
