"""Workers that set and take back timers as fast as they can, or write garbage."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lllaunch.linux.process import wait
from lllaunch.timer.service import TimerService

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
