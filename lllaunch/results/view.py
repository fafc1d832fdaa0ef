"""All that is known of one run or one sweep, for whatever shows it; without secrets.

Its files are read when they are asked for, and once. What workers and people wrote passes through
what takes secrets out where it is read. Nothing here raises for what files hold.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from lllaunch.errors import ConfigError
from lllaunch.files import read_text, within
from lllaunch.results.queue import BatchQueue
from lllaunch.results.store import ListEntry, read_run
from lllaunch.results.timeline import RunTimeline, read_timeline
from lllaunch.run.directory import PLAN, RESULT
from lllaunch.run.excerpts import LINES, tail
from lllaunch.run.result import Failed, Victim, WorkerResult
from lllaunch.secret_names import redactor_of
from lllaunch.text import tidy
from lllaunch.watchdog.frames import TREE

if TYPE_CHECKING:
    from lllaunch.results.store import FoundDirectory
    from lllaunch.run.result import (
        AttemptResult,
        Excerpt,
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


# A frame of ours in what faulthandler writes; in a traceback it may be what that is about.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OUR_FRAME = re.compile(rf'\s*File "(?:{re.escape(_OURS)}/[^"]+|<string>)", line \d+ in ')


def without_ours(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of a log, those together in which faulthandler shows frames of lllaunch."""
    for ours, found in itertools.groupby(lines, lambda line: bool(_OUR_FRAME.match(line))):
        members = [*found]
        yield from [f"  ... (frames of lllaunch: {len(members)})"] if ours else members


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
        return tidy(self.hide(f"its {RESULT} {why}"))

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
        try:
            return os.getcwd()
        except OSError:  # it was removed, and nothing is below it
            return os.devnull

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

    @cached_property
    def logs(self) -> tuple[Log, ...]:
        """The ends of the logs that tell most, the most telling first; without empty ones.

        Of a run without a result those of its newest attempt.
        """
        if self.result is not None:
            found = telling(self.result, self.blamed)
        else:
            number, place = max(numbered(self.path, "attempt_"), default=(0, ""))
            ranks = sorted(numbered(place, ""))[:_MOST_WORKERS] if place else ()
            logs = [(rank, f"{path}/stdout.log", f"{path}/stderr.log") for rank, path in ranks]
            found = [
                (number, WorkerResult(rank=rank, stdout=out, stderr=err)) for rank, out, err in logs
            ]
        return tuple(
            log._replace(lines=tuple(without_ours(log.lines)))
            for number, worker in found
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
    hide = redactor_of(found.path, os.environ)
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


def telling(result: RunResult, guilty: WorkerResult | None) -> list[tuple[int, WorkerResult]]:
    """Return the workers whose logs are worth showing, those that tell most first. Pure.

    Of the last attempt that is the guilty one, those that failed, those that failed after it, rank
    0 and the others, at most a dozen; then of the newest attempts before it the one that each
    failed for.
    """
    if not result.attempts:
        return []
    last = result.attempts[-1]

    def order(worker: WorkerResult) -> tuple[bool, bool, bool, bool, int]:
        failed, victim = isinstance(worker, Failed), isinstance(worker, Victim)
        return worker is not guilty, not failed, not victim, worker.rank != 0, worker.rank

    found: list[tuple[int, WorkerResult]]
    found = [(last.number, worker) for worker in sorted(last.workers, key=order)[:_MOST_WORKERS]]
    for attempt in result.attempts[-2 : -2 - _MOST_ATTEMPTS : -1]:
        named = () if attempt.root_cause is None else attempt.root_cause.ranks
        found += [
            (attempt.number, worker) for worker in attempt.workers if worker.rank in named[:1]
        ]
    return found


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
