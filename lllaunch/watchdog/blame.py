"""Who hangs, and who only waits for that. Pure.

The common case is a collective operation that one rank does not join: that one hangs, and all who
did join wait in it. Where torch has recorded who came to which collective, that says it. Else a
worker is judged by how surely its innermost frames are those of a collective, and of several
workers those hang that are surely in none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from lllaunch.signal_source import STACKS_ON
from lllaunch.watchdog.collectives import compare
from lllaunch.watchdog.evidence import Blame, Disagreement, Frame, RankStack, Waits, is_own
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    NotFinite,
    OverMemory,
    Straggler,
    TimerExpired,
    suspects,
)
from lllaunch.watchdog.stall import CANNOT_RUN

# Libraries whose calls wait for other ranks: what stands in the path of their files.
_COLLECTIVE = (
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "/horovod/",
    "/jax/experimental/multihost_utils.py",
    "/jax/_src/distributed.py",
    "/mpi4py/",
)
# Parts of them that do not.
_NOT_COLLECTIVE = ("/torch/distributed/elastic/", "/torch/distributed/run.py")
# What stands between the library and the call in C that waits, or is too common to say anything.
_PLUMBING = (
    "/torch/_ops.py",
    "/torch/_compile.py",
    "/torch/utils/_contextlib.py",
    "/torch/_dynamo/eval_frame.py",
    "/contextlib.py",
)
# Calls in which one may wait for a collective that is done elsewhere: by the autograd engine, or on
# the GPU. Path and names of functions.
_PERHAPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("/torch/autograd/", frozenset({"_engine_run_backward", "backward", "grad"})),
    ("/torch/_tensor.py", frozenset({"backward"})),
    ("/torch/cuda/", frozenset({"synchronize", "wait_event", "wait_stream"})),
    ("/jax/_src/array.py", frozenset({"block_until_ready", "_value"})),
)
# The same in C, where only the text of the line tells: a method of a handle, or one that brings a
# value from the GPU. What Python's own libraries wait in would be a frame of theirs.
_PERHAPS_CODE = re.compile(
    r"\.(wait|synchronize|item|cpu|tolist|numpy)\(|\b(barrier|all_?reduce|all_?gather)\b", re.I
)
# Frames of these are the library's, not the place from which it was called.
_LIBRARIES = ("/torch/", "/horovod/", "/jax/", "/mpi4py/", "/contextlib.py")
# Who has been in a collective for so long waits in it.
_LASTING_SECONDS = 2


def waits(frames: Sequence[Frame]) -> Waits:
    """Whether a worker that stands in these frames, innermost first, waits for others."""
    rest = [frame for frame in frames if not _is_one_of(frame.file, _PLUMBING)]
    if not rest:
        return Waits.NO
    innermost = rest[0]
    if _is_one_of(innermost.file, _COLLECTIVE):
        return Waits.NO if _is_one_of(innermost.file, _NOT_COLLECTIVE) else Waits.SURELY
    # py-spy names a method with its class.
    name = innermost.function.rpartition(".")[2]
    perhaps = any(path in innermost.file and name in names for path, names in _PERHAPS)
    return Waits.PERHAPS if perhaps or _PERHAPS_CODE.search(innermost.code) else Waits.NO


def place(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """What must be equal for two workers to be in the same collective.

    That is the outermost call of the library and the line that called it.
    """
    for called, frame in enumerate(frames):
        if not _is_one_of(frame.file, _LIBRARIES):
            return tuple(frames[max(0, called - 1) : called + 1])
    # All that is known of them is the library's, so all of it counts.
    return tuple(frames)


def blame(stacks: Sequence[RankStack], finding: Finding) -> Blame:
    """Judge who hangs: the first rule says it that names somebody.

    Returns local ranks; none where nothing can be told.
    """
    if isinstance(finding, (OverMemory, NotFinite, Straggler)):
        return Blame(hung=(finding.rank,))
    levels = {stack.rank: waits(stack.frames) for stack in stacks if stack.frames}
    known = {stack.trace.rank: stack for stack in stacks if stack.trace is not None}
    found = compare(
        {rank: stack.trace for rank, stack in known.items() if stack.trace is not None},
        {rank: levels[stack.rank] for rank, stack in known.items() if stack.rank in levels},
        {
            rank: f"{frame.file}:{frame.line}"
            for rank, stack in known.items()
            if (frame := next(filter(is_own, stack.frames), None))
        },
    )
    fault = set() if found is None else {known[rank].rank for rank in found.at_fault}
    if found is not None and found.kind == "absent":
        least = min(levels.values(), default=Waits.NO)
        if all(levels.get(rank, Waits.NO) > least for rank in fault):
            # It is true, but whoever does not wait at all keeps those from coming.
            found, fault = replace(found, at_fault=()), set()
    rules = _rules(stacks, finding, levels, fault)
    hung: set[int] = next(filter(None, rules), set())
    waiting = [rank for rank, level in levels.items() if hung and level and rank not in hung]
    return Blame(tuple(sorted(hung)), tuple(sorted(waiting)), found)


def _rules(
    stacks: Sequence[RankStack], finding: Finding, levels: Mapping[int, Waits], fault: set[int]
) -> Iterator[set[int]]:
    """Yield who hangs by each rule, the surest first; nobody where it says nothing.

    ``fault``: those who left out a collective of which torch has a record.
    """
    least, most = min(levels.values(), default=Waits.NO), max(levels.values(), default=Waits.NO)
    stuck = {stack.rank for stack in stacks if stack.state in CANNOT_RUN}
    if isinstance(finding, TimerExpired):
        # one that surely waits for another that can be named only waits
        waits_too = levels.get(finding.rank) is Waits.SURELY and finding.rank not in stuck
        yield {finding.rank} if not waits_too or not (stuck or least < Waits.SURELY) else set()
    yield stuck
    yield {stack.rank for stack in stacks if stack.locks}
    yield fault
    if least < most:
        yield {rank for rank, level in levels.items() if level == least}
    # Either all may wait for others, or none does: who is elsewhere stands apart.
    together: dict[tuple[Frame, ...], set[int]] = defaultdict(set)
    for stack in stacks:
        if stack.frames:
            together[place(stack.frames)].add(stack.rank)
    by_size = sorted(together.values(), key=len, reverse=True)
    if len(by_size) > 1 and len(by_size[0]) > len(by_size[1]):
        yield set().union(*by_size[1:])
    named = set(suspects(finding))
    yield named if named < {stack.rank for stack in stacks} else set()


def blame_now(stacks: Sequence[RankStack], time_ns: int) -> Blame:
    """Judge who stands apart in a run that may be healthy, of which this is one moment.

    Ranks of a healthy run are at different collectives all the time. So what they have recorded
    counts only if some of them have waited for seconds, and where no recorder tells that they
    still wait, if their stacks do not say otherwise.

    ``time_ns``: a moment before any of them was asked, nanoseconds since the epoch.
    """
    finding = Asked(STACKS_ON)
    found = blame(stacks, finding)
    if found.collectives is None or _lasts(found.collectives, stacks, time_ns):
        return found
    return blame([replace(each, trace=None) for each in stacks], finding)


def _lasts(found: Disagreement, stacks: Iterable[RankStack], time_ns: int) -> bool:
    """Whether ranks had been in what they do not agree on for some seconds."""
    moments = [party.collective.created_ns for party in found.parties]
    since = min(filter(None, moments), default=time_ns)
    if since > time_ns - _LASTING_SECONDS * 10**9:
        return False
    came = found.parties[1:] if found.kind == "absent" else found.parties
    ranks = {rank for party in came for rank in party.ranks}
    return any(
        not stack.frames
        or waits(stack.frames) is not Waits.NO
        or any(group.states for group in stack.trace.groups)
        for stack in stacks
        if stack.trace is not None and stack.trace.rank in ranks
    )


def _is_one_of(path: str, parts: Iterable[str]) -> bool:
    return any(part in path for part in parts)
