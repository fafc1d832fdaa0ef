"""`FileTimerServer` and `LocalTimerServer` with real workers, which hang, end or write rubbish."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, until

from lllaunch.timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
    LocalTimerClient,
    LocalTimerServer,
    expires,
)

_LONG = 3600

HANG = """
import sys, time
from lllaunch.timer import FileTimerClient, expires
client = FileTimerClient(sys.argv[1], int(sys.argv[2]))
with expires(after=60, scope="fine", client=client):
    pass
with expires(after=0.1, scope="hang", client=client):
    print("there", flush=True)
    time.sleep(1000)
"""
IDLE = """
import sys, time
from lllaunch.timer import FileTimerClient, expires
with expires(after=600, scope="long", client=FileTimerClient(sys.argv[1])):
    print("there", flush=True)
    time.sleep(1000)
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts scripts, waits until each has written a line, and ends them in the end."""
    with contextlib.ExitStack() as stack:

        def start(code: str, *args: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", code, *args]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            return process

        yield start


class Events(list[tuple[str, str | None]]):
    """Takes note of what a server says."""

    def __call__(self, name: str, request: FileTimerRequest | None) -> None:
        self.append((name, None if request is None else request.scope_id))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def server(tmp_path: Path, events: Events) -> Iterator[FileTimerServer]:
    made = FileTimerServer(str(tmp_path / "timers"), "run 1", _LONG, log_event=events)
    made.start()
    yield made
    made.stop()


def timers_of(server: FileTimerServer) -> dict[int, list[str]]:
    found = server.get_expired_timers(9e9)
    return {pid: [request.scope_id for request in requests] for pid, requests in found.items()}


def test_workers_that_hang_end_by_the_signal_they_asked_for_and_the_server_lives_on(
    server: FileTimerServer,
    events: Events,
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    path = str(tmp_path / "timers")
    for signum in (signal.SIGKILL, signal.SIGTERM):
        assert start(HANG, path, str(int(signum))).wait(WAIT) == -signum
    expired, killed = ("timer expired", "hang"), ("kill worker process", "hang")
    until(lambda: len(events) == 5, "the events")
    # without a signal it lives on
    worker = start(HANG, path, "0")
    until(lambda: len(events) == 6, "the last event")
    assert events == [("watchdog started", None), expired, killed, expired, killed, expired]
    assert worker.poll() is None
    assert "Timers expired for run:[run 1]" in caplog.text
    assert timers_of(server) == {}
    server.stop()
    assert events[-1] == ("watchdog stopped", None)


def test_a_subclass_decides_how_a_worker_ends(tmp_path: Path, start: Start) -> None:
    reaped: queue.Queue[tuple[int, int]] = queue.Queue()

    class Gentle(FileTimerServer):
        def _reap_worker(self, worker_pid: int, signal: int) -> bool:
            reaped.put((worker_pid, signal))
            return super()._reap_worker(worker_pid, 15)

    server = Gentle(str(tmp_path / "timers"), "run", _LONG)
    server.start()
    worker = start(HANG, str(tmp_path / "timers"), "9")
    assert reaped.get(timeout=WAIT) == (worker.pid, 9)
    assert worker.wait(WAIT) == -signal.SIGTERM
    server.stop()


def test_a_server_does_not_end_its_own_process(
    server: FileTimerServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = f"process {os.getpid()} is no worker's"
    client = FileTimerClient(str(tmp_path / "timers"))
    for received in (1, 2, 3):
        client.acquire("a", time.time() + 60)
        until(lambda n=received: server._service.received == n, "the request")
        until(lambda: refusal in caplog.text, "the refusal")
    server.stop()
    assert caplog.text.count(refusal) == 1


def test_a_server_that_is_started_twice_serves_once_and_stops_at_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = FileTimerServer(str(tmp_path / "timers"), "run", max_interval=_LONG)
    local = LocalTimerServer(multiprocessing.Queue(), max_interval=0.01)
    for each in (server, local):
        request.addfinalizer(each.stop)
        before = threading.active_count()
        each.start()
        each.start()
        assert threading.active_count() == before + 1
        for _ in range(2):
            each.stop()
            until(lambda n=before: threading.active_count() == n, "the thread to end")
    assert not (tmp_path / "timers").exists()
    with pytest.raises(RuntimeError, match="cannot be started again"):
        server.start()


def test_run_once_handles_what_was_requested(tmp_path: Path, events: Events, start: Start) -> None:
    path = str(tmp_path / "timers")
    # What an earlier server left there.
    Path(path).write_text("")
    server = FileTimerServer(path, "run", _LONG, log_event=events)
    worker = start(IDLE, path)
    fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    expired = FileTimerRequest(worker.pid, "over", time.time() - 1, signal.SIGTERM)
    os.write(fifo, expired.to_json().encode() + b"\n")
    os.close(fifo)
    server.start()
    server.run_once()
    assert worker.wait(WAIT) == -signal.SIGTERM
    assert not os.path.exists(path)
    assert ("kill worker process", "over") in events


def test_timers_can_be_set_and_cleared_without_the_fifo(
    server: FileTimerServer, start: Start, tmp_path: Path
) -> None:
    worker = start(IDLE, str(tmp_path / "timers"))
    until(lambda: timers_of(server) == {worker.pid: ["long"]}, "the timer")
    later = FileTimerRequest(worker.pid, "later", time.time() + 900, 9)
    server.register_timers([later])
    assert timers_of(server) == {worker.pid: ["long", "later"]}
    assert server.get_expired_timers(time.time() + 700).keys() == {worker.pid}
    assert server.get_expired_timers(time.time()) == {}
    server.register_timers([FileTimerRequest(worker.pid, "long", -1)])
    assert server.get_expired_timers(9e9) == {worker.pid: [later]}
    server.clear_timers({worker.pid})
    assert timers_of(server) == {}
    # It wakes the thread, which would else sleep for an hour.
    server.register_timers([FileTimerRequest(worker.pid, "now", time.time(), 15)])
    assert worker.wait(WAIT) == -signal.SIGTERM


def test_progress_and_life_can_be_asked_for(server: FileTimerServer, start: Start) -> None:
    assert abs(server.get_last_progress_time() - time.time()) < WAIT
    assert FileTimerServer.is_process_running(os.getpid())
    ended = start("print()")
    ended.wait(WAIT)
    assert not FileTimerServer.is_process_running(ended.pid)


@pytest.mark.parametrize("kind", ["file", "local"])
def test_a_daemonised_server_does_not_keep_the_interpreter(tmp_path: Path, kind: str) -> None:
    code = {
        "file": "FileTimerServer(sys.argv[1], 'run', 3600).start()",
        "local": "LocalTimerServer(multiprocessing.get_context('fork').Queue()).start()",
    }[kind]
    code = f"import multiprocessing, sys; from lllaunch.timer import *; {code}; print('done')"
    command = [sys.executable, "-c", code, str(tmp_path / "timers")]
    done = subprocess.run(command, timeout=WAIT, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def hang(requests: Any) -> None:
    with expires(after=0.1, scope="hang", client=LocalTimerClient(requests)):
        time.sleep(1000)


def idle(requests: Any) -> None:
    LocalTimerClient(requests).acquire("long", time.time() + 600)
    time.sleep(1000)


Local = tuple[LocalTimerServer, Any]


@pytest.fixture
def local() -> Iterator[Local]:
    context = multiprocessing.get_context("fork")
    requests = context.Queue()
    made = LocalTimerServer(requests)
    yield made, requests
    made.stop()
    requests.close()
    requests.join_thread()
    # A queue that nobody put anything into closes nothing.
    for end in (requests._reader, requests._writer):
        end.close()


def test_a_worker_that_hangs_is_killed_without_waiting_for_the_interval(local: Local) -> None:
    server, requests = local
    server.start()
    requests.put("rubbish")
    worker = multiprocessing.get_context("fork").Process(target=hang, args=(requests,))
    worker.start()
    worker.join(WAIT)
    assert worker.exitcode == -signal.SIGKILL


def test_timers_of_a_local_worker_that_ended_are_dropped(local: Local) -> None:
    server, requests = local
    worker = multiprocessing.get_context("fork").Process(target=idle, args=(requests,))
    worker.start()
    server._run_watchdog()
    assert list(server.get_expired_timers(9e9)) == [worker.pid]
    assert server.get_expired_timers(time.time()) == {}
    worker.kill()
    worker.join(WAIT)
    assert server.get_expired_timers(9e9) == {}
    # Nobody has that number now, or somebody else.
    server.register_timers([FileTimerRequest(worker.pid or 0, "a", 1.0)])
    assert server.get_expired_timers(9e9) == {}
    assert server._reap_worker(worker.pid or 0)
