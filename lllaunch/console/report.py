"""The report at the end of a run: what happened, why, and where to look. Pure text.

`report_lines` returns styled lines; `lllaunch.console.console` writes them, with colours on a
terminal and plainly elsewhere. Imported only at the end, or when a failure is to be named.
"""

from __future__ import annotations

import os
import time
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

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
from lllaunch.text import duration, printable, shorten_middle, size, spans
from lllaunch.watchdog.evidence import LIBRARY, WRAPPERS, is_own
from lllaunch.watchdog.findings import (
    Asked,
    HeartbeatLost,
    OverMemory,
    ProgressMissing,
    TimedOut,
    TimerExpired,
    Unchanged,
)
from lllaunch.watchdog.frames import TREE, count_calls, short_tree, tree_lines, whole_tree
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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lllaunch.run.result import (
        AttemptResult,
        Cause,
        Excerpt,
        Hang,
        RootCause,
        RunResult,
        WorkerResult,
    )
    from lllaunch.watchdog.evidence import Disagreement, Frame, RankStack
    from lllaunch.watchdog.frames import Call, StackBranch

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
        if others:
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
    yield StyledText(
        f"  Root cause: {_who(root)} (attempt {root.attempt}) {_verb(root, cwd, when=True)}",
        "cause",
    )
    if root.explanation is not None:
        why = root.explanation.text.replace(f"{cwd}/", "")
        yield f"Why ({root.explanation.sure}): {capitalised(why)}"
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
    if cause.left_file:
        ran += f" by sys.exit at {shown_path(cause.left_file, cwd)}:{cause.left_line}"
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


_SCOPE = 60
_PLACES = 8
# Frames of those who hang.
_SHOWN = 12
_UNKNOWN = "at an unknown place"


# Where a worker is

_NAME = 80
_PATH = 100
_CODE = 80
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "R": "running"}


def _file(path: str, cwd: str) -> str:
    """Return a source file as it is shown: a library's from the library's name on."""
    library = LIBRARY.match(path)
    return printable(path[library.end() :] if library else shown_path(path, cwd), _PATH)


def frame_text(frame: Frame, cwd: str) -> str:
    """Return ``train.py:40 in sync: all_reduce(x)``; the code is shown where it is the user's."""
    text = f"{_file(frame.file, cwd)}:{frame.line} in {printable(frame.function, _NAME)}"
    code = printable(frame.code.strip(), _CODE) if is_own(frame) else ""
    return f"{text}: {code}" if code else text


def tree_call(call: Call | Frame, cwd: str) -> str:
    """Return a call: ``sync (train.py:40)``."""
    if isinstance(call, str):
        return printable(call, _NAME)
    line = f":{call.line}" if call.line else ""
    return f"{printable(call.function, _NAME)} ({_file(call.file, cwd)}{line})"


def call_text(stack: RankStack, cwd: str) -> str:
    """Return what the user's code called and where: ``in all_reduce (train.py:40)``."""
    own = next((at for at, frame in enumerate(stack.frames) if is_own(frame)), 0)
    below = [frame for frame in stack.frames[:own] if not frame.file.endswith(WRAPPERS)]
    if not below:
        return place_text(stack, cwd)
    caller = stack.frames[own]
    called = printable(below[-1].function.rpartition(".")[2], _NAME)
    return f"in {called} ({_file(caller.file, cwd)}:{caller.line})"


def place_text(stack: RankStack, cwd: str) -> str:
    """Return ``in wait (threading.py:320), called at train.py:40``.

    Without Python's frames, the state in the kernel; an empty string if nothing is known.
    """
    if not stack.frames:
        wchan = f" ({printable(stack.wchan, _NAME)})" if stack.wchan else ""
        if stack.state == "D":
            return f"in uninterruptible sleep{wchan}"
        return _STATES.get(stack.state) or (f"in the kernel{wchan}" if wchan else "")
    innermost = stack.frames[0]
    text = f"in {tree_call(innermost, cwd)}"
    caller = next((frame for frame in stack.frames if is_own(frame)), innermost)
    at = f", called at {_file(caller.file, cwd)}:{caller.line}"
    return text if caller is innermost else f"{text}{at}"


# What was found


def hang_text(hang: Hang, cwd: str, *, when: bool = False) -> str:
    """Return a finding as a predicate about those who hang, or about all.

    With `when` it has since when, in local time.
    """
    if hang.left:
        return _left_text(hang, cwd)
    text = _predicate(hang, cwd)
    if not when or hang.since_ns is None:
        return text
    since = time.localtime(hang.since_ns / 1e9)
    same_day = since[:3] == time.localtime(hang.time_ns / 1e9)[:3]
    moment = time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", since)
    word = "set at" if isinstance(hang.finding, TimerExpired) else "since"
    return f"{text} ({word} {moment})"


def _left_text(hang: Hang, cwd: str) -> str:
    """Return the predicate about those who had ended with success while the others wait."""
    times = sorted(hang.left.values())
    after = f" after {duration(times[0])}" if len(times) == 1 else ""
    if hang.collectives is not None:
        return f"ended with success{after}; {disagreement_text(hang.collectives, cwd)}"
    place, *more = _by_place(hang, hang.waiting, cwd, call_text)
    where = f" {place}" if place and not more else ""
    joined = " and never joined" if where.startswith(" in init_process_group") else ""
    return f"ended with success{after}{joined}; {_wait(hang.waiting)}{where}"


def _wait(members: Sequence[int]) -> str:
    return f"{ranks(members)} {'waits' if len(members) == 1 else 'wait'}"


def disagreement_text(found: Disagreement, cwd: str, *, so_far: bool = False) -> str:
    """Return which collective operation ranks do not agree on, in one sentence.

    Ranks that are missing may still come if it is `so_far`.
    """
    from lllaunch.watchdog.collectives import sentence  # noqa: PLC0415 - few hangs have one

    return sentence(found, lambda path: _file(path, cwd), so_far=so_far)


def _by_place(
    hang: Hang,
    members: Iterable[int],
    cwd: str,
    text: Callable[[RankStack, str], str] = place_text,
) -> dict[str, list[int]]:
    """Return ranks by where they are, in order; an empty text if that is unknown."""
    groups: dict[str, list[int]] = {}
    for rank in members:
        stack = hang.stacks.get(rank)
        groups.setdefault(text(stack, cwd) if stack else "", []).append(rank)
    return groups


def _predicate(hang: Hang, cwd: str) -> str:
    finding = hang.finding
    if isinstance(finding, TimerExpired):
        # by default a timer is called by the place that set it
        scope = finding.scope.removeprefix(cwd.rstrip("/") + "/")
        finding = replace(finding, scope=shorten_middle(scope, _SCOPE))
    found_alike = not hang.blamed or set(hang.blamed) <= set(hang.named)
    # these notice no rank in particular
    if found_alike or isinstance(finding, (ProgressMissing, Unchanged)):
        return str(finding)
    # the rank that was noticed is not the one that hangs: it only waited
    noticed = whose(() if hang.nodes else hang.named)
    if isinstance(finding, TimerExpired):
        timer = f"the timer {finding.scope!r} of {noticed}"
        return f"hung: {timer} ran out after {duration(finding.after)}"
    if isinstance(finding, HeartbeatLost):
        return f"hung: no heartbeat of {noticed} for {duration(finding.seconds)}"
    return f"hung: {noticed} {finding}"


# During the run


def fired_text(hang: Hang, cwd: str) -> str:
    """Return in one line what the watchdog found."""
    return f"{whose(hang.blamed, hang.nodes)} {hang_text(hang, cwd)}"


def located_text(hang: Hang, cwd: str) -> str:
    """Return in one line who hangs and where; an empty string if nothing is known."""
    parts: list[str] = []
    if hang.left:
        parts.append(f"{ranks(hang.left)} {_left_text(hang, cwd)}")
    groups = {} if hang.left else _by_place(hang, hang.hung or hang.stacks, cwd)
    if len(groups) == 1 and (hang.hung or len(hang.stacks) > 1):
        ((place, members),) = groups.items()
        if place:
            verb = "is" if len(members) == 1 else "are"
            stopped = " stopped by a signal," if set(members) <= {*hang.stopped} else ""
            who = whose(members if hang.hung else (), hang.nodes)
            parts.append(f"{who} {verb}{stopped} {place}")
    elif len(hang.hung) > 1:
        parts.append(f"{whose(hang.hung, hang.nodes)} hang")
    if hang.waiting and hang.hung:
        whom = _them(hang.hung) if parts else ranks(hang.hung)
        parts.append(f"{_wait(hang.waiting)} for {whom}")
    if hang.collectives is not None and not hang.left and hang.collectives.kind != "absent":
        parts.append(disagreement_text(hang.collectives, cwd))
    files = _files(hang, cwd)
    if files:
        parts.append(f"stacks in {files}")
    return "; ".join(parts)


def _them(members: Sequence[int]) -> str:
    return "it" if len(members) == 1 else "them"


def _files(hang: Hang, cwd: str) -> str:
    """Return the paths of stacks as one: ``*`` for ranks, ``node_*`` for nodes."""
    paths = [stack.path.split("/") for stack in hang.stacks.values() if stack.path]
    # of nodes that have different file systems those of the first one
    alike = [path for path in paths if len(path) == len(paths[0])]
    parts = [
        first if {first} == {*others} else "node_*" if first.startswith("node_") else "*"
        for first, *others in zip(*alike, alike[0] if alike else (), strict=True)
    ]
    return shown_path("/".join(parts), cwd) if parts else ""


# In the report


Part: TypeAlias = "str | StyledText"
"""A paragraph, or a line as it is; lines whose style is ``quote`` follow their title."""


def hang_parts(root: RootCause, workers: Sequence[WorkerResult], cwd: str) -> Iterator[Part]:
    """Yield what is known of a hang beyond its root cause; `workers` are those of its attempt."""
    hang = root.hang
    assert hang is not None
    if not root.of_watchdog:
        after = duration(max(0, hang.time_ns - root.time_ns) / 1e9)
        yield StyledText("")
        yield f"The watchdog ended the attempt {after} later: {fired_text(hang, cwd)}"
    finding = hang.finding
    if isinstance(finding, TimedOut):
        name = "timeout" if finding.what == "attempt" else "run_timeout"
        yield f"The limit is launch.watchdog.{name}."
    elif isinstance(finding, OverMemory):
        whole = "for a worker and all processes below it together"
        yield f"The limit is launch.watchdog.memory, {whole}."
    yield from _collectives(hang, cwd)
    yield from _conditions(hang, workers)
    yield from _locks(hang, cwd)
    if hang.stacks:
        yield StyledText("")
        yield from _stack_lines(hang, cwd)


def look_lines(look: Hang, cwd: str) -> Iterator[StyledText]:
    """Yield where the workers were when a signal came or somebody asked."""
    yield from wrapped(_collectives(look, cwd))
    yield from _locks(look, cwd)
    yield from wrapped(_conditions(look, ()))
    yield from _stack_lines(look, cwd)


def _collectives(hang: Hang, cwd: str) -> Iterator[Part]:
    """Yield which collective operation ranks do not agree on."""
    found = hang.collectives
    if found is not None and not hang.left:
        so_far = isinstance(hang.finding, Asked)
        yield f"{capitalised(disagreement_text(found, cwd, so_far=so_far))}."


def _locks(hang: Hang, cwd: str) -> Iterator[StyledText]:
    for rank, stack in hang.stacks.items():
        if stack.locks:
            who = f"{len(stack.locks)} threads of rank {rank}"
            yield StyledText(f"    {who} wait for a lock, perhaps a deadlock:")
        for wait in stack.locks:
            yield StyledText(f"      {wait.thread}: {frame_text(wait.frame, cwd)}", "quote")


def _conditions(hang: Hang, workers: Sequence[WorkerResult]) -> Iterator[Part]:
    """Yield what the kernel reports of those that could not run."""

    def subject(members: Sequence[int], one: str, several: str) -> str:
        if tuple(members) == hang.blamed and len(members) == 1:
            return f"It {one}"
        return f"{_capital(members)} {one if len(members) == 1 else several}"

    if hang.asleep:
        stacks = [hang.stacks[rank] for rank in hang.asleep if rank in hang.stacks]
        names = sorted({printable(stack.wchan, _SCOPE) for stack in stacks if stack.wchan})
        where = f" ({', '.join(names)})" if names else ""
        yield (
            f"{subject(hang.asleep, 'was', 'were')} in uninterruptible sleep in the kernel{where}: "
            "a file system or a device did not answer."
        )
    if hang.stopped:
        yield (
            f"{subject(hang.stopped, 'was', 'were')} stopped by a signal (SIGSTOP, Ctrl-Z, a "
            "debugger), and nobody let it go on (kill -CONT)."
        )
    for worker in workers:
        if worker.rank in hang.blamed and isinstance(worker, Lost) and worker.why == "kernel":
            who = subject((worker.rank,), "still hangs", "")
            yield f"{who} in the kernel (pid {worker.pid}): SIGKILL does not end it."


def _stack_lines(hang: Hang, cwd: str) -> Iterator[StyledText]:
    roots = short_tree(hang.stacks.values())
    in_one_place = sum(not branch.below for root in roots for branch in root.walk()) < 2
    title = "All ranks, outermost call first"
    if hang.left:
        yield from _frames_of(hang, hang.waiting, cwd)
    elif hang.hung:
        yield from _frames_of(hang, hang.hung, cwd)
    elif in_one_place:
        yield from _frames_of(hang, tuple(hang.stacks), cwd)
    else:
        nobody = "" if isinstance(hang.finding, (TimedOut, Asked)) else "Nobody stands out. "
        title = f"{nobody}Where the workers were"
    if not in_one_place:
        yield from _tree_lines(title, roots, hang, cwd)
    files = _files(hang, cwd)
    if files:
        yield StyledText(f"    All stacks: {files}")


def _tree_lines(
    title: str, roots: tuple[StackBranch, ...], hang: Hang, cwd: str
) -> Iterator[StyledText]:
    """Yield the tree of all ranks; its title has how much is left out, and where all of it is."""
    more = count_calls(whole_tree(hang.stacks.values())) - count_calls(roots)
    files = {os.path.dirname(os.path.dirname(each.path)) for each in hang.stacks.values()}
    known = len(files) == 1 and all(files)
    where = f" in {shown_path(f'{files.pop()}/{TREE}', cwd)}" if known else ""
    left_out = f" ({counted(more, 'more call')}{where})" if more > 0 else ""
    yield StyledText(f"    {title}{left_out}:")
    for line in tree_lines(roots, lambda call: tree_call(call, cwd)):
        yield StyledText(f"      {line}", "quote")


def _frames_of(hang: Hang, members: Sequence[int], cwd: str) -> Iterator[StyledText]:
    """Yield the calls of some ranks, those in the same place together."""
    for place, together in _largest(hang, members, cwd):
        stack = hang.stacks.get(together[0])
        frames = () if stack is None else stack.frames[:_SHOWN]
        if frames:
            yield StyledText(f"    {_were(together)} here (innermost call first):")
            yield from (StyledText(f"      {frame_text(each, cwd)}", "quote") for each in frames)
            if stack is not None and stack.handled:
                yield StyledText(f"    It was handling {stack.handled.replace(f'{cwd}/', '')}")
        # those that could not run are reported above
        elif not set(together) <= {*hang.asleep, *hang.stopped}:
            yield StyledText(f"    {_were(together)} {place or _UNKNOWN}")


def _largest(hang: Hang, members: Iterable[int], cwd: str) -> list[tuple[str, list[int]]]:
    groups = _by_place(hang, members, cwd).items()
    return sorted(groups, key=lambda item: -len(item[1]))[:_PLACES]


def _capital(members: Sequence[int]) -> str:
    return capitalised(ranks(members))


def _were(members: Sequence[int]) -> str:
    return f"{_capital(members)} {'was' if len(members) == 1 else 'were'}"
