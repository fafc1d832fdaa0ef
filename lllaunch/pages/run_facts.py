"""What a page shows of a run, read from the files that it has left; bounded, and never raising.

A run may go on, it may have been killed, its result.json may be torn or of another version: the
page shows what its files hold. All texts pass through what takes secrets out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lllaunch.documents import Fields, read_json
from lllaunch.errors import ConfigError, OutputError
from lllaunch.files import read_text, within
from lllaunch.results.cases import Report, without_ours
from lllaunch.results.report import blamed, load, unfinished_case
from lllaunch.results.store import ListEntry, read_run
from lllaunch.results.timeline import RunTimeline, read_timeline
from lllaunch.run.directory import PLAN, RESULT
from lllaunch.run.excerpts import tail
from lllaunch.run.result import Failed, Victim, as_result
from lllaunch.text import tidy
from lllaunch.watchdog.stacks.merged import TREE

if TYPE_CHECKING:
    from lllaunch.results.store import FoundDirectory
    from lllaunch.run.result import AttemptResult, RootCause, RunResult, WorkerResult

_LOG_LINES = 80
_MOST_WORKERS = 12
_MOST_ATTEMPTS = 6
_MOST_NODES = 8
_TREE_LINES = 300
_LONGEST_PLAN = 256 * 1024
_DEEPEST = 64


@dataclass(frozen=True)
class LogEnd:
    """The end of a log of one worker; its path is relative to the directory of the run.

    Attributes:
        lines: the last ones, oldest first.
        cut: whether there is more before them.
        blamed: whether the run failed because of this worker.
    """

    attempt: int
    rank: int
    stream: str
    path: str
    lines: tuple[str, ...]
    cut: bool
    blamed: bool


@dataclass(frozen=True)
class StacksText:
    """The first lines of a file that says where all ranks of an attempt were; fields as above."""

    attempt: int
    path: str
    lines: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class RunFacts:
    """All that a page shows of a run.

    Attributes:
        outcome: as its result.json has it; None if there is none, or if a later launcher goes on.
        logs: ends of logs, the most telling first.
        stacks: where all ranks were when somebody looked, the newest attempt first.
        plan: lines of its plan.
        result: what its result.json has beyond that.
        cwd: directory that paths below it are shown relative to.
        problem: what is wrong with its result.json, or an empty string.
    """

    report: Report
    entry: ListEntry
    outcome: RunResult | None
    timeline: RunTimeline
    logs: tuple[LogEnd, ...] = ()
    stacks: tuple[StacksText, ...] = ()
    plan: tuple[str, ...] = ()
    result: Fields = Fields()  # noqa: RUF009 - it cannot be changed
    cwd: str = ""
    problem: str = ""

    @property
    def attempts(self) -> tuple[AttemptResult, ...]:
        """As its result.json has them."""
        return () if self.outcome is None else self.outcome.attempts

    @property
    def root(self) -> RootCause | None:
        """What the run failed for."""
        return None if self.outcome is None else self.outcome.root_cause

    @property
    def state(self) -> str:
        """As result.json has it; else what is known without: ``running``, ``died``, ..."""
        case = self.report.cases[0]
        return self.entry.state if case.state == "unfinished" else case.state


def read_run_facts(
    found: FoundDirectory, roots: Iterable[str] = (), hide: Callable[[str], str] = str
) -> RunFacts:
    """Read what there is of a run; never raises for what its files hold.

    Args:
        found: its directory.
        roots: directories of the user's own source files, absolute.
        hide: applied to every text, to take secrets out.
    """
    entry, _ = read_run(found)
    problem = ""
    try:
        report = load(found, roots)
    except (ConfigError, OutputError) as error:
        why = f"cannot be read: {error}"
        if isinstance(error, ConfigError):
            why = "; ".join(each.message for each in error.problems)
        problem = tidy(hide(f"its {RESULT} {why}"))
        case = replace(
            unfinished_case("run", entry.state), message=problem, exit_code=entry.exit_code
        )
        report = Report("run", tidy(found.path), (case,), finished=False)
    try:
        cwd = os.getcwd()
    except OSError:  # it was removed, and nothing is below it
        cwd = os.devnull
    path = within(found.path, os.path.join(found.path, PLAN))
    plan = hide("" if path is None else read_text(path) or "")[:_LONGEST_PLAN]
    document = None if problem else read_json(found.document)
    result = as_result(_hidden(document, hide), found.path)
    # where a later launcher goes on, what is there is an earlier run's
    outcome = result if report.finished else None
    return RunFacts(
        report=report,
        entry=entry,
        outcome=outcome,
        timeline=read_timeline(found, hide),
        logs=tuple(_logs(found.path, outcome, hide)),
        stacks=tuple(_stacks(found.path, hide)),
        plan=tuple(plan.splitlines()),
        result=Fields(None if result is None else {"host": result.host, "build": result.build}),
        cwd=cwd,
        problem=problem,
    )


def _hidden(value: Any, hide: Callable[[str], str], depth: int = 0) -> Any:
    """Return JSON with all texts changed, and without what is nested deeper than any of ours."""
    if isinstance(value, str):
        return hide(value)
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {hide(key): _hidden(each, hide, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, hide, depth + 1) for each in value]
    return value


# Stacks


def _stacks(directory: str, hide: Callable[[str], str]) -> Iterator[StacksText]:
    """Yield the trees of the newest attempts; of several nodes those of each."""
    places = [directory, *(path for _, path in sorted(_numbered(directory, "node_")))]
    numbers = {number for place in places for number, _ in _numbered(place, "attempt_")}
    for attempt in sorted(numbers, reverse=True)[:_MOST_ATTEMPTS]:
        for place in places[: _MOST_NODES + 1]:
            name = os.path.join(place, f"attempt_{attempt}", TREE)
            path = within(directory, name)
            text = None if path is None else read_text(path)
            if text:
                lines = hide(text).splitlines()
                shown = tuple(lines[:_TREE_LINES])
                relative = os.path.relpath(name, directory)
                yield StacksText(attempt, relative, shown, len(lines) > len(shown))


# Logs


def _logs(
    directory: str, outcome: RunResult | None, hide: Callable[[str], str]
) -> Iterator[LogEnd]:
    if outcome is None:
        yield from _of_live(directory, hide)
        return
    guilty = None if outcome.state == "succeeded" else blamed(outcome)
    for attempt, worker in telling(outcome, guilty):
        for stream in ("stderr", "stdout"):
            path = getattr(worker, stream)
            where = attempt.number, worker.rank, stream
            yield from _end(directory, path, where, hide, blamed=worker is guilty)


def telling(
    outcome: RunResult, guilty: WorkerResult | None
) -> Sequence[tuple[AttemptResult, WorkerResult]]:
    """Return the workers whose logs are worth showing, those that tell most first. Pure.

    Of the last attempt that is the guilty one, those that failed, those that failed after it, rank
    0 and the others, at most a dozen; then of the newest attempts before it the one that each
    failed for.
    """
    if not outcome.attempts:
        return []
    last = outcome.attempts[-1]

    def order(worker: WorkerResult) -> tuple[bool, bool, bool, bool, int]:
        failed, victim = isinstance(worker, Failed), isinstance(worker, Victim)
        return worker is not guilty, not failed, not victim, worker.rank != 0, worker.rank

    found = [(last, worker) for worker in sorted(last.workers, key=order)[:_MOST_WORKERS]]
    for attempt in outcome.attempts[-2 : -2 - _MOST_ATTEMPTS : -1]:
        named = () if attempt.root_cause is None else attempt.root_cause.ranks
        found += [(attempt, worker) for worker in attempt.workers if worker.rank in named[:1]]
    return found


def _of_live(directory: str, hide: Callable[[str], str]) -> Iterator[LogEnd]:
    """Yield the logs of the newest attempt of a run that has left no word of its end."""
    attempt, latest = max(_numbered(directory, "attempt_"), default=(0, ""))
    for rank, path in sorted(_numbered(latest, ""))[:_MOST_WORKERS] if latest else ():
        for stream in ("stderr", "stdout"):
            log = os.path.join(path, f"{stream}.log")
            yield from _end(directory, log, (attempt, rank, stream), hide, blamed=False)


def _numbered(directory: str, prefix: str) -> Iterator[tuple[int, str]]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isdecimal() and number.isascii() and len(number) < 7:
            yield int(number), os.path.join(directory, name)


def _end(
    directory: str,
    written: str,
    where: tuple[int, int, str],
    hide: Callable[[str], str],
    *,
    blamed: bool,
) -> Iterator[LogEnd]:
    path = within(directory, written) if written else None
    excerpt = None if path is None else tail(path, _LOG_LINES, hide)
    if excerpt is not None and excerpt.lines:
        shown = os.path.relpath(written, directory)
        lines = tuple(without_ours(excerpt.lines))
        yield LogEnd(*where, hide(shown), lines, excerpt.cut, blamed)
