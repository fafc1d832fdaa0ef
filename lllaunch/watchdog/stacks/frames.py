"""Where workers stand: their frames, how they are read from dumps, and the text of their lines.

What faulthandler and py-spy write is read as far as it can be understood: it is for people, and
changes from version to version. What is not understood is passed over, so the worst is that no
frames are found.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from lllaunch.documents import Record, RunPath, Text

if TYPE_CHECKING:
    from lllaunch.watchdog.collectives import Disagreement, RankTrace
else:
    # nobody reads them in what was written of a stack
    Disagreement = RankTrace = Any

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


class LockWait(Record, frozen=True):
    """A thread that waits for a lock."""

    thread: str  # its name, ``main thread``, or its number where Python does not tell the name
    frame: Frame  # the call of the user's code that waits, with its line


class RankStack(Record, frozen=True):
    """Where one worker stands."""

    BESIDE = frozenset({"trace"})

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
    trace: RankTrace | None = None  # which collectives it has come to, or None if that is not known


class Waits(IntEnum):
    """Whether a worker waits for others."""

    NO = 0
    PERHAPS = 1
    SURELY = 2


class Blame(Record, frozen=True):
    """Who hangs, and who only waits for that. Local ranks; both may be empty."""

    hung: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()  # those that wait for the others in a collective operation
    # the operation that they do not agree on, or None; its ranks are among all workers
    collectives: Disagreement | None = None


# As many as faulthandler writes of a thread: where ranks part is seen from the outermost on.
MAX_FRAMES = 100

# `Thread 0x00007f... [name] (most recent call first):`; the name since Python 3.13, and cut off
# where it is long. The current thread's C stack, which Python 3.14 may add, is another matter.
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+\b(?: \[(.*?)\])?.*:$")
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?+) in (.*)$')
_MORE_THREADS = "..."
MAIN_THREAD = "MainThread"
"""What Python calls the main thread."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")

# `Thread 5676 (idle): "MainThread"`
_SPY_THREAD = re.compile(r'Thread (\w+)\b.*?(?::\s*"(.*)")?$')
_SPY_FRAME = re.compile(r"    (\S.*?) \((.+):(\d{1,9})\)$")
_SPY_PROCESS = re.compile(r"Process (\d+)\b")


# How every worker of ours begins, from the innermost of our own frames on; that of a Hydra app has
# its user's script around it. Functions are recorded.
_BEGINNING = ("/lllaunch/spawner/", "/lllaunch/app/own_worker.py")
# What stands between that and the user's function: the recorder.
_BETWEEN = "/lllaunch/failure.py"


def is_own(frame: Frame) -> bool:
    """Whether a frame is of the user's code, as far as its path tells."""
    return not frame.file.startswith("<") and LIBRARY.match(frame.file) is None


def bare(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Frames without the text of their lines, which is not read each time."""
    return tuple(replace(frame, code="") for frame in frames)


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


class Thread(NamedTuple):
    """One thread in a dump."""

    name: str
    current: bool
    frames: list[Frame]


def faulthandler_threads(text: str) -> tuple[list[Thread], bool]:
    """The threads in a dump in the order in which they are listed, and whether more were left out.

    That is from the newest to the oldest.
    """
    threads: list[Thread] = []
    cut = False
    inside = False
    for line in text.splitlines():
        header = _THREAD.match(line)
        if header is not None:
            inside = True
            threads.append(Thread(header[2] or "", header[1] == "Current thread", []))
            continue
        cut = cut or line == _MORE_THREADS
        found = _FRAME.match(line)
        if found is not None and inside:
            number = int(found[2]) if found[2].isdecimal() else 0
            threads[-1].frames.append(Frame(_unescaped(found[1]), number, _unescaped(found[3])))
        elif not line.startswith(" "):
            inside = False
    return threads, cut


def faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread in a dump of all threads, innermost first.

    The main thread is the oldest, so it is listed last. Only when there are more than are listed
    is it taken to be the current one: the kernel has the main thread run a signal's handler if it
    can.
    """
    threads, cut = faulthandler_threads(text)
    if not threads:
        return ()
    if cut:
        return crash_frames(text)
    return users_part(threads[-1].frames)


def crash_frames(text: str) -> tuple[Frame, ...]:
    """Frames of the thread that wrote a dump, such as the one that a fatal signal struck.

    A thread of native code is not listed: then they are the main thread's, which may have waited
    for it.
    """
    threads, cut = faulthandler_threads(text)
    main = [] if cut or not threads else threads[-1].frames
    return users_part(next((thread.frames for thread in threads if thread.current), main))


def _pyspy_threads(text: str) -> tuple[Thread | None, list[Thread]]:
    """The main thread in a dump of py-spy, None where it cannot be told, and all others.

    The main thread is the one that bears the process's number, or else that name. Of Python 3.10
    py-spy knows neither: then it is the only one, or it cannot be told.
    """
    pid = ""
    threads: list[Thread] = []
    numbers: list[str] = []
    for line in text.splitlines():
        process = _SPY_PROCESS.match(line)
        if process is not None and not pid:
            pid = process[1]
        thread = _SPY_THREAD.match(line)
        if thread is not None:
            threads.append(Thread(thread[2] or "", current=False, frames=[]))
            numbers.append(thread[1])
            continue
        found = _SPY_FRAME.match(line)
        if found is not None and threads:
            threads[-1].frames.append(Frame(found[2], int(found[3]), found[1]))
    with_frames = [index for index, thread in enumerate(threads) if thread.frames]
    by_number = [index for index in with_frames if numbers[index] == pid]
    by_name = [index for index in with_frames if threads[index].name == MAIN_THREAD]
    only = [0] if len(threads) == 1 else []
    main = next(iter(by_number or by_name or only), None)
    others = [thread for index, thread in enumerate(threads) if index != main]
    return None if main is None else threads[main], others


def pyspy_frames(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread in a dump of py-spy, innermost first."""
    main, _ = _pyspy_threads(text)
    return () if main is None else users_part(main.frames)


def named_threads(text: str, source: Source) -> tuple[Thread, ...]:
    """The threads in a dump that have frames, the main one first, each with a name."""
    main: Thread | None = None
    if source == "py-spy":
        main, others = _pyspy_threads(text)
    else:
        listed, cut = faulthandler_threads(text)
        # from the oldest on, as they were started
        others = listed[::-1]
        chosen = [index for index, each in enumerate(others) if each.current or not cut][:1]
        main = others.pop(chosen[0]) if chosen else None
    known = [] if main is None else [main._replace(name=MAIN_THREAD)]
    known += [each._replace(name=each.name or "another thread") for each in others]
    return tuple(
        each._replace(frames=list(users_part(each.frames))) for each in known if each.frames
    )


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


class Sources:
    """Reads source files, each once.

    ``before``: files that were changed after this time (seconds since the epoch) are not those that
    the process runs.
    """

    def __init__(self, before: float) -> None:
        self._before = before
        self._files: dict[str, list[str]] = {}

    def line(self, path: str, number: int) -> str:
        """A line of a file without blanks around it; empty if it cannot be told."""
        lines = self._files.get(path)
        if lines is None:
            lines = self._files[path] = self._read(path)
        return lines[number - 1].strip()[:_MAX_WIDTH] if 0 < number <= len(lines) else ""

    def filled(self, frame: Frame) -> Frame:
        """A frame with the text of its line."""
        return replace(frame, code=self.line(frame.file, frame.line))

    def _read(self, path: str) -> list[str]:
        # `<string>`, `<frozen runpy>`, or relative to a directory that is not known here.
        if not path.endswith(".py") or not os.path.isabs(path):
            return []
        try:
            found = os.stat(path)
            good = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES
            if not good or found.st_mtime > self._before + _SLACK:
                return []
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read().splitlines()
        except (OSError, ValueError):
            return []


# A lock is taken in C, so a thread that waits for one stands in the line that takes it. What is
# called in a `with` may be anything, and would have a frame of its own if it were Python's.
_TAKES_LOCK = re.compile(r"(?:async )?with [^()]+:|.*\.acquire\(")


def lock_waits(threads: Iterable[tuple[str, Frame]], sources: Sources) -> tuple[LockWait, ...]:
    """Which threads of a process wait for locks; none if fewer than two do."""
    found = []
    for name, frame in threads:
        code = sources.line(frame.file, frame.line)
        if _TAKES_LOCK.match(code) and not LIBRARY.match(frame.file):
            found.append(LockWait(name, replace(frame, code=code)))
    return tuple(found) if len(found) > 1 else ()


def with_code(stacks: Iterable[RankStack], sources: Sources) -> tuple[RankStack, ...]:
    """The same stacks, the innermost of their frames and the user's own with the text of lines."""

    def quoted(number: int, frame: Frame) -> Frame:
        return sources.filled(frame) if number < _INNERMOST or is_own(frame) else frame

    return tuple(
        replace(stack, frames=tuple(itertools.starmap(quoted, enumerate(stack.frames))))
        for stack in stacks
    )
