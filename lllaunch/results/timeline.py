"""What happened when in a run, for all who draw it: attempts, ranks, and what was measured.

`read_timeline` reads the little that it needs of a run's files, `timeline_of` makes the timeline of
that and is pure. events.jsonl tells when, of a live run, too; result.json says better what became
of each worker and what the run failed for; samples.jsonl has the curves. Each of them may be
missing, torn, or of another version: what is there is shown.

Each of several nodes has written events by its own clock; here all times are by node 0's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lllaunch.console.report import fate_text
from lllaunch.documents import signal_name
from lllaunch.files import read_bytes
from lllaunch.results.store import read_run
from lllaunch.run.directory import EVENTS, SAMPLES
from lllaunch.run.events import EventLine
from lllaunch.run.events import decode as decode_event
from lllaunch.run.result import cause_in, read_result
from lllaunch.run.samples import RunSample, finite
from lllaunch.run.samples import decode as decode_sample
from lllaunch.text import printable
from lllaunch.watchdog.findings import lasted, suspects
from lllaunch.words import counted, ranks

if TYPE_CHECKING:
    from lllaunch.results.store import FoundDirectory, ListEntry
    from lllaunch.run.result import AttemptResult, NodeResult, RunResult, WorkerResult

T = TypeVar("T")

SpanKind = Literal["preload", "rendezvous", "preflight", "spawn", "run", "hang", "grace", "pause"]
"""What lasts. Of a worker group: modules are imported for its workers, nodes meet, the preflight
runs, a restart is waited for. Of a worker: its start, its life, and within that what the watchdog
found and the grace period."""

MarkKind = Literal["finding", "signal", "restart", "stacks", "root_cause"]


@dataclass(frozen=True)
class TimeSpan:
    """What lasts for a while.

    Attributes:
        start_ns: when it began, nanoseconds since the epoch.
        end_ns: when it was over; of what still goes on, the last moment that is known of.
    """

    kind: SpanKind
    start_ns: int
    end_ns: int
    text: str = ""


@dataclass(frozen=True)
class Mark:
    """What happens at a moment.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        rank: of the worker that it is about, None if it is about all.
    """

    kind: MarkKind
    time_ns: int
    text: str
    rank: int | None = None


@dataclass(frozen=True)
class Lane:
    """One worker of one attempt in time.

    Attributes:
        node: name of that, an empty string where there is one only.
        fate: as result.json calls it; ``running`` while it lives.
        spans: ``spawn``, then ``run``, and within that ``hang`` and ``grace``: in order of their
            beginnings. Spans of one kind do not overlap; each of the latter two lies within that of
            the run, and they do not overlap either.
        exitcode: exit status, or the negative number of the signal that ended it; None if unknown.
    """

    rank: int
    local_rank: int
    node: str
    attempt: int
    fate: str
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
    text: str = ""
    exitcode: int | None = None


@dataclass(frozen=True)
class AttemptTimeline:
    """One attempt on one node in time.

    Attributes:
        node: name of the node, an empty string where there is one only.
        start_ns: when it was begun, nanoseconds since the epoch.
        end_ns: when its last worker was gone, None while it goes on.
        state: ``succeeded``, ``failed``, ``stopped`` (by a signal to the launcher), ``running``, or
            ``lost`` if nobody knows.
        spans: of the group, in order of their beginnings: ``preload``, ``rendezvous``,
            ``preflight``, and the ``pause`` that follows it. Those of one kind do not overlap.
        marks: what is about all of them, in order.
    """

    number: int
    node: str
    start_ns: int
    end_ns: int | None
    state: str
    lanes: tuple[Lane, ...] = ()
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Series:
    """Something that was measured every few seconds.

    Attributes:
        name: ``cpu`` (cores), ``rss``, ``read``, ``written``, ``output``, ``step``, ``gpu_use``,
            ``gpu_memory`` or ``gpu_power``; or of a metric, what the worker calls it.
        unit: ``cores``, ``bytes``, ``bytes/s``, ``steps``, ``share``, ``watts``; of a metric empty.
        of: number of the rank, or name of the GPU; of several nodes, with the node's before it.
        points: when (nanoseconds since the epoch) and how much, in order; all finite.
        metric: whether it is a metric.
        node: name of the node, an empty string where there is one only.
    """

    name: str
    unit: str
    of: str
    attempt: int
    points: tuple[tuple[int, float], ...]
    metric: bool = False
    node: str = ""


@dataclass(frozen=True)
class RunTimeline:
    """A run in time; where its directory has seen several, the last one.

    Attributes:
        start_ns: when it began, nanoseconds since the epoch.
        end_ns: when it was over; of one that goes on, now; of one that was lost, the last moment
            that is known of.
        over: whether it is.
        series: what was measured, by attempt, then ranks before GPUs.
        nodes: names of the nodes, in order; none where there is one only.
    """

    start_ns: int
    end_ns: int
    over: bool
    attempts: tuple[AttemptTimeline, ...] = ()
    series: tuple[Series, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRecords:
    """What one node has written.

    Attributes:
        name: of the node, an empty string where there is one only.
        ahead_ns: how far its clock is ahead of node 0's, nanoseconds.
    """

    name: str
    events: Sequence[EventLine] = ()
    samples: Sequence[RunSample] = ()
    ahead_ns: int = 0


# Reading

# Of the newest events: with the stacks of hundreds of ranks an event has some megabytes.
_MOST_EVENTS = 32 << 20
# Samples are kept within 2 MiB.
_MOST_SAMPLES = 4 << 20
_NODE = re.compile(r"node_(\d{1,6})")
_MOST_NODES = 1024
# Between the clocks of nodes.
_MOST_SKEW_NS = 60 * 10**9


def read_timeline(
    found: FoundDirectory,
    hide: Callable[[str], str] = str,
    known: tuple[ListEntry, RunResult | None] | None = None,
) -> RunTimeline:
    """Read what happened when in a run; never raises for what its files hold.

    Args:
        found: its directory, or its result.json under another name, which then tells all.
        known: what `lllaunch.results.store.read_run` returns for it, if that is known already.
    """
    now_ns = time.time_ns()
    if found.file:
        try:
            outcome = read_result(found.file, found.path)
        except (OSError, ValueError):
            outcome = None
        return _hidden(timeline_of((), outcome), hide)
    entry, outcome = known or read_run(found)
    records = _read_nodes(found, () if outcome is None else outcome.nodes)
    live = now_ns if entry.state == "running" else None
    return _hidden(timeline_of(records, outcome, live), hide)


def _read_nodes(found: FoundDirectory, known: Sequence[NodeResult]) -> list[NodeRecords]:
    numbers = sorted(int(match[1]) for name in found.names if (match := _NODE.fullmatch(name)))
    if not numbers:
        return [NodeRecords("", *_read_node(found.path))]
    by_directory = {os.path.basename(node.directory): node for node in known}
    records = []
    for number in numbers[:_MOST_NODES]:
        directory = f"node_{number}"
        node = by_directory.get(directory)
        name = f"node {number}" if node is None else node.name
        ahead = 0.0 if node is None else node.clock_offset or 0.0
        read = _read_node(os.path.join(found.path, directory))
        records.append(NodeRecords(name, *read, ahead_ns=round(ahead * 1e9)))
    began = _first_ns(records[0])
    # what is older is of an earlier run, which had more nodes
    return [each for each in records if _last_ns(each) >= began - _MOST_SKEW_NS]


def _first_ns(node: NodeRecords) -> int:
    return next((event.time_ns for event in node.events if event.time_ns), 0)


def _last_ns(node: NodeRecords) -> int:
    # a node that has written nothing may come to it
    times = (event.time_ns for event in reversed(node.events) if event.time_ns)
    return next(times, _LATEST_NS)


def _read_node(directory: str) -> tuple[list[EventLine], list[RunSample]]:
    events = _lines(os.path.join(directory, EVENTS), _MOST_EVENTS, decode_event)
    samples = _lines(os.path.join(directory, SAMPLES), _MOST_SAMPLES, decode_sample)
    begins = [place for place, event in enumerate(events) if event.type == "Begin"]
    if begins:
        # those before it are of an earlier run, or an earlier batch job of this one
        events = events[begins[-1] :]
        began = (events[0].time_ns or 0) / 1e9
        samples = [sample for sample in samples if sample.time >= began]
    return events, samples


def _lines(path: str, most: int, decode: Callable[[bytes], T | None]) -> list[T]:
    """Return what the lines of a file say; of a long one those at its end."""
    try:
        lines = read_bytes(path, most).split(b"\n")
    except (OSError, ValueError):
        return []
    return [found for line in lines if line and (found := decode(line)) is not None]


def _hidden(timeline: RunTimeline, hide: Callable[[str], str]) -> RunTimeline:
    """Return the same with all texts changed."""
    if hide is str:
        return timeline

    def spans(given: Iterable[TimeSpan]) -> tuple[TimeSpan, ...]:
        return tuple(replace(span, text=hide(span.text)) for span in given)

    def marks(given: Iterable[Mark]) -> tuple[Mark, ...]:
        return tuple(replace(mark, text=hide(mark.text)) for mark in given)

    def lane(given: Lane) -> Lane:
        return replace(
            given,
            node=hide(given.node),
            spans=spans(given.spans),
            marks=marks(given.marks),
            text=hide(given.text),
        )

    attempts = tuple(
        replace(
            each,
            node=hide(each.node),
            lanes=tuple(map(lane, each.lanes)),
            spans=spans(each.spans),
            marks=marks(each.marks),
        )
        for each in timeline.attempts
    )
    series = tuple(
        replace(each, name=hide(each.name), of=hide(each.of), node=hide(each.node))
        for each in timeline.series
    )
    nodes = tuple(map(hide, timeline.nodes))
    return replace(timeline, attempts=attempts, series=series, nodes=nodes)


# Events, in order, into attempts

_PREFLIGHT = -1
_LONGEST_TEXT = 300
# of a node; far more than any machine runs
_MOST_WORKERS = 4096
_LATEST_NS = 1 << 62
# Three centuries, seconds.
_LONGEST = 1e10


@dataclass
class _Worker:
    local_rank: int
    started_ns: int | None = None
    ended_ns: int | None = None
    exitcode: int | None = None
    ending_ns: int | None = None
    not_started: str = ""


@dataclass
class _Hang:
    """What the watchdog found of local ranks, or of all: none are named."""

    start_ns: int
    end_ns: int
    ranks: tuple[int, ...]
    text: str
    ends: bool


@dataclass
class _Attempt:
    number: int
    start_ns: int
    end_ns: int | None = None
    state: str = ""
    base_rank: int = 0
    # before which no worker was being started
    spawn_ns: int = 0
    workers: dict[int, _Worker] = field(default_factory=dict)
    hangs: list[_Hang] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def worker(self, local_rank: int) -> _Worker | None:
        known = self.workers.get(local_rank)
        if known is None and local_rank >= 0 and len(self.workers) < _MOST_WORKERS:
            known = self.workers[local_rank] = _Worker(local_rank)
        return known


class _NodeHistory:
    """What the events of one node come to, one after the other.

    Attributes:
        finished: how the run ended here, an empty string if it did not.
    """

    def __init__(self, ahead_ns: int) -> None:
        self.attempts: dict[int, _Attempt] = {}
        self.first_ns = 0
        self.last_ns = 0
        self.finished = ""
        self._ahead_ns = ahead_ns
        self._pause: int | None = None
        self._pause_text = ""
        self._preflight: int | None = None
        self._current: _Attempt | None = None
        # how many attempts of former runs the directory held
        self._former = 0

    def take(self, event: EventLine) -> None:
        """See what follows from a line."""
        at = self._time(event.time_ns)
        if at is None:
            return
        self.first_ns = min(at, self.first_ns or at)
        self.last_ns = max(at, self.last_ns)
        handle = _HANDLED.get(event.type)
        if handle is not None:
            handle(self, event, at)

    def close(self, end_ns: int) -> None:
        """See that nothing follows."""
        self._end_pause(end_ns)
        self._end_preflight(end_ns, "")

    def _time(self, time_ns: int | None) -> int | None:
        return time_ns - self._ahead_ns if time_ns and 0 < time_ns < _LATEST_NS else None

    def _attempt_of(self, event: EventLine, at: int) -> _Attempt:
        """Return the attempt that an event is about; its beginning may be lost."""
        number = event.attempt
        self._renumber(number)
        current = self._current
        if number is None or (current is not None and current.number == number):
            number = 0 if current is None else current.number
        return self._begin_attempt(number, at)

    def _begin_attempt(self, number: int, at: int) -> _Attempt:
        known, current = self.attempts.get(number), self._current
        if known is None:
            known = self.attempts[number] = _Attempt(number, at, spawn_ns=at)
        if current is None or number > current.number:
            self._current = known
        return known

    def _renumber(self, number: int | None) -> None:
        """Give the attempt that has just begun the number that its directory turns out to have."""
        current = self._current
        if number is None or current is None or number <= current.number:
            return
        seen = any(worker.started_ns or worker.ended_ns for worker in current.workers.values())
        if not seen and number not in self.attempts:
            self._former += number - current.number
            current.number = number
            self.attempts = {each.number: each for each in self.attempts.values()}

    def _start_workers(self, event: EventLine, at: int) -> None:
        self._end_pause(at)
        self._end_preflight(at, "")
        before = self._current
        if before is not None and not before.end_ns:
            before.end_ns = at
        number = event.attempt
        if number is not None:
            # the launcher counts those of its own run
            attempt = self._begin_attempt(number + self._former, at)
        else:
            attempt = self._attempt_of(event, at)
        attempt.start_ns = attempt.spawn_ns = at
        reason = event.reason
        if reason:
            text = f"attempt {attempt.number} begins: {_REASONS.get(reason, reason)}"
            attempt.marks.append(Mark("restart", at, text))
        if before is not None and before is not attempt:
            before.state = before.state or "failed"

    def _group_started(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        attempt.base_rank = max(0, event.base_rank)
        if event.restarts is not None and attempt.spawn_ns == attempt.start_ns:
            attempt.spans.append(
                TimeSpan("rendezvous", attempt.start_ns, max(at, attempt.start_ns))
            )
            attempt.spawn_ns = at
        if not event.preflight:
            for local_rank in event.ranks[:_MOST_WORKERS]:
                attempt.worker(local_rank)

    def _ready(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        seconds = _span(event.seconds) or 0.0
        begun = max(attempt.start_ns, at - round(seconds * 1e9))
        attempt.spans.append(TimeSpan("preload", begun, max(begun, at)))
        attempt.spawn_ns = max(attempt.spawn_ns, at)

    def _preload_broken(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        text = f"{event.module} could not be imported"
        attempt.spans.append(TimeSpan("preload", attempt.start_ns, max(at, attempt.start_ns), text))
        attempt.end_ns = at

    def _after_preflight(self, event: EventLine, at: int) -> None:
        self._end_preflight(at, "")
        self._attempt_of(event, at).spawn_ns = at

    def _started(self, event: EventLine, at: int) -> None:
        local_rank = event.local_rank
        attempt = self._attempt_of(event, at)
        if local_rank == _PREFLIGHT:
            self._preflight = at
        elif local_rank is not None and (worker := attempt.worker(local_rank)) is not None:
            worker.started_ns = at

    def _exited(self, event: EventLine, at: int) -> None:
        local_rank, code = event.local_rank, event.exitcode
        attempt = self._attempt_of(event, at)
        if local_rank == _PREFLIGHT:
            self._end_preflight(at, "" if code == 0 else f"the preflight {_exit_text(code)}")
        elif local_rank is not None and (worker := attempt.worker(local_rank)) is not None:
            worker.ended_ns, worker.exitcode = at, code

    def _start_failed(self, event: EventLine, at: int) -> None:
        local_rank = event.local_rank
        attempt = self._attempt_of(event, at)
        if local_rank == _PREFLIGHT:
            self._preflight = attempt.spawn_ns if self._preflight is None else self._preflight
            self._end_preflight(at, "the preflight could not be started")
        elif local_rank is not None and (worker := attempt.worker(local_rank)) is not None:
            worker.ended_ns, worker.not_started = at, event.reason or "could not be started"

    def _preflight_timed_out(self, event: EventLine, at: int) -> None:
        del event
        self._end_preflight(at, "the preflight took too long")

    def _end_preflight(self, at: int, text: str) -> None:
        begun, self._preflight = self._preflight, None
        if begun is not None and self._current is not None:
            span = TimeSpan("preflight", begun, max(begun, at), text)
            self._current.spans.append(span)

    def _signal_received(self, event: EventLine, at: int) -> None:
        text = f"{_signal(event.signum)} to the launcher"
        self._attempt_of(event, at).marks.append(Mark("signal", at, text))

    def _signal_workers(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        self._ending(attempt, at)
        text = f"{_signal(event.signum)} to all workers"
        attempt.marks.append(Mark("signal", at, text))

    def _start_grace(self, event: EventLine, at: int) -> None:
        self._ending(self._attempt_of(event, at), at)

    def _kill_workers(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        self._ending(attempt, at)
        attempt.marks.append(Mark("signal", at, "SIGKILL to all workers"))

    def _ending(self, attempt: _Attempt, at: int) -> None:
        for worker in attempt.workers.values():
            if worker.ended_ns is None and worker.ending_ns is None:
                worker.ending_ns = at

    def _signal_process(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        local_rank = event.rank
        rank = None if local_rank is None else attempt.base_rank + local_rank
        text = f"{_signal(event.signum)} to process {event.pid}"
        attempt.marks.append(Mark("signal", at, text, rank))

    def _watchdog_fired(self, event: EventLine, at: int) -> None:
        self._finding(event, at, ends=event.ends)

    def _not_finite(self, event: EventLine, at: int) -> None:
        self._finding(event, at, ends=False)

    def _finding(self, event: EventLine, at: int, *, ends: bool) -> None:
        finding: Any = cause_in(event.finding)
        attempt = self._attempt_of(EventLine(), at)
        local_ranks = suspects(finding)
        text = str(finding or "the watchdog found something")
        named = [attempt.base_rank + local_rank for local_rank in local_ranks]
        if len(named) > 1:
            text = f"{ranks(named)}: {text}"
        rank = named[0] if len(named) == 1 else None
        attempt.marks.append(Mark("finding", at, _line(text), rank))
        seconds = lasted(finding)
        if seconds is not None:
            begun = max(attempt.start_ns, at - round(seconds * 1e9))
            hang = _Hang(begun, max(begun, at), local_ranks, _line(str(finding)), ends)
            attempt.hangs.append(hang)

    def _nodes_agreed(self, event: EventLine, at: int) -> None:
        finding: Any = cause_in(event.ended.finding)
        attempt = self._attempt_of(event, at)
        if finding is None or any(hang.ends for hang in attempt.hangs):
            return
        # its words say which node has noticed it
        attempt.marks.append(Mark("finding", at, _line(str(finding))))
        seconds = lasted(finding)
        if seconds is not None:
            begun = max(attempt.start_ns, at - round(seconds * 1e9))
            attempt.hangs.append(_Hang(begun, max(begun, at), (), _line(str(finding)), ends=True))

    def _stacks_taken(self, event: EventLine, at: int) -> None:
        number = len(event.stacks)
        text = f"the stacks of {counted(number, 'worker')} were taken"
        self._attempt_of(event, at).marks.append(Mark("stacks", at, text))

    def _stacks_answered(self, event: EventLine, at: int) -> None:
        text = f"somebody looked where {ranks(event.ranks)} stood"
        self._attempt_of(event, at).marks.append(Mark("stacks", at, text))

    def _spawner_gone(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        for worker in attempt.workers.values():
            worker.ended_ns = at if worker.ended_ns is None else worker.ended_ns

    def _orphans_gone(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        if self._preflight is None and all(
            worker.ended_ns is not None for worker in attempt.workers.values()
        ):
            attempt.end_ns = at if attempt.workers else attempt.end_ns

    def _begin_pause(self, event: EventLine, at: int) -> None:
        self._end_pause(at)
        restart = event.restart
        self._pause = at
        self._pause_text = "" if restart is None else f"before restart {restart}"

    def _pause_over(self, event: EventLine, at: int) -> None:
        del event
        self._end_pause(at)

    def _end_pause(self, at: int) -> None:
        begun, self._pause = self._pause, None
        if begun is not None and self._current is not None:
            span = TimeSpan("pause", begun, max(begun, at), self._pause_text)
            self._current.spans.append(span)

    def _finish(self, event: EventLine, at: int) -> None:
        self._end_pause(at)
        self._end_preflight(at, "")
        state = event.state
        stopped = event.signum is not None
        ended = "stopped" if stopped else "succeeded" if state == "SUCCEEDED" else "failed"
        self.finished = ended
        if self._current is not None:
            self._current.end_ns = self._current.end_ns or at
            self._current.state = self._current.state or ended


_HANDLED: Mapping[str, Callable[[_NodeHistory, EventLine, int], None]] = {
    "StartWorkers": _NodeHistory._start_workers,
    "GroupStarted": _NodeHistory._group_started,
    "Ready": _NodeHistory._ready,
    "PreloadBroken": _NodeHistory._preload_broken,
    "StartAfterPreflight": _NodeHistory._after_preflight,
    "Started": _NodeHistory._started,
    "Exited": _NodeHistory._exited,
    "StartFailed": _NodeHistory._start_failed,
    "PreflightTimedOut": _NodeHistory._preflight_timed_out,
    "SignalReceived": _NodeHistory._signal_received,
    "SignalWorkers": _NodeHistory._signal_workers,
    "StartGrace": _NodeHistory._start_grace,
    "KillWorkers": _NodeHistory._kill_workers,
    "SignalProcess": _NodeHistory._signal_process,
    "WatchdogFired": _NodeHistory._watchdog_fired,
    "NotFinite": _NodeHistory._not_finite,
    "NodesAgreed": _NodeHistory._nodes_agreed,
    "StacksTaken": _NodeHistory._stacks_taken,
    "StacksAnswered": _NodeHistory._stacks_answered,
    "SpawnerGone": _NodeHistory._spawner_gone,
    "OrphansGone": _NodeHistory._orphans_gone,
    "Pause": _NodeHistory._begin_pause,
    "PauseOver": _NodeHistory._pause_over,
    "Finish": _NodeHistory._finish,
}

_REASONS = {
    "failure": "a worker failed",
    "died": "a signal ended a worker",
    "oom": "memory had run out",
    "hang": "workers hung",
    "timeout": "an attempt took too long",
    "spawner": "the process that forks workers was lost",
    "membership": "other nodes came or left",
    "node": "a node was lost",
    "preflight": "the preflight failed",
}


def _signal(signum: int | None) -> str:
    return "a signal" if signum is None else signal_name(signum)


def _span(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds < _LONGEST else None


def _line(text: str) -> str:
    return printable(text, _LONGEST_TEXT)


def _exit_text(code: int | None) -> str:
    if code is None:
        return "ended, nobody knows how"
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    return "succeeded" if code == 0 else f"ended with exit status {code}"


# What became of it


def timeline_of(
    records: Sequence[NodeRecords], outcome: RunResult | None, now_ns: int | None = None
) -> RunTimeline:
    """Return what happened when in a run. Pure.

    Args:
        outcome: what its result.json says, None if there is none.
        now_ns: the time, nanoseconds since the epoch, of a run that goes on; else None.
    """
    live = now_ns is not None and outcome is None
    histories = []
    for node in records:
        history = _NodeHistory(node.ahead_ns)
        for event in node.events:
            history.take(event)
        histories.append(history)
    series = tuple(_series(records))
    last = max([history.last_ns for history in histories], default=0)
    last = max([last, *(each.points[-1][0] for each in series)])
    end = (now_ns if live else 0) or 0
    end = max(end, last, 0 if outcome is None else outcome.ended_ns)
    for history in histories:
        history.close(end)
    nodes = tuple(node.name for node in records) if len(records) > 1 else ()
    if outcome is not None and len(outcome.nodes) > 1:
        nodes = (*nodes, *(node.name for node in outcome.nodes if node.name not in nodes))
    attempts = [
        _attempt(attempt, node.name if nodes else "", history, end, live=live)
        for node, history in zip(records, histories, strict=True)
        for attempt in history.attempts.values()
    ]
    if outcome is not None:
        attempts = _judged(attempts, outcome, nodes)
    attempts.sort(key=lambda each: (each.number, nodes.index(each.node) if each.node else 0))
    starts = [history.first_ns for history in histories if history.first_ns]
    starts += [] if outcome is None or not outcome.started_ns else [outcome.started_ns]
    starts += [each.start_ns for each in attempts if each.start_ns]
    start = min(starts, default=end)
    return RunTimeline(start, max(start, end), not live, tuple(attempts), series, nodes)


def _attempt(
    attempt: _Attempt, node: str, history: _NodeHistory, end_ns: int, *, live: bool
) -> AttemptTimeline:
    goes_on = live and not history.finished and attempt is history._current
    goes_on = goes_on and attempt.end_ns is None
    end = end_ns if attempt.end_ns is None else attempt.end_ns
    lanes = _lanes(attempt, node, end, live=goes_on)
    spans = sorted(attempt.spans, key=lambda span: (span.start_ns, -span.end_ns))
    of_group = [mark for mark in attempt.marks if mark.rank is None]
    unknown = "running" if live and attempt is history._current else "lost"
    return AttemptTimeline(
        number=attempt.number,
        node=node,
        start_ns=attempt.start_ns,
        end_ns=None if goes_on else end,
        state=attempt.state or unknown,
        lanes=lanes,
        spans=_apart(spans),
        marks=_in_order(of_group),
    )


def _in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: mark.time_ns))


def _lanes(attempt: _Attempt, node: str, end_ns: int, *, live: bool) -> tuple[Lane, ...]:
    workers = [worker for _, worker in sorted(attempt.workers.items())]
    failed = [each for each in workers if each.exitcode not in (None, 0) and not _was_ended(each)]
    first = min(failed, key=lambda each: each.ended_ns or 0, default=None)
    lanes = []
    for worker in workers:
        rank = attempt.base_rank + worker.local_rank
        fate, text = _fate_so_far(worker, first, live=live)
        lane = Lane(
            rank=rank,
            local_rank=worker.local_rank,
            node=node,
            attempt=attempt.number,
            fate=fate,
            spans=_spans_of(worker, attempt, end_ns),
            marks=_in_order(mark for mark in attempt.marks if mark.rank == rank),
            text=_line(text),
            exitcode=worker.exitcode,
        )
        if worker is first:
            cause = Mark("root_cause", worker.ended_ns or end_ns, lane.text, rank)
            lane = replace(lane, marks=_in_order([*lane.marks, cause]))
        lanes.append(lane)
    return tuple(lanes)


def _was_ended(worker: _Worker) -> bool:
    return worker.ending_ns is not None


def _fate_so_far(worker: _Worker, first: _Worker | None, *, live: bool) -> tuple[str, str]:
    """Return what became of a worker as far as events tell, and how that is said."""
    if worker.not_started:
        fate, text = "failed", f"could not be started: {worker.not_started}"
    elif worker.ended_ns is None and live:
        fate, text = "running", "is being started" if worker.started_ns is None else "running"
    elif worker.ended_ns is None and worker.started_ns is None:
        fate, text = "not_started", "not started"
    elif worker.exitcode is None:
        fate, text = "lost", _exit_text(None)
    elif _was_ended(worker):
        fate, text = "ended", f"ended by the launcher: {_exit_text(worker.exitcode)}"
    else:
        fate = "succeeded" if not worker.exitcode else "failed" if worker is first else "victim"
        text = _exit_text(worker.exitcode)
    return fate, text


def _spans_of(worker: _Worker, attempt: _Attempt, end_ns: int) -> tuple[TimeSpan, ...]:
    started, ended = worker.started_ns, worker.ended_ns
    if started is None:
        begun = attempt.spawn_ns
        over = max(begun, end_ns if ended is None else ended)
        return (TimeSpan("spawn", begun, over, _line(worker.not_started)),)
    begun = min(attempt.spawn_ns, started)
    end = max(started, end_ns if ended is None else ended)
    spans = [TimeSpan("spawn", begun, started), TimeSpan("run", started, end)]
    grace = None
    if worker.ending_ns is not None and worker.ending_ns < end:
        grace = TimeSpan("grace", max(started, worker.ending_ns), end)
    until = end if grace is None else grace.start_ns
    hangs = [
        TimeSpan(
            "hang",
            min(max(started, hang.start_ns), until),
            # what is only reported was seen until then
            until if hang.ends else min(max(started, hang.end_ns), until),
            hang.text,
        )
        for hang in attempt.hangs
        if not hang.ranks or worker.local_rank in hang.ranks
    ]
    spans += _apart(sorted((each for each in hangs if each.start_ns < each.end_ns), key=_start_of))
    return tuple(spans if grace is None else [*spans, grace])


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
            names += [node.name] * (min(node.nproc, _MOST_WORKERS) if node.group_rank >= 0 else 0)
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
    for place, node in enumerate(records):
        for sample in node.samples:
            if sample.time <= 0:
                continue
            at = round(sample.time * 1e9) - node.ahead_ns
            for what, value in _values(sample):
                points.setdefault((sample.attempt, *what, place), []).append((at, value))
    for key, found in sorted(points.items(), key=lambda item: item[0]):
        number, of_gpu, _, of, metric, name, place = key
        unit = "" if metric else _OF_GPU[name] if of_gpu else _UNITS[name]
        where = records[place].name if several else ""
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
