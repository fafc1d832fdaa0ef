"""Workers that set and take back timers as fast as they can, or write garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lllaunch.timer import FileTimerServer

PAIRS = 10_000
WORKERS = 8
# A client gives up on a FIFO that is full for a second, which on a machine that does much else does
# not say that its server hangs.
WORK = """
import sys
from lllaunch.timer import FileTimerClient, expires, file_client
file_client._STUCK = file_client._CROWDED = 240.0
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


@pytest.mark.parametrize("garbage", ["b'x\\n' * 2048", "b'\\n' * 4096"])
def test_who_writes_garbage_without_end_hurts_no_other(tmp_path: Path, garbage: str) -> None:
    path = str(tmp_path / "timers")
    server = FileTimerServer(path, "run")
    server.start()
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, path, garbage])
    try:
        command = [sys.executable, "-c", WORK, path, "3000"]
        workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
        said = [worker.communicate()[1] for worker in workers]
        # It still writes, and that does not keep a server from its end.
        assert flood.poll() is None
        server.run_once()
    finally:
        flood.kill()
        flood.wait()
    assert said == [b"", b""]
    assert server._service.received == 12_000


def test_nothing_is_lost_and_nobody_fails(tmp_path: Path) -> None:
    path = str(tmp_path / "timers")
    events: list[str] = []
    server = FileTimerServer(path, "run", log_event=lambda name, _request: events.append(name))
    server.start()
    command = [sys.executable, "-c", WORK, path, str(PAIRS)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(WORKERS)]
    said = [worker.communicate()[1] for worker in workers]
    server.run_once()
    assert said == [b""] * WORKERS
    assert [worker.returncode for worker in workers] == [0] * WORKERS
    assert server._service.received == 2 * PAIRS * WORKERS
    assert len(server._service._timers) == 0
    assert events == ["watchdog started"]
