"""What an attempt is watched for, with a clock and processes that the test moves."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lllaunch.errors import OutputError
from lllaunch.heartbeats import HEARTBEAT
from lllaunch.linux import gpu_meter, proc
from lllaunch.linux.gpu_meter import GpuReading
from lllaunch.linux.gpus import GpuUse
from lllaunch.spawner.dump import WATCHED
from lllaunch.spec import WatchdogPolicy
from lllaunch.testing import FakeClock
from lllaunch.watchdog.findings import HeartbeatLost, OverMemory, Silent, Stalled, TimedOut
from lllaunch.watchdog.sampling import Sample, Sampler, Usage
from lllaunch.watchdog.watch import TIMER_FILE, AttemptWatch

MIB = 1 << 20


@dataclass
class PlayedSampler(Sampler):
    """Says what the test says."""

    usages: dict[int, Usage] = field(default_factory=dict)
    shared: int = 0
    asked: int = 0

    def usage(self, workers: Mapping[int, int]) -> dict[int, Usage]:
        self.asked += 1
        return {
            rank: self.usages.get(rank, Usage(0.0, 0, "S", (pid,))) for rank, pid in workers.items()
        }

    def shared_out(self, usage: Usage) -> int:
        return self.shared or usage.rss


class Played:
    """A watch with its surroundings."""

    def __init__(
        self, policy: WatchdogPolicy, ranks: int = 2, samples: float | None = None
    ) -> None:
        self.clock = FakeClock(1000.0)
        self.sampler = PlayedSampler()
        self.watch = AttemptWatch(
            policy, ranks, clock=self.clock, sampler=self.sampler, samples=samples
        )
        self.pids = {rank: 100 + rank for rank in range(ranks)}

    def begin(self, outputs: dict[int, tuple[str, ...]] | None = None) -> Played:
        self.watch.begin(lambda: self.pids, outputs or {})
        return self

    def after(self, seconds: float) -> list[object]:
        """What is reported after so long, if the loop wakes up as it is asked to."""
        until, found = self.clock() + seconds, []
        while True:
            wait = self.watch.next_in()
            if wait is None or self.clock() + wait > until:
                break
            self.clock.advance(max(wait, 0.001))
            found += self.watch.reports()
            if found:
                return found
        self.clock.advance(max(0.0, until - self.clock()))
        return found + list(self.watch.reports())

    def beat(self, rank: int) -> None:
        offset, _, path = self.watch.environment(rank)[HEARTBEAT].partition(":")
        with open(path, "r+b") as file:
            file.seek(int(offset))
            file.write(struct.pack("<q", int(self.clock() * 1e9)))


@pytest.fixture
def played() -> Iterator[list[Played]]:
    """Watches that are closed in the end."""
    watches: list[Played] = []
    yield watches
    for each in watches:
        each.watch.close()


def test_nothing_is_watched_by_default(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy())
    played.append(watch)
    watch.begin()
    assert watch.watch.environment(0) == {}
    assert watch.watch.files() == []
    assert watch.watch.next_in() is None
    assert watch.after(10**6) == []
    assert watch.sampler.asked == 0


def test_an_attempt_has_its_time_and_no_look_is_taken_for_that(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(timeout=3600.0))
    played.append(watch)
    watch.begin()
    assert watch.watch.next_in() == 3600.0
    assert watch.after(3599.0) == []
    assert watch.after(1.0) == [TimedOut(3600.0)]
    assert watch.sampler.asked == 0


def test_time_begins_with_the_workers(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(timeout=10.0, stall=10.0))
    played.append(watch)
    assert watch.watch.next_in() is None
    assert watch.after(100.0) == []
    watch.begin()
    assert watch.after(9.0) == []


def test_a_stall_is_found_one_look_after_the_limit_at_the_latest(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(stall=600.0, warmup=60.0))
    played.append(watch)
    watch.begin()
    assert watch.after(659.0) == []
    (found,) = watch.after(31.0)
    assert isinstance(found, Stalled)
    assert found.ranks == (0, 1)
    assert 600.0 <= found.seconds <= 630.0
    # every 30 s, a twentieth of the limit
    assert watch.sampler.asked <= 24


def test_output_and_heartbeats_count_as_life(played: list[Played], tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    watch = Played(WatchdogPolicy(stall=60.0))
    played.append(watch)
    watch.begin({0: (str(log),)})
    assert watch.after(50.0) == []
    log.write_text("step 1\n")
    assert watch.after(50.0) == []
    watch.beat(1)
    assert watch.after(50.0) == []
    assert watch.after(30.0) != []


def test_output_that_goes_to_no_file_counts_too(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(stall=60.0))
    played.append(watch)
    watch.watch.begin(lambda: watch.pids, {}, unseen=frozenset({0}))
    for written in range(1, 8):
        watch.sampler.usages = {0: Usage(0.0, 0, "S", (100,), written)}
        assert watch.after(50.0) == []
    assert watch.after(70.0) != []


def test_what_is_written_elsewhere_is_no_output_of_streams_that_go_to_files(
    played: list[Played],
) -> None:
    watch = Played(WatchdogPolicy(silence=60.0))
    played.append(watch)
    watch.begin()
    watch.sampler.usages = {0: Usage(0.0, 0, "S", (100,), written=9)}
    assert watch.after(50.0) == []
    watch.sampler.usages = {0: Usage(0.0, 0, "S", (100,), written=99)}
    assert watch.after(20.0) != []


@pytest.mark.parametrize("policy", [WatchdogPolicy(stall=60.0), WatchdogPolicy(heartbeat=60.0)])
@pytest.mark.parametrize("waiting", [True, False])
def test_time_in_which_the_launcher_itself_stood_still_is_forgiven(
    played: list[Played], policy: WatchdogPolicy, waiting: bool
) -> None:
    watch = Played(policy)
    played.append(watch)
    watch.begin()
    watch.beat(0)
    assert watch.after(30.0) == []
    if waiting:
        watch.watch.next_in()
    watch.clock.advance(10_000.0)
    watch.watch.next_in()
    assert list(watch.watch.reports()) == []
    watch.beat(1)
    assert watch.after(59.0) == []
    assert watch.after(80.0) != []


def test_a_heartbeat_must_go_on_once_it_has_begun(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(heartbeat=300.0))
    played.append(watch)
    watch.begin()
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


def test_silence_is_that_of_all_workers_however_busy(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(silence=300.0, warmup=100.0))
    played.append(watch)
    watch.watch.begin(lambda: watch.pids, {}, unseen=frozenset({0}))
    for second in range(10):
        watch.sampler.usages = {
            0: Usage(10**6, 100.0 * second, "R", (100,), written=second),
            1: Usage(10**6, 100.0 * second, "R", (101,)),
        }
        assert watch.after(290.0) == []
    (found,) = watch.after(320.0)
    assert isinstance(found, Silent)
    assert 300.0 <= found.seconds <= 315.0


def test_a_stall_is_found_beside_a_short_silence_though_a_thread_wakes_up(
    played: list[Played],
) -> None:
    watch = Played(WatchdogPolicy(stall=1800.0, silence=60.0, report=frozenset({"silence"})))
    played.append(watch)
    watch.begin()
    found: list[object] = []
    for second in range(0, 3600, 5):
        # four tenths of a second in ten: more than idle in five seconds, less in the ninety
        # between two looks for a stall
        cpu = 0.4 * (second // 10)
        watch.sampler.usages = {rank: Usage(cpu, 0, "S", (100 + rank,)) for rank in (0, 1)}
        found += watch.after(5.0)
    assert any(isinstance(each, Stalled) for each in found)
    assert any(isinstance(each, Silent) for each in found)


def test_a_worker_that_ended_owes_no_heartbeat(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(heartbeat=300.0))
    played.append(watch)
    watch.begin()
    watch.beat(1)
    del watch.pids[1]
    assert watch.after(1000.0) == []


def test_memory_is_measured_exactly_before_anybody_is_accused(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(memory=100 * MIB))
    played.append(watch)
    watch.begin()
    watch.sampler.usages = {1: Usage(0.0, 200 * MIB, "S", (101,))}
    watch.sampler.shared = 90 * MIB
    assert watch.after(100.0) == []
    watch.sampler.shared = 150 * MIB
    assert watch.after(5.0) == [OverMemory(1, 150 * MIB, 100 * MIB, within=5.0)]


def test_samples_are_taken_where_nothing_is_watched(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(), samples=5.0)
    played.append(watch)
    assert watch.watch.environment(0).keys() == {HEARTBEAT}
    assert watch.watch.next_in() is None
    watch.begin()
    assert watch.watch.next_in() == 5.0
    assert watch.after(4.9) == []
    (sample,) = watch.after(0.2)
    assert isinstance(sample, Sample)
    assert set(sample.workers) == {0, 1}
    assert watch.sampler.asked == 1
    del watch.pids[0]
    (sample,) = watch.after(5.0)
    assert set(sample.workers) == {1}


def test_one_look_is_for_the_watchdog_and_for_samples(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(stall=1800.0), samples=5.0)
    played.append(watch)
    watch.begin()
    samples = 0
    for second in range(359):
        watch.sampler.usages = {0: Usage(100.0 * second, 0, "R", (100,))}
        # the loop is a little late each time
        watch.clock.advance(0.01)
        samples += len(watch.after(5.0))
    assert samples >= 355
    # and the one at the beginning
    assert watch.sampler.asked <= samples + 2


def test_a_detector_is_not_kept_waiting_by_samples(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(stall=140.0), samples=5.0)
    played.append(watch)
    watch.begin()
    found: list[object] = []
    while not any(isinstance(each, Stalled) for each in found):
        found = watch.after(1.0)
        assert watch.clock() <= 1000.0 + 140.0 + 7.0


def test_of_a_worker_that_has_not_started_there_is_no_sample(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(), samples=5.0)
    played.append(watch)
    watch.watch.begin(lambda: watch.pids, {}, starter=100)
    (sample,) = watch.after(5.0)
    assert isinstance(sample, Sample)
    assert set(sample.workers) == {1}
    watch.pids[1] = 100
    assert watch.after(100.0) == []


def test_of_a_worker_that_has_ended_and_is_not_reaped_there_is_no_sample(
    played: list[Played],
) -> None:
    watch = Played(WatchdogPolicy(), samples=5.0)
    played.append(watch)
    watch.begin()
    watch.sampler.usages = {0: Usage(3.0, 0, "Z", (100,))}
    (sample,) = watch.after(5.0)
    assert isinstance(sample, Sample)
    assert set(sample.workers) == {1}


def test_while_the_group_ends_there_are_samples_and_nothing_else(played: list[Played]) -> None:
    watch = Played(WatchdogPolicy(stall=10.0, timeout=20.0), samples=5.0)
    played.append(watch)
    assert watch.watch.samples() == []
    assert watch.watch.next_sample_in() is None
    watch.begin()
    taken = 0
    for _ in range(10):
        wait = watch.watch.next_sample_in()
        assert wait is not None
        watch.clock.advance(wait)
        (sample,) = watch.watch.samples()
        assert isinstance(sample, Sample)
        assert watch.watch.samples() == []
        taken += 1
    assert watch.sampler.asked == taken
    watch.pids.clear()
    # nobody is left who could start
    assert watch.watch.next_sample_in() is None
    assert watch.watch.samples() == []


class PlayedMeter:
    """GPUs that a test invents."""

    def __init__(self, visible: list[str | None]) -> None:
        self.visible = visible
        self.reading: GpuReading | None = None
        self.closed = False

    def take(self, wanted_in: float) -> GpuReading | None:
        assert wanted_in == 5.0
        return self.reading

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> list[PlayedMeter]:
    made: list[PlayedMeter] = []

    def make(visible: list[str | None]) -> PlayedMeter:
        made.append(PlayedMeter(visible))
        return made[-1]

    monkeypatch.setattr(gpu_meter, "GpuMeter", make)
    monkeypatch.setattr(proc, "has_gpu_driver", lambda: True)
    return made


def test_gpus_are_those_that_each_worker_sees(
    played: list[Played], meters: list[PlayedMeter]
) -> None:
    watch = Played(WatchdogPolicy(), samples=5.0)
    played.append(watch)
    watch.watch.begin(lambda: watch.pids, {}, visible={0: None, 1: "3"})
    assert meters == []
    (sample,) = watch.after(5.0)
    assert isinstance(sample, Sample)
    # nobody had asked yet
    assert not sample.gpus
    (meter,) = meters
    assert meter.visible == [None, "3"]
    use = {"2": GpuUse(0.5), "3": GpuUse(1.0)}
    meter.reading = GpuReading([("2", "3"), ("3",)], use)
    (sample,) = watch.after(5.0)
    assert isinstance(sample, Sample)
    assert sample.gpus == use
    assert [sample.workers[rank].gpus for rank in (0, 1)] == [("2", "3"), ("3",)]
    # a driver that does not answer any more
    meter.reading = None
    (sample,) = watch.after(5.0)
    assert isinstance(sample, Sample)
    assert not sample.gpus
    assert len(meters) == 1
    watch.watch.close()
    assert meter.closed


def test_where_there_is_no_driver_nobody_is_asked(
    played: list[Played], meters: list[PlayedMeter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "has_gpu_driver", lambda: False)
    watch = Played(WatchdogPolicy(), samples=5.0)
    played.append(watch)
    watch.watch.begin(lambda: watch.pids, {}, visible={0: None, 1: None})
    for _ in range(3):
        (sample,) = watch.after(5.0)
        assert isinstance(sample, Sample)
        assert not sample.gpus
    assert meters == []


def test_the_private_place_goes_with_the_watch() -> None:
    watch = AttemptWatch(WatchdogPolicy(timers=True, stall=60.0), 3)
    paths = {watch.environment(rank)[HEARTBEAT].partition(":")[2] for rank in range(3)}
    fifos = {watch.environment(rank)[TIMER_FILE] for rank in range(3)}
    assert len(paths) == len(fifos) == 1
    directory = os.path.dirname(paths.pop())
    assert os.path.dirname(fifos.pop()) == directory
    assert os.stat(directory).st_mode & 0o777 == 0o700
    offsets = [watch.environment(rank)[HEARTBEAT].partition(":")[0] for rank in range(3)]
    assert offsets == ["0", "1024", "2048"]
    watch.close()
    watch.close()
    assert not os.path.exists(directory)


def test_the_timer_file_may_be_chosen_and_what_an_agent_left_there_is_replaced(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "timers")
    os.mkfifo(path)
    watch = AttemptWatch(WatchdogPolicy(timers=True, collectives=False), 1, path)
    assert watch.environment(0)[WATCHED] == "1"
    assert watch.environment(0)[TIMER_FILE] == path
    watch.close()
    assert not os.path.exists(path)


def test_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    path.write_text("precious")
    with pytest.raises(OutputError, match="timers"):
        AttemptWatch(WatchdogPolicy(timers=True), 1, str(path))
    assert path.read_text() == "precious"


def test_where_no_fifo_can_be_made_the_error_names_it(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "timers")
    with pytest.raises(OutputError, match="missing/timers"):
        AttemptWatch(WatchdogPolicy(timers=True, collectives=False), 1, path)
