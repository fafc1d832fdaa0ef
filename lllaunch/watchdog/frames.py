"""Where workers stand: frames, how they are read from dumps, the text of their lines, the tree.

What faulthandler writes is read as far as it can be understood: it is for people, and changes from
version to version. What is not understood is passed over, so the worst is that no
frames are found.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lllaunch.documents import Record
from lllaunch.text import printable, spans
from lllaunch.watchdog.evidence import (
    LIBRARY,
    WRAPPERS,
    Frame,
    LockWait,
    RankStack,
    Thread,
    bare,
    is_own,
)

# As many as faulthandler writes of a thread: where ranks part is seen from the outermost on.
MAX_FRAMES = 100

# `Thread 0x00007f... [name] (most recent call first):`; the name since Python 3.13, and cut off
# where it is long. The current thread's C stack, which Python 3.14 may add, is another matter.
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+\b(?: \[(.*?)\])?.*:$")
# Calls of the import system, which say nothing of what is imported.
_IMPORTING = "<frozen importlib."
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?+) in (.*)$')
_MORE_THREADS = "..."
MAIN_THREAD = "MainThread"
"""What Python calls the main thread."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")

# How every worker of ours begins, from the innermost of our own frames on; that of a Hydra app has
# its user's script around it. Functions are recorded.
_BEGINNING = ("/lllaunch/spawner/", "/lllaunch/app/own_worker.py")
# What stands between that and the user's function: the recorder.
_BETWEEN = "/lllaunch/failure.py"


def users_part(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Frames without those of ours that every worker begins with, and at most `MAX_FRAMES`.

    Returns all of them if none but ours are known: then the worker is at its beginning or its end.
    """
    ours = (i for i, frame in enumerate(frames) if any(part in frame.file for part in _BEGINNING))
    end = next(ours, len(frames))
    while end and _BETWEEN in frames[end - 1].file:
        end -= 1
    return tuple(frames[: end or None][:MAX_FRAMES])


def _unescaped(text: str) -> str:
    """What faulthandler wrote as escapes, since it writes ASCII only."""

    def letter(found: re.Match[str]) -> str:
        code = int(found[1] or found[2] or found[3], 16)
        return chr(code) if code <= 0x10FFFF and chr(code).isprintable() else found[0]

    return _ESCAPE.sub(letter, text)


class _Dumped(NamedTuple):
    """One thread in a dump."""

    name: str
    current: bool
    frames: list[Frame]


def _dumped_threads(text: str) -> tuple[_Dumped | None, list[_Dumped]]:
    """The main thread in a dump, None if it cannot be told, and the others, the oldest first.

    faulthandler lists the main thread last, for it is the oldest. Only when there are more than are
    listed is it taken to be the current one: the kernel has the main thread run a signal's handler
    if it can.
    """
    threads: list[_Dumped] = []
    cut = inside = False
    for line in text.splitlines():
        header, found = _THREAD.match(line), _FRAME.match(line)
        if header is not None:
            inside = True
            threads.append(_Dumped(header[2] or "", header[1] == "Current thread", []))
        elif found is not None and inside:
            frames = threads[-1].frames
            # what the innermost call is in, an import, the line below tells
            if not found[1].startswith(_IMPORTING) or not frames:
                number = int(found[2]) if found[2].isdecimal() else 0
                frames.append(Frame(_unescaped(found[1]), number, _unescaped(found[3])))
        elif not line.startswith(" "):
            cut, inside = cut or line == _MORE_THREADS, False
    threads.reverse()
    main = next((each for each in threads if each.current or not cut), None)
    return main, [each for each in threads if each is not main]


def crash_frames(text: str) -> tuple[Frame, ...]:
    """Frames of the thread that wrote a dump, such as the one that a fatal signal struck.

    A thread of native code is not listed: then they are the main thread's, which may have waited
    for it.
    """
    main, others = _dumped_threads(text)
    struck = next((each for each in others if each.current), main)
    return () if struck is None else users_part(struck.frames)


def threads_of(text: str) -> tuple[Thread, ...]:
    """The threads in a dump that have frames, the main one first, each with a name.

    Where the main thread cannot be told, none is called so.
    """
    main, others = _dumped_threads(text)
    known = [] if main is None else [main._replace(name=MAIN_THREAD)]
    return tuple(
        Thread(each.name or "another thread", users_part(each.frames))
        for each in (*known, *others)
        if each.frames
    )


def main_frames(threads: Sequence[Thread]) -> tuple[Frame, ...]:
    """Frames of the main thread, innermost first; none if it cannot be told."""
    return threads[0].frames if threads and threads[0].name == MAIN_THREAD else ()


_MAX_BYTES = 4 << 20
_MAX_WIDTH = 200
# A script may be written and started in the same clock tick; seconds.
_SLACK = 1.0
# Frames of which the lines are read, also in libraries.
_INNERMOST = 12


def started_at(ticks: int) -> float:
    """When a process started, in seconds since the epoch."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def quoted(frame: Frame, before: float) -> Frame:
    """A frame with the text of its line, without blanks around it; empty if it cannot be told.

    ``before``: files that were changed after this time (seconds since the epoch) are not those that
    the process runs.
    """
    path, code = frame.file, ""
    # `<string>`, `<frozen runpy>`, or relative to a directory that is not known here.
    if path.endswith(".py") and os.path.isabs(path):
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(path)
            good = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES
            if good and found.st_mtime <= before + _SLACK:
                linecache.checkcache(path)
                code = linecache.getline(path, frame.line).strip()[:_MAX_WIDTH]
    return replace(frame, code=code)


# A lock is taken in C, so a thread that waits for one stands in the line that takes it. What is
# called in a `with` may be anything, and would have a frame of its own if it were Python's.
_TAKES_LOCK = re.compile(r"(?:async )?with [^()]+:|.*\.acquire\(")


def lock_waits(threads: Iterable[Thread], before: float) -> tuple[LockWait, ...]:
    """Which threads of a process wait for locks; none if fewer than two do."""
    found = []
    for thread in threads:
        frame = quoted(thread.frames[0], before)
        if _TAKES_LOCK.match(frame.code) and not LIBRARY.match(frame.file):
            found.append(LockWait(thread.name, frame))
    return tuple(found) if len(found) > 1 else ()


def with_code(stacks: Iterable[RankStack], before: float) -> tuple[RankStack, ...]:
    """The same stacks with the text of lines: of the innermost frames and the user's own."""
    return tuple(
        replace(
            stack,
            frames=tuple(
                quoted(frame, before) if number < _INNERMOST or is_own(frame) else frame
                for number, frame in enumerate(stack.frames)
            ),
            threads=tuple(
                Thread(each.name, tuple(quoted(frame, before) for frame in each.frames))
                for each in stack.threads
            ),
        )
        for stack in stacks
    )


TREE = "stacks.txt"
"""Name of the whole tree's file, in an attempt's directory."""
# One call, or words for what is none: calls left out, a rank without frames.
Call = Frame | str
LEFT_OUT = "..."
"""Stands for calls inside libraries."""
MOST_LINES = 12
_MOST_CALLS = 8
# Of a call in a file, characters.
_LONGEST = 2000


class StackBranch(Record, frozen=True):
    """Calls, each made by the one before, that the same ranks are in."""

    calls: tuple[Call, ...]
    ranks: tuple[int, ...]  # those that are in them, in order
    ends: tuple[int, ...]
    below: tuple[StackBranch, ...] = ()  # where the others go on, in order of their first ranks
    places: int = 0  # how many branches below it were left out; then all its ranks end in it

    def walk(self) -> Iterator[StackBranch]:
        """Yield it and all below it, as they are listed."""
        yield self
        for branch in self.below:
            yield from branch.walk()


def merged(chains: Mapping[int, Sequence[Call]], at: int = 0) -> tuple[StackBranch, ...]:
    """Merge the calls of several ranks into a tree, or several if they begin differently.

    ``chains``: calls by rank, outermost first; not empty from the position ``at`` on. Returns the
    outermost branches, in order of their first ranks. Each rank is in one of them, and ends in one.
    """
    together: dict[Call, dict[int, Sequence[Call]]] = {}
    for rank, chain in sorted(chains.items()):
        together.setdefault(chain[at], {})[rank] = chain
    branches = []
    for members in together.values():
        levels = zip(*(chain[at:] for chain in members.values()), strict=False)
        same = itertools.takewhile(lambda calls: len({*calls}) == 1, levels)
        calls = tuple(level[0] for level in same)
        end = at + len(calls)
        ends = tuple(rank for rank, chain in members.items() if len(chain) == end)
        others = {rank: chain for rank, chain in members.items() if len(chain) > end}
        branches.append(StackBranch(calls, (*members,), ends, merged(others, end)))
    return tuple(branches)


def whole_tree(stacks: Iterable[RankStack]) -> tuple[StackBranch, ...]:
    """Merge stacks with all calls that are known."""
    return merged({stack.rank: _calls(stack) for stack in stacks})


def _calls(stack: RankStack) -> tuple[Call, ...]:
    """Return the calls of a rank, outermost first; in words where none are known."""
    if not stack.frames:
        where = f" in {stack.wchan}" if stack.wchan else ""
        state = f" (state {stack.state}{where})" if stack.state else ""
        return (f"no Python frames are known{state}",)
    # what a line holds does not tell calls apart
    return bare(reversed(stack.frames))


def short_tree(stacks: Iterable[RankStack], most: int = MOST_LINES) -> tuple[StackBranch, ...]:
    """Merge stacks with the calls that say most, and cut what parts most until it has few lines."""
    roots = merged({stack.rank: _folded(_calls(stack)) for stack in stacks})
    ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
    for width in range(most, -1, -1):
        found = _cut(StackBranch((), ranks, (), roots), width)
        roots_left = found.below or (found,) * bool(ranks)
        if sum(1 + bool(each.below and each.ends) for each in _walk(roots_left)) <= most:
            break
    return roots_left


def _walk(roots: Iterable[StackBranch]) -> Iterator[StackBranch]:
    return (each for root in roots for each in root.walk())


def _cut(branch: StackBranch, width: int) -> StackBranch:
    """Return a branch with few calls on each line and few branches below each.

    The first calls of a line say where it is, the last what.
    """
    calls = branch.calls
    if len(calls) > _MOST_CALLS:
        calls = (*calls[:2], LEFT_OUT, *calls[3 - _MOST_CALLS :])
    if len(branch.below) > width:
        places = sum(bool(each.ends) for each in branch.walk())
        return StackBranch(calls, branch.ranks, branch.ranks, (), places)
    return replace(branch, calls=calls, below=tuple(_cut(each, width) for each in branch.below))


def _folded(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return calls without those inside libraries.

    Of the calls from the user's code into libraries and back the first one stays. At the end the
    first and the last one in each package stay: what the user has installed is one, too.
    """
    found: list[Call] = []
    inside: list[Frame] = []
    for call in calls:
        if isinstance(call, str) or is_own(call):
            entered = [replace(each, line=0) for each in _without_wrappers(inside)]
            found += entered[:1]
            found += [LEFT_OUT] if len(entered) > 1 else []
            inside = []
            found.append(call)
        else:
            inside.append(call)
    for _, package in itertools.groupby(_without_wrappers(inside), _package):
        # which line it is at says little while it is in further calls
        first, *others = (replace(call, line=0) for call in package)
        found.append(first)
        found += [LEFT_OUT] if len(others) > 1 else []
        found += others[-1:]
    if inside:
        found[-1] = _without_wrappers(inside)[-1]
    return tuple(found)


def _without_wrappers(calls: list[Frame]) -> list[Frame]:
    return [call for call in calls if not call.file.endswith(WRAPPERS)] or calls


def _package(frame: Frame) -> str:
    """Return the package that a library's frame is of; empty for Python's own library."""
    library = LIBRARY.match(frame.file)
    if library is None or not library[0].endswith("-packages/"):
        return ""
    return frame.file[library.end() :].partition("/")[0]


def count_calls(roots: Iterable[StackBranch]) -> int:
    """Return how many calls a tree has."""
    return sum(isinstance(call, Frame) for each in _walk(roots) for call in each.calls)


def label(ranks: Iterable[int]) -> str:
    """Return ranks as the tree has them: ``[0-5,7]``."""
    return f"[{spans(ranks).replace(' ', '')}]"


def tree_lines(
    roots: Iterable[StackBranch], text: Callable[[Call], str], *, whole: bool = False
) -> Iterator[str]:
    """Yield a tree with one line for each branch: ``[0-5,7] step → all_reduce``.

    ``whole``: with one for each call instead.
    """
    for branch in roots:
        head, calls = label(branch.ranks), [*map(text, branch.calls)]
        if branch.places:
            calls.append(f"{'' if calls else 'at '}{branch.places} places")
        between = f"\n{' ' * len(head)} " if whole else " → "
        yield from f"{head} {between.join(calls)}".split("\n")
        if branch.below and branch.ends:
            yield f"  {label(branch.ends)} in no further call"
        yield from (f"  {line}" for line in tree_lines(branch.below, text, whole=whole))


def whole_text(stacks: Iterable[RankStack]) -> str:
    """Return the whole tree with one line for each call, as the run's directory has it."""

    def text(call: Call) -> str:
        known = call if isinstance(call, str) else f"{call.function} ({call.file}:{call.line})"
        return printable(known, _LONGEST)

    return "".join(f"{line}\n" for line in tree_lines(whole_tree(stacks), text, whole=True))
