"""A table that stays at the bottom of a terminal while lines scroll above it.

No thread draws it, since the launcher forks, and nothing of the terminal is set that would have to
be put back: the cursor rests on the line below the table, and each drawing begins by moving it up.
A drawing begins only when the one before was taken as a whole, so that a terminal which was stopped
by Ctrl-S shows what it is meant to when it goes on; the lines wait until then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TextIO

from lllaunch.console.outlet import Outlet, notice, pieces
from lllaunch.console.sweep.paint import painted
from lllaunch.console.sweep.table import cells
from lllaunch.console.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.console.outlet import NonBlockingStream
    from lllaunch.console.sweep.table import Row


KEPT = 1 << 20
"""If more bytes are kept, what comes then is left out, and a line says how often."""


class Flow(Outlet):
    """Like an `Outlet`, but what the stream does not take in time goes before later text.

    It never fails: text for a stream that is closed or refuses it is forgotten.

    Args:
        stream: where text goes.
        clock: the time, seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0

    @property
    def pending(self) -> bool:
        """Whether text is kept."""
        return bool(self._rest or self._kept)

    def awaited(self) -> int:
        """The descriptor that is writable when it can go on; -1 if nothing is kept."""
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
            return self.stream.fileno() if self.pending else -1
        return -1

    def put(self, text: str, patience: float, *, last: bool = False) -> None:
        """Writes whole lines, after those that are kept; arguments as `Outlet.write` has them."""
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            self.write(text, patience, last=last)
        except (OSError, ValueError):
            self._forget()

    def push(self, patience: float = 0.0, *, last: bool = False) -> None:
        """Writes what is kept, as far as the stream takes it."""
        if self.pending:
            self.put("", patience, last=last)

    def _say(self, channel: NonBlockingStream, text: str, deadline: float) -> bool:
        self._keep(channel.encoded(text))
        if not self._ready(channel, deadline):
            return False
        channel.flush()
        while self._drain(channel, deadline):
            if self._kept:
                self._rest = self._kept.popleft()
                self._size -= len(self._rest)
            elif self._left_out:
                self._rest = channel.encoded(notice(self._left_out, "the jobs' logs"))
                self._left_out = 0
            else:
                return True
        return False

    def _keep(self, data: bytes) -> None:
        if data and self._size > KEPT:
            self._left_out += 1
            return
        self._kept.extend(pieces(data))
        self._size += len(data)

    def _forget(self) -> None:
        self._rest, self._size, self._left_out = b"", 0, 0
        self._kept.clear()


def same_file(one: TextIO, other: TextIO) -> bool:
    """Whether two streams write to one file, pipe or terminal."""
    with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
        ours, theirs = os.fstat(one.fileno()), os.fstat(other.fileno())
        return os.path.samestat(ours, theirs)
    return False


_ERASE_LINE, _ERASE_BELOW = "\x1b[K", "\x1b[J"
# A row that is wider than it was thought to be must not take two lines.
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Size(NamedTuple):
    """Of a terminal, in characters; all 0 if it cannot be told."""

    columns: int = 0
    lines: int = 0


def size_of(descriptor: int) -> Size:
    """Returns the size of a terminal."""
    with contextlib.suppress(OSError, ValueError):
        return Size(*os.get_terminal_size(descriptor))
    return Size()


class BottomTable:
    """The bottom of a terminal.

    Args:
        flow: to the terminal.
        size: gives the terminal's size.
    """

    def __init__(self, flow: Flow, size: Callable[[], Size]) -> None:
        self._flow = flow
        self._size = size
        self._lines: deque[str] = deque()
        self._held = 0
        self._left_out = 0
        # How wide the rows are that the terminal shows, and how large it was.
        self._shown: list[int] = []
        self._drawn_for = Size()

    @property
    def resized(self) -> bool:
        """Whether the terminal has another size than it was drawn for."""
        return self._size() != self._drawn_for

    def say(self, line: str) -> None:
        """Takes a line that is shown above the table with the next drawing."""
        if self._lines and self._held + len(line) > KEPT:
            self._left_out += 1
            return
        self._lines.append(line)
        self._held += len(line)

    def draw(
        self, table: Callable[[Size], list[Row]], patience: float = 0.0, *, last: bool = False
    ) -> bool:
        """Shows the lines and, below them, a table.

        Nothing is drawn while the terminal has not taken what was drawn before.

        Args:
            table: gives the rows for a size; each less wide than the terminal.
            patience: waits at most so many seconds.
            last: waits even if the terminal took nothing before.

        Returns:
            Whether it was drawn.
        """
        self._flow.push(patience, last=last)
        if self._flow.pending:
            return False
        size = self._size()
        rows = table(size) if size.columns and _in_foreground(self._flow) else []
        text = self._above(size) + self._rows(rows)
        self._drawn_for = size
        self._shown = [sum(cells(span.text) for span in row) for row in rows]
        self._flow.put(text, patience, last=last)
        return True

    def _above(self, size: Size) -> str:
        """Goes to where the table began, and shows the lines from there on."""
        up = sum(_lines_of(width, size.columns) for width in self._shown)
        text = f"\r\x1b[{up}A" if up else ""
        if self._lines or size.columns != self._drawn_for.columns:
            text += _ERASE_BELOW if up else ""
        lines = list(self._lines)
        if self._left_out:
            were = "was" if self._left_out == 1 else "were"
            lines.append(f"lllaunch: {counted(self._left_out, 'line')} {were} not shown")
        self._lines.clear()
        self._held = self._left_out = 0
        return text + "".join(f"{line}\n" for line in lines)

    def _rows(self, rows: list[Row]) -> str:
        if not rows:
            return _ERASE_BELOW if self._shown else ""
        lines = "".join(f"{text}{_ERASE_LINE}\n" for text in painted(rows, self._flow.stream))
        return f"{_NO_WRAP}{lines}{_WRAP}{_ERASE_BELOW}"


def _lines_of(width: int, columns: int) -> int:
    """How many lines a row takes: most terminals break those that no longer fit when narrowed."""
    return 1 if columns <= 0 else max(1, -(-width // columns))


def _in_foreground(flow: Flow) -> bool:
    """Whether this process may draw: a shell does while it has put its job in the background."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.tcgetpgrp(flow.stream.fileno()) == os.getpgrp()
    return True  # it is not the terminal of our session
