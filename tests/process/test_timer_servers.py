"""`FileTimerServer` and `LocalTimerServer` with real workers, which hang, end or write rubbish."""

from __future__ import annotations

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
from support.launching import WAIT

from lllaunch.timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
    LocalTimerClient,
    LocalTimerServer,
    TimerRequest,
    expires,
)
from lllaunch.timer.local_timer import MultiprocessingRequestQueue

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


class Workers:
    """Starts scripts and ends them."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, code: str, *args: str) -> subprocess.Popen[str]:
        """Starts a script; returns when it has written a line."""
        command = [sys.executable, "-c", code, *args]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.end()


class Events:
    """Takes note of what a server says."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self._arrived = threading.Condition()

    def __call__(self, name: str, request: FileTimerRequest | None) -> None:
        with self._arrived:
            self.seen.append((name, None if request is None else request.scope_id))
            self._arrived.notify_all()

    def wait_for(self, name: str) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: name in dict(self.seen), WAIT)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def server(tmp_path: Path, events: Events) -> Iterator[FileTimerServer]:
    made = FileTimerServer(str(tmp_path / "timers"), "run 1", _LONG, log_event=events)
    made.start()
    yield made
    made.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def timers_of(server: FileTimerServer, before: float = 9e9) -> dict[int, list[str]]:
    found = server.get_expired_timers(before)
    return {pid: [request.scope_id for request in requests] for pid, requests in found.items()}


def test_a_worker_that_hangs_is_killed_and_the_server_lives_on(
    server: FileTimerServer,
    events: Events,
    workers: Workers,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        worker = workers.start(HANG, str(tmp_path / "timers"), "9")
        assert worker.wait(WAIT) == -signal.SIGKILL
    until(lambda: len(events.seen) == 5)
    expired = [("timer expired", "hang"), ("kill worker process", "hang")]
    assert events.seen == [("watchdog started", None), *expired * 2]
    assert "Timers expired for run:[run 1]" in caplog.text
    assert timers_of(server) == {}
    server.stop()
    assert events.seen[-1] == ("watchdog stopped", None)


def test_the_signal_is_the_one_that_the_worker_asked_for(
    server: FileTimerServer, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start(HANG, str(tmp_path / "timers"), str(int(signal.SIGTERM)))
    assert worker.wait(WAIT) == -signal.SIGTERM


def test_without_a_signal_the_worker_lives_on(
    server: FileTimerServer, events: Events, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start(HANG, str(tmp_path / "timers"), "0")
    events.wait_for("timer expired")
    assert worker.poll() is None
    assert timers_of(server) == {}
    assert "kill worker process" not in dict(events.seen)


def test_timers_of_a_worker_that_was_killed_are_dropped(
    server: FileTimerServer, events: Events, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start(IDLE, str(tmp_path / "timers"))
    until(lambda: timers_of(server) == {worker.pid: ["long"]})
    worker.kill()
    until(lambda: timers_of(server) == {})
    assert events.seen == [("watchdog started", None)]


def test_a_subclass_decides_how_a_worker_ends(tmp_path: Path, workers: Workers) -> None:
    reaped: queue.Queue[tuple[int, int]] = queue.Queue()

    class Gentle(FileTimerServer):
        def _reap_worker(self, worker_pid: int, signal: int) -> bool:
            reaped.put((worker_pid, signal))
            return super()._reap_worker(worker_pid, 15)

    server = Gentle(str(tmp_path / "timers"), "run", _LONG)
    server.start()
    worker = workers.start(HANG, str(tmp_path / "timers"), "9")
    assert reaped.get(timeout=WAIT) == (worker.pid, 9)
    assert worker.wait(WAIT) == -signal.SIGTERM
    server.stop()


def test_rubbish_of_one_worker_hurts_no_other(
    server: FileTimerServer, workers: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open(tmp_path / "timers", "wb", buffering=0) as fifo:
        fifo.write(b"rubbish\n")
        worker = workers.start(HANG, str(tmp_path / "timers"), "9")
        fifo.write(b"more rubbish")
        assert worker.wait(WAIT) == -signal.SIGKILL
    assert "it is not a JSON object" in caplog.text


@pytest.mark.parametrize("after", [30 * 86400.0, 1e308])
def test_a_far_timer_is_no_obstacle(
    tmp_path: Path, workers: Workers, caplog: pytest.LogCaptureFixture, after: float
) -> None:
    path = str(tmp_path / "timers")
    server = FileTimerServer(path, "run", float("inf"))
    server.start()
    idle = workers.start(IDLE.replace("600", repr(after)), path)
    until(lambda: timers_of(server, 1.7e308) == {idle.pid: ["long"]})
    assert workers.start(HANG, path, "9").wait(WAIT) == -signal.SIGKILL
    assert idle.poll() is None
    server.stop()
    assert "could not be looked at" not in caplog.text


def test_a_server_does_not_end_its_own_process(
    server: FileTimerServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = f"process {os.getpid()} is no worker's"
    client = FileTimerClient(str(tmp_path / "timers"))
    for received in (1, 2, 3):
        client.acquire("a", time.time() + 60)
        until(lambda: server._service.received == received)  # noqa: B023 - called at once
        until(lambda: refusal in caplog.text)
    client.close()
    server.stop()
    assert caplog.text.count(refusal) == 1


def test_a_server_that_is_started_twice_serves_once_and_leaves_no_thread(
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
        thread = each._watchdog_thread
        assert thread is not None
        each.stop()
        thread.join(WAIT)
        assert threading.active_count() == before


def test_stopping_waits_for_no_interval_and_leaves_no_fifo(
    server: FileTimerServer, tmp_path: Path
) -> None:
    thread = server._watchdog_thread
    assert thread is not None
    for _ in range(2):
        server.stop()
        assert not thread.is_alive()
        assert not (tmp_path / "timers").exists()
    with pytest.raises(RuntimeError, match="cannot be started again"):
        server.start()


def test_run_once_handles_what_was_requested(
    tmp_path: Path, events: Events, workers: Workers
) -> None:
    path = str(tmp_path / "timers")
    # What an earlier server left there.
    Path(path).write_text("")
    server = FileTimerServer(path, "run", _LONG, log_event=events)
    worker = workers.start(IDLE, path)
    fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    expired = FileTimerRequest(worker.pid, "over", time.time() - 1, signal.SIGTERM)
    os.write(fifo, expired.to_json().encode() + b"\n")
    os.close(fifo)
    server.start()
    server.run_once()
    assert worker.wait(WAIT) == -signal.SIGTERM
    assert not os.path.exists(path)
    assert ("kill worker process", "over") in events.seen


def test_timers_can_be_set_and_cleared_without_the_fifo(
    server: FileTimerServer, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start(IDLE, str(tmp_path / "timers"))
    until(lambda: timers_of(server) == {worker.pid: ["long"]})
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


def test_progress_and_life_can_be_asked_for(server: FileTimerServer, workers: Workers) -> None:
    assert abs(server.get_last_progress_time() - time.time()) < WAIT
    assert FileTimerServer.is_process_running(os.getpid())
    ended = workers.start("print()")
    ended.wait(WAIT)
    assert not FileTimerServer.is_process_running(ended.pid)
    server.register_timers([FileTimerRequest(os.getpid(), "a", -1)])
    before = int(time.time()) - WAIT
    assert before < server.get_last_progress_time() <= time.time()


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


def idle(requests: Any, said: Any) -> None:
    LocalTimerClient(requests).acquire("long", time.time() + 600)
    said.send(1)
    time.sleep(1000)


@pytest.fixture
def local() -> Iterator[tuple[LocalTimerServer, Any]]:
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


def test_a_worker_that_hangs_is_killed_without_waiting_for_the_interval(
    local: tuple[LocalTimerServer, Any],
) -> None:
    server, requests = local
    server.start()
    requests.put("rubbish")
    worker = multiprocessing.get_context("fork").Process(target=hang, args=(requests,))
    worker.start()
    worker.join(WAIT)
    assert worker.exitcode == -signal.SIGKILL
    thread = server._watchdog_thread
    assert thread is not None
    server.stop()
    assert not thread.is_alive()


def test_timers_of_a_local_worker_that_ended_are_dropped(
    local: tuple[LocalTimerServer, Any],
) -> None:
    server, requests = local
    context = multiprocessing.get_context("fork")
    hears, said = context.Pipe(duplex=False)
    worker = context.Process(target=idle, args=(requests, said))
    worker.start()
    said.close()
    assert hears.poll(WAIT)
    hears.close()
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


def test_a_queue_that_cannot_wake_the_server_is_served_too(workers: Workers) -> None:
    requests: queue.Queue[FileTimerRequest] = queue.Queue()
    server = LocalTimerServer(requests, max_interval=0.05)
    server.start()
    worker = workers.start("import time; print(flush=True); time.sleep(1000)")
    requests.put(FileTimerRequest(worker.pid, "a", time.time(), 9))
    assert worker.wait(WAIT) == -signal.SIGKILL
    server.stop()


@pytest.mark.parametrize("kind", ["wakeable", "plain"])
def test_a_queue_can_be_asked_to_wait_for_ever(
    local: tuple[LocalTimerServer, Any], kind: str
) -> None:
    requests = local[1] if kind == "wakeable" else queue.Queue()
    asked = MultiprocessingRequestQueue(requests)
    threading.Timer(0.1, lambda: requests.put(TimerRequest(1, "a", 1.0))).start()
    assert asked.get(1, float("inf")) == [TimerRequest(1, "a", 1.0)]
    asked.close()


def test_a_local_server_bears_far_timers_and_long_intervals(workers: Workers) -> None:
    requests = multiprocessing.get_context("fork").Queue()
    server = LocalTimerServer(requests, max_interval=1e300)
    server.start()
    worker = workers.start("import time; print(flush=True); time.sleep(1000)")
    for scope, when in (("never", 1e308), ("far", time.time() + 30 * 86400), ("a", time.time())):
        requests.put(TimerRequest(worker.pid, scope, when))
    assert worker.wait(WAIT) == -signal.SIGKILL
    server.stop()
    requests.close()
    requests.join_thread()
    requests._reader.close()
