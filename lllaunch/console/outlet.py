"""Whole lines to a stream, without ever waiting long for whoever reads it.

A full pipe that nobody reads and a terminal stopped by Ctrl-S let a writer wait for ever, and the
launcher has workers to look after. What cannot be written in time is left out; how the waiting is
avoided stands in `lllaunch.console.channel`.
"""

from __future__ import annotations

import io
import select
import time
from typing import TYPE_CHECKING, TextIO

from lllaunch.console.channel import PIECE, opened
from lllaunch.console.wording import counted
from lllaunch.multiprocessing.output import screen_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.console.channel import Channel

# A terminal may say that it takes text and take none; it is asked again after so many seconds.
_PAUSE_S = 0.01
_NEWLINE = ord("\n")


class Outlet:
    """One stream, and what it has not taken.

    Where it has no descriptor, or that of a regular file, text is simply written.

    Args:
        stream: where text goes.
        clock: the time, seconds.

    Attributes:
        stream: as given.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self._clock = clock
        self._blocked = False
        self._missed = 0
        # being written; between calls, the end of a line of which the stream took a part
        self._rest = b""

    def write(self, text: str, patience: float, *, last: bool = False) -> None:
        """Writes whole lines, in one piece where they fit into 4096 bytes.

        What the stream does not take in time is left out, and a line before a later message says
        how many messages that befell.

        Args:
            text: the lines.
            patience: waits at most so many seconds, and not at all if the stream did not take all
                of the message before.
            last: waits even then.

        Raises:
            OSError: the system refused it.
            ValueError: the stream is closed.
        """
        waits = last or not self._blocked
        deadline = self._clock() + (patience if waits else 0.0)
        screen = screen_of(self.stream)
        # others may be in the middle of a line
        with opened(self.stream) as channel, screen.turn(deadline - self._clock()) as mine:
            if channel is None:
                self.stream.write(text)
                self.stream.flush()
                return
            text = screen.erasure().decode() + text
            taken = mine and self._say(channel, text, deadline)
            self._blocked = not taken
            self._missed += not taken

    def _say(self, channel: Channel, text: str, deadline: float) -> bool:
        """Writes what is due and then the message; whether all of it was taken in time."""
        if not self._ready(channel, deadline):
            return False
        channel.flush()
        if not self._drain(channel, deadline):
            return False
        if self._missed:
            if not self._put(channel, channel.encoded(_notice(self._missed)), deadline):
                return False
            self._missed = 0
        return all(self._put(channel, piece, deadline) for piece in pieces(channel.encoded(text)))

    def _put(self, channel: Channel, piece: bytes, deadline: float) -> bool:
        """Writes whole lines; whether they were taken. The rest of a cut line stays due."""
        self._rest = piece
        if self._drain(channel, deadline):
            return True
        taken = len(piece) - len(self._rest)
        inside = taken > 0 and piece[taken - 1] != _NEWLINE
        self._rest = self._rest[: self._rest.find(b"\n") + 1] if inside else b""
        return False

    def _drain(self, channel: Channel, deadline: float) -> bool:
        """Writes what is to be written; whether nothing of it is left."""
        while self._rest:
            if not self._ready(channel, deadline):
                return False
            count = channel.write(self._rest[:PIECE])
            self._rest = self._rest[count:]
            if not count:
                if self._clock() >= deadline:
                    return False
                time.sleep(_PAUSE_S)
        return True

    def _ready(self, channel: Channel, deadline: float) -> bool:
        """Waits until the stream takes text or has an error to tell; False if it is too late."""
        poller = select.poll()
        poller.register(channel.descriptor, select.POLLOUT)
        return bool(poller.poll(max(0.0, deadline - self._clock()) * 1000))


def pieces(data: bytes) -> list[bytes]:
    """Cuts a message at line ends into pieces of at most 4096 bytes.

    Args:
        data: whole lines. One that is longer is a piece of its own.
    """
    found: list[bytes] = []
    for line in io.BytesIO(data):  # unlike splitlines it takes \r for no end
        if found and len(found[-1]) + len(line) <= PIECE:
            found[-1] += line
        else:
            found.append(line)
    return found


def _notice(missed: int) -> str:
    were = "was" if missed == 1 else "were"
    return (
        f"lllaunch: {counted(missed, 'message')} {were} not shown: the console took nothing; "
        "see events.jsonl\n"
    )
