"""The live table of a sweep on a real terminal, as a person would see it.

Where the console could wait for ever, a real stop (Ctrl-S) or hang-up is made.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import until

import lllaunch.sweep.schedule as v
from lllaunch.console.sweep import Board, SweepConsole
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import JobPrinted, Tick
from lllaunch.testing import FakeClock

pytest.importorskip("pyte", reason="it shows what a terminal gets")
from support.screen import Terminal


class Sweep:
    """A terminal and a console that writes to it."""

    def __init__(self, place: Path) -> None:
        self.terminal = Terminal(80, 16)
        self.stream = self.terminal.stream
        self.clock = FakeClock(1000.0)
        self.console = SweepConsole(
            self.stream, out=self.stream, cwd=str(place), clock=self.clock, machine="2 GPUs"
        )
        assert self.console.live
        self._seen = 0

    def began(self, total: int, wide: str = "", running: int = 0, **more: Any) -> None:
        """A sweep begins, and some of its jobs do a second ago."""
        self.console.began(Board("/m", total, lambda number: (f"x={wide}{number}",), **more))
        for number in range(running):
            self.start(number)
        if running:
            self.tick()

    def observe(self, *events: object) -> None:
        for event in events:
            self.console.observe(event)

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.observe(Tick())

    def start(self, number: int) -> None:
        composed = v.JobComposed(number, Need(1), (), str(number))
        self.observe(composed, v.StartJob(number, Lease((str(number % 2),))))

    def end(self, number: int, code: int = 0) -> None:
        state = v.JobState.FAILED if code else v.JobState.SUCCEEDED
        self.observe(v.JobEnded(number, code), v.Settle(number, state, 1, code))

    def say(self, number: int, text: str, stream: int = 1) -> None:
        self.observe(JobPrinted(number, stream, text.encode()))

    def shown(self) -> list[str]:
        return self.terminal.shown()

    def new(self) -> str:
        """What the terminal got since the last call."""
        self.terminal.read()
        found, self._seen = self.terminal.received[self._seen :], len(self.terminal.received)
        # without the titles by which it is known that all has come
        return re.sub(rb"\x1b\]2;\d+\x07", b"", found).decode()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Sweep(tmp_path)
    yield made
    made.terminal.close()


def test_the_table_stays_below_what_jobs_print(sweep: Sweep) -> None:
    sweep.began(3)
    sweep.start(0)
    for number in range(40):
        sweep.say(0, f"step {number}")
        sweep.tick(0.5)
    steps = [f"[0] step {number}" for number in range(40)]
    assert sweep.shown() == [
        "lllaunch: sweep of 3 jobs in /m, 2 GPUs",
        *steps,
        "/m: running, 0/3 done, 1 running, 2 waiting, 20 s",
        "job  overrides  state    time  gpu  what",
        "  0  x=0        running  20 s  0    step 39",
        "and 2 more waiting",
    ]


def test_a_table_that_shrinks_leaves_nothing_behind(sweep: Sweep) -> None:
    sweep.began(6, running=6)
    assert len(sweep.shown()) == 1 + 2 + 6
    for number in range(5):
        sweep.observe(v.JobNotStarted(number, Lease((str(number),))))
        sweep.observe(v.Settle(number, v.JobState.NOT_RUN))
    sweep.tick()
    held = [f"lllaunch: job {n} waits for GPU {n}: held by another launcher" for n in range(5)]
    assert sweep.shown()[1:] == [
        *held,
        "/m: running, 0/6 done, 1 running, 5 not run, 2 s",
        "job  overrides  state    time  gpu",
        "  5  x=5        running   2 s  1",
        "and 5 more not-run",
    ]


def test_wide_letters_and_long_lines_do_not_move_the_table(sweep: Sweep) -> None:
    sweep.began(2, wide="漢字🙂" * 9)
    sweep.start(0)
    for number in range(5):
        sweep.say(0, "漢" * 100 + f"{number} \x1b[31mred\x1b[0m \x1b[2J\x1b[H", stream=2)
        sweep.tick()
    rows = sweep.shown()
    joined = "".join(rows)
    assert all("漢" * 100 + f"{number} red" in joined for number in range(5))
    assert [row for row in rows if "done" in row] == [
        "/m: running, 0/2 done, 1 running, 1 waiting, 5 s"
    ]
    assert rows[-1] == "and 1 more waiting"
    assert sum(row.startswith("job ") for row in rows) == 1


def test_many_lines_are_drawn_together_and_nothing_where_nothing_changes(sweep: Sweep) -> None:
    sweep.began(1, running=1)
    sweep.new()
    for _ in range(5):
        sweep.tick(0.125)
    assert sweep.new() == ""
    sweep.say(0, "step 0")
    assert sweep.new().count("done") == 1
    for number in range(500):
        sweep.say(0, f"step {number}")
    assert sweep.new() == ""
    sweep.tick(0.1)
    assert sweep.new().count("done") == 1
    assert "[0] step 499" in sweep.shown()


def test_a_stopped_terminal_stops_nothing_and_gets_all_in_the_end(sweep: Sweep) -> None:
    sweep.began(2, running=1)
    terminal = sweep.terminal
    terminal.read()
    termios.tcflow(sweep.stream.fileno(), termios.TCOOFF)  # as Ctrl-S does
    for number in range(1000):
        sweep.say(0, f"step {number}")
        sweep.tick()
    assert not select.select([terminal.master], [], [], 0)[0]
    termios.tcflow(sweep.stream.fileno(), termios.TCOON)

    def all_has_come() -> bool:
        sweep.tick()
        while select.select([terminal.master], [], [], 0)[0]:
            terminal.take()
        return b"[0] step 999" in terminal.received

    until(all_has_come, "all that jobs printed")
    shown = sweep.shown()
    steps = [row for row in shown if row.startswith("[0]")]
    assert steps == [f"[0] step {number}" for number in range(1000)]
    assert sum("done" in row for row in shown) == 1


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


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("columns", [45, 60, 120])
def test_another_width_takes_no_line_of_a_job_away(
    sweep: Sweep, columns: int, breaks: bool
) -> None:
    sweep.began(4, running=4)
    for number in range(4):
        sweep.say(number, "step " + "0123456789" * 3)
    sweep.tick()
    steps = [f"[{number}] step {'0123456789' * 3}" for number in range(4)]
    sweep.terminal.resize(columns, breaks=breaks)
    sweep.tick()
    shown = sweep.shown()
    assert [row for row in shown if row.startswith("[")] == steps
    # and nothing is left of the table before
    assert sum(" done, " in row for row in shown) == 1
    sweep.console.close()
    assert sweep.shown()[-4:] == steps
