"""The lines of the tee: blocks of a file in, whole prefixed lines out; those of several as one.

Pure: `LineSplitter` sees bytes and counts offsets, and touches no file. A line that began in an
earlier block is not kept; it is named by its offsets (`Span`) and read from the file again when its
end has come. So a line of any length costs no memory, and every byte is looked at once.

A line that redraws itself with carriage returns, as progress bars do, counts as its last segment:
what would be seen on a terminal.

`LineCollapser` decides which lines of several files are shown as one, and when.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Span(NamedTuple):
    """A line that began in an earlier block, without its end: bytes ``start`` to ``end``."""

    start: int
    end: int


Piece: TypeAlias = "bytes | Span"


class LineSplitter:
    """Splits one stream, block by block.

    ``keep``: whether a line, given without its newline, is put out; None for all. Lines that are
    put out as a `Span` have not been asked about. ``position``: offset of the next byte that is to
    be fed.
    """

    def __init__(
        self,
        prefix: bytes = b"",
        keep: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.prefix = prefix
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

        Returns what can be put out now, in order: bytes, complete with prefixes and newlines, or
        the `Span` of a line that is to be put out with both. A filter is asked as they are fetched,
        so that it sees the lines in order too.
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
        if lines is not None and (text := self._format(lines)):
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
        return b"".join((self.prefix, lines.replace(b"\n", b"\n" + self.prefix), b"\n"))


# What a held line costs besides its bytes, roughly.
_LINE_COST = 96
# So many lines of a member are looked through for one that another has said: those before it must
# be shown before it.
_LOOKAHEAD = 32


class LineCollapser:
    """Finds lines that several ranks say at about the same time.

    A line is held until all members of its stream have said the same, or for some time. The lines
    of a member are shown in their order, each of them once: two lines are brought together only if
    no rank's own order stands against it, and never two of the same member. Nor does a line of a
    rank overtake one of its other stream that came at an earlier time; which of two that came at
    the same time was first, nobody knows.

    ``streams``: the ranks that each stream has lines of. Each is a member of it; they are numbered
    from 0, those of the first stream first. ``patience``: seconds that a line is held at most.
    ``room``: bytes of lines that are held at most, with what it costs to hold them.
    """

    def __init__(self, streams: Sequence[Sequence[int]], patience: float, room: int) -> None:
        self._patience = patience
        self._room = room
        whose = [(number, rank) for number, ranks in enumerate(streams) for rank in ranks]
        self._lines: list[deque[bytes]] = [deque() for _ in whose]
        # when they came
        self._times: list[deque[float]] = [deque() for _ in whose]
        # by member: those of its stream, those of its rank, how often its stream holds a line
        members = [
            [n for n, (own, _) in enumerate(whose) if own == each] for each in range(len(streams))
        ]
        self._stream = [members[number] for number, _ in whose]
        self._rank = [[n for n, each in enumerate(whose) if each[1] == own] for _, own in whose]
        counts: list[Counter[bytes]] = [Counter() for _ in streams]
        self._copies = [counts[number] for number, _ in whose]
        self.held = 0  # bytes of lines that are held, with what it costs to hold them

    @property
    def due(self) -> float | None:
        """When something is to be shown, unless more is said before; None if nothing is held."""
        oldest = self._oldest()
        return None if oldest is None else self._times[oldest][0] + self._patience

    def holds(self, member: int) -> bool:
        """Whether lines of a member are held."""
        return bool(self._lines[member])

    def add(self, member: int, lines: list[bytes], now: float) -> None:
        """Take lines that a member has said; `take` is to follow.

        ``now``: seconds on a clock that never goes back.
        """
        self._lines[member].extend(lines)
        self._times[member].extend([now] * len(lines))
        self._copies[member].update(lines)
        self.held += sum(map(len, lines)) + _LINE_COST * len(lines)

    def take(self, now: float) -> list[tuple[int, bytes]]:
        """Return what is to be shown now, in order.

        Returns lines, each with the set of members that said it: the sum of ``1 << member``.
        """
        shown: list[tuple[int, bytes]] = []
        while (oldest := self._oldest()) is not None:
            since = self._times[oldest][0]
            late = now >= since + self._patience
            lines, times = self._lines[oldest], self._times[oldest]
            # no other member has an older line than those that came with it
            while lines and times[0] == since:
                if not (late or self.held > self._room or self._is_said_by_all(oldest)):
                    return shown
                self._show(oldest, shown)
        return shown

    def take_all(self, member: int | None = None) -> list[tuple[int, bytes]]:
        """Return everything that is held of a member's rank, and what is to be shown before it.

        ``member``: its number; None for all ranks.
        """
        shown: list[tuple[int, bytes]] = []
        while (first := self._oldest(None if member is None else self._rank[member])) is not None:
            self._show(first, shown)
        return shown

    def _oldest(self, members: Iterable[int] | None = None) -> int | None:
        """The member, of all or of some, whose first line has been held for longest."""
        times = self._times
        each = range(len(times)) if members is None else members
        return min((n for n in each if times[n]), key=lambda n: times[n][0], default=None)

    def _is_said_by_all(self, member: int) -> bool:
        """Whether all of its stream have said the first line of a member."""
        line, stream = self._lines[member][0], self._stream[member]
        if self._copies[member][line] < len(stream):
            return False
        return all(_is_near(self._lines[each], line) for each in stream)

    def _show(self, member: int, shown: list[tuple[int, bytes]]) -> None:
        """Show the first line of a member, the oldest of its rank, with all that say the same."""
        line, copies = self._lines[member][0], self._copies[member]
        members = [member]
        if copies[line] > 1:
            members = self._beginning_as(member)
            if len(members) < copies[line]:
                for other in self._stream[member]:
                    self._show_before(line, other, shown)
                members = self._beginning_as(member)
        self._show_firsts(members, shown)

    def _show_before(self, line: bytes, member: int, shown: list[tuple[int, bytes]]) -> None:
        """Show all that a rank has said before a line, if that is near."""
        lines = self._lines[member]
        # `line` stays where it is: what is shown before it is another one
        while _is_near(lines, line):
            first = self._first_of_rank(member)
            if first == member and lines[0] == line:
                break
            self._show_firsts(self._beginning_as(first), shown)

    def _first_of_rank(self, member: int) -> int:
        """Which member of the same rank has the oldest line; this one if several have."""
        first, times = member, self._times
        for other in self._rank[member]:
            if times[other] and times[other][0] < times[first][0]:
                first = other
        return first

    def _beginning_as(self, member: int) -> list[int]:
        """The members of its stream whose first line is that of a member and may be shown now."""
        line, lines = self._lines[member][0], self._lines
        stream = self._stream[member]
        members = [other for other in stream if lines[other] and lines[other][0] == line]
        return [other for other in members if self._first_of_rank(other) == other]

    def _show_firsts(self, members: list[int], shown: list[tuple[int, bytes]]) -> None:
        """Show the first line of members, which is the same."""
        number = 0
        for member in members:
            line = self._lines[member].popleft()
            self._times[member].popleft()
            number |= 1 << member
        copies = self._copies[members[0]]
        left = copies.pop(line) - len(members)
        if left:
            copies[line] = left
        self.held -= len(members) * (len(line) + _LINE_COST)
        shown.append((number, line))


def _is_near(lines: deque[bytes], line: bytes) -> bool:
    """Whether a line is among the first that are held."""
    return bool(lines) and (lines[0] == line or line in islice(lines, 1, _LOOKAHEAD))
