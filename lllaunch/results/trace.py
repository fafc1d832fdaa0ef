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
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lllaunch.documents import isoformat
from lllaunch.results.history import AttemptTimeline, Lane, Mark
from lllaunch.results.sweeps import SweepTimeline, SweepView, place, tracks_of
from lllaunch.results.view import RunTimeline, view_run
from lllaunch.secret_names import redactor_of
from lllaunch.text import printable

if TYPE_CHECKING:
    from lllaunch.results.history import TimeSpan
    from lllaunch.results.store import FoundDirectory

TraceEvent = dict[str, Any]

_LONGEST = 300


def trace_text(found: FoundDirectory) -> str:
    """Read a run or a sweep, finished or not, and return its trace."""
    if found.kind == "sweep":
        hide = redactor_of(found.path)
        sweep = SweepView(found.path, None, hide=hide).timeline
        return rendered(sweep_events(sweep), "sweep", sweep.start_ns)
    run = view_run(found).timeline
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

    def named(self, name: str, pid: int | None = None) -> int:
        """Return the number of a new process, or of a new thread of a process."""
        new = next(self._numbers)
        what, pid = ("process", new) if pid is None else ("thread", pid)
        for key, value in (("name", name), ("sort_index", new)):
            event = {"ph": "M", "pid": pid, "tid": new, "name": f"{what}_{key}"}
            self._named.append({**event, "args": {key: value}})
        return new

    def at(self, time_ns: int) -> int:
        """Return a time in microseconds since the beginning."""
        # rounded down: what lies within something else, or beside it, still does
        return max(0, time_ns - self._start_ns) // 1000

    def add(self, phase: str, where: tuple[int, int], at_ns: int, name: str, **fields: Any) -> None:
        """Add what happens on a thread of a process."""
        place = {"pid": where[0], "tid": where[1], "name": name}
        self._events.append({"ph": phase, "ts": self.at(at_ns), **place, **fields})

    def span(
        self, where: tuple[int, int], begin: int, end: int, name: str, category: str, **args: Any
    ) -> None:
        """Add what lasts; of `args` what is None or empty is left out, ``_`` stands for a blank."""
        known = {key.replace("_", " "): it for key, it in args.items() if it not in (None, "")}
        lasts = max(0, self.at(end) - self.at(begin))
        self.add("X", where, begin, name, dur=lasts, cat=category, args=known)

    def instants(self, where: tuple[int, int], marks: Iterable[Mark]) -> None:
        """Add what happens at moments."""
        for mark in marks:
            self.add("i", where, mark.time_ns, mark.text or mark.kind, cat=mark.kind, s="t")

    def events(self) -> list[TraceEvent]:
        """Return all of it: names first, then by time, what lasts before what lies within it."""
        timed = sorted(self._events, key=lambda each: (each["ts"], -each.get("dur", 0)))
        return [*self._named, *timed]


# A run


def run_events(run: RunTimeline) -> list[TraceEvent]:
    """Return the trace of a run: a process for each node's attempts, a thread for each rank."""
    tracks = _Tracks(run.start_ns)
    of_attempt: dict[tuple[int, str], int] = {}
    for attempt in run.attempts:
        name = f"attempt {attempt.number}" + (f", {attempt.node}" if attempt.node else "")
        pid = of_attempt[attempt.number, attempt.node] = tracks.named(name)
        _add_group(tracks, pid, attempt)
        for lane in attempt.lanes:
            _add_lane(tracks, pid, lane)
    for series in run.series:
        key = series.attempt, series.node
        if key not in of_attempt:
            of_attempt[key] = tracks.named(f"attempt {series.attempt}")
        name, divisor = (f"metric {series.name}", 1.0) if series.metric else _SHOWN[series.name]
        where = of_attempt[key], of_attempt[key]
        for at, value in series.points:
            tracks.add("C", where, at, name, args={series.of: round(value / divisor, 4)})
    return tracks.events()


def _add_group(tracks: _Tracks, pid: int, attempt: AttemptTimeline) -> None:
    """Add what is of all workers: what was imported for them has a thread of its own."""
    lines: list[list[TimeSpan]] = [[]]
    imports: list[list[TimeSpan]] = []
    for span in attempt.spans:
        place(imports if span.kind == "preload" else lines, span)
    marks: Iterable[Mark] = attempt.marks
    for name, spans in (*(("group", line) for line in lines), *(("spawner", i) for i in imports)):
        where = pid, tracks.named(name, pid)
        for span in spans:
            tracks.span(where, span.start_ns, span.end_ns, span.kind, span.kind, text=span.text)
        tracks.instants(where, marks)
        marks = ()


def _add_lane(tracks: _Tracks, pid: int, lane: Lane) -> None:
    where = pid, tracks.named(f"rank {lane.rank}", pid)
    for span in lane.spans:
        name: str = span.kind
        args: dict[str, Any] = {"text": span.text}
        if span.kind == "run":
            # Perfetto gives what has one name one colour
            name = f"run: {lane.fate}"
            args = {each: getattr(lane, each) for each in ("fate", "text", "rank", "node")}
            args |= {"exit_code": lane.exitcode, "local_rank": lane.local_rank}
        elif tracks.at(span.start_ns) == tracks.at(span.end_ns):
            # it would not be seen
            continue
        tracks.span(where, span.start_ns, span.end_ns, name, span.kind, **args)
    tracks.instants(where, lane.marks)


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


# A sweep

# What processes and their threads are called.
_TRACKS = {"gpu": ("GPUs", "GPU"), "cpu": ("cores", "core"), "job": ("jobs", "place")}


def sweep_events(sweep: SweepTimeline) -> list[TraceEvent]:
    """Return the trace of a sweep: a thread for each GPU, else each core; spans are jobs' tries."""
    tracks = _Tracks(sweep.start_ns)
    whole = tracks.named("sweep")
    where = whole, tracks.named("launcher", whole)
    tracks.span(where, sweep.start_ns, sweep.end_ns, "sweep", "sweep", tries=len(sweep.tries))
    tracks.instants(where, (Mark("restart", at, "resumed") for at in sweep.resumed_ns))
    processes: dict[str, int] = {}
    for track in tracks_of(sweep):
        process, thread = _TRACKS[track.kind]
        if track.kind not in processes:
            processes[track.kind] = tracks.named(process)
        pid = processes[track.kind]
        where = pid, tracks.named(printable(f"{thread} {track.name}", _LONGEST), pid)
        for each in track.tries:
            fate = printable(each.fate, _LONGEST)
            args: dict[str, Any] = {
                "overrides": printable(" ".join(each.overrides), 2000),
                "job": each.job,
                "try": each.number,
                "fate": fate,
                "exit_code": each.exit_code,
                "objective": each.objective,
                "root_cause": printable(each.root_cause, _LONGEST),
            }
            name = f"job {each.job}: {fate}"
            tracks.span(where, each.start_ns, each.end_ns, name, fate, **args)
    return tracks.events()
