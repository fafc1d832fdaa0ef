"""Who hangs, and who only waits for that. Pure.

The common case is a collective operation that one rank does not join: that one hangs, and all who
did join wait in it. So a worker is judged by how surely its innermost frames are those of a
collective, and of several workers those hang that are surely in none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from lllaunch.watchdog.findings import Finding, OverMemory, TimerExpired, suspects
from lllaunch.watchdog.stacks.frames import Blame, Frame, RankStack

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
_CANNOT_RUN = "TtD"


class Waits(IntEnum):
    """Whether a worker waits for others."""

    NO = 0
    PERHAPS = 1
    SURELY = 2


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
    """Judge who hangs.

    Args:
        stacks: where the workers stand; those without frames are not judged by them.
        finding: what the watchdog found.

    Returns:
        Local ranks; none where nothing can be told.
    """
    if isinstance(finding, OverMemory):
        return Blame(hung=(finding.rank,))
    levels = {stack.rank: waits(stack.frames) for stack in stacks if stack.frames}
    stuck = {stack.rank for stack in stacks if stack.state and stack.state in _CANNOT_RUN}
    if isinstance(finding, TimerExpired) and not _innocent(finding.rank, levels, stuck):
        return _blamed({finding.rank}, levels)
    stuck = stuck or {stack.rank for stack in stacks if stack.locks}
    if stuck:
        return _blamed(stuck, levels)
    if levels and min(levels.values()) < max(levels.values()):
        least = min(levels.values())
        return _blamed({rank for rank, level in levels.items() if level == least}, levels)
    # Either all may wait for others, or none does: who is elsewhere stands apart.
    places = {stack.rank: place(stack.frames) for stack in stacks if stack.frames}
    named = set(suspects(finding))
    some = named if named < {stack.rank for stack in stacks} else set()
    return _blamed(_minority(places) or some, levels)


def _innocent(rank: int, levels: Mapping[int, Waits], stuck: set[int]) -> bool:
    """Whether the one whose timer ran out only waits, for another that can be named."""
    if levels.get(rank, Waits.NO) is not Waits.SURELY or rank in stuck:
        return False
    return bool(stuck) or min(levels.values()) < Waits.SURELY


def _blamed(hung: set[int], levels: Mapping[int, Waits]) -> Blame:
    if not hung:
        return Blame()
    waiting = [rank for rank, level in levels.items() if level and rank not in hung]
    return Blame(tuple(sorted(hung)), tuple(sorted(waiting)))


def _minority(places: Mapping[int, tuple[Frame, ...]]) -> set[int]:
    """Ranks that are not where most are; none if all are, or if no place has most."""
    together: dict[tuple[Frame, ...], set[int]] = defaultdict(set)
    for rank, where in places.items():
        together[where].add(rank)
    by_size = sorted(together.values(), key=len, reverse=True)
    if len(by_size) < 2 or len(by_size[0]) == len(by_size[1]):
        return set()
    return set().union(*by_size[1:])


def _is_one_of(path: str, parts: Iterable[str]) -> bool:
    return any(part in path for part in parts)
