"""The report at the end of a run: what happened, why, and where to look. Pure text.

`report_lines` returns styled lines; `lllaunch.console.console` writes them, with colours on a
terminal and plainly elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.console.fates import cause_text, fate_key, fate_text, victim_text
from lllaunch.console.lines import Line
from lllaunch.console.wording import counted, ranks, shown_path, wrapped
from lllaunch.run.causes import Raised, StartFailure, signal_name
from lllaunch.run.fates import Victim
from lllaunch.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lllaunch.run.outcome import AttemptOutcome, Excerpt, RootCause, RunOutcome, WorkerOutcome
    from lllaunch.watchdog.findings import Finding

_TRACEBACK_LINES = 60
_GROUPS = 12
_LEFTOVERS = 5


def report_lines(outcome: RunOutcome, cwd: str) -> list[Line]:
    """Returns the report of a run.

    Args:
        outcome: what became of it.
        cwd: directory that paths below it are shown relative to.
    """
    if outcome.state == "succeeded":
        return [_success(outcome, cwd), *_leftovers(outcome)]
    return [_title(outcome), *_body(outcome, cwd)]


def _success(outcome: RunOutcome, cwd: str) -> Line:
    text = f"lllaunch: succeeded in {duration(outcome.seconds)}"
    if outcome.restarts:
        text += f" after {counted(outcome.restarts, 'restart')}"
    return Line(f"{text}; results in {shown_path(outcome.directory, cwd)}", "good")


def _title(outcome: RunOutcome) -> Line:
    if outcome.state == "error":
        # one error may be many lines: the first stands in the title, the others below it
        return Line(f"lllaunch: {outcome.error.partition(chr(10))[0]}", "title")
    after = f"after {duration(outcome.seconds)}"
    if outcome.restarts:
        after += f" and {counted(len(outcome.attempts), 'attempt')}"
    what = "FAILED"
    if outcome.signum is not None:
        what = f"ended by {signal_name(outcome.signum)}"
    return Line(f"lllaunch: {what} {after} (exit code {outcome.exit_code})", "title")


def _body(outcome: RunOutcome, cwd: str) -> Iterator[Line]:
    if outcome.state == "error":
        yield from (Line(f"  {text}") for text in outcome.error.split("\n")[1:])
    root = outcome.root_cause
    if root is not None:
        yield Line("")
        workers = outcome.attempts[-1].workers if outcome.attempts else ()
        yield from _root(root, outcome.excerpt, workers, cwd)
    if outcome.attempts:
        last = outcome.attempts[-1]
        known = root is not None and bool(root.ranks)
        others = [worker for worker in last.workers if not _is_root(worker, root)]
        if others:
            yield Line("")
            yield Line("  The other workers:" if known else "  Workers:")
            yield from _groups(others, after_root=known)
        yield Line("")
        if outcome.limit is not None:
            yield Line(f"  {_limit(outcome.limit)}")
        yield from _history(outcome.attempts[:-1], cwd)
        yield from _leftovers(outcome)
        yield Line(f"  Logs: {shown_path(last.path, cwd)}")


def _limit(limit: Finding) -> str:
    from lllaunch.watchdog.findings import TimedOut  # noqa: PLC0415 - imported by now

    assert isinstance(limit, TimedOut)
    allowed = duration(limit.limit)
    return f"The run's time limit ({allowed}) was over before the next attempt."


def _is_root(worker: WorkerOutcome, root: RootCause | None) -> bool:
    return root is not None and worker.rank in root.ranks


def _root(
    root: RootCause, excerpt: Excerpt | None, workers: Sequence[WorkerOutcome], cwd: str
) -> Iterator[Line]:
    who, verb = _who(root), _verb(root, cwd, when=True)
    yield Line(f"  Root cause: {who} (attempt {root.attempt}) {verb}", "cause")
    if root.explanation is not None:
        text = f"{root.explanation.text[:1].upper()}{root.explanation.text[1:]}"
        yield from wrapped(f"Why ({root.explanation.sure}): {text}")
    if root.traceback:
        yield Line("")
        yield from _traceback(root.traceback)
    elif isinstance(root.cause, Raised) and "\n" in root.cause.message:
        yield from (Line(f"    {text}".rstrip()) for text in root.cause.message.split("\n"))
    if root.hang is not None:
        from lllaunch.console.hang import hang_lines  # noqa: PLC0415 - only where there is one

        yield from hang_lines(root, workers, cwd)
    if not _says_all(root):
        yield from _excerpt(root, excerpt, cwd)


def _who(root: RootCause) -> str:
    return ranks(root.ranks) if root.ranks else "all workers"


def _verb(root: RootCause, cwd: str, *, when: bool = False) -> str:
    """Returns how the one that is meant, or all, failed."""
    if root.hang is not None and root.of_watchdog:
        from lllaunch.console.hang import hang_text  # noqa: PLC0415 - only where there is one

        return hang_text(root.hang, cwd, when=when)
    text = cause_text(root.cause)
    return text if root.rank is not None else text.replace("was lost", "were lost", 1)


def _says_all(root: RootCause) -> bool:
    """Whether the end of its stderr is not worth showing, or nobody's."""
    if root.rank is None or root.traceback or isinstance(root.cause, StartFailure):
        return True
    if root.of_watchdog:
        return not root.files.stderr
    return isinstance(root.cause, Raised) and "\n" in root.cause.message


def _traceback(text: str) -> Iterator[Line]:
    lines = text.split("\n")
    if len(lines) > _TRACEBACK_LINES:
        # the innermost frames and the exception are at the end
        left = len(lines) - _TRACEBACK_LINES
        lines = [lines[0], f"  ... ({left} more lines in error.json)", *lines[left + 1 :]]
    yield from (Line(f"    {line}".rstrip(), "quote") for line in lines)


def _excerpt(root: RootCause, excerpt: Excerpt | None, cwd: str) -> Iterator[Line]:
    if not root.files.stderr:
        yield from wrapped(
            "Its stderr went to the console, see above. With launch.redirects set to 'err' or "
            "'all' its last lines would stand here."
        )
        return
    path = shown_path(root.files.stderr, cwd)
    if excerpt is None:
        yield Line(f"    Its stderr cannot be read: {path}")
    elif not excerpt.lines:
        yield Line(f"    It wrote nothing to stderr: {path}")
    else:
        number = len(excerpt.lines)
        what = f"The last {counted(number, 'line')}" if excerpt.cut else "All"
        yield Line("")
        yield Line(f"    {what} of its stderr, {path}:", "faint")
        yield from (Line(f"    | {text}".rstrip(), "quote") for text in excerpt.lines)


def _groups(workers: Sequence[WorkerOutcome], *, after_root: bool) -> Iterator[Line]:
    """Tells what became of workers, those with the same fate in one line."""
    groups: dict[tuple[object, ...], list[WorkerOutcome]] = {}
    for worker in workers:
        groups.setdefault(fate_key(worker.fate), []).append(worker)
    named = [(ranks(worker.rank for worker in group), group) for group in groups.values()]
    width = min(30, max(len(name) for name, _ in named[:_GROUPS]))
    for name, group in named[:_GROUPS]:
        yield Line(f"    {name:<{width}}  {_group_fate(group, after_root=after_root)}")
    rest = sum(len(group) for _, group in named[_GROUPS:])
    if rest:
        yield Line(f"    and {counted(rest, 'more worker')}, see result.json")


def _group_fate(group: Sequence[WorkerOutcome], *, after_root: bool) -> str:
    first = group[0].fate
    if len(group) == 1 or not isinstance(first, Victim):
        return fate_text(first, after_root=after_root)
    times = [worker.fate.after_ns / 1e9 for worker in group if isinstance(worker.fate, Victim)]
    earliest, latest = duration(min(times)), duration(max(times))
    span = earliest if earliest == latest else f"{earliest} to {latest}"
    return victim_text(first.cause, span)


def _history(attempts: Sequence[AttemptOutcome], cwd: str) -> Iterator[Line]:
    """Tells in one line each how the attempts before the last one failed."""
    told: list[tuple[str, list[int]]] = []
    for attempt in attempts:
        text = failure_text(attempt.root_cause, cwd)
        if told and told[-1][0] == text:
            told[-1][1].append(attempt.number)
        else:
            told.append((text, [attempt.number]))
    for text, numbers in told:
        span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        yield Line(f"  Attempt{'' if len(numbers) == 1 else 's'} {span} failed: {text}")


def failure_text(root: RootCause | None, cwd: str) -> str:
    """Returns in one line how an attempt failed: ``rank 1 raised ValueError: ...``.

    Args:
        root: its root cause, if it has one.
        cwd: directory that paths below it are shown relative to.
    """
    if root is None:
        return "failed"
    return f"{_who(root)} {_verb(root, cwd)}"


def _leftovers(outcome: RunOutcome) -> Iterator[Line]:
    """Tells of processes that outlived their workers and had to be killed."""
    killed = [
        leftover
        for attempt in outcome.attempts
        for leftover in attempt.leftovers
        if leftover.killed
    ]
    for leftover in killed[:_LEFTOVERS]:
        text = f"a worker left process {leftover.pid} behind ({leftover.command}); it was killed"
        yield Line(f"  Warning: {text}")
    if len(killed) > _LEFTOVERS:
        more = counted(len(killed) - _LEFTOVERS, "more process").replace("processs", "processes")
        yield Line(f"  and {more} like that")
