"""The report at the end of a run: what happened, why, and where to look. Pure text.

`report_lines` returns styled lines; `lllaunch.console.console` writes them, with colours on a
terminal and plainly elsewhere. Imported only at the end, or when a failure is to be named.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from lllaunch.documents import signal_name
from lllaunch.run.excerpts import cause_of, folded, users_call
from lllaunch.run.result import (
    CalledExit,
    DiskFull,
    Ended,
    Failed,
    LeftEarly,
    Lost,
    OnAnotherNode,
    PreflightFailure,
    Raised,
    StartFailure,
    Succeeded,
    Victim,
    alike,
    letters,
)
from lllaunch.text import duration, size, spans
from lllaunch.watchdog.findings import TimedOut
from lllaunch.words import (
    StyledText,
    capitalised,
    cause_line,
    counted,
    progress_text,
    ranks,
    shown_path,
    step_text,
    whose,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lllaunch.console.hang import Part
    from lllaunch.run.result import (
        AttemptResult,
        Cause,
        Excerpt,
        RootCause,
        RunResult,
        WorkerResult,
    )

_TRACEBACK_LINES = 60
_GROUPS = 12
_LEFTOVERS = 5
_MILLISECOND = 1_000_000
# Who got no further for so many seconds before the end was perhaps held up.
_LONG_BEFORE = 10.0


def report_lines(outcome: RunResult, cwd: str) -> list[StyledText]:
    """Return the report of a run that is over; paths below ``cwd`` are relative to it."""
    title = f"lllaunch: {title_text(outcome)}"
    if outcome.state != "succeeded":
        return [StyledText(title, "error"), *_body(outcome, cwd)]
    where = f"results in {shown_path(outcome.directory, cwd)}"
    return [StyledText(f"{title}; {where}", "good"), *_leftovers(outcome), *_lost(outcome)]


def report_body(outcome: RunResult, cwd: str) -> list[StyledText]:
    """Return the same for what has a title of its own: without the first line, at the margin."""
    lines = report_lines(outcome, cwd)[1:]
    shown = lines[1:] if lines and not lines[0].text else lines
    return [line._replace(text=line.text.removeprefix("  ")) for line in shown]


def title_text(outcome: RunResult) -> str:
    """Return ``succeeded in 5.0 s`` or ``FAILED after 5.0 s (exit code 3)``."""
    if outcome.state == "error":
        # the first of its lines is the title, the others follow
        return outcome.error.partition("\n")[0]
    took = duration(outcome.seconds)
    if outcome.state == "succeeded":
        restarts = f" after {counted(outcome.restarts, 'restart')}" if outcome.restarts else ""
        return f"succeeded in {took}{restarts}"
    after = f"after {took}"
    if outcome.restarts:
        after += f" and {counted(len(outcome.attempts), 'attempt')}"
    if outcome.importing:
        verb = "was" if len(outcome.importing) == 1 else "were"
        after += f", while {', '.join(outcome.importing)} {verb} being imported"
    signum = outcome.signum
    what = "FAILED" if signum is None else f"ended by {signal_name(signum)}"
    return f"{what} {after} (exit code {outcome.exit_code})"


def _body(outcome: RunResult, cwd: str) -> Iterator[StyledText]:
    if outcome.state == "error":
        yield from (StyledText(f"  {text}") for text in outcome.error.split("\n")[1:])
    if outcome.importing:
        return  # nothing has run
    if outcome.look is not None:
        from lllaunch.console.hang import look_lines  # noqa: PLC0415 - only where there is one

        yield StyledText("")
        yield StyledText(f"  {capitalised(str(outcome.look.finding))}:")
        yield from look_lines(outcome.look, cwd)
    if outcome.no_progress is not None:
        yield StyledText("")
        yield StyledText(f"  {capitalised(str(outcome.no_progress))}.", "cause")
    root = outcome.root_cause
    if root is not None:
        yield StyledText("")
        yield from wrapped(_root(root, outcome, cwd))
    if outcome.attempts:
        last = outcome.attempts[-1]
        known = root is not None and bool(root.ranks or root.subject)
        others = [each for each in last.workers if root is None or each.rank not in root.ranks]
        if root is not None and others and all(_is_alike(worker, root) for worker in others):
            yield StyledText("")
            yield StyledText(f"  All ranks failed alike, the first: {_who(root)}.")
        elif others:
            yield StyledText("")
            yield StyledText("  The other workers:" if known else "  Workers:")
            yield from _groups(others, root, after_root=known)
        yield StyledText("")
        if isinstance(outcome.limit, TimedOut):
            allowed = duration(outcome.limit.limit)
            text = f"The run's time limit ({allowed}) was over before the next attempt."
            yield StyledText(f"  {text}")
        yield from _history(outcome.attempts[:-1], cwd)
        # a failure shows that with its cause
        if root is None and (furthest := _furthest(outcome)):
            yield StyledText(f"  {furthest}")
        yield from _leftovers(outcome)
        yield from _lost(outcome)
        yield StyledText(f"  Logs: {_logs(outcome, last, cwd)}")


def _lost(outcome: RunResult) -> Iterator[StyledText]:
    for node in outcome.nodes:
        if node.state == "lost":
            said = f": it {node.said}" if node.said else ""
            yield StyledText(f"  {capitalised(node.name)} left no result{said}")


def _logs(outcome: RunResult, last: AttemptResult, cwd: str) -> str:
    """Return where the logs of an attempt are: with several nodes, in the directory of each."""
    if not outcome.nodes:
        return shown_path(last.path, cwd)
    here = shown_path(outcome.directory, cwd)
    elsewhere = [f"{n.hostname}:{n.directory}" for n in outcome.nodes if not n.shared]
    shared = f"{here}/node_*/attempt_{last.number}"
    return ", ".join([shared, *filter(None, elsewhere[:_GROUPS])])


def _is_alike(worker: WorkerResult, root: RootCause | None) -> bool:
    return root is not None and isinstance(worker, Victim) and alike(worker.cause, root.cause)


def _furthest(outcome: RunResult) -> str:
    """Return how far the last attempt was; an empty string if that is unknown."""
    root, last = outcome.root_cause, outcome.attempts[-1:]
    worker = last[0].furthest if last else None
    if worker is None or worker.progress is None:
        return ""
    alone = root is not None and root.ranks == (worker.rank,)
    who = "It" if alone else capitalised(ranks([worker.rank]))
    before = (last[0].ended_ns - worker.progress.time_ns) / 1e9
    late = before >= _LONG_BEFORE and worker.progress.time_ns
    when = f", {duration(before)} before the end" if late else ""
    return f"{who} was at {progress_text(worker.progress)}{when}."


def _root(root: RootCause, outcome: RunResult, cwd: str) -> Iterator[Part]:
    from lllaunch.console.hang import (  # noqa: PLC0415 - few runs hang
        disagreement_text,
        frame_text,
        hang_parts,
    )

    yield StyledText(
        f"  Root cause: {_who(root)} (attempt {root.attempt}) {_verb(root, cwd, when=True)}",
        "cause",
    )
    if root.explanation is not None:
        yield f"Why ({root.explanation.sure}): {capitalised(root.explanation.text)}"
    yield _furthest(outcome)
    if root.collectives is not None:
        yield f"{capitalised(disagreement_text(root.collectives, cwd))}."
    yield from _raised(root, cwd)
    if root.frames:
        yield StyledText("")
        yield StyledText(f"    {capitalised(_who(root))} was here (innermost call first):")
        yield from (StyledText(f"      {frame_text(frame, cwd)}", "quote") for frame in root.frames)
    if root.hang is not None:
        yield from hang_parts(root, outcome.attempts[-1].workers if outcome.attempts else (), cwd)
    if not _says_all(root):
        yield from _excerpt(root, outcome.excerpt, cwd)


def _raised(root: RootCause, cwd: str) -> Iterator[StyledText]:
    """Yield the traceback, or where the worker has printed it; else all lines of its message."""
    call = users_call(root.traceback) if root.traceback else None
    if root.shown and call is not None:
        where = f"{shown_path(call.file, cwd)}:{call.line} in {call.function}"
        yield StyledText(f"    at {where}; its traceback stands above")
    elif root.traceback:
        yield StyledText("")
        lines = folded(root.traceback)
        if (left := len(lines) - _TRACEBACK_LINES) > 0:
            # the innermost frames and the exception are at the end
            lines = [lines[0], f"  ... ({left} more lines in error.json)", *lines[left + 1 :]]
        yield from (StyledText(f"    {line}".rstrip(), "quote") for line in lines)
    elif isinstance(root.cause, Raised) and "\n" in root.cause.message:
        yield from (StyledText(f"    {text}".rstrip()) for text in root.cause.message.split("\n"))


def _who(root: RootCause) -> str:
    if root.subject:
        return root.subject
    if not root.ranks and root.node:
        return f"all workers on {root.node}"
    nodes = root.hang.nodes if root.hang is not None else {}
    return whose(root.ranks, nodes or dict.fromkeys(root.ranks, root.node))


def _verb(root: RootCause, cwd: str, *, when: bool = False) -> str:
    """Return how it failed, as the predicate of a sentence about those that `_who` names."""
    if root.hang is not None and root.of_watchdog:
        from lllaunch.console.hang import hang_text  # noqa: PLC0415 - only where there is one

        return hang_text(root.hang, cwd, when=when)
    text = _cause(root, cwd)
    alone = root.rank is not None or root.subject
    return text if alone else text.replace("was lost", "were lost", 1)


def _cause(root: RootCause, cwd: str) -> str:
    """Return the cause as a predicate, with its place where it has one."""
    cause = root.cause
    text = cause_text(cause)
    if isinstance(cause, CalledExit):
        text += f" at {shown_path(cause.file, cwd)}:{cause.line} in {cause.function}"
    elif isinstance(cause, LeftEarly):
        text = _left_early(cause, cwd)
    elif isinstance(cause, DiskFull):
        space = f"{size(cause.total)}, {size(cause.free)} free"
        text += f": its logs are on {shown_path(cause.directory, cwd)} ({space})"
    elif isinstance(cause, Raised):
        first = cause_of(root.traceback)
        text += f", caused by {cause_line(first)}" if first else ""
    return text


def _left_early(cause: LeftEarly, cwd: str) -> str:
    others = ranks(cause.others)
    when = f"just when the connections of {others} broke"
    if cause.before_ns >= _MILLISECOND:
        when = f"{duration(cause.before_ns / 1e9)} before the connections of {others} broke"
    where = f"in {cause.operation or cause.call or 'a collective operation'}"
    if cause.file:
        where += f", at {shown_path(cause.file, cwd)}:{cause.line}"
    ran = duration(cause.ran_seconds)
    return f"ended with success after {ran}, {when}: it left while they were {where}"


def _says_all(root: RootCause) -> bool:
    """Whether the end of its stderr adds nothing, or there is none."""
    cause = root.cause
    if isinstance(cause, PreflightFailure):
        return False
    if root.rank is None or root.traceback or (root.hang is not None and root.hang.left):
        return True
    if isinstance(cause, (StartFailure, LeftEarly, OnAnotherNode, DiskFull)):
        return True
    if root.of_watchdog:
        return not root.stderr
    return isinstance(cause, Raised) and "\n" in cause.message


def _excerpt(root: RootCause, excerpt: Excerpt | None, cwd: str) -> Iterator[Part]:
    if not root.stderr:
        yield (
            "Its stderr went to the console, see above. With launch.redirects set to 'err' or "
            "'all' its last lines would stand here."
        )
        return
    path = shown_path(root.stderr, cwd)
    whose = "the preflight's output" if isinstance(root.cause, PreflightFailure) else "its stderr"
    if excerpt is None:
        # another node has shown it
        where = f"is in {path}" if root.node else f"cannot be read: {path}"
        yield StyledText(f"    {capitalised(whose)} {where}")
    elif root.shown or not excerpt.lines:
        where = f"stands above, and in {path}" if excerpt.lines else f"is empty: {path}"
        yield StyledText(f"    {capitalised(whose)} {where}")
    else:
        number = len(excerpt.lines)
        what = f"The last {counted(number, 'line')}" if excerpt.cut else "All"
        yield StyledText("")
        yield StyledText(f"    {what} of {whose}, {path}:", "faint")
        yield from (StyledText(f"    | {text}".rstrip(), "quote") for text in excerpt.lines)


def _groups(
    workers: Sequence[WorkerResult], root: RootCause | None, *, after_root: bool
) -> Iterator[StyledText]:
    """Report the fates of workers, those with the same fate in one line.

    Messages that differ in numbers only (ports, addresses, ranks) count as the same.
    """
    groups: dict[tuple[object, ...], list[WorkerResult]] = {}
    for worker in workers:
        cause = worker.cause if isinstance(worker, (Victim, Failed)) else None
        fate = cause_text(cause) if cause else fate_text(worker, after_root=False)
        key = letters(fate) if isinstance(cause, Raised) else fate
        groups.setdefault((type(worker), key), []).append(worker)
    named = []
    for first, *more in list(groups.values())[:_GROUPS]:
        if _is_alike(first, root):
            fate = "failed alike"
        elif more and isinstance(first, Victim):
            fate = victim_text(first.cause)
        else:
            fate = fate_text(first, after_root=after_root)
        named.append((ranks(worker.rank for worker in (first, *more)), fate))
    width = min(30, max(len(name) for name, _ in named))
    for name, fate in named:
        yield StyledText(f"    {name:<{width}}  {fate}")
    rest = sum(len(group) for group in list(groups.values())[_GROUPS:])
    if rest:
        yield StyledText(f"    and {counted(rest, 'more worker')}, see result.json")


def _history(attempts: Sequence[AttemptResult], cwd: str) -> Iterator[StyledText]:
    """Report in one line each how the attempts before the last one failed."""
    texts = (
        (f"{failure_text(attempt.root_cause, cwd)}{at_step(attempt)}", attempt.state)
        for attempt in attempts
    )
    for (text, state), same in groupby(zip(texts, attempts, strict=True), itemgetter(0)):
        numbers = spans(attempt.number for _, attempt in same)
        word = "Attempt" if numbers.isdecimal() else "Attempts"
        yield StyledText(f"  {word} {numbers}{'' if state == 'stopped' else ' failed'}: {text}")


def failure_text(root: RootCause | None, cwd: str) -> str:
    """Return in one line how an attempt failed: ``rank 1 raised ValueError: ...``."""
    return "failed" if root is None else f"{_who(root)} {_verb(root, cwd)}"


def at_step(attempt: AttemptResult) -> str:
    """Return ``, at step 1200 of 5000 (24 %)``; an empty string if that is unknown."""
    worker = attempt.furthest
    if worker is None or worker.progress is None:
        return ""
    return f", at {step_text(worker.progress.step, worker.progress.total)}"


def _leftovers(outcome: RunResult) -> Iterator[StyledText]:
    """Report processes that outlived their workers and had to be killed."""
    attempts = outcome.attempts
    killed = [(at.root_cause, each) for at in attempts for each in at.leftovers if each.killed]
    for root, leftover in killed[:_LEFTOVERS]:
        here = root is not None and not root.node and isinstance(root.cause, PreflightFailure)
        who = "the preflight" if here else "a worker"
        text = f"{who} left process {leftover.pid} behind ({leftover.command}); it was killed"
        yield StyledText(f"  Warning: {text}")
    more = len(killed) - _LEFTOVERS
    if more > 0:
        yield StyledText(f"  and {more} more process{'es' * (more > 1)} like that")


_LOST = {
    "spawner": "ended with the process that forks workers",
    "kernel": "hung in the kernel, SIGKILL did not end it",
    "error": "ended when lllaunch failed",
    "unknown": "ended in a way that this version does not know",
}


def cause_text(cause: Cause) -> str:
    """Return a cause as the predicate of a sentence about its worker, in one line."""
    return cause_line(str(cause))


def fate_text(worker: WorkerResult, *, after_root: bool) -> str:
    """Return the fate of a worker, in words that fit one rank and several.

    `after_root` is whether its attempt has a root cause that this worker is not.
    """
    match worker:
        case Succeeded():
            return "succeeded"
        case Failed():
            return cause_text(worker.cause)
        case Victim():
            return victim_text(worker.cause, worker.seconds_after_root_cause)
        case Lost():
            return _LOST[worker.why]
        case Ended():
            return _ended(worker, after_root=after_root)
    return "not started"


def victim_text(cause: Cause, seconds: float = 0.0) -> str:
    """Return how a victim failed as a predicate; 0 seconds after the root cause are left out."""
    text = cause_text(cause)
    if isinstance(cause, Raised):
        text = text.removeprefix("raised ")
    # less than a millisecond is no order of things
    after = f"{duration(seconds)} " if seconds >= 0.001 else ""
    return f"failed {after}after the root cause: {text}"


def _ended(worker: Ended, *, after_root: bool) -> str:
    names = " then ".join(dict.fromkeys(worker.sent))
    text = f"ended by the launcher ({names or worker.signal})"
    if worker.exitcode >= 0:
        text += f", status {worker.exitcode}" if worker.exitcode else ", cleanly"
    if worker.waited_for:
        return f"only waited for {ranks(worker.waited_for)}; {text}"
    return f"{text} after the root cause" if after_root else text
