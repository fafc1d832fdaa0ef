"""The line below a run's output on a real terminal, as a person would see it."""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.launching import until

from lllaunch.console.console import Console
from lllaunch.run.result import RunResult
from lllaunch.spec import ConsolePolicy
from lllaunch.testing import FakeClock
from lllaunch.watchdog.progress import Progress
from lllaunch.workers.terminal import Destination, screen_of

pytest.importorskip("pyte", reason="it shows what a terminal gets")
from support.screen import Terminal

BEGAN = "lllaunch: attempt 0: 2 workers of train.py, logs in run/attempt_0"
ENDED = RunResult(
    state="succeeded",
    exit_code=0,
    attempts=(),
    directory="/m/run",
    plan_hash="",
    started_ns=10**9,
    ended_ns=2 * 10**9,
)


class Shown:
    """A console on a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.clock = FakeClock(1000.0)
        self.console = Console(terminal.stream, cwd="/m", clock=self.clock, last_patience=0.2)
        self.workers = Destination(terminal.stream)

    def begin(self, **policy: object) -> None:
        self.console.obey(ConsolePolicy(**policy))  # type: ignore[arg-type]
        self.console.started(0, 2, "train.py", "/m/run/attempt_0")

    def tick(self, seconds: float = 1.0) -> list[str]:
        self.clock.advance(seconds)
        self.console.tick()
        return self.terminal.shown()

    def write(self, *lines: str) -> list[str]:
        self.workers.write([f"{line}\n".encode() for line in lines])
        return self.terminal.shown()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def shown(terminal: Terminal) -> Shown:
    return Shown(terminal)


def test_long_lines_and_lines_in_pieces_are_not_broken(shown: Shown) -> None:
    shown.begin()
    shown.tick()
    pieces = [b"a" * 100, b"b" * 100, b"c" * 100 + b"\nshort\n"]
    shown.workers.write(iter(pieces))
    rows = shown.tick()
    assert "".join(rows[1:5]) == "a" * 100 + "b" * 100 + "c" * 100
    assert rows[5:] == ["short", "lllaunch: attempt 0, 2 s"]
    wide = "進" * 100
    rows = shown.write(wide)
    assert "".join(rows[6:9]) == wide
    assert rows[9:] == ["lllaunch: attempt 0, 2 s"]


@pytest.mark.parametrize(("columns", "lines"), [(39, 12), (80, 3)])
def test_where_there_is_no_room_for_it_it_is_not_there(
    shown: Shown, columns: int, lines: int
) -> None:
    shown.begin()
    shown.tick()
    shown.terminal.resize(columns, lines)
    rows = shown.tick()
    assert rows == [each for each in rows if "1 s" not in each and "2 s" not in each]
    shown.write("more")
    shown.terminal.resize(80, 12)
    assert shown.tick()[-2:] == ["more", "lllaunch: attempt 0, 3 s"]


@pytest.mark.parametrize("policy", [{"live": False}, {"quiet": True}])
def test_a_bar_gives_way_also_where_there_is_no_line(
    shown: Shown, policy: dict[str, object]
) -> None:
    shown.begin(**policy)
    shown.workers.show("bar", b"50 %")
    before = shown.terminal.shown()[:-1]
    shown.console.give_way()
    assert shown.write("late") == [*before, "late"]
    assert shown.tick() == [*before, "late", "50 %"]


def test_the_report_stands_in_its_place(shown: Shown) -> None:
    shown.begin()
    shown.tick()
    shown.console.finished(ENDED)
    assert shown.terminal.shown() == [BEGAN, "lllaunch: succeeded in 1.0 s; results in run"]
    assert shown.console.next_in() is None
    assert shown.tick(100.0)[2:] == []


def test_of_a_quiet_run_it_leaves_nothing(shown: Shown) -> None:
    shown.begin(quiet=True, live=True)
    assert shown.tick() == ["lllaunch: attempt 0, 1 s"]
    shown.console.finished(ENDED)
    assert shown.terminal.shown() == []


@pytest.mark.parametrize(
    ("term", "policy", "every"),
    [
        ("dumb", {}, 300.0),
        ("dumb", {"live": True, "interval": 60.0}, 60.0),
        ("xterm", {"live": False}, 300.0),
        ("xterm", {"live": False, "interval": None}, None),
        ("xterm", {"quiet": True}, None),
    ],
)
def test_where_there_is_none_a_line_comes_now_and_then(
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
    term: str,
    policy: dict[str, object],
    every: float | None,
) -> None:
    monkeypatch.setenv("TERM", term)
    shown.begin(**policy)
    began = [] if policy.get("quiet") else [BEGAN]
    assert shown.console.next_in() == every
    assert shown.tick(59.0) == began
    if every is None:
        assert shown.tick(10_000.0) == began
        return
    shown.clock.advance(every - 59.0)
    # the moment after, late
    assert shown.tick(0.5) == [*began, f"lllaunch: {every / 60:.0f} min: attempt 0"]
    assert shown.console.next_in() == every - 0.5
    assert b"\x1b[" not in shown.terminal.received
    shown.console.finished(ENDED)
    assert shown.console.next_in() is None


def test_where_workers_write_there_themselves_it_has_to_be_asked_for(shown: Shown) -> None:
    other = os.fdopen(os.dup(shown.terminal.stream.fileno()), "w")
    with other, open(os.devnull, "w") as elsewhere:
        for live, beside, there in [
            (None, [other], False),
            (None, [elsewhere, None], True),
            (True, [other], True),
        ]:
            console = Console(shown.terminal.stream, cwd="/m", clock=shown.clock)
            console.obey(ConsolePolicy(live=live, interval=None), beside)
            console.started(0, 2, "train.py", "/m/run/attempt_0")
            assert console.next_in() == (1.0 if there else None)


def test_who_waits_in_a_stopped_terminal_keeps_nobody_else(shown: Shown) -> None:
    shown.begin()
    shown.tick()
    screen = screen_of(shown.terminal.stream)
    descriptor = shown.terminal.stream.fileno()
    termios.tcflow(descriptor, termios.TCOOFF)
    tee = threading.Thread(target=shown.workers.write, args=([b"output\n"],))
    tee.start()

    def waits() -> bool:
        with screen.turn(0.0) as ours:
            return not ours

    until(waits, "the tee to wait in the terminal")
    shown.clock.advance(1.0)
    shown.console.tick()
    shown.console.give_way()
    shown.console.finished(ENDED)
    assert tee.is_alive()
    termios.tcflow(descriptor, termios.TCOON)
    tee.join()
    rows = shown.terminal.shown()
    assert rows[:2] == [BEGAN, "output"]
    shown.console.note("more")
    assert not [row for row in shown.terminal.shown() if "attempt 0, " in row]


def test_a_later_attempt_says_nothing_of_the_one_before(shown: Shown) -> None:
    shown.begin()
    shown.console.sampled({0: Progress(5.0)}, 1024**3)
    shown.tick()
    shown.console.doing("starts again in", 5.0)
    assert shown.tick()[-1] == "lllaunch: attempt 0, 2 s, starts again in 4 s, step 5, 1.0 GiB"
    shown.console.started(1, 2, "train.py", "/m/run/attempt_1")
    shown.console.doing("importing torch")
    assert shown.tick()[-1] == "lllaunch: attempt 1, 3 s, importing torch"
    shown.console.doing("")
    assert shown.tick()[-1] == "lllaunch: attempt 1, 4 s"


def test_what_is_seen_with_each_look_is_said_in_a_log(shown: Shown) -> None:
    # without samples nobody else looks, and those of now and then are old
    shown.begin(live=False, interval=2.0)
    shown.clock.advance(2.0)
    shown.console.look = lambda: {0: Progress(6.0, 12.0)}
    shown.console.tick()
    assert shown.terminal.shown() == [BEGAN, "lllaunch: 2 s: step 6/12"]


def test_what_a_closed_terminal_does_not_take_is_forgotten(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.begin()
    shown.tick()
    os.close(shown.terminal.master)
    for _ in range(2):
        shown.clock.advance(1.0)
        shown.console.tick()
    shown.console.finished(ENDED)


texts = st.text(st.sampled_from("ab進 é"), min_size=1, max_size=14).map(str.strip).filter(bool)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(texts, min_size=1, max_size=4)),
    st.tuples(st.just("begin"), texts),
    st.tuples(st.just("end"), texts),
    st.tuples(st.just("note"), texts),
    st.tuples(st.just("tick"), st.none()),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("resize"), st.tuples(st.integers(41, 100), st.booleans())),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=25))
def test_whatever_happens_each_line_stands_there_once_and_the_live_area_below(
    terminal: Terminal, happens: list[tuple[str, Any]]
) -> None:
    del terminal  # for its environment
    own = Terminal(80, 8)
    shown, partial, there = Shown(own), "", False
    expected = [BEGAN]
    shown.begin()
    own.resize(100)
    try:
        for what, given_ in happens:
            if what == "write":
                shown.write(*given_)
                expected += given_
            elif what == "begin":
                shown.workers.show("bar", given_.encode())
                partial = given_
            elif what == "end":
                shown.workers.write([f"{given_}\n".encode()], ["bar"])
                expected.append(given_)
                partial = ""
            elif what == "note":
                shown.console.note(given_)
                expected.append(f"lllaunch: {given_}")
            elif what == "tick":
                shown.tick()
                there = True
            elif what == "stop" and there:
                shown.console.give_way()
                assert shown.terminal.shown() == expected
                shown.tick()
            elif what == "resize" and there and given_[0] > len(BEGAN):
                own.resize(given_[0], breaks=given_[1])
        rows = shown.tick()
        area = [partial] if partial else []
        assert rows[len(rows) - len(area) - 1 :][: len(area)] == area
        assert rows[-1].startswith(("lllaunch: attempt 0, ", "attempt 0, "))
        assert rows[: len(rows) - len(area) - 1] == expected
        shown.console.finished(ENDED)
    finally:
        own.close()


def test_a_line_that_cannot_be_drawn_takes_no_output_with_it(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lllaunch.console.console.fitted", lambda *_: 1 / 0)
    shown.begin()
    shown.tick()
    assert shown.write("a line", "another")[-2:] == ["a line", "another"]
    shown.console.note("as ever")
    assert shown.tick()[1:] == ["a line", "another", "lllaunch: as ever"]
    assert capsys.readouterr().err.count("lllaunch: no live view: ") == 1
    shown.console.finished(ENDED)
