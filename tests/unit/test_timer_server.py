"""What all timer servers do, with a queue that the test controls; public names."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.timer import (
    FileTimerRequest,
    LocalTimerClient,
    LocalTimerServer,
    RequestQueue,
    TimerRequest,
    TimerServer,
    api,
)
from lllaunch.timer.api import MultiprocessingRequestQueue

HEAVY = {"torch", "asyncio", "multiprocessing", "inspect", "logging", "json", "re", "threading"}


class Played(RequestQueue):
    """A queue that holds what the test has put into it."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.waits: list[float] = []

    def size(self) -> int:
        return len(self.waiting)

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        self.waits.append(timeout)
        taken, self.waiting = self.waiting[:size], self.waiting[size:]
        if taken and isinstance(taken[0], Exception):
            raise taken[0]
        return taken


class Server(TimerServer):
    """Keeps its timers in a dictionary, as a user of torch's class would."""

    def __init__(self) -> None:
        self.queue = Played()
        super().__init__(self.queue, max_interval=60)
        self.timers: dict[tuple[Any, str], TimerRequest] = {}
        self.reaped: list[Any] = []
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
        self.reaped.append(worker_id)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def runs(self, times: int) -> None:
        for _ in range(times):
            self._run_watchdog()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def test_a_worker_is_ended_when_a_timer_of_its_is_over(server: Server) -> None:
    server.queue.waiting = [
        TimerRequest("w", "a", 5.0),
        TimerRequest("w", "b", 9e9),
        TimerRequest("back", "a", 5.0),
        TimerRequest("back", "a", -1),
    ]
    server.runs(2)
    assert server.reaped == ["w"]
    assert server.timers == {}
    assert server.queue.waits == [60, 60]


@pytest.mark.parametrize(
    ("answers", "times"),
    [([False, False, True], 3), ([LookupError("x")], 1)],
    ids=["not yet", "given up"],
)
def test_a_worker_that_cannot_be_ended_is_tried_again(
    server: Server, answers: list[bool | Exception], times: int
) -> None:
    server.answers = answers
    server.queue.waiting = [TimerRequest("w", "a", 5.0)]
    server.runs(5)
    assert server.reaped == ["w"] * times
    assert server.timers == {}


@pytest.mark.parametrize(
    "rubbish",
    [
        None,
        "text",
        TimerRequest(1, "a", float("nan")),
        TimerRequest(1, "a", float("inf")),
        TimerRequest(1, "a", 10**400),
        TimerRequest(1, "a", True),
        TimerRequest(1, "a", "5007"),  # type: ignore[arg-type]
        TimerRequest([], "a", 5007.0),
    ],
)
def test_what_is_no_request_hurts_no_other(rubbish: Any) -> None:
    requests: queue.Queue[Any] = queue.Queue()
    server = LocalTimerServer(requests, max_interval=0)
    for each in (rubbish, TimerRequest(os.getpid(), "a", 8e9), rubbish):
        requests.put(each)
        server._run_watchdog()
    assert [*server.get_expired_timers(9e9)] == [os.getpid()]
    server.stop()


def test_a_queue_that_fails_is_not_asked_without_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def wait(*_: object, seconds: float) -> None:
        waits.append(seconds)
        server._stop_signaled = True

    monkeypatch.setattr(api, "wait", wait)
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
