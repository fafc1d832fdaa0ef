"""What the events of a run come to, read as they grow: who has started, ended, hung, and when.

`RunHistory` is the one reader of events.jsonl for all that shows a run. It reads each file once (of
a very long one the newest 256 MiB), and keeps what a timeline needs: an attempt has its workers,
and a bounded number of spans and marks. A file may be torn, or of another version.

Each of several nodes has written events by its own clock; here all times are by node 0's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import Raw, structs

from lllaunch.documents import Record, decode_record, signal_name
from lllaunch.files import open_file
from lllaunch.run.directory import EVENTS
from lllaunch.run.result import cause_in
from lllaunch.supervisor.machine import RestartHistory
from lllaunch.text import printable
from lllaunch.watchdog.findings import lasted, suspects
from lllaunch.words import BEGAN, counted, exit_text, ranks

SpanKind = Literal["preload", "rendezvous", "preflight", "spawn", "run", "hang", "grace", "pause"]
"""What lasts. Of a worker group: modules are imported for its workers, nodes meet, the preflight
runs, a restart is waited for. Of a worker: its start, its life, and within that what the watchdog
found and the grace period."""

MarkKind = Literal["finding", "signal", "restart", "stacks", "root_cause"]

_PREFLIGHT = -1
_LONGEST_TEXT = 300
MOST_WORKERS = 4096
"""Workers of one node that are looked at: far more than any machine runs."""
_MOST_ATTEMPTS, _MOST_PARTS = 1000, 1000
_FIRST_PARTS = 10  # stay when there are more
_LATEST_NS = 1 << 62
_MOST_NODES = 1024
_MOST_SKEW_NS = 60 * 10**9  # between the clocks of nodes
_LONGEST = 1e10  # three centuries, seconds


class _Ended(Record, frozen=True):
    finding: Raw = Raw(b"null")


class EventLine(Record, frozen=True):
    """A line of events.jsonl, as far as anybody looks at it who shows a run.

    The types of the events say what each field is; an event has some of them.
    """

    time_ns: int | None = None
    type: str = ""
    attempt: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    base_rank: int = 0
    pid: int | None = None
    exitcode: int | None = None
    signum: int | None = None
    seconds: float | None = None
    reason: str | None = None
    state: str | None = None
    module: str = ""
    restart: int | None = None
    restarts: int | None = None
    preflight: bool = False
    ends: bool = True
    stacks: tuple[Raw, ...] = ()
    finding: Raw = Raw(b"null")
    ended: _Ended = _Ended()
    history: RestartHistory | None = None


def decode(line: bytes) -> EventLine | None:
    """Return what a line says, None if it is torn, or is none of ours."""
    try:
        event = decode_record(line, EventLine)
    except (ValueError, RecursionError):
        return None
    # a finding that is an event by itself
    return structs.replace(event, finding=Raw(line)) if event.type == "NotFinite" else event


@dataclass(frozen=True)
class TimeSpan:
    """What lasts, in nanoseconds since the epoch; of what goes on, to the last known moment."""

    kind: SpanKind
    start_ns: int
    end_ns: int
    text: str = ""


@dataclass(frozen=True)
class Mark:
    """What happens at a moment; `rank` is None if it is about all."""

    kind: MarkKind
    time_ns: int
    text: str
    rank: int | None = None


@dataclass
class Lane:
    """A worker of one attempt, first as its events tell of it, and then in time.

    ``ending_ns``: when the launcher asked it to end. ``exitcode``: the exit status, or the negative
    number of the signal that ended it; None if unknown.
    """

    local_rank: int
    pid: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    exitcode: int | None = None
    ending_ns: int | None = None
    not_started: str = ""
    # what follows is told by `lllaunch.results.view`
    rank: int = 0
    node: str = ""
    attempt: int = 0
    fate: str = ""  # as result.json calls it; ``running`` while it lives
    text: str = ""
    # ``spawn``, then ``run``, and within that ``hang`` and ``grace``: in order of their beginnings.
    # Spans of one kind do not overlap; each of the latter two lies within that of the run, and they
    # do not overlap either
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether it failed by itself; what a signal of the launcher's ended did not."""
        code = self.exitcode or 0
        return code > 0 or (code < 0 and self.ending_ns is None)


@dataclass
class AttemptTimeline:
    """An attempt on one node; no worker was started before `spawn_ns`."""

    number: int
    start_ns: int
    end_ns: int | None = None  # when its last worker was gone, None while it goes on
    # ``succeeded``, ``failed``, ``stopped`` (by a signal to the launcher), ``running``, or ``lost``
    # if nobody knows; empty as long as no event tells
    state: str = ""
    node: str = ""
    base_rank: int = 0
    spawn_ns: int = 0
    workers: dict[int, Lane] = field(default_factory=dict)  # by local rank
    # of the group: ``preload``, ``rendezvous``, ``preflight``, and the ``pause`` that follows it
    spans: list[TimeSpan] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    fails: bool = False  # a worker failed, or the watchdog ended it
    # since when it hung, in which local ranks (none: in all), and what was found
    hang: tuple[int, tuple[int, ...], str] | None = None

    @property
    def lanes(self) -> list[Lane]:
        """Its workers by rank."""
        return [worker for _, worker in sorted(self.workers.items())]

    def worker(self, local_rank: int | None) -> Lane | None:
        """Return a worker, which may be new; None for the preflight and what is no rank."""
        if local_rank is None or local_rank < 0:
            return None
        known = self.workers.get(local_rank)
        if known is None and len(self.workers) < MOST_WORKERS:
            known = self.workers[local_rank] = Lane(local_rank)
        return known

    def mark(self, kind: MarkKind, at: int, text: str, rank: int | None = None) -> None:
        """Add a mark."""
        self.marks.append(Mark(kind, at, text, rank))
        if len(self.marks) > _MOST_PARTS:
            del self.marks[_FIRST_PARTS]

    def span(self, kind: SpanKind, start_ns: int, end_ns: int, text: str = "") -> None:
        """Add what lasted."""
        self.spans.append(TimeSpan(kind, start_ns, max(start_ns, end_ns), text))
        if len(self.spans) > _MOST_PARTS:
            del self.spans[_FIRST_PARTS]

    def ask_to_end(self, at: int) -> None:
        """Note that the launcher asked the workers that live to end."""
        for worker in self.workers.values():
            if worker.ended_ns is None and worker.ending_ns is None:
                worker.ending_ns = at


class NodeHistory:
    """What the events of one node come to, one after the other; of the last run in a directory."""

    def __init__(self, name: str = "", ahead_ns: int = 0, hide: Callable[[str], str] = str) -> None:
        self.name = name
        self.ahead_ns = ahead_ns
        self._hide = hide
        self._begin()

    def _begin(self) -> None:
        self.attempts: dict[int, AttemptTimeline] = {}
        self.current: AttemptTimeline | None = None
        # when that run began; 0 if its beginning is lost
        self.began_ns = self.first_ns = self.last_ns = 0
        self.finished = ""  # how it ended here, an empty string if it did not
        # when a pause or a preflight of the current attempt began that goes on, and its text
        self._open: dict[SpanKind, tuple[int, str]] = {}

    def take(self, event: EventLine) -> None:
        """See what follows from a line."""
        if not event.time_ns or not 0 < event.time_ns < _LATEST_NS:
            return
        at, handle = event.time_ns - self.ahead_ns, _HANDLED.get(event.type)
        if event.type == "Begin":
            # what is before it is of an earlier run, or an earlier batch job of this one
            self._begin()
            self.began_ns = at
        elif handle is None:
            return
        self.first_ns = min(at, self.first_ns or at)
        self.last_ns = max(at, self.last_ns)
        if handle is not None:
            handle(self, event, at)

    def in_time(self, end_ns: int, *, live: bool) -> Iterator[AttemptTimeline]:
        """Yield its attempts as they are by a moment; of a run that goes on, or is over."""
        for each in self.attempts.values():
            workers = {at: replace(worker) for at, worker in each.workers.items()}
            found = replace(each, spans=[*each.spans], workers=workers)
            for kind, (begun, text) in self._open.items() if each is self.current else ():
                found.span(kind, begun, end_ns, text)
            goes_on = live and each is self.current
            found.state = each.state or ("running" if goes_on else "lost")
            if each.end_ns is None and (self.finished or not goes_on):
                found.end_ns = end_ns
            yield found

    def line(self, text: str) -> str:
        """Return a text as it is shown: in one line, and without secrets."""
        return printable(self._hide(text), _LONGEST_TEXT)

    def _attempt_of(self, event: EventLine, at: int) -> AttemptTimeline:
        """Return the attempt that an event is about; its beginning may be lost."""
        number = event.attempt
        self._renumber(number)
        if number is None:
            number = 0 if self.current is None else self.current.number
        return self._begin_attempt(number, at)

    def _begin_attempt(self, number: int, at: int) -> AttemptTimeline:
        known, current = self.attempts.get(number), self.current
        if known is None:
            known = self.attempts[number] = AttemptTimeline(number, at, spawn_ns=at)
            if len(self.attempts) > _MOST_ATTEMPTS:
                del self.attempts[[*self.attempts][_FIRST_PARTS]]
        if current is None or number > current.number:
            self.current = known
        return known

    def _renumber(self, number: int | None) -> None:
        """Give the attempt that has just begun the number that all nodes agreed on."""
        current = self.current
        if number is None or current is None or number <= current.number:
            return
        seen = any(worker.started_ns or worker.ended_ns for worker in current.workers.values())
        if not seen and number not in self.attempts:
            current.number = number
            self.attempts = {each.number: each for each in self.attempts.values()}

    def _on_start_workers(self, event: EventLine, at: int) -> None:
        self._close("pause", at)
        self._close("preflight", at)
        before = self.current
        if before is not None and not before.end_ns:
            before.end_ns = at
        number = event.attempt
        attempt = self._attempt_of(event, at) if number is None else self._begin_attempt(number, at)
        attempt.start_ns = attempt.spawn_ns = at
        if event.reason:
            why = BEGAN.get(event.reason, self.line(event.reason))
            attempt.mark("restart", at, f"attempt {attempt.number} begins: {why}")
        if before is not None and before is not attempt:
            before.state = before.state or "failed"

    def _on_group_started(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        attempt.base_rank = max(0, event.base_rank)
        if event.restarts is not None and attempt.spawn_ns == attempt.start_ns:
            attempt.span("rendezvous", attempt.start_ns, at)
            attempt.spawn_ns = at
        if not event.preflight:
            for local_rank in event.ranks[:MOST_WORKERS]:
                attempt.worker(local_rank)

    def _on_ready(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        seconds = event.seconds
        took = round(seconds * 1e9) if seconds is not None and 0 <= seconds < _LONGEST else 0
        attempt.span("preload", max(attempt.start_ns, at - took), at)
        attempt.spawn_ns = max(attempt.spawn_ns, at)

    def _on_preload_broken(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        text = self.line(f"{event.module} could not be imported")
        attempt.span("preload", attempt.start_ns, at, text)
        attempt.end_ns = at

    def _on_start_after_preflight(self, event: EventLine, at: int) -> None:
        self._close("preflight", at)
        self._attempt_of(event, at).spawn_ns = at

    def _worker(self, event: EventLine, at: int) -> None:
        """Take what one process did: of a worker, or of the preflight."""
        attempt, kind = self._attempt_of(event, at), event.type
        if event.local_rank == _PREFLIGHT:
            if kind == "Started":
                self._open["preflight"] = at, ""
            elif kind == "StartFailed":
                self._open.setdefault("preflight", (attempt.spawn_ns, ""))
                self._close("preflight", at, "the preflight could not be started")
            else:
                text = "" if event.exitcode == 0 else f"the preflight {exit_text(event.exitcode)}"
                self._close("preflight", at, text)
            return
        worker = attempt.worker(event.local_rank)
        if worker is None:
            return
        if kind == "Started":
            worker.started_ns, worker.pid = at, event.pid
            return
        worker.ended_ns = at
        if kind == "StartFailed":
            worker.not_started = self.line(event.reason or "could not be started")
            return
        worker.exitcode = event.exitcode
        worker.pid = event.pid if worker.pid is None else worker.pid
        # what follows from a failure, or from what the watchdog ended, is no news
        if worker.has_failed and not attempt.fails:
            attempt.fails = True
            rank = attempt.base_rank + worker.local_rank
            attempt.mark("root_cause", at, exit_text(event.exitcode), rank)

    def _on_preflight_timed_out(self, _: EventLine, at: int) -> None:
        self._close("preflight", at, "the preflight took too long")

    def _close(self, kind: SpanKind, at: int, text: str = "") -> None:
        begun, known = self._open.pop(kind, (0, ""))
        if begun and self.current is not None:
            self.current.span(kind, begun, at, text or known)

    def _moment(self, event: EventLine, at: int) -> None:
        """Take what happens at a moment."""
        attempt = self._attempt_of(event, at)
        name = "a signal" if event.signum is None else signal_name(event.signum)
        match event.type:
            case "SignalReceived":
                attempt.mark("signal", at, f"{name} to the launcher")
            case "SignalWorkers" | "KillWorkers":
                attempt.ask_to_end(at)
                name = "SIGKILL" if event.type == "KillWorkers" else name
                attempt.mark("signal", at, f"{name} to all workers")
            case "StartGrace":
                attempt.ask_to_end(at)
            case "SignalProcess":
                rank = None if event.rank is None else attempt.base_rank + event.rank
                attempt.mark("signal", at, f"{name} to process {event.pid}", rank)
            case "StacksTaken":
                text = f"the stacks of {counted(len(event.stacks), 'worker')} were taken"
                attempt.mark("stacks", at, text)
            case "StacksAnswered":
                attempt.mark("stacks", at, f"somebody looked where {ranks(event.ranks)} stood")
            case "SpawnerGone":
                for worker in attempt.workers.values():
                    worker.ended_ns = at if worker.ended_ns is None else worker.ended_ns

    def _finding(self, event: EventLine, at: int) -> None:
        """Take what the watchdog found."""
        finding: Any = cause_in(event.finding)
        attempt = self._attempt_of(EventLine(), at)
        local_ranks = suspects(finding)
        said = str(finding or "the watchdog found something")
        named = [attempt.base_rank + local_rank for local_rank in local_ranks]
        who = f"{ranks(named)}: " if named else ""
        rank = named[0] if len(named) == 1 else None
        attempt.mark("finding", at, self.line(said if rank is not None else f"{who}{said}"), rank)
        attempt.fails = attempt.fails or (event.ends and event.type != "NotFinite")
        if event.ends and (seconds := lasted(finding)) is not None:
            attempt.hang = at - round(seconds * 1e9), local_ranks, self.line(said)

    def _on_nodes_agreed(self, event: EventLine, at: int) -> None:
        finding, attempt = cause_in(event.ended.finding), self._attempt_of(event, at)
        # its words say which node has noticed it
        if finding is not None and not any(mark.kind == "finding" for mark in attempt.marks):
            attempt.mark("finding", at, self.line(str(finding)))

    def _on_orphans_gone(self, event: EventLine, at: int) -> None:
        attempt = self._attempt_of(event, at)
        workers = attempt.workers.values()
        if "preflight" not in self._open and all(worker.ended_ns is not None for worker in workers):
            attempt.end_ns = at if workers else attempt.end_ns

    def _on_pause(self, event: EventLine, at: int) -> None:
        self._close("pause", at)
        text = "" if event.restart is None else f"before restart {event.restart}"
        self._open["pause"] = at, text

    def _on_pause_over(self, _: EventLine, at: int) -> None:
        self._close("pause", at)

    def _on_finish(self, event: EventLine, at: int) -> None:
        self._close("pause", at)
        self._close("preflight", at)
        ended = "succeeded" if event.state == "SUCCEEDED" else "failed"
        self.finished = ended if event.signum is None else "stopped"
        if self.current is not None:
            self.current.end_ns = self.current.end_ns or at
            self.current.state = self.current.state or self.finished


# `_on_start_workers` handles ``StartWorkers``
_HANDLED: Mapping[str, Callable[[NodeHistory, EventLine, int], None]] = {
    **{
        name.removeprefix("_on").title().replace("_", ""): handle
        for name, handle in vars(NodeHistory).items()
        if name.startswith("_on_")
    },
    **dict.fromkeys(("Started", "Exited", "StartFailed"), NodeHistory._worker),
    **dict.fromkeys(("WatchdogFired", "NotFinite"), NodeHistory._finding),
    **dict.fromkeys(
        (
            *("SignalReceived", "SignalWorkers", "KillWorkers", "StartGrace", "SignalProcess"),
            *("StacksTaken", "StacksAnswered", "SpawnerGone"),
        ),
        NodeHistory._moment,
    ),
}


# Files


_MOST_BYTES = 256 << 20  # of the newest events
_LONGEST_EVENT = 16 << 20  # with the stacks of hundreds of ranks it has some megabytes
_NODE = re.compile(r"node_(\d{1,6})")


class AppendedLines:
    """A file of lines that others append to; of a very long one the end is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._inode: int | None = None
        self._at = 0

    def added(self) -> Iterator[tuple[bool, bytes]]:
        """Yield whole lines that were added since, each with whether the file is another one.

        What is shorter than before is another one, too: it is read from its beginning. Of a line
        that is too long comes the beginning alone.
        """
        try:
            fd = open_file(self.path)
        except OSError:
            return
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            first = status.st_ino != self._inode or status.st_size < self._at
            if first:
                self._inode = status.st_ino
                self._at = max(0, status.st_size - _MOST_BYTES)
            # what it begins with is no whole line
            skips = first and self._at > 0
            file.seek(self._at)
            while line := file.readline(_LONGEST_EVENT):
                whole = line.endswith(b"\n")
                if not whole and len(line) < _LONGEST_EVENT:
                    return
                self._at += len(line)
                if not skips:
                    yield first, line.removesuffix(b"\n")
                    first = False
                skips = not whole


class RunHistory:
    """What the events of all nodes of a run come to, each file read as far as it has grown.

    `nodes` has what each has written by the name of its directory, an empty one if there is one
    node only.
    """

    def __init__(self, path: str, hide: Callable[[str], str] = str) -> None:
        self.path, self._hide = path, hide
        self._files: dict[str, AppendedLines] = {}
        self.nodes: dict[str, NodeHistory] = {}

    def look(
        self, names: Iterable[str], known: Mapping[str, tuple[str, float]] | None = None
    ) -> RunHistory:
        """Read what was added.

        ``known``: by the name of its directory what a node is called, and the seconds that its
        clock is ahead.
        """
        parts = sorted(
            (name for name in names if _NODE.fullmatch(name)), key=lambda name: int(name[5:])
        )
        for part in parts[:_MOST_NODES] or [""]:
            if part not in self._files:
                path = os.path.join(self.path, part, EVENTS)
                self._files[part] = AppendedLines(path)
                name, ahead = (known or {}).get(part, (part.replace("_", " "), 0.0))
                self.nodes[part] = NodeHistory(name, round(ahead * 1e9), self._hide)
            history = self.nodes[part]
            for another, line in self._files[part].added():
                if another:
                    history._begin()
                if (event := decode(line)) is not None:
                    history.take(event)
        return self

    @property
    def current(self) -> list[tuple[str, NodeHistory]]:
        """The nodes of the last run: what is older is of an earlier one, which had more nodes."""
        nodes = [*self.nodes.items()]
        began = nodes[0][1].first_ns if nodes else 0
        # one that has written nothing may come to it
        return [
            (part, node)
            for part, node in nodes
            if not node.last_ns or node.last_ns >= began - _MOST_SKEW_NS
        ]

    @property
    def attempt(self) -> int | None:
        """Number of the last attempt, None if none has begun."""
        numbers = (node.current.number for node in self.nodes.values() if node.current is not None)
        return max(numbers, default=None)

    def attempts(self, number: int | None) -> Iterator[tuple[str, AttemptTimeline]]:
        """Yield an attempt of each node that was in it, with the name of the node's directory."""
        for part, node in self.nodes.items():
            if number is not None and (found := node.attempts.get(number)) is not None:
                yield part, found
