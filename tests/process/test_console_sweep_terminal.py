"""The live table of a sweep on a real terminal, as a person would see it.

What the terminal gets is shown by an emulator of the few sequences that the console uses; it fails
on any other. Where the console could wait for ever, a real stop (Ctrl-S) or hang-up is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

import lllaunch.sweep.schedule as v
from lllaunch.console.sweep import SweepConsole
from lllaunch.sweep.history import JobHistory, SweepResult
from lllaunch.sweep.journal import Result
from lllaunch.sweep.objective import Objectives
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import JobAnswered, JobPrinted, Prepared, Stopping, Tick
from lllaunch.testing import FakeClock

NEVER = 60.0  # seconds; not waited for where a test succeeds
SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Emulator:
    """A terminal's screen; what scrolls off its top is kept.

    Attributes:
        rows: of the screen and above, without blanks at their ends.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0
        self._wraps = True

    @property
    def rows(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    def feed(self, text: str) -> None:
        while text:
            if text[0] == "\x1b":
                match = SEQUENCE.match(text)
                assert match, f"an unknown sequence: {text[:20]!r}"
                self._obey(*match.groups())
                text = text[match.end() :]
            else:
                self._show(text[0])
                text = text[1:]

    def _obey(self, private: str, number: str, what: str) -> None:
        row = self._rows[self._row]
        if private:
            assert (number, what) in {("7", "l"), ("7", "h")}
            self._wraps = what == "h"
        elif what == "A":
            # the top of the screen is as far as it goes
            top = max(0, len(self._rows) - self.lines)
            self._row = max(top, self._row - int(number or 1))
        elif what == "K":
            del row[self._column :]
        elif what == "J":
            del row[self._column :]
            for below in self._rows[self._row + 1 :]:
                below.clear()
        else:
            assert what == "m"

    def _show(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append([])
        else:
            self._put(letter)

    def _put(self, letter: str) -> None:
        assert letter.isprintable()
        width = 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1
        if self._column + width > self.columns:
            if not self._wraps:
                return
            self._show("\n")
            self._column = 0
        row = self._rows[self._row]
        row.extend(" " * (self._column - len(row)))
        row[self._column : self._column + width] = [letter, *([""] * (width - 1))]
        self._column += width


class Terminal:
    """A real terminal, a console that writes to it, and what a person sees of it."""

    def __init__(self, place: Path, columns: int = 80, lines: int = 16) -> None:
        self.master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        os.set_blocking(self.master, False)
        self.screen = Emulator(columns, lines)
        self.resize(columns, lines)
        self.clock = FakeClock(1000.0)
        self.console = SweepConsole(
            self.stream, out=self.stream, cwd=str(place), clock=self.clock, machine="2 GPUs"
        )
        assert self.console.live
        self.raw = ""

    def began(self, total: int, wide: str = "", **more: Any) -> None:
        self.console.began("/m", total, lambda number: (f"x={wide}{number}",), **more)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, size)
        self.screen.columns, self.screen.lines = columns, lines

    def observe(self, *events: object) -> None:
        for event in events:
            self.console.observe(event)

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.observe(Tick())

    def start(self, number: int) -> None:
        answer = JobAnswered(number, Prepared(Need(1), (), str(number)))
        composed = v.JobComposed(number, Need(1))
        self.observe(answer, composed, v.StartJob(number, Lease((str(number % 2),))))

    def end(self, number: int, code: int = 0) -> None:
        state = v.JobState.FAILED if code else v.JobState.SUCCEEDED
        self.observe(v.JobEnded(number, code), v.Settle(number, state, 1, code))

    def say(self, number: int, text: str, stream: int = 1) -> None:
        self.observe(JobPrinted(number, stream, text.encode()))

    def read(self, patience: int = 50) -> str:
        """Takes what the terminal got; it may come a moment later."""
        found = b""
        poll = select.poll()
        poll.register(self.master, select.POLLIN)
        while poll.poll(patience):
            found += os.read(self.master, 1 << 16)
        self.raw += found.decode()
        self.screen.feed(found.decode())
        return found.decode()

    def shown(self) -> list[str]:
        self.read()
        rows = self.screen.rows
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def close(self) -> None:
        for close in (self.stream.close, lambda: os.close(self.master)):
            with contextlib.suppress(OSError):
                close()


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_the_table_stays_below_what_jobs_print(terminal: Terminal) -> None:
    terminal.began(3)
    terminal.start(0)
    for number in range(40):
        terminal.say(0, f"step {number}")
        terminal.tick(0.5)
    steps = [f"[0] step {number}" for number in range(40)]
    assert terminal.shown() == [
        "lllaunch: sweep of 3 jobs in /m, 2 GPUs",
        *steps,
        "20 s: 0/3 done, 1 running, 2 waiting",
        "job  overrides  state      tries  on         time  last line",
        "  0  x=0        running        1  GPU 0      20 s  step 39",
        "and 2 more waiting",
    ]


def test_the_table_gives_way_to_a_shell_and_comes_again_below(terminal: Terminal) -> None:
    terminal.began(1)
    terminal.start(0)
    terminal.tick()
    table = terminal.shown()
    terminal.clock.advance(1.0)
    terminal.observe(Stopping())
    assert terminal.shown() == table[:1]
    written = "[1]+  Stopped\n$ fg\n"
    terminal.stream.write(written)
    terminal.stream.flush()
    terminal.tick()
    assert terminal.shown() == [
        table[0],
        *written.splitlines(),
        "3 s: 0/1 done, 1 running",
        table[2],
        "  0  x=0        running        1  GPU 0       3 s",
    ]


def test_failures_are_told_above_and_successes_in_the_table(terminal: Terminal) -> None:
    terminal.began(2)
    for number in (0, 1):
        terminal.start(number)
    terminal.clock.advance(3.0)
    terminal.end(0)
    terminal.end(1, code=3)
    terminal.tick()
    assert terminal.shown() == [
        "lllaunch: sweep of 2 jobs in /m, 2 GPUs",
        "lllaunch: job 1 failed after 3.0 s: exit code 3; logs in /m/1",
        "4 s: 1/2 done, 1 failed",
        "job  overrides  state      tries      time",
        "  1  x=1        failed         1     3.0 s",
        "  0  x=0        succeeded      1     3.0 s",
    ]
    assert "\x1b[31m" in terminal.raw


def test_a_table_that_shrinks_leaves_nothing_behind(terminal: Terminal) -> None:
    terminal.began(6)
    for number in range(6):
        terminal.start(number)
    terminal.tick()
    tall = len(terminal.shown())
    for number in range(5):
        terminal.observe(v.LeaseRefused(number, (str(number),)))
        terminal.observe(v.Settle(number, v.JobState.NOT_RUN))
    terminal.tick()
    held = [f"lllaunch: job {n} waits for GPU {n}: held by another launcher" for n in range(5)]
    rows = terminal.shown()
    assert rows[1:6] == held
    assert rows[6:] == [
        "2 s: 0/6 done, 1 running, 5 not run",
        "job  overrides  state      tries  on         time",
        "  5  x=5        running        1  GPU 1       2 s",
    ]
    assert tall == 1 + 2 + 6


def test_wide_letters_and_long_lines_do_not_move_the_table(terminal: Terminal) -> None:
    terminal.began(2, wide="漢字🙂" * 9)
    terminal.start(0)
    for number in range(5):
        terminal.say(0, "漢" * 100 + f"{number} \x1b[31mred\x1b[0m \x1b[2J\x1b[H", stream=2)
        terminal.tick()
    rows = terminal.shown()
    joined = "".join(rows)
    assert all("漢" * 100 + f"{number} red" in joined for number in range(5))
    assert [row for row in rows if "done" in row] == ["5 s: 0/2 done, 1 running, 1 waiting"]
    assert rows[-1] == "and 1 more waiting"
    assert sum(row.startswith("job ") for row in rows) == 1


@pytest.mark.parametrize(("columns", "lines"), [(120, 30), (80, 5), (80, 2), (80, 1), (8, 16)])
def test_a_resized_terminal_is_drawn_anew(terminal: Terminal, columns: int, lines: int) -> None:
    terminal.began(9)
    for number in range(8):
        terminal.start(number)
    terminal.tick()
    terminal.read()
    terminal.resize(columns, lines)
    terminal.tick(0.1)
    terminal.say(0, "hello")
    terminal.tick(0.1)
    rows = terminal.shown()
    table = rows[rows.index("o" if columns == 8 else "[0] hello") + 1 :]
    assert all(len(row) < columns for row in table)
    assert len(table) == (1 if columns == 8 else min(lines - 1, 11))
    # what was above the top of a smaller screen stays there
    visible = rows[1 - lines :] if lines > 1 else []
    assert sum(row.startswith("1 s:") for row in visible) == (lines > 1)


def test_rows_that_a_narrow_terminal_breaks_are_taken_away(terminal: Terminal) -> None:
    terminal.began(3)
    terminal.start(0)
    terminal.tick()
    before = terminal.shown()
    widths = [len(row) for row in before[1:]]
    terminal.resize(20, 16)
    terminal.tick()
    up = re.search(r"\r\x1b\[(\d+)A\x1b\[J", terminal.read())
    assert up
    assert int(up[1]) == sum(-(-width // 20) for width in widths)


def test_many_lines_are_drawn_together(terminal: Terminal) -> None:
    terminal.began(1)
    terminal.start(0)
    terminal.tick()
    terminal.read()
    for number in range(500):
        terminal.say(0, f"step {number}")
    assert terminal.read() == ""
    terminal.tick(0.1)
    assert terminal.read().count("done") == 1
    assert "[0] step 499" in terminal.shown()


@pytest.mark.parametrize(("columns", "lines"), [(120, 40), (80, 24), (44, 12)])
def test_a_sweep_of_two_hundred_jobs_on_eight_gpus(
    terminal: Terminal, columns: int, lines: int
) -> None:
    screen = pyte.Screen(columns, lines)
    stream = pyte.Stream(screen)
    terminal.resize(columns, lines)
    gpus = tuple(str(gpu) for gpu in range(8))
    terminal.began(200, slots=Lease(gpus), objectives=Objectives("minimize"))
    for number in range(200):
        if number >= 8:
            ended = v.JobEnded(number - 8, 0, objective=(number - 108) ** 2 / 7)
            terminal.observe(ended, v.Settle(number - 8, v.JobState.SUCCEEDED, 1, 0))
        answer = JobAnswered(number, Prepared(Need(1), (f"x={number}",), str(number)))
        terminal.observe(answer, v.JobComposed(number, Need(1)))
        terminal.observe(v.StartJob(number, Lease((gpus[number % 8],))))
        terminal.say(number, f"hello of {number}" * (number % 9))
        terminal.tick(2.0)
        stream.feed(terminal.read(50 if number % 50 == 49 else 1))
        if number % 50 == 49:
            rows = [row.rstrip() for row in screen.display]
            (at,) = (at for at, row in enumerate(rows) if "/200 done" in row)
            best = 0.0 if number > 108 else (number - 108) ** 2 / 7
            assert f"{number - 7}/200 done" in rows[at]
            assert rows[at + 1].startswith(f"best {best:.6g} ")
            holders = {gpu: job for job in range(number - 7, number + 1) for gpu in [job % 8]}
            cells = [f"{gpu}:{job}" for gpu, job in sorted(holders.items())]
            assert rows[at + 2][: columns - 1].split()[:4] == ["GPU", *cells[:3]]
            assert sum(" running " in row for row in rows) == min(8, lines - at - 6)
            assert rows[lines - 1] == ""


def test_nothing_is_drawn_where_nothing_changes(terminal: Terminal) -> None:
    terminal.began(1)
    terminal.start(0)
    terminal.tick()
    terminal.read()
    for _ in range(5):
        terminal.tick(0.125)
    assert terminal.read() == ""


def test_a_stopped_terminal_stops_nothing_and_gets_all_in_the_end(terminal: Terminal) -> None:
    terminal.began(2)
    terminal.start(0)
    terminal.tick()
    terminal.read()
    termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)  # as Ctrl-S does
    for number in range(1000):
        terminal.say(0, f"step {number}")
        terminal.tick()
    assert terminal.read() == ""
    termios.tcflow(terminal.stream.fileno(), termios.TCOON)
    shown: list[str] = []
    for _ in range(1000):
        terminal.tick()
        shown = terminal.shown()
        if "[0] step 999" in shown:
            break
    steps = [row for row in shown if row.startswith("[0]")]
    assert steps == [f"[0] step {number}" for number in range(1000)]
    assert sum("done" in row for row in shown) == 1


def test_the_summary_takes_the_place_of_the_table(terminal: Terminal) -> None:
    terminal.began(1)
    terminal.start(0)
    terminal.tick()
    terminal.end(0)
    terminal.say(0, "the last word")
    ended = Result("succeeded", 0, "", 1.0)
    job = JobHistory(0, ("x=0",), "0", state="succeeded", tries=1, result=ended)
    terminal.console.finished(SweepResult((job,), exit_code=0, seconds=1.0))
    terminal.console.close()
    assert terminal.shown() == [
        "lllaunch: sweep of 1 job in /m, 2 GPUs",
        "[0] the last word",
        "",
        "  job  overrides  state      tries   time",
        "    0  x=0        succeeded      1  1.0 s",
        "",
        "lllaunch: 1 of 1 job succeeded in 1.0 s; /m/sweep.json",
    ]
    assert terminal.raw.rfind("\x1b[?7h") > terminal.raw.rfind("\x1b[?7l")


def test_a_terminal_that_hangs_up_does_not_end_the_sweep(terminal: Terminal) -> None:
    terminal.began(2)
    terminal.start(0)
    terminal.tick()
    os.close(terminal.master)
    for number in range(10):
        terminal.say(0, f"step {number}")
        terminal.tick()
    terminal.end(0, code=3)
    terminal.console.close()


@pytest.mark.parametrize(
    ("term", "columns", "lines"),
    [("dumb", 80, 24), ("", 80, 24), ("xterm", 39, 24), ("xterm", 80, 5), ("xterm", 0, 0)],
)
def test_what_cannot_show_a_table_gets_lines(
    monkeypatch: pytest.MonkeyPatch, term: str, columns: int, lines: int
) -> None:
    monkeypatch.setenv("TERM", term)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        assert not SweepConsole(stream, out=stream).live
        assert SweepConsole(stream, out=stream, live=True).live
    os.close(master)
