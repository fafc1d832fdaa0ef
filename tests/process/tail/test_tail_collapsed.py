"""Files whose identical lines are shown as one.

Where a test waits for a line that others do not say, it comes when its time is over; elsewhere that
is never, so that nothing depends on how fast the machine is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT
from support.tails import Sink, append

from lllaunch.console.stream import Outlet
from lllaunch.workers import tail
from lllaunch.workers.tail import Follower


def header(ranks: Sequence[int]) -> bytes:
    return f"[{','.join(map(str, ranks))}]".encode()


@pytest.fixture
def files(tmp_path: Path) -> dict[int, Path]:
    return {rank: tmp_path / str(rank) for rank in (0, 1, 5)}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_HELD_S", 10_000.0)


@pytest.fixture
def follow(files: dict[int, Path]) -> Iterator[Callable[[Any], Follower]]:
    made = []

    def start(out: Any) -> Follower:
        follower = Follower()
        made.append(follower)
        follower.add_collapsed([({rank: str(path) for rank, path in files.items()}, out)], header)
        return follower.start()

    yield start
    for follower in made:
        follower.stop()


@pytest.mark.usefixtures("patient")
def test_what_all_say_is_shown_when_the_last_of_them_has_said_it(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follow(sink)
    for rank in (5, 0, 1):
        assert sink.getvalue() == ""
        append(files[rank], b"ready\n")
    sink.wait_for("[0,1,5]ready\n")
    # in pieces
    append(files[0], b"\xff")
    append(files[1], b"\xff\n\n")
    append(files[5], b"\xff\n\n")
    append(files[0], b"\n")
    append(files[0], b"\n")
    sink.wait_for("[0,1,5]\ufffd\n[0,1,5]\n")


def test_what_one_says_is_shown_after_a_while(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follow(sink)
    append(files[5], b"alone\nand more\n")
    sink.wait_for("[5]alone\n[5]and more\n")


@pytest.mark.usefixtures("patient")
def test_the_end_shows_all_that_is_held(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follower = follow(sink)
    for rank, path in files.items():
        append(path, b"%d\n" % rank + b"same\n" * 3 + b"bye")
    follower.stop()
    expected = ["[0]0", "[1]1", "[5]5", *["[0,1,5]same"] * 3, "[0,1,5]bye"]
    assert sorted(sink.getvalue().splitlines()) == sorted(expected)
    assert sink.getvalue().endswith("[0,1,5]same\n" * 3 + "[0,1,5]bye\n")


@pytest.mark.usefixtures("patient")
def test_a_message_comes_after_what_was_written_before_it(
    files: dict[int, Path], tmp_path: Path, follow: Callable[[Any], Follower]
) -> None:
    with open(tmp_path / "console", "a+") as console:
        follower = follow(console)
        outlet = Outlet(console)
        for number in range(20):
            append(files[number % 2], b"line %d\n" % number)
            outlet.write(f"lllaunch: after {number}\n", 60.0)
        follower.stop()
        outlet.write("lllaunch: the end\n", 60.0)
        console.seek(0)
        lines = console.read().splitlines()
    pairs = [(f"[{n % 2}]line {n}", f"lllaunch: after {n}") for n in range(20)]
    assert lines == [*itertools.chain(*pairs), "lllaunch: the end"]


@pytest.mark.usefixtures("patient")
def test_a_line_that_is_too_long_to_be_held_comes_in_its_place(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follower = follow(sink)
    long = b"x" * 1_000_000
    for path in files.values():
        append(path, b"before\n" + long + b"\nafter\n")
    follower.stop()
    for rank in files:
        own = [line for line in sink.getvalue().splitlines() if str(rank) in line.split("]")[0]]
        assert [line.split("]")[1] for line in own] == ["before", long.decode(), "after"]
    assert sink.getvalue().endswith("\n[0,1,5]after\n")


@pytest.mark.usefixtures("patient")
def test_of_a_flood_whole_blocks_are_compared_and_of_what_comes_after_it_lines(
    files: dict[int, Path],
    sink: Sink,
    follow: Callable[[Any], Follower],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "_FLOOD", 400_000)
    same = [f"same {number}" for number in range(20_000)]
    mixed = {rank: [f"{rank} own", "mixed"] * 40_000 + [f"{rank} last"] for rank in files}
    for rank, path in files.items():
        append(path, "\n".join([*same, *mixed[rank], ""]).encode())
    follower = follow(sink)
    for rank in files:
        while f"[{rank}]{rank} last\n" not in sink.getvalue():
            follower.show_held(WAIT)
    for rank, path in files.items():
        append(path, b"%d after\nmixed\n" % rank)
    follower.stop()
    shown = sink.getvalue().splitlines()
    assert shown[:10_000] == [f"[0,1,5]{line}" for line in same[:10_000]]
    assert [line for line in shown if "mixed" in line and "," in line] == ["[0,1,5]mixed"]
    for rank in files:
        own = [line.split("]")[1] for line in shown if str(rank) in line.split("]")[0]]
        assert own == [*same, *mixed[rank], f"{rank} after", "mixed"]
