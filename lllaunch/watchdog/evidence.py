"""What is known of where workers stand and what they have called, and what follows from it.

One record for each worker, gathered in one look. Only what is written and read; who reads dumps
and traces is `lllaunch.watchdog.frames` and `collectives`, who judges them `blame`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Literal

from msgspec.structs import replace

from lllaunch.documents import Record, RunPath, Text

# What stands before a library's own path, Python's own included.
LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3[^/]*/")
# Wrappers around a library's public functions, which say nothing of what was called.
WRAPPERS = ("/torch/distributed/c10d_logger.py", "/torch/utils/_contextlib.py", "/contextlib.py")

Source = Literal["faulthandler", "py-spy", "kernel", ""]


class Frame(Record, frozen=True):
    """One call."""

    file: str  # path of the source file
    line: int  # line in it
    function: str  # what is being run
    code: str = ""  # the text of the line, empty if it is not known

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def is_own(frame: Frame) -> bool:
    """Whether a frame is of the user's code, as far as its path tells."""
    return not frame.file.startswith("<") and LIBRARY.match(frame.file) is None


def bare(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Frames without the text of their lines, which is not read each time."""
    return tuple(replace(frame, code="") for frame in frames)


class LockWait(Record, frozen=True):
    """A thread that waits for a lock."""

    thread: str  # its name, ``main thread``, or its number where Python does not tell the name
    frame: Frame  # the call of the user's code that waits, with its line


class Thread(Record, frozen=True):
    """A thread that runs Python."""

    name: str = ""
    frames: tuple[Frame, ...] = ()  # innermost first


class Call(Record, frozen=True):
    """One call of a collective operation."""

    number: int  # torch's ``collective_seq_id`` in its group, from 1 on
    operation: str  # ``all_reduce``
    # shapes of the tensors that went in; none where they are not known
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()  # their types, ``float32``
    created_ns: int = 0  # when it was called, nanoseconds since the epoch; 0 if that is not known
    completed: bool = False  # whether it is known to be over


class GroupTrace(Record, frozen=True):
    """The calls of one rank in one process group."""

    name: str  # torch's name of the group, the same in all of its ranks
    description: str = ""  # for people: ``default_pg``, or what the user has called it
    ranks: tuple[int, ...] = ()  # who belongs to it; empty if that is not known
    calls: tuple[Call, ...] = ()  # by number; the last of them if there were many
    states: bool = False

    @property
    def last(self) -> int:
        """The number of the last call, 0 before the first."""
        return self.calls[-1].number if self.calls else 0

    @property
    def open(self) -> int:
        """The number of the first call that is not known to be over."""
        if not self.states:
            return self.last
        return next((call.number for call in self.calls if not call.completed), self.last + 1)

    def call(self, number: int) -> Call | None:
        """The call of a number, None if it has not come or is not known any more."""
        return next((call for call in self.calls if call.number == number), None)


class RankTrace(Record, frozen=True):
    """What one rank has recorded."""

    rank: int
    groups: tuple[GroupTrace, ...] = ()
    # the exception that its main thread handled, and where it was raised; or an empty string
    handled: str = ""

    def group(self, name: str) -> GroupTrace:
        """A group by its name; one without calls if the rank knows none."""
        return next((each for each in self.groups if each.name == name), GroupTrace(name))


class RankStack(Record, frozen=True):
    """Where one worker stands."""

    BESIDE = frozenset({"trace", "threads", "process"})

    rank: int  # its local rank; in what is told of a run, its rank among all workers
    path: RunPath = ""  # its stacks.txt, or an empty string if there is none
    # of its main thread, innermost first; at most `MAX_FRAMES`, none if they are not known
    frames: tuple[Frame, ...] = ()
    # its state letter in /proc (``S`` sleeping, ``R`` running, ``D`` uninterruptible sleep, ``T``
    # stopped), or an empty string
    state: Text = ""
    wchan: Text = ""  # kernel function that it waits in, or an empty string
    source: Text = ""  # where the frames are from; empty if nothing is known of it
    # its threads that wait for locks, if there are two or more: perhaps for each other
    locks: tuple[LockWait, ...] = ()
    handled: Text = ""  # the exception that it handled, and where that was raised
    trace: RankTrace | None = None  # which collectives it has come to, or None if that is not known
    threads: tuple[Thread, ...] = ()  # the main one first; only at a glance
    process: int = 0  # the process that these are of, which may be one below the worker; 0 for none


class Waits(IntEnum):
    """Whether a worker waits for others."""

    NO = 0
    PERHAPS = 1
    SURELY = 2


DEFAULT = "default_pg"
"""What torch calls the process group of all ranks."""
# Of one group, in a sentence.
MOST_PARTIES = 4

Kind = Literal["absent", "arguments", "operations", "waiting"]


class Party(Record, frozen=True):
    """Ranks that have done the same."""

    ranks: tuple[int, ...]  # among all workers
    # the operation that they have called; of those who never came, the one that they did not call
    collective: Call
    group: str = DEFAULT  # the process group that it is of, for people
    # where they stand, ``/path/train.py:12``; empty if that is not known
    places: tuple[str, ...] = ()


class Disagreement(Record, frozen=True):
    """Ranks that do not agree on a collective operation, or that all wait in one."""

    DERIVED = ("text",)

    # ``absent``: the first party never came to an operation, and those after it wait in that or in
    # later ones; ``arguments``: they have called it with other sizes or types; ``operations``: they
    # have called different ones; ``waiting``: they wait, and it is not known for whom
    kind: Kind
    parties: tuple[Party, ...]  # who did what; the odd ones first, if there are such
    at_fault: tuple[int, ...] = ()  # whose doing it is; none if that cannot be told
    instead: Party | None = None  # those who left the operation out wait with these, in another one

    @property
    def text(self) -> str:
        """The sentence."""
        from lllaunch.watchdog.collectives import sentence  # noqa: PLC0415 - few runs have one

        return sentence(self)


class Blame(Record, frozen=True):
    """Who hangs, and who only waits for that. Local ranks; both may be empty."""

    hung: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()  # those that wait for the others in a collective operation
    # the operation that they do not agree on, or None; its ranks are among all workers
    collectives: Disagreement | None = None


NOBODY = Blame()
"""Nobody hangs, as far as can be told."""
