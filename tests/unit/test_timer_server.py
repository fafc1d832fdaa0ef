"""What all timer servers do, with clocks and a queue that the test controls; public names."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from support.launching import WAIT

from lllaunch.testing import FakeClock
from lllaunch.timer import (
    FileTimerRequest,
    LocalTimerClient,
    RequestQueue,
    TimerRequest,
    TimerServer,
)
from lllaunch.timer.api import MultiprocessingRequestQueue, SteadyTime

HEAVY = {"torch", "asyncio", "multiprocessing", "inspect", "logging", "json", "re", "threading"}


class Played(RequestQueue):
    """A queue whose waits take as long as the test's clock says."""

    def __init__(self, clock: FakeClock, wall: FakeClock) -> None:
        self._clock, self._wall = clock, wall
        self.waiting: list[Any] = []
        self.waits: list[float] = []

    def size(self) -> int:
        return len(self.waiting)

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        self.waits.append(timeout)
        if not self.waiting:
            self._clock.advance(timeout)
            self._wall.advance(timeout)
        taken, self.waiting = self.waiting[:size], self.waiting[size:]
        if taken and isinstance(taken[0], Exception):
            raise taken[0]
        return taken


class Server(TimerServer):
    """Keeps its timers in a dictionary, as a user of torch's class would."""

    def __init__(self) -> None:
        self.clock, self.wall = FakeClock(100.0), FakeClock(5000.0)
        self.queue = Played(self.clock, self.wall)
        super().__init__(self.queue, max_interval=60)
        self._steady = SteadyTime(self.clock, self.wall)
        self.timers: dict[tuple[Any, str], TimerRequest] = {}
        self.reaped: list[tuple[Any, float]] = []
        self.answers: list[bool | Exception] = []

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            self.timers.pop(key, None)
            if request.expiration_time >= 0:
                self.timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self.timers = {key: at for key, at in self.timers.items() if key[0] not in worker_ids}

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        over = [each for each in self.timers.values() if each.expiration_time <= deadline]
        return {each.worker_id: [each] for each in over}

    def _reap_worker(self, worker_id: Any) -> bool:
        self.reaped.append((worker_id, self.clock.now))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def runs(self, times: int) -> None:
        for _ in range(times):
            self._run_watchdog()


def test_a_worker_is_ended_at_the_deadline_and_not_at_the_next_interval() -> None:
    server = Server()
    server.queue.waiting = [TimerRequest("w", "a", 5007.0), TimerRequest("w", "b", 5900.0)]
    server.runs(2)
    assert server.reaped == [("w", 107.0)]
    assert server.timers == {}
    server.runs(1)
    assert server.queue.waits == [60, 7.0, 60]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_setting_the_wall_clock_changes_no_timer(jump: float) -> None:
    server = Server()
    server.queue.waiting = [TimerRequest("early", "a", 5050.0)]
    server.runs(1)
    server.wall.now += jump
    server.queue.waiting = [TimerRequest("late", "a", server.wall.now + 70.0)]
    server.runs(3)
    assert server.reaped == [("early", 150.0), ("late", 170.0)]


def test_setting_the_wall_clock_does_not_make_a_timer_one_taken_back() -> None:
    server = Server()
    server.wall.now += 3600.0
    server.queue.waiting = [TimerRequest("w", "a", 0.0)]
    server.runs(1)
    assert server.reaped == [("w", 100.0)]


def test_no_wait_is_longer_than_a_queue_can_wait() -> None:
    server = Server()
    server._max_interval = float("inf")
    server.queue.waiting = [TimerRequest("w", "never", 1.7e308), TimerRequest("w", "a", 15000.0)]
    server.runs(5)
    assert server.queue.waits == [3600.0, 3600.0, 3600.0, 2800.0, 3600.0]
    assert server.reaped == [("w", 10100.0)]


@pytest.mark.parametrize(
    ("answers", "moments"),
    [([False, False, True], [107.0, 108.0, 109.0]), ([LookupError("x")], [107.0])],
    ids=["not yet", "given up"],
)
def test_a_worker_that_cannot_be_ended_is_tried_again_soon(
    answers: list[bool | Exception], moments: list[float]
) -> None:
    server = Server()
    server.answers = answers
    server.queue.waiting = [TimerRequest("w", "a", 5007.0)]
    server.runs(5)
    assert server.reaped == [("w", moment) for moment in moments]
    assert server.queue.waits[-1] == 60
    assert server.timers == {}


@pytest.mark.parametrize(
    "rubbish",
    [
        None,
        "text",
        TimerRequest("w", "a", float("nan")),
        TimerRequest("w", "a", float("inf")),
        TimerRequest("w", "a", 10**400),
        TimerRequest("w", "a", True),
        TimerRequest("w", "a", "5007"),  # type: ignore[arg-type]
        TimerRequest([], "a", 5007.0),
    ],
)
def test_what_is_no_request_hurts_no_other(rubbish: Any) -> None:
    server = Server()
    server.queue.waiting = [rubbish, TimerRequest("w", "a", 5007.0), rubbish]
    server.runs(2)
    assert server.reaped == [("w", 107.0)]


def test_a_queue_that_fails_is_not_asked_without_end() -> None:
    server, waits = Server(), []
    # an event that is set when somebody has waited for it
    server._stopped = Mock(is_set=lambda: bool(waits), wait=waits.append)
    server.queue.waiting = [ValueError("queue is closed")]
    server._watchdog_loop()
    assert waits == [1.0]


def test_any_queue_will_do() -> None:
    requests: queue.Queue[TimerRequest] = queue.Queue()
    client = LocalTimerClient(requests)
    client.acquire("a", 5.0)
    client.release("a")
    found = MultiprocessingRequestQueue(requests)
    assert found.size() == 2
    assert found.get(1, timeout=0) == [TimerRequest(os.getpid(), "a", 5.0)]
    assert found.get(5, timeout=0) == [TimerRequest(os.getpid(), "a", -1)]
    assert found.get(5, timeout=0) == []


def test_requests_are_equal_by_what_they_say_and_can_be_sent() -> None:
    one = FileTimerRequest(3, "a", 2.5, 9)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != FileTimerRequest(3, "a", 2.5, 10)
    assert one != TimerRequest(3, "a", 2.5)
    assert one.to_json() == (
        '{"version": 1, "pid": 3, "scope_id": "a", "expiration_time": 2.5, "signal": 9}'
    )


def test_what_a_worker_imports_is_light() -> None:
    code = "import lllaunch.timer, sys; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT)
    assert HEAVY.isdisjoint(done.stdout.split())
