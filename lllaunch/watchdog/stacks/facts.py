"""What is known of where a worker stands. Pure data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# What stands before a library's own path, Python's own included.
LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3[^/]*/")
# Wrappers around a library's public functions, which say nothing of what was called.
WRAPPERS = ("/torch/distributed/c10d_logger.py", "/torch/utils/_contextlib.py", "/contextlib.py")

Source = Literal["faulthandler", "py-spy", "kernel", ""]


@dataclass(frozen=True)
class Frame:
    """One call.

    Attributes:
        file: path of the source file.
        line: line in it.
        function: what is being run.
        code: the text of the line, empty if it is not known.
    """

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class LockWait:
    """A thread that waits for a lock.

    Attributes:
        thread: its name, ``main thread``, or its number where Python does not tell the name.
        frame: the call of the user's code that waits, with its line.
    """

    thread: str
    frame: Frame


@dataclass(frozen=True)
class RankStack:
    """Where one worker stands.

    Attributes:
        rank: its local rank.
        path: its stacks.txt, or an empty string if there is none.
        frames: of its main thread, innermost first; at most twelve, none if they are not known.
        state: its state letter in /proc (``S`` sleeping, ``R`` running, ``D`` uninterruptible
            sleep, ``T`` stopped), or an empty string.
        wchan: kernel function that it waits in, or an empty string.
        source: where the frames are from; empty if nothing is known of it.
        locks: its threads that wait for locks, if there are two or more: perhaps for each other.
    """

    rank: int
    path: str = ""
    frames: tuple[Frame, ...] = ()
    state: str = ""
    wchan: str = ""
    source: Source = ""
    locks: tuple[LockWait, ...] = ()


@dataclass(frozen=True)
class Blame:
    """Who hangs, and who only waits for that. Local ranks; both may be empty.

    Attributes:
        hung: those that hang by themselves.
        waiting: those that wait for the others in a collective operation.
    """

    hung: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
