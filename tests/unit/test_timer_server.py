"""What a server makes of a queue that the test controls; public names."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.timer import (
    FileTimerRequest,
    LocalTimerServer,
    TimerRequest,
    api,
)

HEAVY = {"torch", "asyncio", "multiprocessing", "inspect", "logging", "json", "re", "threading"}


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


def test_a_queue_that_fails_is_not_asked_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    class Closed:
        def get(self, **_: object) -> None:
            raise ValueError("queue is closed")

    server = LocalTimerServer(Closed())

    def wait(*_: object, seconds: float) -> None:
        waits.append(seconds)
        server._stop_signaled = True

    monkeypatch.setattr(api, "wait", wait)
    server._watchdog_loop()
    assert waits == [1.0]
    server.stop()


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
