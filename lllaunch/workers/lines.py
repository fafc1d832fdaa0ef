"""The line splitter of the tee: blocks of a file in, whole prefixed lines out.

Pure: it sees bytes and counts offsets, and touches no file. A line that began in an earlier block
is not kept; it is named by its offsets (`Span`) and read from the file again when its end has
come. So a line of any length costs no memory, and every byte is looked at once.

A line that redraws itself with carriage returns, as progress bars do, counts as its last segment:
what would be seen on a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Span:
    """A line that began in an earlier block, without its end: bytes ``start`` to ``end``."""

    start: int
    end: int


Piece: TypeAlias = "bytes | Span"


class LineSplitter:
    """Splits one stream, block by block.

    Args:
        prefix: put before every line.
        suffix: put between a line and its newline.
        keep: whether a line, given without its newline, is put out; None for all. Lines that are
            put out as a `Span` have not been asked about.

    Attributes:
        position: offset of the next byte that is to be fed.
    """

    def __init__(
        self,
        prefix: bytes = b"",
        suffix: bytes = b"",
        keep: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.keep = keep
        self.reset()

    def reset(self) -> None:
        """Starts over at offset 0; what was pending is forgotten."""
        self.position = 0
        self._begin_line(0)

    def _begin_line(self, at: int) -> None:
        self._line = at
        self._start = at
        self._end = at
        # A carriage return has come after the segment: the next other byte begins a new one.
        self._closed = False
        self._redrawn = False

    @property
    def pending(self) -> Span | None:
        """The shown segment of the line that has not ended yet; None if it has none."""
        return Span(self._start, self._end) if self._end > self._start else None

    @property
    def redrawn(self) -> bool:
        """Whether the line that has not ended yet holds a carriage return."""
        return self._redrawn

    def feed(self, block: bytes) -> Iterator[Piece]:
        """Takes the next bytes of the stream.

        Args:
            block: they; any length.

        Returns:
            What can be put out now, in order: bytes, complete with prefixes and newlines, or the
            `Span` of a line that is to be put out with both. A filter is asked as they are
            fetched, so that it sees the lines in order too.
        """
        at = self.position
        self.position += len(block)
        last = block.rfind(b"\n")
        if last < 0:
            self._extend(block, at)
            return iter(())
        head: Span | None = None
        first = 0
        if self._line < at:
            first = block.index(b"\n")
            self._extend(block[:first], at)
            head = Span(self._start, self._end)
            first += 1
        self._begin_line(at + last + 1)
        self._extend(block[last + 1 :], at + last + 1)
        return self._pieces(head, block[first:last] if first <= last else None)

    def _pieces(self, head: Span | None, lines: bytes | None) -> Iterator[Piece]:
        if head is not None:
            yield head
        if lines is not None:
            text = self._format(lines)
            if text:
                yield text

    def finish(self) -> Span | None:
        """Ends the stream: the line without a newline at its end, if there is one to show."""
        span = self.pending
        self._begin_line(self.position)
        return span

    def _extend(self, part: bytes, at: int) -> None:
        """Adds bytes without a newline to the pending line."""
        text = part.rstrip(b"\r")
        if text:
            cut = text.rfind(b"\r")
            if cut >= 0:
                self._start = at + cut + 1
            elif self._closed:
                self._start = at
            self._end = at + len(text)
        # What ends in a carriage return is closed; what adds nothing changes nothing.
        self._closed = len(text) < len(part) or (self._closed and not part)
        self._redrawn = self._redrawn or b"\r" in part

    def _format(self, lines: bytes) -> bytes:
        """Whole lines, without the last newline, as they are put out."""
        if b"\r" in lines or self.keep is not None:
            each = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines.split(b"\n")]
            if self.keep is not None:
                each = [line for line in each if self.keep(line)]
                if not each:
                    return b""
            lines = b"\n".join(each)
        end = self.suffix + b"\n"
        return b"".join((self.prefix, lines.replace(b"\n", end + self.prefix), end))
