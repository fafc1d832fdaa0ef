"""How a supervisor ends its workers when an error of our own ends the run."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from support.launching import WAIT

from lllaunch.clock import RunClock
from lllaunch.signal_source import SignalSource
from lllaunch.spawner.protocol import Program
from lllaunch.supervisor.machine import Begin, GroupStarted, Machine
from lllaunch.supervisor.supervisor import GroupHooks, GroupOptions, Supervisor
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.testing import FakeSpawner
from lllaunch.workers.group import WorkerProcesses, start_processes
from lllaunch.workers.log_files import LogsDest


def test_a_signal_ends_the_wait_for_workers_that_do_not_end() -> None:
    spawner: Any = FakeSpawner(obedient=False)
    workers = WorkerProcesses("t", 1, LogsDest({0: ""}, {0: ""}))
    start_processes(workers, {0: Program("p")}, {0: {}}, spawner=spawner)
    machine = Machine(0)
    machine.handle(Begin())
    machine.handle(GroupStarted(frozenset({0})))
    with SignalSource([signal.SIGTERM]) as signals:
        supervisor = Supervisor(
            machine,
            GroupOptions(1, grace_period=10 * WAIT),
            GroupHooks(lambda _: workers),
            signals=signals,
            watchdog=WatchdogDriver(),
            clock=RunClock(),
        )
        supervisor.workers = workers
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began = time.monotonic()
        supervisor.close()
    assert time.monotonic() - began < WAIT
    assert spawner.sent == [((1,), signal.SIGTERM), ((1,), signal.SIGKILL)]
    spawner.close()
