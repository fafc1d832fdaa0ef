"""`FileTimerClient` at a real FIFO: full, absent, replaced, shared by threads, forked."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lllaunch.timer import FileTimerClient, FileTimerRequest, expires
from lllaunch.timer import api as client_module
from lllaunch.timer.service import RequestReader, make_fifo

LATER = 4e9


class Fifo:
    """One of ours, that nobody reads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = make_fifo(path)

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.fd, 1 << 16)
        return b""

    def remove(self) -> None:
        if self.fd >= 0:
            os.unlink(self.path)
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    made = Fifo(str(tmp_path / "timers %s\n"))
    yield made
    made.remove()


@pytest.fixture
def client(fifo: Fifo) -> FileTimerClient:
    return FileTimerClient(fifo.path)


def read(fifo: Fifo) -> list[FileTimerRequest]:
    reader = RequestReader()
    found = []
    while block := fifo.read():
        requests, wrong = reader.feed(block)
        assert wrong == []
        found += requests
    return found


def test_requests_are_written_at_once(fifo: Fifo, client: FileTimerClient) -> None:
    pid = os.getpid()
    client.acquire('odd "scope" \\ ä\n', 12.5)
    assert read(fifo) == [FileTimerRequest(pid, 'odd "scope" \\ ä\n', 12.5, signal.SIGKILL)]
    client.signal = signal.SIGUSR1
    client.acquire("a", 13)
    client.release("a")
    assert read(fifo) == [
        FileTimerRequest(pid, "a", 13.0, signal.SIGUSR1),
        FileTimerRequest(pid, "a", -1.0, 0),
    ]


def test_the_fifo_is_not_kept_open(tmp_path: Path) -> None:
    path = str(tmp_path / "fifo")
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        client = FileTimerClient(path)
        client.acquire("a", LATER)
        client.release("a")
        assert os.read(reader, 10_000).count(b"\n") == 2
        # The end of the file: nobody has it open for writing.
        assert os.read(reader, 10_000) == b""
    finally:
        os.close(reader)


def test_a_full_fifo_that_nobody_reads_is_an_error_and_works_again_when_read(
    fifo: Fifo, client: FileTimerClient
) -> None:
    count = 0

    def burst() -> None:
        nonlocal count
        while True:
            with expires(60, "burst", client):
                count += 1

    with pytest.raises(BlockingIOError, match="full for 1 s") as raised:
        burst()
    assert raised.value.filename == fifo.path
    # That is more than a second of quick pairs of torch's, which has room for 64 KiB.
    assert count > 3000
    assert len(read(fifo)) >= 2 * count - 1
    with expires(60, "burst", client):
        pass
    assert len(read(fifo)) == 2


def test_the_longest_request_is_read_and_a_longer_one_an_error(
    fifo: Fifo, client: FileTimerClient
) -> None:
    client.acquire("", LATER)
    scope = "x" * (select.PIPE_BUF - len(fifo.read()))
    client.acquire(scope, LATER)
    assert [request.scope_id for request in read(fifo)] == [scope]
    with pytest.raises(RuntimeError, match=f"larger than {select.PIPE_BUF} bytes"):
        client.acquire(scope + "x", LATER)
    assert fifo.read() == b""


def test_without_a_server_the_error_names_the_fifo_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    with pytest.raises(BrokenPipeError, match="no timer server") as raised:
        FileTimerClient(str(path)).acquire("a", LATER)
    assert raised.value.filename == str(path)
    path.write_text("mine")
    with pytest.raises(BrokenPipeError, match="no FIFO"):
        FileTimerClient(str(path)).acquire("a", LATER)
    assert path.read_text() == "mine"


def test_the_server_may_come_late(tmp_path: Path) -> None:
    path = str(tmp_path / "late")
    made: list[Fifo] = []
    timer = threading.Timer(0.2, lambda: made.append(Fifo(path)))
    timer.start()
    client = FileTimerClient(path)
    client.acquire("a", LATER)
    timer.join()
    assert [request.scope_id for request in read(made[0])] == ["a"]
    made[0].remove()


def test_threads_share_a_client(fifo: Fifo, client: FileTimerClient) -> None:
    def work(number: int) -> None:
        for _ in range(200):
            client.acquire(f"scope {number}", LATER)
            client.release(f"scope {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(read(fifo)) == 8 * 400


def test_a_fork_speaks_for_itself(fifo: Fifo, client: FileTimerClient) -> None:
    client.acquire("a", LATER)
    child = os.fork()
    if child == 0:
        client.acquire("a", LATER)
        client.release("a")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    client.release("a")
    pids = [request.worker_pid for request in read(fifo)]
    assert pids == [os.getpid(), child, child, os.getpid()]


def test_the_fifo_of_the_environment_is_used_where_nothing_is_configured(
    fifo: Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_configured", [])
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", fifo.path)
    for scope in ("first", "second"):
        with expires(60, scope):
            pass
    scopes = [request.scope_id for request in read(fifo)]
    assert scopes == ["first", "first", "second", "second"]
