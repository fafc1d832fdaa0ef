"""The tee on a terminal: lines that have not ended show in the live area and nowhere else."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from lllaunch.workers import tail
from lllaunch.workers.tail import Follower
from lllaunch.workers.terminal import Destination

COLUMNS = 20


class Terminal:
    """A pseudo-terminal of 20 columns, and what a person in front of it would see."""

    def __init__(self) -> None:
        self.reader, writer = os.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 10, COLUMNS, 0, 0))
        self.stream: TextIO = open(writer, "w", encoding="utf-8")  # noqa: SIM115 - closed by close
        self.received = b""

    def read_until(self, pattern: bytes) -> bytes:
        """Reads until what was received matches; everything received so far."""
        while not re.search(pattern, self.received):
            assert select.select([self.reader], [], [], 30)[0], (pattern, self.received)
            self.received += os.read(self.reader, 65536)
        return self.received

    def screen(self) -> list[str]:
        """The rows that stand on the screen, the last one being where the cursor is."""
        rows = [""]
        for token in re.findall(r"\r\033\[K|\r|\n|\033\[K|[^\r\n\033]+", self.received.decode()):
            if token == "\r\033[K":
                rows[-1] = ""
            elif token == "\n":
                rows.append("")
            elif token not in ("\r", "\033[K"):
                rows[-1] += token
        return rows

    def close(self) -> None:
        self.stream.close()
        os.close(self.reader)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stderr.log"


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def test_progress_bar_stays_on_one_line_below_the_others(terminal: Terminal, log: Path) -> None:
    follower = Follower()
    follower.add(str(log), b"[w]:", terminal.stream)
    follower.start()
    append(log, b"\r 10%")
    terminal.read_until(rb"10%")
    append(log, b"\r 50%")
    terminal.read_until(rb"50%")
    assert terminal.screen() == ["[w]: 50%"]
    other = Destination(terminal.stream)
    other.write([b"a message\n"])
    terminal.read_until(rb"message\r\n\[w\]: 50%")
    assert terminal.screen() == ["a message", "[w]: 50%"]
    append(log, b"\r100%\n")
    follower.stop()
    terminal.read_until(rb"100%\r\n")
    assert terminal.screen() == ["a message", "[w]:100%", ""]


def test_partial_line_shows_after_a_while_and_is_replaced_by_the_whole(
    terminal: Terminal, log: Path
) -> None:
    follower = Follower()
    follower.add(str(log), b"[w]:", terminal.stream)
    follower.start()
    append(log, b"loading")
    terminal.read_until(rb"loading")
    assert terminal.screen() == ["[w]:loading"]
    append(log, b" done\n")
    terminal.read_until(rb"done\r\n")
    assert terminal.screen() == ["[w]:loading done", ""]
    follower.stop()
    assert terminal.screen() == ["[w]:loading done", ""]


def test_live_line_is_cut_to_the_width(terminal: Terminal, log: Path) -> None:
    follower = Follower()
    follower.add(str(log), b"[w]:", terminal.stream)
    follower.start()
    append(log, b"\r" + b"#" * 5000)
    terminal.read_until(rb"#")
    follower.stop()
    terminal.read_until(rb"\n")
    first = terminal.received.split(b"\r\033[K")[0]
    assert first == b"[w]:" + b"#" * (COLUMNS - 1 - 4)
    assert terminal.screen() == ["[w]:" + "#" * 5000, ""]


def test_latest_of_several_bars_is_the_one_shown(terminal: Terminal, tmp_path: Path) -> None:
    follower = Follower()
    for rank in range(2):
        follower.add(str(tmp_path / str(rank)), b"%d:" % rank, terminal.stream)
    follower.start()
    append(tmp_path / "0", b"\rbar")
    terminal.read_until(rb"0:bar")
    append(tmp_path / "1", b"\rbar")
    terminal.read_until(rb"1:bar")
    assert terminal.screen() == ["1:bar"]
    append(tmp_path / "1", b"\n")
    terminal.read_until(rb"1:bar\r\n0:bar")
    assert terminal.screen() == ["1:bar", "0:bar"]
    follower.stop()
    terminal.read_until(rb"0:bar\r\n")
    assert terminal.screen() == ["1:bar", "0:bar", ""]


def test_bar_stays_until_its_last_state_is_shown_as_a_line(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_HELD_S", 10_000.0)
    files = {rank: str(tmp_path / str(rank)) for rank in range(2)}
    follower = Follower()
    follower.add_collapsed([(files, terminal.stream)], lambda ranks: b"%d:" % sum(ranks))
    follower.start()
    append(tmp_path / "0", b"\r1%")
    terminal.read_until(rb"0:1%")
    append(tmp_path / "1", b"\r2%")
    terminal.read_until(rb"1:2%")
    assert terminal.screen() == ["1:2%"]
    append(tmp_path / "1", b"\r3%\n")
    append(tmp_path / "0", b"\r4%")
    # what the one has ended is held: it stands there as it was
    terminal.read_until(rb"0:4%")
    append(tmp_path / "0", b"\r3%\nnext")
    terminal.read_until(rb"1:3%\r\n")
    assert terminal.screen() == ["1:3%", ""]
    terminal.read_until(rb"0:next")
    follower.stop()
    terminal.read_until(rb"next\r\n")
    assert terminal.screen() == ["1:3%", "0:next", ""]


def test_truncated_file_leaves_no_live_line(terminal: Terminal, log: Path) -> None:
    follower = Follower()
    follower.add(str(log), b"[w]:", terminal.stream)
    follower.start()
    append(log, b"\rbar")
    terminal.read_until(rb"bar")
    os.truncate(log, 0)
    terminal.read_until(rb"worker\]\r\n")
    follower.stop()
    assert terminal.screen() == ["[w]:[stderr.log truncated by the worker]", ""]


def test_lines_over_a_foreign_bar_erase_what_is_behind_them(terminal: Terminal, log: Path) -> None:
    trigger, cleared = threading.Event(), threading.Event()
    append(log, b"one\n\ntwo\rthree")
    follower = Follower()
    events = {"trigger_clear": trigger, "cleared": cleared}
    follower.add(str(log), b"[w]:", terminal.stream, progbar_events=events)
    follower.start()
    follower.stop()
    terminal.read_until(rb"three\033\[K\r\n")
    assert terminal.received == (b"\r[w]:one\033[K\r\n\r[w]:\033[K\r\n\r[w]:three\033[K\r\n")


def test_filtered_lines_have_no_live_area(terminal: Terminal, log: Path) -> None:
    append(log, b"\rhidden bar")
    follower = Follower()
    follower.add(str(log), b"", terminal.stream, lambda line: "shown" in line)
    follower.start()
    append(log, b"\nshown\n")
    follower.stop()
    assert terminal.read_until(rb"shown") == b"shown\r\n"


def test_terminal_that_does_not_block_is_waited_for(terminal: Terminal, log: Path) -> None:
    os.set_blocking(terminal.stream.fileno(), False)
    append(log, b"".join(b"%06d\n" % n for n in range(20_000)))
    follower = Follower()
    follower.add(str(log), b"", terminal.stream)
    follower.start()
    terminal.read_until(rb"019999\r\n")
    follower.stop()
    assert terminal.received.split() == [b"%06d" % n for n in range(20_000)]


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_terminal_that_obeys_nothing_gets_lines_only(
    terminal: Terminal, log: Path, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    follower = Follower()
    follower.add(str(log), b"[w]:", terminal.stream)
    follower.start()
    append(log, b"first\n\r 10%\r 50%")
    terminal.read_until(rb"first")
    append(log, b"\r100%\n")
    follower.stop()
    assert terminal.read_until(rb"100%\r\n") == b"[w]:first\r\n[w]:100%\r\n"
