"""What is only reported, and looks at where workers are, with a clock that the test moves."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.played import PlayedCollector, collecting

from lllaunch.heartbeats import HEARTBEAT
from lllaunch.spec import WatchdogPolicy
from lllaunch.supervisor import watchdog
from lllaunch.supervisor.machine import StacksTaken, WatchdogFired
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.testing import FakeClock
from lllaunch.watchdog.collector import received
from lllaunch.watchdog.evidence import RankStack
from lllaunch.watchdog.findings import Asked, Finding, Spinning, Stalled
from lllaunch.watchdog.sampling import Sampler, Usage


@dataclass
class Workers:
    """What is asked of a group of two workers."""

    nprocs: int = 2
    parent: int = 90
    stdouts: dict[int, str] = field(default_factory=lambda: {0: "/dev/null", 1: "/dev/null"})
    stderrs: dict[int, str] = field(default_factory=lambda: {0: "/dev/null", 1: "/dev/null"})
    error_files: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 101})

    def watched_pids(self) -> dict[int, int]:
        return dict(self.pids)

    def known_pids(self) -> dict[int, int]:
        return dict(self.pids)


@dataclass
class Played:
    """A watchdog, and the world that it sees.

    Attributes:
        used: what each worker has used.
        written: bytes of stacks that each has written.
        looks: how often the processes were looked at.
    """

    clock: FakeClock
    driver: WatchdogDriver
    used: Usage = Usage(0.0, 0, "R", (100,))  # noqa: RUF009 - cannot be changed
    written: int = 0
    looks: int = 0
    workers: Workers = field(default_factory=Workers)

    def begin(self) -> None:
        self.driver.prepare(2)
        self.driver.begin(self.workers)  # type: ignore[arg-type]

    def after(self, seconds: float, busy: float = 0.0) -> list[object]:
        """What happens in so long, if the loop wakes up as it is asked to.

        Args:
            seconds: for how long.
            busy: share of a core that each worker uses.
        """
        until, found, turns = self.clock() + seconds, [], 0
        while True:
            wait = self.driver.next_in(healthy=True)
            if wait is None or self.clock() + wait > until:
                break
            # whoever has nothing to do wakes nobody up
            turns += 1
            assert turns < 1000
            self.clock.advance(wait)
            self.used = self.used._replace(cpu=self.used.cpu + busy * wait)
            found += self.driver.events(healthy=True)
            if any(isinstance(event, WatchdogFired) and event.ends for event in found):
                return found
        self.clock.advance(max(0.0, until - self.clock()))
        return found


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a watchdog of a policy."""
    collecting(monkeypatch)
    made: list[Played] = []

    def make(**policy: Any) -> Played:
        clock = FakeClock(1000.0)
        driver = WatchdogDriver(WatchdogPolicy(**policy), clock=clock)
        played = Played(clock, driver)

        def usage(_: Sampler, workers: Mapping[int, int]) -> dict[int, Usage]:
            played.looks += 1
            return dict.fromkeys(workers, played.used)

        monkeypatch.setattr(Sampler, "usage", usage)
        monkeypatch.setattr(Sampler, "shared_out", lambda _, used: used.rss)
        monkeypatch.setattr(watchdog, "dumped", lambda _: played.written)
        played.begin()
        made.append(played)
        return played

    yield make
    for each in made:
        each.driver.close()
    assert all(each.fd < 0 for each in PlayedCollector.made)


def fired(events: list[object]) -> list[Finding]:
    return [event.finding for event in events if isinstance(event, WatchdogFired)]


def test_a_spin_is_found_by_looks_that_nobody_takes_before_half_of_its_time(play: Any) -> None:
    played = play(spin=600.0)
    assert played.after(299.0, busy=1.0) == []
    assert PlayedCollector.made == []
    found = played.after(331.0, busy=1.0)
    (finding,) = fired(found)
    assert isinstance(finding, Spinning)
    assert finding.seconds >= 600.0
    assert len(PlayedCollector.made) == finding.looks > 10
    assert all(each.written is None for each in PlayedCollector.made)


def test_the_stacks_that_workers_write_for_a_look_are_no_output_and_no_io(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(spin=600.0)

    def result(self: PlayedCollector) -> tuple[RankStack, ...]:
        played.written += 50_000
        used = played.used
        played.used = used._replace(io=used.io + 50_000, written=used.written + 50_000)
        return tuple(RankStack(rank, frames=self.frames) for rank in self.workers)

    monkeypatch.setattr(PlayedCollector, "result", result)
    assert len(fired(played.after(631.0, busy=1.0))) == 1


def test_time_in_which_the_whole_machine_stood_still_does_not_count(play: Any) -> None:
    played = play(spin=600.0)
    assert played.after(590.0, busy=1.0) == []
    looks = len(PlayedCollector.made)
    assert looks
    played.clock.advance(10_000.0)
    assert played.after(290.0, busy=1.0) == []
    assert len(PlayedCollector.made) == looks
    assert len(fired(played.after(341.0, busy=1.0))) == 1


def test_what_is_reported_is_said_once_and_nobody_wakes_up_for_it_again(play: Any) -> None:
    limits = {"timeout": 100.0, "memory": 10, "spin": 200.0, "silence": 300.0}
    played = play(**limits, report=frozenset(limits))
    played.used = played.used._replace(rss=100)
    found = fired(played.after(1000.0, busy=1.0))
    names = [type(finding).__name__ for finding in found]
    assert names == ["OverMemory", "TimedOut", "Spinning", "Silent"]
    looks, made = played.looks, len(PlayedCollector.made)
    assert played.after(10**6, busy=1.0) == []
    assert (played.looks, len(PlayedCollector.made)) == (looks, made)
    # the next attempt is watched anew
    played.begin()
    found = fired(played.after(1000.0, busy=1.0))
    assert [type(finding).__name__ for finding in found] == names


def test_a_stall_that_was_reported_is_not_reported_as_a_spin_again(play: Any) -> None:
    played = play(stall=600.0, spin=600.0, report=frozenset({"stall", "spin"}))
    (finding,) = fired(played.after(3000.0))
    assert isinstance(finding, Stalled)
    assert PlayedCollector.made == []
    # but what comes after they have moved is
    played.used = played.used._replace(io=10**9)
    (finding,) = fired(played.after(700.0, busy=1.0))
    assert isinstance(finding, Spinning)


def test_who_asks_for_stacks_does_not_wait_for_a_look(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(spin=600.0)
    monkeypatch.setattr(PlayedCollector, "done", False)
    assert played.after(300.0, busy=1.0) == []
    (look,) = PlayedCollector.made
    assert look in played.driver.files()
    assert look.fd >= 0
    monkeypatch.setattr(PlayedCollector, "done", True)
    played.driver.take_stacks(frozenset({0, 1}), Asked(3))
    assert look.fd < 0
    assert PlayedCollector.made[-1].written is not None
    assert [type(each) for each in played.driver.events(healthy=True)] == [StacksTaken]
    # and the looks go on
    assert len(fired(played.after(340.0, busy=1.0))) == 1


def test_who_says_that_it_gets_on_does_not_hang_when_ctrl_c_comes(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = play(stall=600.0).driver
    # it has run, and written nothing, for long
    monkeypatch.setattr(driver, "_began_at", time.time() - 100)
    offset, _, path = driver.environment(1)[HEARTBEAT].partition(":")

    def beat(seconds_ago: float) -> None:
        with open(path, "r+b") as file:
            file.seek(int(offset))
            file.write(struct.pack("q", time.monotonic_ns() - int(seconds_ago * 1e9)))

    looks = driver.interrupted(2)
    assert looks is not None
    assert looks.silent >= 100
    beat(0.0)
    assert driver.interrupted(2) is None
    beat(100.0)
    assert driver.interrupted(2) is not None


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs iproute2")
def test_what_comes_by_tcp_is_counted_by_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        before = received({os.getpid()})
        theirs.sendall(bytes(100_000))
        ours.recv(100_000, socket.MSG_WAITALL)
        assert received({os.getpid()}) - before == 100_000
        assert received({os.getppid()}) == 0
