"""Files whose identical lines are shown as one.

Where a test waits for a line that others do not say, it comes when its time is over; elsewhere that
is never, so that nothing depends on how fast the machine is.
"""

from __future__ import annotations

import io
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lllaunch.console.stream import Outlet
from lllaunch.workers import tail
from lllaunch.workers.tail import Follower

Append = Callable[[Path, bytes], None]


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
    files: dict[int, Path], sink: Any, append: Append, follow: Callable[[Any], Follower]
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
    files: dict[int, Path], sink: Any, append: Append, follow: Callable[[Any], Follower]
) -> None:
    follow(sink)
    append(files[5], b"alone\nand more\n")
    sink.wait_for("[5]alone\n[5]and more\n")


@pytest.mark.usefixtures("patient")
def test_the_end_shows_all_that_is_held(
    files: dict[int, Path], sink: Any, append: Append, follow: Callable[[Any], Follower]
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
    files: dict[int, Path], tmp_path: Path, append: Append, follow: Callable[[Any], Follower]
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


def test_a_message_does_not_wait_for_a_console_that_takes_nothing(
    files: dict[int, Path], append: Append, follow: Callable[[Any], Follower]
) -> None:
    class Blocked(io.StringIO):
        blocked = threading.Event()
        free = threading.Event()

        def write(self, text: str) -> int:
            self.blocked.set()
            assert self.free.wait(60)
            return super().write(text)

    out = Blocked()
    follower = follow(out)
    append(files[0], b"line\n")
    assert out.blocked.wait(60)
    # who waits is asked once more than there is time for; the second time there is none
    follower.show_held(0.01)
    follower.show_held(10_000.0)
    out.free.set()
    follower.show_held(60.0)
    follower.stop()
    follower.show_held(10_000.0)
    assert out.getvalue() == "[0]line\n"


@pytest.mark.usefixtures("patient")
def test_a_line_that_is_too_long_to_be_held_comes_in_its_place(
    files: dict[int, Path], sink: Any, append: Append, follow: Callable[[Any], Follower]
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
def test_a_file_that_shrinks_is_shown_on_from_its_beginning(
    files: dict[int, Path], sink: Any, append: Append, follow: Callable[[Any], Follower]
) -> None:
    follower = follow(sink)
    append(files[0], b"before\n")
    follower.show_held(60.0)
    os.truncate(files[0], 0)
    follower.show_held(60.0)
    append(files[0], b"after\n")
    follower.stop()
    assert sink.getvalue() == "[0]before\n[0][0 truncated by the worker]\n[0]after\n"


@pytest.mark.usefixtures("patient")
def test_both_streams_of_a_rank_are_shown_in_the_order_in_which_they_were_seen(
    files: dict[int, Path], tmp_path: Path, append: Append
) -> None:
    errors = {rank: Path(f"{path}.err") for rank, path in files.items()}
    with open(tmp_path / "console", "a+") as console:
        follower = Follower()
        streams = [
            ({rank: str(path) for rank, path in each.items()}, console) for each in (files, errors)
        ]
        follower.add_collapsed(streams, header)
        (collapsed,) = follower._collapsed
        turns = threading.Semaphore(0)
        add = collapsed.add

        def counted(member: int, text: bytes) -> None:
            add(member, text)
            turns.release()

        collapsed.add = counted  # type: ignore[method-assign]
        follower.start()
        append(files[0], b"begins\n")
        assert turns.acquire(timeout=60)
        for path in errors.values():
            append(path, b"warning\n")
        for _ in errors:
            assert turns.acquire(timeout=60)
        # the last of them was seen, and is not shown before what is held
        append(files[0], b"more\n")
        assert turns.acquire(timeout=60)
        console.seek(0)
        assert console.read() == ""
        follower.stop()
        console.seek(0)
        assert console.read().splitlines() == ["[0]begins", "[0,1,5]warning", "[0]more"]
