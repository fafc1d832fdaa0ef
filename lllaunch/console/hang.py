"""The words for findings of the watchdog: one line during the run, with stacks in the report.

Pure. Imported only when something was found. Paths below ``cwd`` are shown relative to it. Names of
files and functions come from workers: they are shortened, and cannot steer a terminal.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from lllaunch.run.result import Lost
from lllaunch.text import duration, printable, shorten_middle
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
from lllaunch.words import StyledText, capitalised, counted, ranks, shown_path, whose, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lllaunch.run.result import Hang, RootCause, WorkerResult
    from lllaunch.watchdog.evidence import Disagreement, Frame, RankStack
    from lllaunch.watchdog.frames import Call, StackBranch

_SCOPE = 60
_GROUPS = 8
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
    roots = _tree(hang, cwd)
    title = "All ranks, outermost call first"
    if hang.left:
        yield from _frames_of(hang, hang.waiting, cwd)
    elif hang.hung:
        told = hang.collectives.located if roots and hang.collectives is not None else frozenset()
        yield from _places_of(hang, told, cwd)
    elif roots or len(_by_place(hang, hang.stacks, cwd)) > 1:
        nobody = "" if isinstance(hang.finding, (TimedOut, Asked)) else "Nobody stands out. "
        title = f"{nobody}Where the workers were"
        if not roots:
            yield StyledText(f"    {title}:")
            for place, members in _by_place(hang, hang.stacks, cwd).items():
                yield StyledText(f"      {ranks(members)}  {place or _UNKNOWN}")
    else:
        yield from _frames_of(hang, tuple(hang.stacks), cwd)
    if roots:
        yield from _tree_lines(title, roots, hang, cwd)
    files = _files(hang, cwd)
    if files:
        yield StyledText(f"    All stacks: {files}")


def _tree(hang: Hang, cwd: str) -> tuple[StackBranch, ...]:
    """Return where all ranks are as one tree; nothing if places of groups show as much."""
    roots = short_tree(hang.stacks.values())
    ways = sum(not branch.below for root in roots for branch in root.walk())
    more = ways > len(_by_place(hang, hang.stacks, cwd))
    return roots if more or (ways > 1 and len(hang.stacks) > 2) else ()


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


def _places_of(hang: Hang, told: frozenset[int], cwd: str) -> Iterator[StyledText]:
    """Yield where those are who hang, and all others but the waiting ranks in ``told``."""
    yield from _frames_of(hang, hang.hung, cwd)
    whom = _them(hang.hung)
    for place, members in _largest(hang, hang.waiting, cwd):
        if not told.issuperset(members):
            yield StyledText(f"    {_capital(members)} waited for {whom} {place}".rstrip())
    others = [rank for rank in hang.stacks if rank not in hang.hung + hang.waiting]
    for place, members in _largest(hang, others, cwd):
        yield StyledText(f"    {_were(members)} {place or _UNKNOWN}")


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
    return sorted(groups, key=lambda item: -len(item[1]))[:_GROUPS]


def _capital(members: Sequence[int]) -> str:
    return capitalised(ranks(members))


def _were(members: Sequence[int]) -> str:
    return f"{_capital(members)} {'was' if len(members) == 1 else 'were'}"
