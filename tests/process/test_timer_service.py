"""`TimerService`: a FIFO, real processes, clocks of the tests, and workers that flood it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import WAIT

from lllaunch.linux.process import wait, wait_readable
from lllaunch.testing import FakeClock, open_fds
from lllaunch.timer import FileTimerRequest
from lllaunch.timer.service import Expired, TimerService

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
NS_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


class Place:
    """A service with clocks of the test's and the processes that use it."""

    def __init__(self, path: str) -> None:
        self.clock, self.wall = FakeClock(100.0), FakeClock(5000.0)
        self.owners: dict[int, int] = {}
        self.asked: list[int] = []
        self.service = TimerService(
            path, owner_of=self.owner_of, clock=self.clock, wall_clock=self.wall
        )
        self.path = path
        self.processes: list[subprocess.Popen[bytes]] = []

    def owner_of(self, pid: int) -> int | None:
        self.asked.append(pid)
        return self.owners.get(pid)

    def worker(self, rank: int | None = 0) -> subprocess.Popen[bytes]:
        """A process that sleeps; a worker's unless ``rank`` is None."""
        process = subprocess.Popen(SLEEP)
        self.processes.append(process)
        if rank is not None:
            self.owners[process.pid] = rank
        return process

    def write(self, *requests: FileTimerRequest | bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        for request in requests:
            line = request if isinstance(request, bytes) else request.to_json().encode() + b"\n"
            os.write(fd, line)
        os.close(fd)

    def acquire(self, pid: int, scope: str, after: float, signum: int = 9) -> None:
        """Writes a request of a process, by the wall clock."""
        self.write(FileTimerRequest(pid, scope, self.wall.now + after, signum))

    def expired(self) -> list[Expired]:
        """What has expired by now."""
        self.service.dispatch()
        return self.service.expired()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wall.advance(seconds)

    @property
    def ready(self) -> bool:
        return wait_readable(self.service, 0)

    def end(self) -> None:
        self.service.close()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(str(tmp_path / "timers"))
    yield made
    made.end()


def test_the_fifo_is_private_and_large(place: Place) -> None:
    found = os.stat(place.path)
    assert stat.S_ISFIFO(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    written = 0
    fd = os.open(place.path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(fd, b"\n" * select.PIPE_BUF)
    os.close(fd)
    # 64 KiB is what a pipe has unless it is asked for more.
    assert written > 1 << 16


def test_descriptors_are_not_inherited_and_all_closed(place: Place, tmp_path: Path) -> None:
    before = set(open_fds())
    service = TimerService(str(tmp_path / "other"), owner_of=lambda _pid: 0)
    service.register([FileTimerRequest(place.worker().pid, "a", 4e9, 9)])
    opened = set(open_fds()) - before
    # the FIFO, epoll's and the pidfd
    assert len(opened) == 3
    assert not any(os.get_inheritable(fd) for fd in opened)
    service.close()
    service.close()
    assert set(open_fds()) == before
    assert not (tmp_path / "other").exists()


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "here"
    path.write_text("mine")
    with pytest.raises(FileExistsError) as raised:
        TimerService(str(path), owner_of=lambda _pid: 0)
    assert raised.value.filename == str(path)
    assert path.read_text() == "mine"
    with pytest.raises(FileNotFoundError) as missing:
        TimerService(str(tmp_path / "no" / "such"), owner_of=lambda _pid: 0)
    assert missing.value.filename == str(tmp_path / "no" / "such")


def test_a_timer_expires_once_at_its_deadline(place: Place) -> None:
    worker = place.worker(3)
    assert place.service.next_in() is None
    assert not place.ready
    place.acquire(worker.pid, "a", 7.0)
    assert place.ready
    assert place.service.dispatch() == []
    assert not place.ready
    assert place.service.next_in() == pytest.approx(7.0)
    place.advance(6.9)
    assert place.expired() == []
    place.advance(0.2)
    assert place.service.next_in() == 0.0
    (expired,) = place.expired()
    assert expired[:3] == (3, worker.pid, "a")
    assert expired.after == pytest.approx(7.0)
    assert expired.signum == 9
    assert place.expired() == []
    assert place.service.next_in() is None
    assert place.service.signal(worker.pid, signal.SIGTERM)
    assert worker.wait(WAIT) == -signal.SIGTERM


def test_the_first_that_asks_for_a_signal_stands_for_its_process(place: Place) -> None:
    one, other = place.worker(0), place.worker(1)
    place.acquire(one.pid, "third", 3.0, signal.SIGUSR1)
    place.acquire(one.pid, "first", 1.0, 0)
    place.acquire(one.pid, "second", 2.0, signal.SIGTERM)
    place.acquire(one.pid, "never", 100.0)
    place.acquire(other.pid, "silent", 1.0, -1)
    place.service.dispatch()
    place.advance(5.0)
    # Whose a process is is asked once.
    assert sorted(place.asked) == sorted([one.pid, other.pid])
    told = {each.owner: each for each in place.expired()}
    assert (told[0].scope, told[0].signum) == ("second", signal.SIGTERM)
    assert (told[1].scope, told[1].signum) == ("silent", -1)
    # Nothing is sent, though the process is there.
    assert place.service.signal(other.pid, -1)
    place.advance(1000.0)
    assert place.expired() == []


@pytest.mark.parametrize("jump", [-4000.0, 4000.0])
def test_setting_the_wall_clock_changes_no_timer(place: Place, jump: float) -> None:
    worker = place.worker()
    place.acquire(worker.pid, "before", 50.0)
    place.service.dispatch()
    place.wall.now += jump
    place.acquire(worker.pid, "after", 70.0)
    place.service.dispatch()
    assert place.service.next_in() == pytest.approx(50.0)
    place.advance(49.0)
    assert place.expired() == []
    place.write(FileTimerRequest(worker.pid, "before", -1, 0))
    place.service.dispatch()
    assert place.service.next_in() == pytest.approx(21.0)


def test_timers_of_a_process_that_ended_are_dropped(place: Place) -> None:
    worker = place.worker()
    place.acquire(worker.pid, "a", 1.0)
    place.service.dispatch()
    worker.send_signal(signal.SIGKILL)
    assert wait_readable(place.service, WAIT)
    # The last thing that it wrote comes to be read when it has ended.
    place.acquire(worker.pid, "b", 1.0)
    assert place.service.dispatch() == []
    assert place.service.next_in() is None
    assert not place.service.signal(worker.pid, signal.SIGTERM)
    assert not place.ready


def with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """A process with just this id; None if that cannot be had here."""
    for _ in range(100):
        try:
            NS_LAST_PID.write_text(str(pid - 1))
        except OSError:
            return None
        process = subprocess.Popen(SLEEP)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_process_that_got_the_number_of_another_is_not_signalled(place: Place) -> None:
    worker = place.worker()
    place.acquire(worker.pid, "a", 1.0)
    place.service.dispatch()
    worker.kill()
    worker.wait()
    other = with_pid(worker.pid)
    if other is None:
        pytest.skip("process ids cannot be chosen here")
    place.processes.append(other)
    place.advance(2.0)
    assert place.expired() == []
    assert not place.service.signal(worker.pid, signal.SIGKILL)
    assert other.poll() is None


def test_a_process_that_is_no_workers_is_refused_and_that_is_told_once(place: Place) -> None:
    strangers = [place.worker(rank=None) for _ in range(2)]
    told = []
    for _ in range(50):
        for stranger in strangers:
            place.acquire(stranger.pid, "a", 1.0)
        place.advance(1.0)
        told += place.service.dispatch()
    assert [(each.pid, each.reason) for each in told] == [
        (stranger.pid, f"process {stranger.pid} is no worker's") for stranger in strangers
    ]
    place.advance(2.0)
    assert place.expired() == []
    assert not place.service.signal(strangers[0].pid, signal.SIGKILL)
    assert strangers[0].poll() is None
    # Nor is the refusal forever: it may be seen to be a worker's later.
    place.owners[strangers[0].pid] = 3
    place.acquire(strangers[0].pid, "a", 1.0)
    assert place.service.dispatch() == []
    assert place.service.next_in() == pytest.approx(1.0)


def test_a_timer_taken_back_in_time_does_not_expire_though_it_is_read_late(place: Place) -> None:
    """The launcher stood still for long; what it reads first does not tell it all."""
    innocent, hung = place.worker(0), place.worker(1)
    place.acquire(innocent.pid, "a", 5.0)
    place.acquire(hung.pid, "b", 5.0)
    place.service.dispatch()
    place.write(*[b"\n" * select.PIPE_BUF] * 20)
    place.write(FileTimerRequest(innocent.pid, "a", -1, 0))
    place.advance(100.0)
    assert place.service.expired() == [], "it has not been read yet"
    place.service.dispatch()
    assert not place.ready
    assert [each.pid for each in place.service.expired()] == [hung.pid]


def test_a_flood_of_garbage_is_no_flood_of_reports(place: Place) -> None:
    reported = []
    for _ in range(100):
        place.write(b"\x1b[2J" + b"x" * 600 + b"\n", *[b"rubbish\n"] * 99)
        reported += place.service.dispatch()
        place.advance(1.0)
    # in each period of 10 seconds, with one that there are others
    assert len(reported) == 10 * 21
    assert reported[20].reason.endswith("not reported for 10 s")
    assert reported[0].text.isprintable()
    assert len(reported[0].text) < 200


def test_the_timers_of_a_process_are_limited(place: Place) -> None:
    one, other = place.worker(0), place.worker(1)
    requests = [FileTimerRequest(one.pid, str(number), 9e9, 9) for number in range(10_010)]
    place.service.register(requests)
    (*_, last) = place.service.dispatch()
    assert last == (one.pid, f"process {one.pid} has 10000 timers already", "")
    # Those that it has can be set anew, and others are not concerned.
    place.acquire(one.pid, "0", 1.0)
    place.acquire(other.pid, "a", 1.0)
    assert place.service.dispatch() == []
    place.advance(2.0)
    assert {each.pid for each in place.expired()} == {one.pid, other.pid}


# A client gives up on a FIFO that is full for a second, which on a machine that does much else does
# not say that its server hangs.
WORK = """
import sys
from lllaunch.timer import FileTimerClient, expires, api as module
module._STUCK = 240.0
client = FileTimerClient(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with expires(after=600, client=client):
        pass
"""


FLOOD = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
while True:
    os.write(fd, eval(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("garbage", "count", "pairs"),
    [(None, 8, 10_000), ("b'x\\n' * 2048", 2, 3000), ("b'\\n' * 4096", 2, 3000)],
    ids=["alone", "beside garbage", "beside empty lines"],
)
def test_nothing_is_lost_and_nobody_fails_whatever_others_write(
    tmp_path: Path, garbage: str | None, count: int, pairs: int
) -> None:
    path = str(tmp_path / "timers")
    service = TimerService(path, owner_of=lambda pid: pid)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            wait((service,), seconds=0.1)
            service.dispatch()

    server = threading.Thread(target=serve)
    server.start()
    floods = [] if garbage is None else [[sys.executable, "-c", FLOOD, path, garbage]]
    flood = [subprocess.Popen(command) for command in floods]
    try:
        command = [sys.executable, "-c", WORK, path, str(pairs)]
        workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(count)]
        said = [worker.communicate()[1] for worker in workers]
        assert [each.poll() for each in flood] == [None for _ in flood]
    finally:
        for each in flood:
            each.kill()
            each.wait()
        over.set()
        server.join()
        service.dispatch()
        service.close()
    assert said == [b""] * count
    assert service.next_in() is None
