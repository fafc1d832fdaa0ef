"""A real terminal, and what a person in front of it would see; pyte is the screen."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pyte

from support.launching import WAIT, until

NEVER = 60.0  # seconds; not waited for where a test succeeds


class Terminal:
    """A pseudo-terminal and its screen."""

    def __init__(self, columns: int = 80, lines: int = 12) -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.received = b""
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._feed = pyte.ByteStream(self.screen)
        self._marks = itertools.count()
        self._set_size(columns, lines)

    def _set_size(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def resize(self, columns: int, lines: int | None = None, *, breaks: bool = False) -> None:
        """Give the terminal another size.

        Args:
            columns: how many.
            lines: how many; None for as many as now.
            breaks: whether it breaks lines that have no room any more, and joins them again, as
                most terminals do; the cursor stays with the character that it is on.
        """
        self.read()
        if breaks:
            self._break(columns)
        else:
            self.screen.resize(lines or self.screen.lines, columns)
        self._set_size(columns, lines or self.screen.lines)

    def _break(self, columns: int) -> None:
        """Write all that stands there anew; the cursor goes to where its character has gone."""
        at, column = len(self.screen.history.top) + self.screen.cursor.y, self.screen.cursor.x
        rows = self._all_rows()
        last = max([at, *(index for index, row in enumerate(rows) if row)])
        new = pyte.HistoryScreen(columns, self.screen.lines, history=1000)
        self.screen, self._feed = new, pyte.ByteStream(new)
        row = 0
        for index, text in enumerate(rows[: last + 1]):
            if index:
                self._feed.feed(b"\r\n")
            if index == at:
                row = len(new.history.top) + new.cursor.y + column // columns
            self._feed.feed(text.encode())
        new.cursor.y, new.cursor.x = row - len(new.history.top), column % columns

    def read(self) -> None:
        """Take all that was written until now."""
        # a title, which no screen shows: what was written before it has come when it has
        mark = b"\x1b]2;%d\x07" % next(self._marks)
        os.write(self.stream.fileno(), mark)
        self.read_until(lambda: mark in self.received[-200_000:])

    def read_until(self, seen: object) -> None:
        """Take what is written until a condition holds."""
        assert callable(seen)
        while not seen():
            assert select.select([self.master], [], [], NEVER)[0], self.rows
            self.take()

    def take(self) -> None:
        """Take what is there."""
        data = os.read(self.master, 1 << 16)
        self.received += data
        self._feed.feed(data)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.master, text.encode())

    def lines(self) -> list[str]:
        """The lines that stand on the screen, by now."""
        while select.select([self.master], [], [], 0.01)[0]:
            self.take()
        return [line.rstrip() for line in self.screen.display]

    def until(self, condition: Callable[[list[str]], Any], what: str) -> list[str]:
        """Wait for something on the screen; return its lines then."""
        found: list[str] = []

        def holds() -> Any:
            found[:] = self.lines()
            return condition(found)

        try:
            until(holds, what)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *found])) from None
        return found

    @property
    def rows(self) -> list[str]:
        """The rows that stand on the screen and above it, without blanks at the end."""
        rows = self._all_rows()
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _all_rows(self) -> list[str]:
        above = [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
        return [*above, *(row.rstrip() for row in self.screen.display)]

    def shown(self) -> list[str]:
        """The same, when all has come that was written until now."""
        self.read()
        return self.rows

    def close(self) -> None:
        """Close both ends."""
        for close in (self.stream.close, lambda: os.close(self.master)):
            with contextlib.suppress(OSError):
                close()


@contextlib.contextmanager
def shell(
    terminal: Terminal, place: Path, environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """An interactive bash on a terminal, which is its own; it ends with the block."""
    env = {**environ, "PS1": "$ ", "TERM": "xterm-256color", "HISTFILE": ""}
    for name in ("NO_COLOR", "FORCE_COLOR", "PROMPT_COMMAND", "COLUMNS", "LINES"):
        env.pop(name, None)
    command = ["setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.stream)
    process = subprocess.Popen(command, cwd=place, env=env, **streams)
    try:
        yield process
        if process.poll() is None:
            terminal.type("\nexit\n\nexit\n")
            process.wait(WAIT)
    finally:
        process.kill()
        process.wait()
