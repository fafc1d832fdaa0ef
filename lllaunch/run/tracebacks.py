"""Reads tracebacks as Python writes them: where the user's code stands, and what caused what.

Pure. Tracebacks come from workers and may hold anything: what is not understood is left as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.watchdog.stacks.frames import LIBRARY, WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9})(?:, in (.*))?$')
_CAUSED = "The above exception was the direct cause of the following exception:"


class TracebackFrame(NamedTuple):
    """One frame of a traceback.

    Attributes:
        file: path of the source file.
        line: line in it.
        function: what was being run.
        text: the lines that show it, as they stand in the traceback.
    """

    file: str
    line: int
    function: str
    text: tuple[str, ...] = ()

    @property
    def of_library(self) -> bool:
        """Whether it is of Python's own library or an installed package."""
        return LIBRARY.match(self.file) is not None or self.file.startswith("<")


class Block(NamedTuple):
    """The traceback of one exception of a chain.

    Attributes:
        before: lines before it: how it follows from the exception before.
        calls: outermost first.
        error: the lines that name the exception.
    """

    before: tuple[str, ...]
    calls: tuple[TracebackFrame, ...]
    error: tuple[str, ...]


def blocks(text: str) -> list[Block]:
    """Returns the exceptions of a chain, the first that was raised first."""
    found: list[Block] = []
    before: list[str] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if lines[at] != _HEADER:
            before.append(lines[at])
            at += 1
            continue
        at, calls = _calls(lines, at + 1)
        error = []
        while at < len(lines) and (lines[at] or not _begins_another(lines, at)):
            error.append(lines[at])
            at += 1
        found.append(Block(tuple(before), tuple(calls), tuple(error)))
        before = []
    if found and before:
        last = found[-1]
        found[-1] = last._replace(error=(*last.error, *before))
    return found


def _begins_another(lines: Sequence[str], at: int) -> bool:
    """Whether the next exception of a chain follows an empty line."""
    return _HEADER in lines[at : at + 4]


def _calls(lines: Sequence[str], at: int) -> tuple[int, list[TracebackFrame]]:
    calls: list[TracebackFrame] = []
    while at < len(lines) and lines[at].startswith("  "):
        frame = _FRAME.match(lines[at])
        if frame is not None:
            calls.append(TracebackFrame(frame[1], int(frame[2]), frame[3] or "", (lines[at],)))
        elif calls:
            calls[-1] = calls[-1]._replace(text=(*calls[-1].text, lines[at]))
        at += 1
    return at, calls


def users_call(text: str) -> TracebackFrame | None:
    """Returns the innermost frame of the user's code in a traceback, None if there is none.

    Of a chain, that of the last exception which has one.
    """
    for block in reversed(blocks(text)):
        for call in reversed(block.calls):
            if not call.of_library:
                return call
    return None


def called(text: str) -> str:
    """Returns what the user's code called when the exception came out of it: ``all_reduce``.

    An empty string where the user's own code raised it, or nothing is known.
    """
    for block in reversed(blocks(text)):
        own = [index for index, call in enumerate(block.calls) if not call.of_library]
        if own:
            below = block.calls[own[-1] + 1 :]
            plain = [call for call in below if not call.file.endswith(WRAPPERS)]
            return plain[0].function if plain else ""
    return ""


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


def folded(text: str) -> list[str]:
    """Returns the lines of a traceback, with calls inside of libraries folded to one line.

    The innermost call of each exception stays, and all of a traceback without any of the user's.
    """
    lines: list[str] = []
    for block in blocks(text):
        lines += [*block.before, _HEADER]
        keep = any(not call.of_library for call in block.calls)
        lines += _folded(block.calls) if keep else _innermost(block.calls)
        lines += block.error
    return lines or text.split("\n")


def _innermost(calls: Sequence[TracebackFrame]) -> Iterator[str]:
    """Yields the last of calls that are a library's only."""
    if len(calls) > 2:
        yield f"  ... {len(calls) - 1} calls in {_libraries(calls[:-1])}"
        calls = calls[-1:]
    for call in calls:
        yield from call.text


def _folded(calls: Sequence[TracebackFrame]) -> Iterator[str]:
    inside: list[TracebackFrame] = []
    for number, call in enumerate(calls, start=1):
        last = number == len(calls)
        if call.of_library and not last:
            inside.append(call)
            continue
        yield from _folded_run(inside)
        inside = []
        yield from call.text


def _folded_run(calls: Sequence[TracebackFrame]) -> Iterator[str]:
    if len(calls) == 1:
        yield from calls[0].text
    elif calls:
        yield f"  ... {len(calls)} calls in {_libraries(calls)}"


def _libraries(calls: Sequence[TracebackFrame]) -> str:
    """Returns the names of the libraries that calls are of, in order."""
    names: dict[str, None] = {}
    for call in calls:
        found = LIBRARY.match(call.file)
        inner = call.file[found.end() :] if found else call.file
        names.setdefault(inner.partition("/")[0].removesuffix(".py"))
    return ", ".join(names)
