"""What an attempt is watched for, with a clock and processes that the test moves."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.played import PlayedCollector, collecting

from lllaunch.errors import OutputError
from lllaunch.heartbeats import HEARTBEAT, ProgressRecord
from lllaunch.spawner.evidence import WATCHED
from lllaunch.spec import TIMER_FILE, WatchdogPolicy
from lllaunch.supervisor import watchdog
from lllaunch.supervisor.machine import StacksTaken, WatchdogFired
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.testing import FakeClock
from lllaunch.watchdog.collector import received
from lllaunch.watchdog.evidence import RankStack
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    HeartbeatLost,
    OverMemory,
    Silent,
    Spinning,
    Stalled,
    TimedOut,
)
from lllaunch.watchdog.sampling import Sample, Sampler, Usage

MIB = 1 << 20
FILES = {0: "/no/stdout", 1: "/no/stdout"}


@dataclass
class PlayedSampler(Sampler):
    """Says what the test says."""

    usages: dict[int, Usage] = field(default_factory=dict)
    shared: int = 0
    asked: int = 0

    def usage(self, workers: Mapping[int, int]) -> dict[int, Usage]:
        self.asked += 1
        idle = {rank: Usage(0.0, 0, "S", (pid,)) for rank, pid in workers.items()}
        return {rank: self.usages.get(rank, usage) for rank, usage in idle.items()}

    def shared_out(self, usage: Usage) -> int:
        return self.shared or usage.rss

    def use(self, **more: float) -> None:
        """Both workers have used so much more."""
        for rank in (0, 1):
            used = self.usages.get(rank) or Usage(0.0, 0, "R", (100 + rank,))
            sums = {name: getattr(used, name) + value for name, value in more.items()}
            self.usages[rank] = used._replace(**sums)  # type: ignore[arg-type]


@dataclass
class Workers:
    """What is asked of a group of two workers."""

    stdouts: dict[int, str] = field(default_factory=lambda: {0: "", 1: ""})
    stderrs: dict[int, str] = field(default_factory=lambda: {0: "", 1: ""})
    nprocs: int = 2
    error_files: dict[int, str] = field(default_factory=dict)
    parent: int = 90
    pids: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 101})

    def watched_pids(self) -> dict[int, int]:
        return dict(self.pids)

    known_pids = watched_pids


class Played:
    """A watch with its surroundings."""

    def __init__(self, policy: WatchdogPolicy, samples: float | None = None) -> None:
        self.clock = FakeClock(1000.0)
        self.sampler = PlayedSampler()
        self.watch = WatchdogDriver(policy, clock=self.clock, samples=samples)
        self.watch._sampler = self.sampler
        self.watch.prepare(2)
        self.workers = Workers()
        self.pids = self.workers.pids

    def begin(self, **more: Any) -> None:
        vars(self.workers).update(more)
        self.watch.begin(self.workers)  # type: ignore[arg-type]

    def next_in(self) -> float | None:
        return self.watch.next_in(healthy=True)

    def after(self, seconds: float) -> list[object]:
        """What is reported after so long, if the loop wakes up as it is asked to."""
        until, found = self.clock() + seconds, []
        while True:
            wait = self.next_in()
            if wait is None or self.clock() + wait > until:
                break
            self.clock.advance(max(wait, 0.001))
            found += self.reports()
            if found:
                return found
        self.clock.advance(max(0.0, until - self.clock()))
        return found + self.reports()

    def found(self, seconds: float, busy: float = 0.0) -> list[Finding]:
        """What is found in so long, until one ends workers that use such a share of a core."""
        until, found, turns = self.clock() + seconds, list[Finding](), 0
        while (wait := self.next_in()) is not None and self.clock() + wait <= until:
            # whoever has nothing to do wakes nobody up
            turns += 1
            assert turns < 1000
            self.clock.advance(wait)
            self.sampler.use(cpu=busy * wait)
            events = self.watch.events(healthy=True)
            fired = [each for each in events if isinstance(each, WatchdogFired)]
            found += [each.finding for each in fired]
            if any(each.ends for each in fired):
                return found
        self.clock.advance(max(0.0, until - self.clock()))
        return found

    def reports(self) -> list[object]:
        events = self.watch.events(healthy=True)
        return [each.finding if isinstance(each, WatchdogFired) else each for each in events]

    def sample(self, seconds: float) -> Sample:
        """The only report after so long."""
        (found,) = self.after(seconds)
        assert isinstance(found, Sample)
        return found

    def beat(self, rank: int) -> None:
        offset, _, path = self.watch.environment(rank)[HEARTBEAT].partition(":")
        with open(path, "r+b") as file:
            file.seek(int(offset))
            file.write(struct.pack("<q", int(self.clock() * 1e9)))


Play = Callable[..., Played]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Makes watches, which have begun if it is not said otherwise, and closes them in the end."""
    collecting(monkeypatch)
    watches: list[Played] = []

    def made(
        policy: WatchdogPolicy, samples: float | None = None, *, begun: bool = True, **more: Any
    ) -> Played:
        watches.append(Played(policy, samples))
        if begun:
            watches[-1].begin(**more)
        return watches[-1]

    yield made
    for each in watches:
        each.watch.close()
    assert all(each.fd < 0 for each in PlayedCollector.made)


def test_nothing_is_watched_by_default(play: Play) -> None:
    watch = play(WatchdogPolicy())
    assert watch.watch.environment(0) == {}
    assert watch.watch.files() == []
    assert watch.next_in() is None
    assert watch.after(10**6) == []
    assert watch.sampler.asked == 0


def test_an_attempt_has_its_time_and_no_look_is_taken_for_that(play: Play) -> None:
    watch = play(WatchdogPolicy(timeout=3600.0), begun=False)
    assert watch.after(3000.0) == []
    watch.begin()
    assert watch.next_in() == 3600.0
    assert watch.after(3599.0) == []
    assert watch.after(1.0) == [TimedOut(3600.0)]
    assert watch.sampler.asked == 0


def test_a_stall_is_found_one_look_after_the_limit_at_the_latest(play: Play) -> None:
    watch = play(WatchdogPolicy(stall=600.0, warmup=60.0))
    assert watch.after(659.0) == []
    (found,) = watch.after(31.0)
    assert isinstance(found, Stalled)
    assert found.ranks == (0, 1)
    assert 600.0 <= found.seconds <= 630.0
    # every 30 s, a twentieth of the limit
    assert watch.sampler.asked <= 24


def test_with_steps_known_a_stall_is_reported_early_and_ends_when_it_was_to(play: Play) -> None:
    watch = play(WatchdogPolicy(stall=1800.0))
    tracker = watch.watch._progress_tracker()
    for step in range(3):
        tracker.say(0, ProgressRecord(step + 1, step, None, {}), watch.clock())
        watch.clock.advance(5.0)
    early, late = (
        next(filter(None, (watch.watch.events(healthy=True) for _ in ticks(watch))), None)
        for _ in range(2)
    )
    for fired, ends, least in ((early, False, 100.0), (late, True, 1800.0)):
        assert fired is not None
        (event,) = fired
        assert isinstance(event, WatchdogFired)
        assert event.ends is ends
        assert isinstance(event.finding, Stalled)
        assert least <= event.finding.seconds <= 1.1 * least


def ticks(watch: Played) -> Iterator[None]:
    """Let time pass as the loop is asked to."""
    while (wait := watch.next_in()) is not None:
        watch.clock.advance(max(wait, 0.001))
        yield


def test_output_and_heartbeats_count_as_life(play: Play, tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    watch = play(WatchdogPolicy(stall=60.0), stdouts={0: str(log), 1: ""})
    assert watch.after(50.0) == []
    log.write_text("step 1\n")
    assert watch.after(50.0) == []
    watch.beat(1)
    assert watch.after(50.0) == []
    assert watch.after(30.0) != []


@pytest.mark.parametrize("policy", [WatchdogPolicy(stall=60.0), WatchdogPolicy(heartbeat=60.0)])
@pytest.mark.parametrize("waiting", [True, False])
def test_time_in_which_the_launcher_itself_stood_still_is_forgiven(
    play: Play, policy: WatchdogPolicy, waiting: bool
) -> None:
    watch = play(policy)
    watch.beat(0)
    assert watch.after(30.0) == []
    if waiting:
        watch.next_in()
    watch.clock.advance(10_000.0)
    watch.next_in()
    assert watch.reports() == []
    watch.beat(1)
    assert watch.after(59.0) == []
    assert watch.after(80.0) != []


def test_a_heartbeat_must_go_on_once_it_has_begun(play: Play) -> None:
    watch = play(WatchdogPolicy(heartbeat=300.0))
    watch.sampler.usages = {0: Usage(10**6, 0, "R", (100,))}
    assert watch.after(10**4) == []
    for _ in range(5):
        watch.beat(1)
        assert watch.after(299.0) == []
    watch.beat(1)
    (found,) = watch.after(301.0)
    assert isinstance(found, HeartbeatLost)
    assert found.ranks == (1,)
    # it is woken by the moment at which it is lost, not by the next look
    assert found.seconds == pytest.approx(300.0, abs=0.01)
    # who ended owes none
    del watch.pids[1]
    assert watch.after(1000.0) == []


def test_silence_is_that_of_all_workers_however_busy(play: Play) -> None:
    watch = play(
        WatchdogPolicy(silence=300.0, warmup=100.0), stdouts=FILES, stderrs={**FILES, 0: ""}
    )
    for second in range(10):
        watch.sampler.usages = {
            0: Usage(10**6, 100.0 * second, "R", (100,), written=second),
            1: Usage(10**6, 100.0 * second, "R", (101,)),
        }
        assert watch.after(290.0) == []
    # what is written elsewhere is no output of streams that go to files
    watch.sampler.usages[1] = Usage(10**6, 100.0, "R", (101,), written=999)
    (found,) = watch.after(320.0)
    assert isinstance(found, Silent)
    assert 300.0 <= found.seconds <= 315.0


def test_memory_is_measured_exactly_before_anybody_is_accused(play: Play) -> None:
    watch = play(WatchdogPolicy(memory=100 * MIB))
    watch.sampler.usages = {1: Usage(0.0, 200 * MIB, "S", (101,))}
    watch.sampler.shared = 90 * MIB
    assert watch.after(100.0) == []
    watch.sampler.shared = 150 * MIB
    assert watch.after(1.0) == [OverMemory(1, 150 * MIB, 100 * MIB, within=1.0)]


def test_samples_are_taken_where_nothing_is_watched(play: Play) -> None:
    watch = play(WatchdogPolicy(), samples=5.0, begun=False)
    assert watch.watch.environment(0).keys() == {HEARTBEAT}
    assert watch.next_in() is None
    watch.begin()
    assert watch.next_in() == 5.0
    assert watch.after(4.9) == []
    assert set(watch.sample(0.2).workers) == {0, 1}
    assert watch.sampler.asked == 1
    del watch.pids[0]
    assert set(watch.sample(5.0).workers) == {1}


def test_while_the_group_ends_there_are_samples_and_nothing_else(play: Play) -> None:
    watch = play(WatchdogPolicy(stall=10.0, timeout=20.0), samples=5.0)
    for taken in range(1, 11):
        watch.clock.advance(watch.watch.next_in(healthy=False) or 0.0)
        (sample,) = watch.watch.events(healthy=False)
        assert isinstance(sample, Sample)
        assert watch.watch.events(healthy=False) == []
        assert watch.sampler.asked == taken
    watch.pids.clear()
    # nobody is left who could start
    assert watch.watch.next_in(healthy=False) is None
    assert watch.watch.events(healthy=False) == []


def prepared(policy: WatchdogPolicy, ranks: int, timer_file: str | None = None) -> WatchdogDriver:
    driver = WatchdogDriver(policy, timer_file=timer_file)
    driver.prepare(ranks)
    return driver


def test_the_private_place_goes_with_the_watch() -> None:
    watch = prepared(WatchdogPolicy(timers=True, stall=60.0), 3)
    environments = [watch.environment(rank) for rank in range(3)]
    (fifo,) = {environment[TIMER_FILE] for environment in environments}
    directory = os.path.dirname(fifo)
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert [environment[HEARTBEAT] for environment in environments] == [
        f"{offset}:{directory}/heartbeats" for offset in (0, 1024, 2048)
    ]
    watch.close()
    watch.close()
    assert not os.path.exists(directory)


def test_the_timer_file_may_be_chosen_and_what_an_agent_left_there_is_replaced(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "timers")
    os.mkfifo(path)
    watch = prepared(WatchdogPolicy(timers=True, collectives=False), 1, path)
    assert watch.environment(0)[WATCHED] == "1"
    assert watch.environment(0)[TIMER_FILE] == path
    watch.close()
    assert not os.path.exists(path)


def test_a_file_of_the_users_is_not_replaced_and_where_no_fifo_can_be_made_that_is_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "timers"
    path.write_text("precious")
    with pytest.raises(OutputError, match="timers"):
        prepared(WatchdogPolicy(timers=True), 1, str(path))
    assert path.read_text() == "precious"
    with pytest.raises(OutputError, match="missing/timers"):
        prepared(WatchdogPolicy(timers=True), 1, str(tmp_path / "missing" / "timers"))


def test_places_that_killed_launchers_left_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    policy = WatchdogPolicy(timers=True)
    used = prepared(policy, 1)
    left, users, young = (tmp_path / f"lllaunch-watch-{name}" for name in ("a", "users", "young"))
    for path in (left, users, young):
        path.mkdir()
        (path / "0").touch()
        (path / "heartbeats").touch()
    (users / "notes.txt").write_text("precious")
    for path in {*tmp_path.iterdir()} - {young}:
        os.utime(path, (1, 1))
    before = {*tmp_path.iterdir()}
    prepared(policy, 1).close()
    assert {*tmp_path.iterdir()} == before - {left}
    used.close()
    assert {*tmp_path.iterdir()} == {users, young}


# Looks at where workers are, and what is only reported


def test_a_spin_is_found_by_looks_that_nobody_takes_before_half_of_its_time(play: Play) -> None:
    played = play(WatchdogPolicy(spin=600.0))
    assert played.found(299.0, busy=1.0) == []
    assert PlayedCollector.made == []
    (finding,) = played.found(331.0, busy=1.0)
    assert isinstance(finding, Spinning)
    assert finding.seconds >= 600.0
    assert len(PlayedCollector.made) == finding.looks > 10
    assert all(each.written is None for each in PlayedCollector.made)


def test_the_stacks_that_workers_write_for_a_look_are_no_output_and_no_io(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, written = play(WatchdogPolicy(spin=600.0)), 0
    monkeypatch.setattr(watchdog, "dumped", lambda _: written)

    def result(self: PlayedCollector) -> tuple[RankStack, ...]:
        nonlocal written
        written += 50_000
        played.sampler.use(io=50_000, written=50_000)
        return tuple(RankStack(rank, frames=self.frames) for rank in self.workers)

    monkeypatch.setattr(PlayedCollector, "result", result)
    assert len(played.found(631.0, busy=1.0)) == 1


def test_time_in_which_the_whole_machine_stood_still_does_not_count(play: Play) -> None:
    played = play(WatchdogPolicy(spin=600.0))
    assert played.found(590.0, busy=1.0) == []
    looks = len(PlayedCollector.made)
    assert looks
    played.clock.advance(10_000.0)
    assert played.found(290.0, busy=1.0) == []
    assert len(PlayedCollector.made) == looks
    assert len(played.found(341.0, busy=1.0)) == 1


def test_what_is_reported_is_said_once_and_nobody_wakes_up_for_it_again(play: Play) -> None:
    limits = {"timeout": 100.0, "memory": 10, "spin": 200.0, "silence": 300.0}
    policy = WatchdogPolicy(**limits, report=frozenset(limits))  # type: ignore[arg-type]
    played = play(policy, stdouts=FILES, stderrs=FILES)
    played.sampler.use(rss=100)
    found = played.found(1000.0, busy=1.0)
    names = [type(finding).__name__ for finding in found]
    assert names == ["OverMemory", "TimedOut", "Spinning", "Silent"]
    looks, made = played.sampler.asked, len(PlayedCollector.made)
    assert played.found(10**6, busy=1.0) == []
    assert (played.sampler.asked, len(PlayedCollector.made)) == (looks, made)
    # the next attempt is watched anew
    played.watch.prepare(2)
    played.begin()
    found = played.found(1000.0, busy=1.0)
    assert [type(finding).__name__ for finding in found] == names


def test_a_stall_that_was_reported_is_not_reported_as_a_spin_again(play: Play) -> None:
    played = play(WatchdogPolicy(stall=600.0, spin=600.0, report=frozenset({"stall", "spin"})))
    (finding,) = played.found(3000.0)
    assert isinstance(finding, Stalled)
    assert PlayedCollector.made == []
    # but what comes after they have moved is
    played.sampler.use(io=10**9)
    (finding,) = played.found(700.0, busy=1.0)
    assert isinstance(finding, Spinning)


def test_who_asks_for_stacks_does_not_wait_for_a_look(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(WatchdogPolicy(spin=600.0))
    monkeypatch.setattr(PlayedCollector, "done", False)
    assert played.found(300.0, busy=1.0) == []
    (look,) = PlayedCollector.made
    assert look in played.watch.files()
    assert look.fd >= 0
    monkeypatch.setattr(PlayedCollector, "done", True)
    played.watch.take_stacks(frozenset({0, 1}), Asked(3))
    assert look.fd < 0
    assert PlayedCollector.made[-1].written is not None
    assert [type(each) for each in played.watch.events(healthy=True)] == [StacksTaken]
    # and the looks go on
    assert len(played.found(340.0, busy=1.0)) == 1


def test_who_says_that_it_gets_on_does_not_hang_when_ctrl_c_comes(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = dict.fromkeys((0, 1), "/dev/null")
    driver = play(WatchdogPolicy(stall=600.0), stdouts=streams, stderrs=streams).watch
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
