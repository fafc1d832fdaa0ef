"""Parts of the spawner and of its client that start nothing."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lllaunch.linux.proc
import lllaunch.spawner.server
from lllaunch.linux.cgroup import _remove_left_behind
from lllaunch.linux.proc import ProcessFacts
from lllaunch.linux.process import descends_from, wait_readable
from lllaunch.spawner.client import ACKNOWLEDGE_SECONDS, Commands, PendingCommand
from lllaunch.spawner.orphans import OrphanCleanup, Pauses
from lllaunch.spawner.protocol import Message, Program, SpawnRequest
from lllaunch.spawner.server import Server, Wakeups, Workers, _Worker
from lllaunch.testing import FakeClock

# More than any process id (PID_MAX_LIMIT).
NOBODY = 1 << 22


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


def test_commands_that_keep_coming_do_not_put_off_the_first_ones_deadline(clock: FakeClock) -> None:
    commands = Commands(clock)
    try:
        first = PendingCommand("signal", [1], signal.SIGTERM)
        commands.add(first)
        clock.advance(0.6 * ACKNOWLEDGE_SECONDS)
        second = PendingCommand("signal", [2], signal.SIGTERM)
        number = commands.add(second)
        clock.advance(0.6 * ACKNOWLEDGE_SECONDS)
        commands.add(PendingCommand("signal", [3], signal.SIGTERM))
        assert wait_readable(commands, 30.0)
        assert commands.overdue() == [first]
        # what is confirmed late is not taken for the confirmation of another
        commands.confirm(1)
        commands.confirm(number)
        clock.advance(ACKNOWLEDGE_SECONDS)
        commands.add(first)
        assert wait_readable(commands, 30.0)
        assert [command.keys for command in commands.overdue()] == [[3]]
    finally:
        commands.close()


def test_rounds_of_killing_become_rare_while_nothing_new_appears(clock: FakeClock) -> None:
    pauses = Pauses(clock)
    first = pauses.seconds
    pauses.note([1, 2])
    assert pauses.seconds == first
    waits = []
    for _ in range(10):
        clock.advance(pauses.seconds)
        pauses.note([2])
        waits.append(pauses.seconds)
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == 1.0
    assert pauses.changed == 100.0
    pauses.note([2, 3])
    assert pauses.seconds == first
    assert pauses.changed == clock.now


@pytest.fixture
def wakeups() -> Iterator[Wakeups]:
    before = signal.getsignal(signal.SIGCHLD)
    read, write = os.pipe()
    found = Wakeups(read, read)
    yield found
    for fd in {*found.private, write}:
        os.close(fd)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)


def test_the_number_of_a_worker_that_was_reaped_is_not_signalled(
    wakeups: Wakeups, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    monkeypatch.setattr(
        lllaunch.spawner.server, "signal_group", lambda pid, _: signalled.append(pid)
    )
    sent: list[dict[str, Any]] = []
    fds: list[int] = []

    def send(header: dict[str, Any], given: tuple[int, ...] = ()) -> None:
        sent.append(header)
        fds.extend(given)

    workers = Workers(send, wakeups)
    report, write = os.pipe()
    os.close(write)
    order = SpawnRequest(7, 0, Program("true"), "/")
    # this process's own number stands for one that was given to another
    workers._workers[os.getpid()] = _Worker(order, os.getpid(), report, early=[signal.SIGTERM])
    workers.reaped(os.getpid(), 0, resource.getrusage(resource.RUSAGE_CHILDREN))
    assert [header["event"] for header in sent] == ["started", "exited"]
    assert signalled == []
    assert fds == []


def test_what_an_orphan_leaves_that_ends_just_now_is_let_be_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a parent and its child the parent ends between two looks at processes."""
    server = Server.__new__(Server)
    server._spared, server._cleanup = set(), OrphanCleanup(1)
    here, looks = os.getpid(), iter([True])

    def seen() -> list[ProcessFacts]:
        lives = next(looks, False)
        child = ProcessFacts(pid=12, ppid=11 if lives else here, state="S", session=11, start=2)
        parent = ProcessFacts(pid=11, ppid=here, state="S", session=11, start=1)
        return [parent, child] if lives else [child]

    def children() -> list[int]:
        return [each.pid for each in seen() if each.ppid == here]

    monkeypatch.setattr(lllaunch.linux.proc, "processes", seen)
    monkeypatch.setattr(server, "_orphans", children)
    server._end_cleanup(Message({}, b"", []))
    assert 12 in server._spared


def test_a_lineage_is_nobodys_who_has_not_set_it() -> None:
    assert not descends_from(os.getpid(), "0" * 32)
    assert not descends_from(NOBODY, "0" * 32)


def test_empty_cgroups_of_launchers_that_ended_are_removed(tmp_path: Path) -> None:
    dead, full = tmp_path / f"lllaunch-ab-{NOBODY}", tmp_path / f"lllaunch-cd-{NOBODY + 1}"
    living, other = tmp_path / f"lllaunch-ef-{os.getpid()}", tmp_path / f"other-ab-{NOBODY}"
    for directory in (dead, full, living, other):
        directory.mkdir()
    (full / "something").write_text("lives in it")
    _remove_left_behind(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (full, living, other)
    )
