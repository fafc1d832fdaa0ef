"""What is written where nobody reads: nothing waits for long, and nothing but whole lines is lost.

Pipes, terminals and sockets are real ones. A write that waits for a reader would wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import socket
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lllaunch.console.stream import KEPT, Outlet
from lllaunch.console.sweep import Board, SweepConsole
from lllaunch.sweep.protocol import JobPrinted, Tick
from lllaunch.workers.terminal import Destination

MOMENT = 0.01  # seconds; enough for a bound that is only to be reached
NEVER = 60.0  # seconds; not waited for where a test succeeds


class Line:
    """Something with a writing end that is a text stream, and a reading end for the test."""

    def __init__(self, read: int, write: int) -> None:
        self.read_fd = read
        self.stream = os.fdopen(write, "w", buffering=1, encoding="utf-8")
        os.set_blocking(read, False)

    @property
    def fd(self) -> int:
        return self.stream.fileno()

    def fill(self) -> None:
        """Let it take nothing until it is read."""
        os.set_blocking(self.fd, False)
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(self.fd, b"." * size)
        os.set_blocking(self.fd, True)

    def empty(self) -> None:
        """Let it take text again."""
        self.taken()

    def taken(self) -> str:
        """What can be read now, without the filling."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.read_fd, 65536):
                found += block
        return found.decode().replace("\r\n", "\n").lstrip(".")

    def shows(self, text: str) -> bool:
        """Whether a text and nothing else can be read, of a terminal in a moment."""
        poller = select.poll()
        poller.register(self.read_fd, select.POLLIN)
        found = self.taken()
        while len(found) < len(text) and poller.poll(NEVER * 1000):
            found += self.taken()
        assert found == text
        return True

    def close(self) -> None:
        # a reader that went away takes nothing of what is left in Python's buffer
        with contextlib.suppress(OSError):
            self.stream.close()
        with contextlib.suppress(OSError):
            os.close(self.read_fd)


class Terminal(Line):
    """A terminal takes text in the background, so that it is stopped instead of filled."""

    def fill(self) -> None:
        termios.tcflow(self.fd, termios.TCOOFF)  # as Ctrl-S does

    def empty(self) -> None:
        termios.tcflow(self.fd, termios.TCOON)


def pipe() -> Line:
    return Line(*os.pipe())


def socket_pair() -> Line:
    ours, theirs = socket.socketpair()
    return Line(ours.detach(), theirs.detach())


def terminal() -> Line:
    return Terminal(*pty.openpty())


KINDS = [pipe, socket_pair, terminal]


@pytest.fixture
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    made = getattr(request, "param", pipe)()
    yield made
    made.close()


each_kind = pytest.mark.parametrize("line", KINDS, indirect=True)


@each_kind
def test_a_reader_gets_what_is_written_in_order(line: Line) -> None:
    outlet = Outlet(line.stream)
    line.stream.write("begun ")  # stays in Python's buffer
    outlet.write("first\n", MOMENT)
    outlet.write("näxt\nthird\n", MOMENT)
    assert line.shows("begun first\nnäxt\nthird\n")


@each_kind
def test_what_a_full_stream_does_not_take_is_kept_until_it_does(line: Line) -> None:
    line.fill()
    outlet = Outlet(line.stream)
    outlet.write("first\n", MOMENT)
    outlet.write("second\n", NEVER)  # it is known to be blocked: no wait at all
    outlet.write("third\n", MOMENT, last=True)
    assert line.taken() == ""
    line.empty()
    outlet.write("fourth\n", MOMENT)
    outlet.write("fifth\n", MOMENT)
    assert line.shows("first\nsecond\nthird\nfourth\nfifth\n")


@pytest.mark.parametrize("line", [pipe, socket_pair], indirect=True)
def test_a_long_message_arrives_in_pieces_while_it_is_read(line: Line) -> None:
    text = "".join(f"{number:04} {'x' * 90}\n" for number in range(2000))
    outlet = Outlet(line.stream)
    outlet.write(text, MOMENT)
    begun = line.taken()
    assert begun
    assert text.startswith(begun)
    outlet.write("second\n", MOMENT)
    shown = begun + line.taken()
    while outlet.pending:
        outlet.push(MOMENT)
        shown += line.taken()
    assert shown == f"{text}second\n"


@each_kind
def test_a_reader_that_went_away_is_told_at_once(line: Line) -> None:
    os.close(line.read_fd)
    with pytest.raises(OSError, match=r"Broken pipe|Input/output error"):
        Outlet(line.stream).write("text\n", NEVER)


# The console's two bounds


def test_a_message_stands_between_the_lines_of_another_writer_and_in_none() -> None:
    read, write = os.pipe()
    shown, text = bytearray(), b"".join(b"%06d %s\n" % (n, b"x" * (n % 300)) for n in range(20_000))
    taken = threading.Event()

    def reading() -> None:
        with os.fdopen(read, "rb", 0) as pipe:
            while block := pipe.read(1000):
                shown.extend(block)
                taken.set()

    with os.fdopen(write, "w", encoding="utf-8") as stream:
        destination, outlet = Destination(stream), Outlet(stream)
        reader = threading.Thread(target=reading)
        writer = threading.Thread(
            target=destination.write, args=([text, b"long " * 50_000, b"\n"],)
        )
        reader.start()
        writer.start()
        messages = 0
        while writer.is_alive():
            taken.wait(NEVER)
            outlet.write(f"message {messages}\n", NEVER)
            messages += 1
        writer.join()
    reader.join()
    lines = bytes(shown).splitlines()
    assert [line for line in lines if line.startswith(b"message")] == [
        b"message %d" % n for n in range(messages)
    ]
    rest = [line for line in lines if not line.startswith(b"message")]
    assert rest == [*text.splitlines(), b"long " * 50_000]


# The console of a sweep


def test_what_is_too_much_is_left_out_and_counted(line: Line) -> None:
    line.fill()
    flow = Outlet(line.stream, elsewhere="the jobs' logs")
    given = KEPT // 1000 + 100
    for _ in range(given):
        flow.put("x" * 999 + "\n", 0.0)
    found = ""
    while flow.pending:
        found += line.taken()
        flow.push()
    *lines, notice = (found + line.taken()).splitlines()
    assert set(lines) == {"x" * 999}
    assert abs(len(lines) - KEPT // 1000) < 10
    expected = f"lllaunch: {given - len(lines)} messages were not shown: the console took nothing"
    assert notice == f"{expected}; see the jobs' logs"


def test_both_streams_of_jobs_in_one_pipe_never_mix_within_a_line(
    line: Line, tmp_path: Path
) -> None:
    # a line that a pipe takes a part of
    long = b"a" * 200_000
    with os.fdopen(os.dup(line.fd), "w", encoding="utf-8") as other:
        console = SweepConsole(line.stream, out=other, cwd=str(tmp_path))
        console.began(Board(str(tmp_path), 1))
        console.observe(JobPrinted(0, 1, long))
        console.observe(JobPrinted(1, 2, b"b"))
        found = line.taken()
        while not found.endswith("[1] b\n"):
            console.observe(Tick())
            found += line.taken()
    assert found.split("\n")[1:] == [f"[0] {long.decode()}", "[1] b", ""]
