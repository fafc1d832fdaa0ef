"""A run or a sweep in the trace event format, for https://ui.perfetto.dev and chrome://tracing.

`run_events` and `sweep_events` are pure; `rendered` makes the file of what they return. What holds
for every trace (and is tested): each process and thread has a number of its own and a name; times
are whole microseconds since the beginning, in order; of two spans on one thread either one lies
within the other or they do not overlap; no number is NaN or infinite.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lllaunch.documents import isoformat
from lllaunch.results.history import AttemptTimeline, Lane, Mark
from lllaunch.results.sweeps import SweepTimeline, SweepView, place, tracks_of
from lllaunch.results.timeline import RunTimeline, Series, read_timeline
from lllaunch.text import printable

if TYPE_CHECKING:
    from lllaunch.results.history import TimeSpan
    from lllaunch.results.store import FoundDirectory
    from lllaunch.results.sweeps import JobTry, SlotKind

TraceEvent = dict[str, Any]

_LONGEST = 300


def trace_text(found: FoundDirectory, hide: Callable[[str], str] = str) -> str:
    """Read a run or a sweep, finished or not, and return its trace."""
    if found.kind == "sweep":
        sweep = SweepView(found.path, None, hide=hide).timeline
        return rendered(sweep_events(sweep), "sweep", sweep.start_ns)
    run = read_timeline(found, hide)
    return rendered(run_events(run), "run", run.start_ns)


def rendered(events: Iterable[TraceEvent], kind: str, start_ns: int) -> str:
    """Return the text of a trace, an event a line; it began `start_ns` since the epoch."""
    lines = ",\n".join(
        json.dumps(event, allow_nan=False, separators=(",", ":")) for event in events
    )
    other = json.dumps({"kind": kind, "start": isoformat(start_ns) if start_ns else None})
    return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


class _Tracks:
    """Processes and threads of a trace, and what happens on them, in time since `start_ns`."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._named: list[TraceEvent] = []
        self._events: list[TraceEvent] = []
        # One for all: a thread with the number of its process would be taken for its main thread.
        self._numbers = itertools.count(1)

    def process(self, name: str) -> int:
        """Return the number of a new process."""
        pid = next(self._numbers)
        self._name("process", pid, pid, name)
        return pid

    def thread(self, pid: int, name: str) -> int:
        """Return the number of a new thread of a process."""
        tid = next(self._numbers)
        self._name("thread", pid, tid, name)
        return tid

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        for key, value in (("name", name), ("sort_index", tid)):
            event = {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{key}"}
            self._named.append({**event, "args": {key: value}})

    def at(self, time_ns: int) -> int:
        """Return a time in microseconds since the beginning."""
        # rounded down: what lies within something else, or beside it, still does
        return max(0, time_ns - self._start_ns) // 1000

    def _add(
        self, phase: str, where: tuple[int, int], at_ns: int, name: str, **fields: Any
    ) -> None:
        place = {"pid": where[0], "tid": where[1], "name": name}
        self._events.append({"ph": phase, "ts": self.at(at_ns), **place, **fields})

    def span(
        self,
        where: tuple[int, int],
        span: tuple[int, int],
        name: str,
        category: str,
        args: dict[str, Any],
    ) -> None:
        """Add what lasts; of `args` what is None or empty is left out."""
        lasts = max(0, self.at(span[1]) - self.at(span[0]))
        args = {key: value for key, value in args.items() if value not in (None, "")}
        self._add("X", where, span[0], name, dur=lasts, cat=category, args=args)

    def instant(self, where: tuple[int, int], mark: Mark) -> None:
        """Add what happens at a moment."""
        self._add("i", where, mark.time_ns, mark.text or mark.kind, cat=mark.kind, s="t")

    def counter(self, pid: int, time_ns: int, name: str, of: str, value: float) -> None:
        """Add a value of a counter of a process."""
        self._add("C", (pid, pid), time_ns, name, args={of: value})

    def events(self) -> Iterator[TraceEvent]:
        """Yield all of it: names first, then by time, what lasts before what lies within it."""
        yield from self._named
        yield from sorted(self._events, key=lambda each: (each["ts"], -each.get("dur", 0)))


# A run


def run_events(run: RunTimeline) -> list[TraceEvent]:
    """Return the trace of a run: a process for each node's attempts, a thread for each rank."""
    tracks = _Tracks(run.start_ns)
    of_attempt: dict[tuple[int, str], int] = {}
    for attempt in run.attempts:
        key = attempt.number, attempt.node
        name = f"attempt {attempt.number}" + (f", {attempt.node}" if attempt.node else "")
        pid = of_attempt[key] = tracks.process(name)
        _add_group(tracks, pid, attempt)
        for lane in attempt.lanes:
            _add_lane(tracks, pid, lane)
    for series in run.series:
        key = series.attempt, series.node
        if key not in of_attempt:
            of_attempt[key] = tracks.process(f"attempt {series.attempt}")
        _add_series(tracks, of_attempt[key], series)
    return list(tracks.events())


def _add_group(tracks: _Tracks, pid: int, attempt: AttemptTimeline) -> None:
    """Add what is of all workers: what was imported for them has a thread of its own."""
    group = [span for span in attempt.spans if span.kind != "preload"]
    preload = [span for span in attempt.spans if span.kind == "preload"]
    for name, spans in (("group", group), ("spawner", preload)):
        lines: list[list[TimeSpan]] = [[]] if name == "group" else []
        for span in spans:
            place(lines, span)
        for number, line in enumerate(lines):
            where = pid, tracks.thread(pid, name)
            for span in line:
                args = {"text": span.text}
                tracks.span(where, (span.start_ns, span.end_ns), span.kind, span.kind, args)
            if name == "group" and number == 0:
                for mark in attempt.marks:
                    tracks.instant(where, mark)


def _add_lane(tracks: _Tracks, pid: int, lane: Lane) -> None:
    where = pid, tracks.thread(pid, f"rank {lane.rank}")
    for span in lane.spans:
        name: str = span.kind
        args: dict[str, Any] = {"text": span.text}
        if span.kind == "run":
            # Perfetto gives what has one name one colour
            name = f"run: {lane.fate}"
            args = {
                "fate": lane.fate,
                "text": lane.text,
                "exit code": lane.exitcode,
                "rank": lane.rank,
                "local rank": lane.local_rank,
                "node": lane.node,
            }
        elif tracks.at(span.start_ns) == tracks.at(span.end_ns):
            # it would not be seen
            continue
        tracks.span(where, (span.start_ns, span.end_ns), name, span.kind, args)
    for mark in lane.marks:
        tracks.instant(where, mark)


# What counters are called, and what their values are divided by.
_SHOWN: dict[str, tuple[str, float]] = {
    "cpu": ("CPU (cores)", 1),
    "rss": ("memory (MiB)", 1 << 20),
    "read": ("read (MiB/s)", 1 << 20),
    "written": ("written (MiB/s)", 1 << 20),
    "output": ("output (KiB)", 1 << 10),
    "step": ("step", 1),
    "gpu_use": ("GPU use (%)", 0.01),
    "gpu_memory": ("GPU memory (MiB)", 1 << 20),
    "gpu_power": ("GPU power (W)", 1),
}


def _add_series(tracks: _Tracks, pid: int, series: Series) -> None:
    name, divisor = (f"metric {series.name}", 1.0) if series.metric else _SHOWN[series.name]
    of = f"GPU {series.of}" if series.name in _GPU and not series.metric else f"rank {series.of}"
    for at, value in series.points:
        tracks.counter(pid, at, name, of, round(value / divisor, 4))


_GPU = frozenset({"gpu_use", "gpu_memory", "gpu_power"})


# A sweep

_PROCESSES: dict[SlotKind, str] = {"gpu": "GPUs", "cpu": "cores", "job": "jobs"}
_THREADS: dict[SlotKind, str] = {"gpu": "GPU", "cpu": "core", "job": "place"}


def sweep_events(sweep: SweepTimeline) -> list[TraceEvent]:
    """Return the trace of a sweep: a thread for each GPU, else each core; spans are jobs' tries."""
    tracks = _Tracks(sweep.start_ns)
    whole = tracks.process("sweep")
    where = whole, tracks.thread(whole, "launcher")
    lasted = sweep.start_ns, sweep.end_ns
    tracks.span(where, lasted, "sweep", "sweep", {"tries": len(sweep.tries)})
    for resumed_ns in sweep.resumed_ns:
        tracks.instant(where, Mark("restart", resumed_ns, "resumed"))
    processes: dict[SlotKind, int] = {}
    for track in tracks_of(sweep):
        if track.kind not in processes:
            processes[track.kind] = tracks.process(_PROCESSES[track.kind])
        pid = processes[track.kind]
        name = printable(f"{_THREADS[track.kind]} {track.name}", _LONGEST)
        where = pid, tracks.thread(pid, name)
        for each in track.tries:
            _add_try(tracks, where, each)
    return list(tracks.events())


def _add_try(tracks: _Tracks, where: tuple[int, int], each: JobTry) -> None:
    fate = printable(each.fate, _LONGEST)
    args = {
        "overrides": printable(" ".join(each.overrides), 2000),
        "job": each.job,
        "try": each.number,
        "fate": fate,
        "exit code": each.exit_code,
        "objective": each.objective,
        "root cause": printable(each.root_cause, _LONGEST),
    }
    name = f"job {each.job}: {fate}"
    tracks.span(where, (each.start_ns, each.end_ns), name, fate, args)
