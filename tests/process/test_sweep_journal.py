"""The journal and the lock of a sweep, whose launcher is killed at any moment."""

from __future__ import annotations

import functools
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from lllaunch.errors import ConfigError
from lllaunch.sweep.directory import JOURNAL, SweepDirectory
from lllaunch.sweep.journal import ComposedRecord, Header, Journal, JournalEntry, read_journal

HEADER = Header("kills", "0")
_KILLS = 30
_MOST = 40  # records of one launcher
_LONGEST = 10_000  # bytes of one
_NUMBER = struct.Struct("q")
# far more than any of this takes
_BOUND = 60


def forked(play: Callable[[int], object]) -> tuple[int, int]:
    """Forks a process that plays with the end of a pipe; its pid and the other end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            play(writing)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def appending(path: str, first: int, out: int) -> NoReturn:
    """Appends records until it is killed; tells of each when it is on the disk."""
    journal = Journal.open(path)
    for number in range(first, first + _MOST):
        # often several pages: a kill may come between them
        overrides = (f"n={number}", "x" * (number * 7919 % _LONGEST))
        journal.append(ComposedRecord(number, overrides, str(number), None))
        os.write(out, _NUMBER.pack(number))
    time.sleep(_BOUND)
    os._exit(1)


def told(reading: int, count: int) -> list[int]:
    """What a process tells: so many numbers, or fewer if it ends before."""
    data = b""
    while len(data) < count * _NUMBER.size:
        more = os.read(reading, count * _NUMBER.size - len(data))
        if not more:
            break
        data += more
    return [number for (number,) in _NUMBER.iter_unpack(data)]


def numbers_in(path: str) -> list[int]:
    head, *entries = read_journal(path)
    assert head.record == HEADER
    for entry in entries:
        assert isinstance(entry, JournalEntry)
        assert isinstance(entry.record, ComposedRecord)
        assert len(entry.record.overrides[1]) == entry.record.job * 7919 % _LONGEST
    return [entry.record.job for entry in entries if isinstance(entry.record, ComposedRecord)]


def test_no_acknowledged_record_is_lost_however_often_the_launcher_is_killed(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / JOURNAL)
    Journal.create(path, HEADER).close()
    chance = random.Random(4)
    acknowledged: list[int] = []
    for _ in range(_KILLS):
        before = numbers_in(path)
        pid, reading = forked(functools.partial(appending, path, len(before)))
        try:
            some = told(reading, chance.randrange(8))
            numbers_in(path)  # while it writes
            time.sleep(chance.random() * 0.004)
        finally:
            kill(pid)
        acknowledged += [*some, *told(reading, 1_000_000)]
        os.close(reading)
        found = numbers_in(path)
        # nothing lost, nothing twice, nothing in between; the last may have been on its way
        assert found == list(range(len(found)))
        assert set(acknowledged) <= set(found)
        assert found[: len(before)] == before
    assert len(acknowledged) > _KILLS


@pytest.mark.parametrize("cut", range(1, 200, 37))
def test_a_torn_line_is_mended_by_the_next_launcher(tmp_path: Path, cut: int) -> None:
    path = str(tmp_path / JOURNAL)
    Journal.create(path, HEADER).close()
    pid, reading = forked(functools.partial(appending, path, 0))
    try:
        assert told(reading, 3) == [0, 1, 2]
    finally:
        kill(pid)
        os.close(reading)
    os.truncate(path, os.path.getsize(path) - cut)
    before = numbers_in(path)
    pid, reading = forked(functools.partial(appending, path, len(before)))
    try:
        assert told(reading, 1) == [len(before)]
    finally:
        kill(pid)
        os.close(reading)
    found = numbers_in(path)
    assert found == list(range(len(found)))
    assert len(found) > len(before)


def holding(path: str, out: int, *, leaving: bool = False) -> NoReturn:
    """Holds a sweep's directory until it is killed; with ``leaving``, a child does so as well."""
    with SweepDirectory.claim(path):
        child = os.fork() if leaving else 0
        if child or not leaving:
            os.write(out, _NUMBER.pack(child))
        os.close(out)
        time.sleep(_BOUND)
    os._exit(0)


def test_a_second_launcher_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "sweep")
    pid, reading = forked(lambda out: holding(path, out))
    try:
        told(reading, 1)
        with pytest.raises(ConfigError) as caught:
            SweepDirectory.claim(path)
        assert repr(path) in str(caught.value)
        assert f"(pid {pid} on " in str(caught.value)
    finally:
        kill(pid)
        os.close(reading)
    SweepDirectory.claim(path).release()


def test_a_job_that_is_left_over_holds_the_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "sweep")
    pid, reading = forked(lambda out: holding(path, out, leaving=True))
    child = 0
    try:
        try:
            (child,) = told(reading, 1)
        finally:
            kill(pid)
        with pytest.raises(ConfigError, match="is still in use by jobs of a sweep"):
            SweepDirectory.claim(path)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        os.close(reading)
    # it is somebody else's child now: its end is seen by the lock alone
    deadline = time.monotonic() + _BOUND
    while True:
        try:
            SweepDirectory.claim(path).release()
        except ConfigError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            break
