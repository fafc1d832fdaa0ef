"""The lines of a sweep's journal: which are whole, and which were torn or damaged. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.sweep.records import Entry, Header, UnknownVersion, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Damaged(ValueError):
    """A line of a journal cannot be read, and it is not a torn last one.

    Attributes:
        line: its number, from 1.
        reason: what is wrong with it.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


def parse(
    lines: Iterable[bytes], end: int = 0, before: int = 0
) -> Iterator[tuple[int, Entry | None]]:
    """Reads the lines of a journal; pure.

    A last line without a newline is torn. So is one with NUL bytes in it: that is what a file
    system leaves, after a power failure, of data that had not reached the disk.

    Args:
        lines: in order, each with its newline if it has one.
        end: bytes of the lines before these.
        before: how many lines those were.

    Yields:
        for each line the bytes up to and with it, and its record; None if its type is not known.

    Raises:
        Damaged: a line cannot be read.
        UnknownVersion: the journal is of another version.
    """
    torn = 0
    for number, line in enumerate(lines, before + 1):
        if torn:
            raise Damaged(torn, "it holds NUL bytes")
        if b"\0" in line or not line.endswith(b"\n"):
            torn = number
            continue
        try:
            entry = decode(line)
        except UnknownVersion:
            raise
        except ValueError as error:
            raise Damaged(number, _reason(error)) from None
        if (number == 1) != (entry is not None and isinstance(entry.record, Header)):
            raise Damaged(number, "a sweep begins with its header, and only there")
        end += len(line)
        yield end, entry


def _reason(error: ValueError) -> str:
    # those of the decoders say at length where in the line they stopped
    return "it is not JSON" if type(error) is not ValueError else str(error)
