"""The tee on a terminal: lines that have not ended show in the live area and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tails import append

from lllaunch.workers import tail
from lllaunch.workers.tail import Follower
from lllaunch.workers.terminal import Destination

pytest.importorskip("pyte", reason="it shows what a terminal gets")
from support.screen import Terminal

COLUMNS = 20

Follow = Callable[..., Follower]


class Narrow(Terminal):
    """A terminal of 20 columns."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, 10)

    def sees(self, pattern: bytes) -> list[str]:
        """The rows that stand on the screen when what was received matches."""
        self.read_until(lambda: re.search(pattern, self.received))
        return self.rows


@pytest.fixture
def terminal() -> Iterator[Narrow]:
    terminal = Narrow()
    yield terminal
    terminal.close()


@pytest.fixture
def follow(terminal: Narrow) -> Iterator[Follow]:
    """Follows a file on the terminal."""
    made = []

    def start(path: Path, prefix: bytes = b"[w]:", *options: Any, **more: Any) -> Follower:
        made.append(Follower())
        made[-1].add(str(path), prefix, terminal.stream, *options, **more)
        return made[-1].start()

    yield start
    for each in made:
        each.stop()


def test_progress_bar_stays_on_one_line_below_the_others(
    terminal: Narrow, log: Path, follow: Follow
) -> None:
    follow(log)
    append(log, b"\r 10%")
    terminal.sees(rb"10%")
    append(log, b"\r 50%")
    assert terminal.sees(rb"50%") == ["[w]: 50%"]
    Destination(terminal.stream).write([b"a message\n"])
    assert terminal.sees(rb"message\r\n\[w\]: 50%") == ["a message", "[w]: 50%"]
    append(log, b"\r100%\n")
    assert terminal.sees(rb"100%\r\n") == ["a message", "[w]:100%"]


def test_partial_line_shows_after_a_while_and_is_replaced_by_the_whole(
    terminal: Narrow, log: Path, follow: Follow
) -> None:
    follow(log)
    append(log, b"loading")
    assert terminal.sees(rb"loading") == ["[w]:loading"]
    append(log, b" done\n")
    assert terminal.sees(rb"done\r\n") == ["[w]:loading done"]


def test_live_line_is_cut_to_the_width(terminal: Narrow, log: Path, follow: Follow) -> None:
    follower = follow(log)
    append(log, b"\r" + b"#" * 5000)
    terminal.sees(rb"#")
    follower.stop()
    rows = terminal.sees(rb"\n")
    first = terminal.received.split(b"\r\033[K")[0]
    assert first == b"[w]:" + b"#" * (COLUMNS - 1 - 4)
    assert "".join(rows) == "[w]:" + "#" * 5000


def test_latest_of_several_bars_is_the_one_shown(
    terminal: Narrow, tmp_path: Path, follow: Follow
) -> None:
    follower = follow(tmp_path / "0", b"0:")
    follower.add(str(tmp_path / "1"), b"1:", terminal.stream)
    append(tmp_path / "0", b"\rbar")
    terminal.sees(rb"0:bar")
    append(tmp_path / "1", b"\rbar")
    assert terminal.sees(rb"1:bar") == ["1:bar"]
    append(tmp_path / "1", b"\n")
    assert terminal.sees(rb"1:bar\r\n0:bar") == ["1:bar", "0:bar"]


def test_bar_stays_until_its_last_state_is_shown_as_a_line(
    terminal: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_HELD_S", 10_000.0)
    files = {rank: str(tmp_path / str(rank)) for rank in range(2)}
    follower = Follower()
    follower.add_collapsed([(files, terminal.stream)], lambda ranks: b"%d:" % sum(ranks))
    follower.start()
    append(tmp_path / "0", b"\r1%")
    terminal.sees(rb"0:1%")
    append(tmp_path / "1", b"\r2%")
    assert terminal.sees(rb"1:2%") == ["1:2%"]
    append(tmp_path / "1", b"\r3%\n")
    append(tmp_path / "0", b"\r4%")
    # what the one has ended is held: it stands there as it was
    terminal.sees(rb"0:4%")
    append(tmp_path / "0", b"\r3%\nnext")
    assert terminal.sees(rb"1:3%\r\n")[0] == "1:3%"
    assert terminal.sees(rb"0:next") == ["1:3%", "0:next"]
    follower.stop()


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_obeys_nothing_gets_lines_only(
    terminal: Narrow,
    log: Path,
    follow: Follow,
    monkeypatch: pytest.MonkeyPatch,
    term: str,
) -> None:
    monkeypatch.setenv("TERM", term)
    follow(log)
    append(log, b"first\n\r 10%\r 50%")
    terminal.sees(rb"first")
    append(log, b"\r100%\n")
    terminal.sees(rb"100%\r\n")
    assert terminal.received == b"[w]:first\r\n[w]:100%\r\n"
