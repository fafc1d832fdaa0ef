"""The spawner's process: it preloads, forks, reaps, and ends what is left.

One thread, one loop, woken by four things: the launcher's socket, the launcher's end (a pidfd,
since a forked child of the launcher may hold the other end of the socket open), SIGCHLD, and the
report pipes of workers that are being started. See the essay in this package's ``__init__``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from lllaunch.errors import PreloadFailed
from lllaunch.linux import proc
from lllaunch.linux.process import (
    open_pidfd,
    set_child_subreaper,
    set_parent_death_signal,
    signal_group,
)
from lllaunch.spawner import openmp, signals
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.order import Order
from lllaunch.spawner.preloading import Preloaded, preload
from lllaunch.spawner.starting import start
from lllaunch.spawner.sweep import PAUSE_SECONDS, Sweep, kill_orphans
from lllaunch.spawner.tree import kill_below
from lllaunch.spawner.wire import Channel, Message


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


class Server:
    """The state of a spawner.

    Args:
        sock: the connection to the launcher.
        launcher: process id of the launcher.
    """

    def __init__(self, sock: socket.socket, launcher: int) -> None:
        self._ignored = signals.ignored_at_start()
        signals.ignore_all()
        set_child_subreaper(True)
        self._channel = Channel(sock)
        self._launcher = launcher
        pidfd = open_pidfd(launcher)
        if pidfd is None:
            os._exit(1)
        self._launcher_fd = pidfd
        self._wakeup, self._wakeup_write = self._watch_children()
        self._poll = select.poll()
        for fd in (self._channel.fileno(), self._launcher_fd, self._wakeup):
            self._poll.register(fd, select.POLLIN)
        self._workers: dict[int, _Worker] = {}
        self._sweep: Sweep | None = None
        self._around: Surroundings | None = None
        self._preloaded = Preloaded()
        self._inbox: list[Message] = []
        self._helpers: frozenset[int] = frozenset()

    @staticmethod
    def _watch_children() -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return read, write

    def serve(self) -> NoReturn:
        """Answer the launcher until it is gone, then end everything and exit."""
        while True:
            for fd, _ in self._poll.poll(self._timeout()):
                if fd == self._launcher_fd:
                    self._end()
                elif fd == self._wakeup:
                    os.read(fd, 4096)
                elif fd != self._channel.fileno():
                    self._read_report(fd)
            self._reap()
            self._inbox += self._channel.receive()
            while self._inbox:
                self._handle(self._inbox.pop(0))
            if self._channel.closed:
                self._end()
            self._continue_sweep()

    def _timeout(self) -> int | None:
        if self._sweep is None:
            return None
        return int(max(self._sweep.deadline - time.monotonic(), PAUSE_SECONDS) * 1000)

    def _handle(self, message: Message) -> None:
        operation = message.header["op"]
        if operation == "spawn":
            order = Order.decode(message)
            self._spawn(order if self._preloaded.fork_safe else replace(order, fresh=True))
            for fd in message.fds:
                os.close(fd)
        elif operation == "signal":
            self._signal(message.header["keys"], message.header["signum"])
        elif operation == "kill":
            self._kill(message.header["keys"])
        elif operation == "sweep":
            self._sweep = Sweep()
        elif operation == "check":
            self._check(message)
        elif operation == "configure":
            self._configure(message.header)

    def _send(self, header: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        self._channel.queue(header, fds=fds)
        if self._channel.pending and not self._channel.drain(self._launcher_fd):
            self._end()

    def _configure(self, header: dict[str, Any]) -> None:
        private = (self._channel.fileno(), self._launcher_fd, self._wakeup, self._wakeup_write)
        self._around = Surroundings(
            spawner=os.getpid(),
            ignored=self._ignored,
            open_files=(header["open_files"][0], header["open_files"][1]),
            base_path=tuple(path for path in sys.path if path),
            interpreter=tuple(header["interpreter"]),
            cgroup=header["cgroup"],
            private_fds=private,
        )
        os.environ.clear()
        os.environ.update(header["environ"])
        if header["preload"]:
            # While modules are imported the loop does not run. Should the launcher die now, the
            # kernel does what the loop would: there is nothing else to end yet.
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != self._launcher:
                self._end()
        try:
            self._preloaded = preload(header["cwd"], header["preload"])
        except PreloadFailed as error:
            facts = {"module": error.module, "reason": error.reason, "traceback": error.traceback}
            self._send({"fact": "broken"} | facts)
            return
        set_parent_death_signal(0)
        # What preloads started for themselves (a resource tracker) is nobody's leftover.
        self._helpers = frozenset(proc.children(os.getpid()))
        done = self._preloaded
        self._send({"fact": "ready", "seconds": done.seconds, "fork_safe": done.fork_safe})

    def _check(self, message: Message) -> None:
        from lllaunch.spawner.check import check_in_child  # noqa: PLC0415 - seldom needed

        assert self._around is not None
        openmp.pause(self._preloaded.runtimes)
        problem = check_in_child(
            message, self._around, self._foreign_fds(), (self._launcher_fd, self._channel.fileno())
        )
        if problem is None:
            self._end()
        self._send({"fact": "checked", "problem": problem})

    # Starting

    def _spawn(self, order: Order) -> None:
        assert self._around is not None
        openmp.pause(self._preloaded.runtimes)
        try:
            pid, report = start(order, self._around, self._foreign_fds())
        except OSError as error:
            failure = {
                "path": str(error.filename or ""),
                "reason": error.strerror or str(error),
                "errno": error.errno or 0,
            }
            self._send({"fact": "failed", "key": order.key, "time_ns": time.time_ns()} | failure)
            return
        self._workers[pid] = _Worker(order, pid, report)
        self._poll.register(report, select.POLLIN)

    def _foreign_fds(self) -> list[int]:
        """Descriptors of other workers' that happen to be open here now."""
        reports = [worker.report for worker in self._workers.values() if worker.report >= 0]
        return [*reports, *(fd for m in self._inbox for fd in m.fds), *self._channel.unclaimed]

    def _read_report(self, fd: int) -> None:
        for worker in self._workers.values():
            if worker.report == fd:
                self._settle_start(worker)
                return

    def _settle_start(self, worker: _Worker) -> None:
        """The report pipe closed (it runs) or holds a failure."""
        with os.fdopen(worker.report, "rb") as pipe:
            self._poll.unregister(worker.report)
            text = pipe.read()
        worker.report = -1
        if text:
            worker.failure = json.loads(text)
            return
        for signum in worker.early:
            signal_group(worker.pid, signum)
        pidfd = open_pidfd(worker.pid)
        header = {"fact": "started", "key": worker.order.key, "pid": worker.pid}
        self._send(header | {"time_ns": time.time_ns()}, (pidfd,) if pidfd is not None else ())
        if pidfd is not None:
            os.close(pidfd)

    # Ending

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            now = time.time_ns()
            worker = self._workers.pop(pid, None)
            if worker is None:
                continue
            if worker.report >= 0:
                self._settle_start(worker)
            header = {"key": worker.order.key, "time_ns": now}
            if worker.failure is not None:
                self._send({"fact": "failed"} | header | worker.failure)
                continue
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

    def _signal(self, keys: list[int], signum: int) -> None:
        # Workers are only reaped in _reap, by this thread: the numbers are still theirs.
        for worker in self._workers.values():
            if worker.order.key in keys and worker.report >= 0:
                worker.early.append(signum)
            elif worker.order.key in keys:
                signal_group(worker.pid, signum)
        self._send({"fact": "done", "op": "signal"})

    def _kill(self, keys: list[int]) -> None:
        chosen = [worker.pid for worker in self._workers.values() if worker.order.key in keys]
        kill_below(chosen)
        for pid in chosen:
            # Neither has been waited for, so the numbers are theirs. One that was forked a moment
            # ago may not lead its group yet.
            signal_group(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        kill_orphans(self._orphans())
        self._send({"fact": "done", "op": "kill"})

    def _orphans(self) -> list[int]:
        """Children that are no workers: what workers left behind."""
        known = self._helpers.union(self._workers)
        return [pid for pid in proc.children(os.getpid()) if pid not in known]

    def _continue_sweep(self) -> None:
        if self._sweep is not None and self._sweep.go_on(self._orphans()):
            self._send({"fact": "swept", "leftovers": self._sweep.leftovers()})
            self._sweep = None

    def _end(self) -> NoReturn:
        """Kill all that descends from this process, wait until nothing is left, exit."""
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                os._exit(0)
            kill_below([os.getpid()])
            time.sleep(PAUSE_SECONDS)


def _close_inherited(keep: int) -> None:
    """Close what the launcher's caller left open, as subprocess does for its children."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                continue


def main(fd: int, launcher: int) -> NoReturn:
    """Entry of the spawner's interpreter.

    Args:
        fd: its end of the connection.
        launcher: process id of the launcher.
    """
    _close_inherited(fd)
    os.setsid()
    os.set_inheritable(fd, False)
    # What a fresh interpreter's path would be; the client prepended the place of this package.
    Server(socket.socket(fileno=fd), launcher).serve()
