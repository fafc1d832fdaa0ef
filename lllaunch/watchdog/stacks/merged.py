"""Where all ranks stand as one tree: the calls that they have in common, and where they part. Pure.

Whole, it holds every call of every main thread, and is written to the run's directory. For the
console calls inside libraries are folded, and the tree is cut to some lines; what is left out is
counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from lllaunch.documents import Record
from lllaunch.text import printable, spans
from lllaunch.watchdog.stacks.frames import (
    LIBRARY,
    WRAPPERS,
    Frame,
    RankStack,
    bare,
    is_own,
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

    @property
    def lines(self) -> int:
        """How many lines `tree_lines` makes of it."""
        return sum(1 + bool(each.below and each.ends) for each in self.walk())


def merged(chains: Mapping[int, Sequence[Call]]) -> tuple[StackBranch, ...]:
    """Merge the calls of several ranks into a tree, or several if they begin differently.

    ``chains``: calls by rank, outermost first; not empty. Returns the outermost branches, in order
    of their first ranks. Each rank is in one of them, and ends in one branch.
    """
    return _parted(sorted(chains), chains, 0)


def _parted(
    ranks: Iterable[int], chains: Mapping[int, Sequence[Call]], at: int
) -> tuple[StackBranch, ...]:
    """Return the branches of ranks that have the same calls before a position."""
    together: dict[Call, list[int]] = {}
    for rank in ranks:
        together.setdefault(chains[rank][at], []).append(rank)
    return tuple(_branch(members, chains, at) for members in together.values())


def _branch(ranks: Sequence[int], chains: Mapping[int, Sequence[Call]], at: int) -> StackBranch:
    first = chains[ranks[0]]
    end = at + 1
    while all(len(chains[rank]) > end and chains[rank][end] == first[end] for rank in ranks):
        end += 1
        if end == len(first):
            break
    ends = tuple(rank for rank in ranks if len(chains[rank]) == end)
    others = (rank for rank in ranks if len(chains[rank]) > end)
    return StackBranch(tuple(first[at:end]), tuple(ranks), ends, _parted(others, chains, end))


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
    """Merge stacks with the calls that say most, and cut what is too much."""
    roots = _cut(merged({stack.rank: _folded(_calls(stack)) for stack in stacks}), most)
    return tuple(map(_narrow, roots))


def _narrow(branch: StackBranch) -> StackBranch:
    """Return a branch with few calls on each line: the first say where it is, the last what."""
    calls = branch.calls
    if len(calls) > _MOST_CALLS:
        calls = (*calls[:2], LEFT_OUT, *calls[3 - _MOST_CALLS :])
    return replace(branch, calls=calls, below=tuple(map(_narrow, branch.below)))


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


def _cut(roots: tuple[StackBranch, ...], most: int) -> tuple[StackBranch, ...]:
    """Leave out the branches that part most, until a tree has few lines."""
    while sum(root.lines for root in roots) > most:
        parents = [each for root in roots for each in root.walk() if each.below]
        lowest = [each for each in parents if not any(child.below for child in each.below)]
        if not lowest:
            by_size = sorted(roots, key=lambda root: (-len(root.ranks), root.ranks))
            rest = by_size[most - 1 :]
            ranks = tuple(sorted(rank for root in rest for rank in root.ranks))
            return (
                *sorted(by_size[: most - 1], key=lambda root: root.ranks),
                StackBranch((), ranks, ranks, (), sum(max(1, root.places) for root in rest)),
            )
        widest = max(lowest, key=lambda each: each.lines)
        roots = tuple(_without(root, widest) for root in roots)
    return roots


def _without(branch: StackBranch, parent: StackBranch) -> StackBranch:
    """Return a branch without what is below one of its parts."""
    if branch is parent:
        places = sum(max(1, each.places) for each in branch.below) + bool(branch.ends)
        return StackBranch(branch.calls, branch.ranks, branch.ranks, (), places)
    return replace(branch, below=tuple(_without(each, parent) for each in branch.below))


def count_calls(roots: Iterable[StackBranch]) -> int:
    """Return how many calls a tree has."""
    calls = (call for root in roots for each in root.walk() for call in each.calls)
    return sum(isinstance(call, Frame) for call in calls)


def label(ranks: Iterable[int]) -> str:
    """Return ranks as the tree has them: ``[0-5,7]``."""
    return f"[{spans(ranks).replace(' ', '')}]"


def tree_lines(roots: Iterable[StackBranch], text: Callable[[Call], str]) -> Iterator[str]:
    """Yield a tree with one line for each branch: ``[0-5,7] step → all_reduce``."""
    for branch in roots:
        parts = [*map(text, branch.calls)]
        if branch.places:
            parts.append(
                f"{branch.places} places" if branch.calls else f"at {branch.places} other places"
            )
        yield f"{label(branch.ranks)} {' → '.join(parts)}"
        if branch.below and branch.ends:
            yield f"  {label(branch.ends)} in no further call"
        yield from (f"  {line}" for line in tree_lines(branch.below, text))


def whole_text(stacks: Iterable[RankStack]) -> str:
    """Return the whole tree with one line for each call, as the run's directory has it."""
    return "".join(f"{line}\n" for line in _whole_lines(whole_tree(stacks)))


def _whole_lines(roots: Iterable[StackBranch]) -> Iterator[str]:
    for branch in roots:
        head = label(branch.ranks)
        for number, call in enumerate(branch.calls):
            text = printable(_text(call), _LONGEST)
            yield f"{' ' * len(head) if number else head} {text}"
        if branch.below and branch.ends:
            yield f"  {label(branch.ends)} in no further call"
        yield from (f"  {line}" for line in _whole_lines(branch.below))


def _text(call: Call) -> str:
    return call if isinstance(call, str) else f"{call.function} ({call.file}:{call.line})"
