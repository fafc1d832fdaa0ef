"""The workers of one spawner: starting them, hearing of their ends, signalling them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import open_pidfd, signal_group
from lllaunch.moments import since_boot_ns
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.order import Order
from lllaunch.spawner.starting import start
from lllaunch.spawner.tree import kill_below
from lllaunch.spawner.wakeups import Wakeups


class Send(Protocol):
    """Tells the launcher something."""

    def __call__(self, header: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a message."""


@dataclass
class _Worker:
    """A started process.

    Attributes:
        order: what it was started for.
        pid: its process id.
        report: read end of its report pipe, -1 once that is closed.
        failure: what it reported instead of starting.
        early: signals that came before it ran. Until then it has neither its own process group nor
            its own dispositions, and would not get them.
    """

    order: Order
    pid: int
    report: int
    failure: dict[str, Any] | None = None
    early: list[int] = field(default_factory=list)


class Workers:
    """Those that live.

    Args:
        send: tells the launcher something.
        wakeups: what the spawner's loop waits for.
    """

    def __init__(self, send: Send, wakeups: Wakeups) -> None:
        self._send = send
        self._wakeups = wakeups
        self._workers: dict[int, _Worker] = {}

    @property
    def pids(self) -> Iterable[int]:
        """Their process ids."""
        return self._workers.keys()

    @property
    def reports(self) -> list[int]:
        """The report pipes of those that have not started yet."""
        return [worker.report for worker in self._workers.values() if worker.report >= 0]

    def start(self, order: Order, around: Surroundings, foreign: Iterable[int]) -> None:
        """Start one; tells why if that cannot be.

        Args:
            order: what to start.
            around: what all workers of this spawner have in common.
            foreign: descriptors that are not this one's.
        """
        try:
            pid, report = start(order, around, foreign)
        except OSError as error:
            self.refuse(order.key, error)
            return
        self._workers[pid] = _Worker(order, pid, report)
        self._wakeups.add(report)

    def refuse(self, key: int, error: OSError) -> None:
        """Tell that a worker cannot be started, and why."""
        failure = {
            "path": str(error.filename or ""),
            "reason": shortage(error) or error.strerror or str(error),
            "errno": error.errno or 0,
        }
        self._send({"fact": "failed", "key": key, "time_ns": since_boot_ns()} | failure)

    def read_report(self, fd: int) -> None:
        """A report pipe is readable."""
        for worker in self._workers.values():
            if worker.report == fd:
                self._settle_start(worker)
                return

    def _settle_start(self, worker: _Worker, *, reaped: bool = False) -> None:
        """The report pipe closed (it runs, or ran until it was reaped) or holds a failure."""
        with os.fdopen(worker.report, "rb") as pipe:
            self._wakeups.remove(worker.report)
            text = pipe.read()
        worker.report = -1
        if text:
            worker.failure = json.loads(text)
            return
        pidfd = None
        if not reaped:  # else its number may be another's
            for signum in worker.early:
                signal_group(worker.pid, signum)
            with contextlib.suppress(OSError):  # no descriptor is left
                pidfd = open_pidfd(worker.pid)
        header = {"fact": "started", "key": worker.order.key, "pid": worker.pid}
        self._send(header | {"time_ns": since_boot_ns()}, (pidfd,) if pidfd is not None else ())
        if pidfd is not None:
            os.close(pidfd)

    def reaped(self, pid: int, status: int, usage: resource.struct_rusage) -> bool:
        """Tell of a child that was waited for; False if it is no worker.

        Args:
            pid: its process id.
            status: its wait status.
            usage: what it has used.
        """
        now = since_boot_ns()
        worker = self._workers.pop(pid, None)
        if worker is None:
            return False
        if worker.report >= 0:
            self._settle_start(worker, reaped=True)
        header = {"key": worker.order.key, "time_ns": now}
        if worker.failure is not None:
            self._send({"fact": "failed"} | header | worker.failure)
            return True
        self._send(
            {
                "fact": "exited",
                "pid": pid,
                "exitcode": os.waitstatus_to_exitcode(status),
                "core": os.WCOREDUMP(status),
                "max_rss": usage.ru_maxrss * 1024,
                "cpu": usage.ru_utime + usage.ru_stime,
            }
            | header
        )
        return True

    def signal(self, keys: list[int], signum: int) -> None:
        """Send a signal to the process groups of some."""
        # Workers are only reaped by this thread, between two calls: the numbers are still theirs.
        for worker in self._workers.values():
            if worker.order.key in keys and worker.report >= 0:
                worker.early.append(signum)
            elif worker.order.key in keys:
                signal_group(worker.pid, signum)

    def kill(self, keys: list[int]) -> None:
        """SIGKILL some, and all that descends from them."""
        chosen = [worker.pid for worker in self._workers.values() if worker.order.key in keys]
        kill_below(chosen)
        for pid in chosen:
            # Neither has been waited for, so the numbers are theirs. One that was forked a moment
            # ago may not lead its group yet; one that changed its user may not be ours to kill.
            signal_group(pid, signal.SIGKILL)
            with contextlib.suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
