"""Text to a stream that is kept for a while if the stream does not take it at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING, TextIO

from lllaunch.console.outlet import Outlet, pieces
from lllaunch.console.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.console.channel import Channel

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

    def _say(self, channel: Channel, text: str, deadline: float) -> bool:
        self._keep(channel.encoded(text))
        if not self._ready(channel, deadline):
            return False
        channel.flush()
        while self._drain(channel, deadline):
            if self._kept:
                self._rest = self._kept.popleft()
                self._size -= len(self._rest)
            elif self._left_out:
                self._rest = channel.encoded(_notice(self._left_out))
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


def _notice(number: int) -> str:
    were = "was" if number == 1 else "were"
    return (
        f"lllaunch: {counted(number, 'message')} {were} not shown: the console took nothing; "
        "see the jobs' logs\n"
    )
