"""What a page tells of a run, read from the files that it has left; bounded, and never raising.

A run that goes on, one that was killed, one whose result.json is torn or of another version: each
is told of as far as its files go. All texts go through what takes secrets out.
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
    from lllaunch.run.result import AttemptResult, RunResult, WorkerResult
    from lllaunch.watchdog.progress import Progress

_LOG_LINES = 80
_MOST_WORKERS = 12
_MOST_ATTEMPTS = 6
_MOST_NODES = 8
_TREE_LINES = 300
_LONGEST_PLAN = 256 * 1024
_DEEPEST = 64


@dataclass(frozen=True)
class LogEnd:
    """The end of a log of one worker.

    Attributes:
        attempt: number of the attempt.
        rank: of the worker.
        stream: ``stdout`` or ``stderr``.
        path: the file, relative to the directory of the run.
        lines: its last lines, oldest first.
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
    """Where all ranks of an attempt stood, as it was written then.

    Attributes:
        attempt: number of the attempt.
        path: the file, relative to the directory of the run.
        lines: those at its beginning.
        cut: whether there are more.
    """

    attempt: int
    path: str
    lines: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class RunFacts:
    """All that a page tells of a run.

    Attributes:
        report: as the other formats have it.
        entry: as ``ls`` has it.
        outcome: what its result.json says; None if there is none that counts.
        timeline: what happened when.
        logs: ends of logs, those that tell most first.
        stacks: where all ranks stood when somebody looked, the newest attempt first.
        plan: lines of its plan; none if it has left none.
        host: facts about the machine.
        build: what the code is that ran.
        cwd: directory that paths below it are shown relative to.
        problem: what is wrong with its result.json, or an empty string.
        progress: how far it is, of a run that goes on; None where that is not known.
    """

    report: Report
    entry: ListEntry
    outcome: RunResult | None
    timeline: RunTimeline
    logs: tuple[LogEnd, ...] = ()
    stacks: tuple[StacksText, ...] = ()
    plan: tuple[str, ...] = ()
    host: Fields = Fields()  # noqa: RUF009 - it cannot be changed
    build: Fields = Fields()  # noqa: RUF009 - as above
    cwd: str = ""
    problem: str = ""
    progress: Progress | None = None

    @property
    def state(self) -> str:
        """As result.json has it; else what can be told without: ``running``, ``died``, ..."""
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
        problem = tidy(hide(f"its {RESULT} {_why(error)}"))
        case = replace(unfinished_case("run", entry.state), message=problem)
        report = Report("run", tidy(found.path), (case,), finished=False)
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
        plan=tuple(_plan_text(found.path, hide).splitlines()),
        host=Fields(None if result is None else result.host),
        build=Fields(None if result is None else result.build),
        cwd=_working_directory(),
        problem=problem,
        progress=entry.progress,
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed, and nothing is below it
        return os.devnull


def _why(error: ConfigError | OutputError) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.message for problem in error.problems)
    return f"cannot be read: {error}"


def _plan_text(directory: str, hide: Callable[[str], str]) -> str:
    path = within(directory, os.path.join(directory, PLAN))
    text = "" if path is None else read_text(path) or ""
    return hide(text)[:_LONGEST_PLAN]


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
    for attempt in sorted(_attempts_in(places), reverse=True)[:_MOST_ATTEMPTS]:
        for place in places[: _MOST_NODES + 1]:
            name = os.path.join(place, f"attempt_{attempt}", TREE)
            path = within(directory, name)
            text = None if path is None else read_text(path)
            if text:
                lines = hide(text).splitlines()
                shown = tuple(lines[:_TREE_LINES])
                relative = os.path.relpath(name, directory)
                yield StacksText(attempt, relative, shown, len(lines) > len(shown))


def _attempts_in(places: Iterable[str]) -> set[int]:
    return {number for place in places for number, _ in _numbered(place, "attempt_")}


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

    Args:
        outcome: what became of the run.
        guilty: the one that it failed because of, or None.

    Returns:
        of the last attempt that one, those that failed, those that failed after it, rank 0 and the
        others, at most a dozen; then of the newest attempts before it the one that each failed for.
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
