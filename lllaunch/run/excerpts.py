"""What workers left, read for people: tracebacks, the ends of files, and what they returned.

Bounded, and never raising: a worker may have written anything, gigabytes, half a character,
terminal escapes, no JSON at all. What is not understood of a traceback is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lllaunch.documents import as_object
from lllaunch.failure import read_error_file
from lllaunch.files import read_bytes, read_text
from lllaunch.run.observer import WorkerError
from lllaunch.run.result import CalledExit, DiskFull, Excerpt, ReturnValue, RootCause
from lllaunch.spawner.evidence import CRASH, EXIT_FILE, INLINE_LIMIT, TRACE_FILE
from lllaunch.text import clean
from lllaunch.watchdog.evidence import LIBRARY, WRAPPERS, Frame, is_own
from lllaunch.workers.log_files import LOGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lllaunch.run.observer import WorkerRecord
    from lllaunch.run.result import RunResult


_TITLE = "Traceback (most recent call last):"
_HEADER = re.compile(rf"^{re.escape(_TITLE)}\n", re.MULTILINE)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9})(?:, in (.*))?$')
_CAUSED = "The above exception was the direct cause of the following exception:"


class Block(NamedTuple):
    """The traceback of one exception of a chain, after how it follows from the one before.

    The code of its calls is all lines that show them there.
    """

    before: list[str]
    calls: list[Frame]
    error: list[str]


def blocks(text: str) -> list[Block]:
    """Returns the exceptions of a chain, the first that was raised first."""
    before, *parts = _HEADER.split(text)
    found: list[Block] = []
    how = before.split("\n")[:-1]
    for number, part in enumerate(parts):
        calls: list[Frame] = []
        lines = part.split("\n")
        end = next((at for at, line in enumerate(lines) if not line.startswith("  ")), len(lines))
        for line in lines[:end]:
            frame = _FRAME.match(line)
            if frame is not None:
                calls.append(Frame(frame[1], int(frame[2]), frame[3] or "", line))
            elif calls:
                calls[-1] = replace(calls[-1], code=f"{calls[-1].code}\n{line}")
        error, begins = lines[end:], how
        if number < len(parts) - 1:
            # an empty line, how the next one follows, and another empty one
            error, how = error[:-4], error[-4:-1]
        found.append(Block(begins, calls, error))
    return found


def _innermost_own(text: str) -> list[Frame]:
    """Return the innermost frame of the user's code in a traceback, and those below it.

    Of a chain, that of the last exception which has one.
    """
    for block in reversed(blocks(text)):
        own = [index for index, call in enumerate(block.calls) if is_own(call)]
        if own:
            return block.calls[own[-1] :]
    return []


def users_call(text: str) -> Frame | None:
    """Returns the innermost frame of the user's code in a traceback, None if there is none."""
    return next(iter(_innermost_own(text)), None)


def place_of(root: RootCause) -> Frame | None:
    """Return the call in the user's code that a run failed in, None if that is not known."""
    if isinstance(root.cause, CalledExit):
        return Frame(root.cause.file, root.cause.line, root.cause.function)
    hang = root.hang
    stack = None if hang is None else hang.stacks.get(next(iter(hang.blamed), -1))
    frames = root.frames if stack is None else stack.frames
    return users_call(root.traceback) or next((frame for frame in frames if is_own(frame)), None)


def called(text: str) -> str:
    """Returns what the user's code called when the exception came out of it: ``all_reduce``.

    An empty string where the user's own code raised it, or nothing is known.
    """
    below = (call for call in _innermost_own(text)[1:] if not call.file.endswith(WRAPPERS))
    return next((call.function for call in below), "")


def cause_of(text: str) -> str:
    """Returns the message of the exception that a chain began with, an empty string without one.

    Only what was raised ``from`` another counts: one that came up while another was handled may
    have nothing to do with it.
    """
    chain = blocks(text)
    first = len(chain) - 1
    while first > 0 and _CAUSED in chain[first].before:
        first -= 1
    if first < 0 or first == len(chain) - 1 or not chain[first].error:
        return ""
    return chain[first].error[0].strip()


def _without_cycles(calls: list[Frame]) -> list[Frame]:
    """Return calls with each series that comes over and over, of a recursion, once."""
    kept: list[Frame] = []
    at = 0
    while at < len(calls):
        period, rounds = 1, 1
        for length in range(1, _LONGEST_CYCLE + 1):
            first, times = calls[at : at + length], 1
            while calls[at + times * length : at + (times + 1) * length] == first:
                times += 1
            if times > 2:
                period, rounds = length, times
                break
        kept += calls[at : at + period]
        if rounds > 1:
            names = " → ".join(call.function for call in kept[-period:])
            more = f"  ... {names} {rounds - 1} more times"
            kept[-1] = replace(kept[-1], code=f"{kept[-1].code}\n{more}")
        at += period * rounds
    return kept


def folded(text: str) -> list[str]:
    """Returns the lines of a traceback, with calls inside of libraries folded to one line.

    Of a recursion one round of its calls stays, of each exception the innermost call, and all of a
    traceback without any of the user's.
    """
    lines: list[str] = []
    for block in blocks(text):
        lines += [*block.before, _TITLE]
        inside: list[Frame] = []
        calls = _without_cycles(block.calls)
        for call in calls:
            if not is_own(call) and call is not calls[-1]:
                inside.append(call)
                continue
            # one call takes no more lines than what would stand for it
            if len(inside) > 1:
                names: dict[str, None] = {}
                for each in inside:
                    name = LIBRARY.sub("", each.file, count=1).partition("/")[0]
                    names.setdefault(name.removesuffix(".py"))
                lines.append(f"  ... {len(inside)} calls in {', '.join(names)}")
            else:
                lines += [line for each in inside for line in each.code.split("\n")]
            inside = []
            lines += call.code.split("\n")
        lines += block.error
    return lines or text.split("\n")


LINES = 20
_TAIL_BYTES = 64 * 1024
_LINE_CHARACTERS = 400
_FILE_BYTES = 16 << 20
# A file system with less free than this is full, bytes: one traceback may take that.
_ROOM = 64 * 1024
# What an exception says of which more stands in standard error: by torch's anomaly mode, or by a
# kernel.
_WRITTEN = re.compile(r"' returned nan values in|device-side assert")
# What gloo says when another rank sends more than fits.
_OTHER_SIZE = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")
# What a thread of a CUDA kernel says.
_KERNEL_CHECK = re.compile(r"([\w.]+):\d+: .*: block: .* Assertion (`.+`) failed")
# So many functions may call each other in a recursion that is folded.
_LONGEST_CYCLE = 8
# faulthandler's words
_FATAL = "Fatal Python error: "
_DUMPED = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*:$|Extension modules: ")


def clean_lines(text: str) -> tuple[str, ...]:
    r"""Returns the lines of ``text`` as a terminal would show them at the end.

    Of a line that was drawn over with ``\r`` (a progress bar) the last drawing counts; trailing
    blank lines are dropped, very long lines shortened.
    """
    lines = []
    for line in text.split("\n"):
        drawings = [part for part in line.split("\r") if part]
        shown = clean(drawings[-1] if drawings else "").rstrip()
        more = len(shown) - _LINE_CHARACTERS
        if more > 0:
            shown = f"{shown[:_LINE_CHARACTERS]}... ({more} more characters)"
        lines.append(shown)
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(lines)


def tail(path: str, lines: int = LINES, hide: Callable[[str], str] = str) -> Excerpt | None:
    """Returns the last lines of a log, None if it cannot be read.

    Shows at most 64 KiB, from the end, however long the file is; as much before that is read, so
    that a secret of several lines is seen as one.
    """
    try:
        data = read_bytes(path, 2 * _TAIL_BYTES)
    except OSError:
        return None
    text = hide(data.decode("utf-8", errors="replace"))
    cut = len(data) == 2 * _TAIL_BYTES or len(text) > _TAIL_BYTES
    found = clean_lines(text[-_TAIL_BYTES:])
    if cut and len(found) > 1:
        found = found[1:]  # its beginning is before what is shown
    return Excerpt(path, found[-lines:], cut=cut or len(found) > lines)


def read_evidence(worker: WorkerRecord, hide: Callable[[str], str] = str) -> None:
    """Read what a worker that has ended wrote of that."""
    assert worker.exited is not None
    code, files = worker.exited.exitcode, worker.files
    if files.error and code >= 0:
        worker.exit_call = read_exit_call(files.error, code, hide)
    if files.error and code:
        worker.error = read_error(files.error, hide)
        with contextlib.suppress(OSError):
            trace = read_bytes(os.path.join(files.directory, TRACE_FILE), _FILE_BYTES)
            from lllaunch.watchdog.collectives import read_trace  # noqa: PLC0415 - seldom there

            worker.trace = read_trace(trace, worker.rank, ended=True)
    if code > 0 and not os.path.exists(files.error):
        with contextlib.suppress(OSError):
            disk = os.statvfs(files.directory)
            total, free = (n * disk.f_frsize for n in (disk.f_blocks, disk.f_bavail))
            if free < _ROOM:
                worker.disk = DiskFull(code, files.directory, total, free)
    if code < 0 and not worker.sent:
        worker.crash = read_crash(files.directory, files.stderr, hide)
    aborted = code == -signal.SIGABRT and not worker.sent
    if aborted or (worker.error and _WRITTEN.search(worker.error.message)):
        excerpt = tail(files.stderr, 100 * LINES, hide)
        text = "" if excerpt is None else "\n".join(excerpt.lines)
        _, found, after = text.rpartition("Traceback of forward call that caused the error:")
        worker.forward = users_call(f"{_TITLE}{after.partition(_TITLE)[0]}") if found else None
        if check := _KERNEL_CHECK.search(text):
            worker.kernel_check = f"{check[2]} ({check[1]})"
        if sizes := _OTHER_SIZE.search(text):
            worker.misfit = int(sizes[1]), int(sizes[2])


def read_crash(directory: str, stderr: str, hide: Callable[[str], str] = str) -> tuple[Frame, ...]:
    """Returns where a worker stood when a fatal signal ended it, if Python wrote that.

    Its own faulthandler writes to its standard error.
    """
    from lllaunch.watchdog.frames import crash_frames  # noqa: PLC0415 - seldom there

    for path in (os.path.join(directory, CRASH), stderr):
        try:
            text = read_bytes(path, _TAIL_BYTES).decode("utf-8", errors="replace")
        except OSError:
            continue
        found = text.rfind(_FATAL)
        # of SIGXCPU, which is none of Python's fatal ones, it writes the stacks alone
        if found >= 0 or path != stderr:
            return crash_frames(clean_text(hide(text[max(0, found) :])))
    return ()


def without_dump(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns lines of a log without the stacks that faulthandler wrote there."""
    kept: list[str] = []
    inside = False
    for line in lines:
        if _DUMPED.match(line):
            inside = True
        elif not (inside and (line.startswith("  ") or not line.strip())):
            inside = False
            kept.append(line)
    return tuple(kept)


def read_error(path: str, hide: Callable[[str], str] = str) -> WorkerError | None:
    """Reads a worker's error.json, ours or torch's; None if it is not there or makes no sense."""
    try:
        if not 0 < os.stat(path).st_size <= _FILE_BYTES:
            return None
    except OSError:
        return None
    record = read_error_file(path)
    said = {"message": record.message} if isinstance(record.message, str) else record.message
    text, extra = said.get("message"), said.get("extraInfo")
    if record.problem or not isinstance(text, str):
        return None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    stack = stack if isinstance(stack, str) else ""
    return WorkerError(clean_text(hide(text)), clean_text(hide(stack)), record.time_ns)


def read_exit_call(
    error_file: str, exitcode: int, hide: Callable[[str], str] = str
) -> CalledExit | None:
    """Reads a worker's exit.json; None if it is not there, makes no sense, or is not why it ended.

    A code that is text was written to standard error; the status is 1 then.
    """
    try:
        path = os.path.join(os.path.dirname(error_file), EXIT_FILE)
        data = json.loads(read_bytes(path, _FILE_BYTES))
        code = data["code"]
        if not isinstance(code, int):
            first = clean_text(hide(str(code))).partition("\n")[0]
            code = repr(textwrap.shorten(first, 60, placeholder="..."))
        elif code & 0xFF != exitcode:
            # a thread, or a function called at the end, has ended it with another status
            return None
        place = clean(str(data["file"])), int(data["line"]), clean(str(data["function"]))
        return CalledExit(exitcode, str(code), *place)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def clean_text(text: str) -> str:
    """Returns ``text`` with each of its lines cleaned."""
    return "\n".join(clean_lines(text))


RETURN_JSON = "return.json"
RETURN_PICKLE = "return.pkl"
RETURN_META = "return.meta.json"


def find_return_value(directory: str) -> ReturnValue | None:
    """Return what the worker of a directory returned or reported, None if it did neither."""
    path, json_path = (os.path.join(directory, each) for each in (RETURN_PICKLE, RETURN_JSON))
    text = None
    # ``NaN`` and ``Infinity``, which Python writes, are no JSON: others would stumble over them
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = read_bytes(json_path, INLINE_LIMIT + 1)
        if len(data) <= INLINE_LIMIT:
            msgspec.json.decode(data)
            text = data.decode()
    with contextlib.suppress(OSError):
        size = os.stat(path).st_size
        meta = as_object(read_text(os.path.join(directory, RETURN_META)) or "")
        told = (meta or {}).get("type")
        return ReturnValue(path, size, told if isinstance(told, str) else "unknown", text)
    with contextlib.suppress(OSError):
        return ReturnValue(json_path, os.stat(json_path).st_size, "json", text)
    return None


def complete(
    result: RunResult, failure: tuple[str, int] | None, hide: Callable[[str], str]
) -> RunResult:
    """Add an error of our own, as message and exit code, or what has to be read from files.

    Of a run that has succeeded no empty file is kept of what its workers wrote.
    """
    if failure is not None:
        return result.with_error(*failure)
    root = result.root_cause
    if root is not None and root.frames:
        from lllaunch.watchdog.frames import quoted  # noqa: PLC0415 - seldom needed

        # the text of their lines, where the files are what ran
        began = result.started_ns / 1e9
        root = replace(root, frames=tuple(quoted(each, began) for each in root.frames))
        result = replace(result, root_cause=root)
    if root is not None and root.stderr and not root.traceback:
        excerpt = tail(root.stderr, 20 * LINES if root.frames else LINES, hide)
        if excerpt is not None and root.frames:
            # without stacks that the report shows anyway
            lines = without_dump(excerpt.lines)
            cut = excerpt.cut or len(lines) > LINES
            excerpt = replace(excerpt, lines=lines[-LINES:], cut=cut)
        result = replace(result, excerpt=excerpt)
    if result.state == "succeeded":
        last = result.attempts[-1]
        values = {}
        for worker in last.workers:
            directory = f"{last.path}/{worker.local_rank}"
            if (value := find_return_value(directory)) is not None:
                values[worker.rank] = value
            for name in (*LOGS, EXIT_FILE):
                path = f"{directory}/{name}"
                with contextlib.suppress(OSError):
                    if name == EXIT_FILE or not os.lstat(path).st_size:
                        os.unlink(path)
        result = replace(result, return_values=values)
    return result
