"""The spawner's process: it preloads, forks, reaps, and ends what is left.

One thread, one loop, woken by four things: the launcher's socket, the launcher's end (a pidfd,
since a forked child of the launcher may hold the other end of the socket open), SIGCHLD, and the
report pipes of workers that are being started. See the essay in this package's ``__init__``.

A stopped spawner sees none of them. Its parent-death signal is SIGCONT, so that it sees its
launcher's end all the same; a branch, whose parent is another spawner, gets it from that one.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

from lllaunch.errors import PreloadFailed
from lllaunch.linux import proc
from lllaunch.linux.process import (
    open_pidfd,
    process_ended,
    set_child_subreaper,
    set_lineage,
    set_parent_death_signal,
)
from lllaunch.spawner import openmp, signals
from lllaunch.spawner.adoption import MARK
from lllaunch.spawner.branches import Branches, leave_behind
from lllaunch.spawner.check import Checks
from lllaunch.spawner.child import Surroundings
from lllaunch.spawner.order import Order
from lllaunch.spawner.preloading import Preloaded, preload
from lllaunch.spawner.sweep import Pauses, Sweep
from lllaunch.spawner.tree import kill_with_below
from lllaunch.spawner.wakeups import Wakeups
from lllaunch.spawner.wire import Channel, Message
from lllaunch.spawner.workers import Workers

# What does not end although it was killed, and whose launcher is gone, is left after this long.
_GIVE_UP_SECONDS = 60.0
# How long branches get to end by themselves when this spawner ends.
_BRANCH_SECONDS = 5.0


class Server:
    """The state of a spawner.

    Args:
        sock: the connection to the launcher.
        launcher: pidfd of the launcher.
        ignored: signals that were ignored when this process was executed.
        preloaded: what has been imported.
    """

    def __init__(
        self,
        sock: socket.socket,
        launcher: int,
        ignored: frozenset[signal.Signals],
        preloaded: Preloaded | None = None,
    ) -> None:
        set_child_subreaper(True)
        self._ignored = ignored
        self._channel = Channel(sock)
        self._wakeups = Wakeups(self._channel.fileno(), launcher)
        self._workers = Workers(self._send, self._wakeups)
        self._checks = Checks(self._send)
        self._branches = Branches(self._wakeups)
        self._sweep: Sweep | None = None
        self._around: Surroundings | None = None
        self._preloaded = preloaded or Preloaded()
        self._inbox: list[Message] = []
        self._held: list[int] = []
        # Children that are neither workers nor orphans to be ended.
        self._spared: set[int] = set()

    def serve(self) -> NoReturn:
        """Answer the launcher until it is gone, then end everything and exit."""
        while True:
            for fd in self._wakeups.wait(self._timeout()):
                if fd == self._wakeups.launcher:
                    self._end()
                self._workers.read_report(fd)
                self._branches.launcher_ended(fd)
            self._reap()
            self._inbox += self._channel.receive()
            while self._inbox:
                self._handle(self._inbox.pop(0))
            if self._channel.closed:
                self._end()
            self._continue_sweep()
            self._branches.end_strays(self._orphans)

    def _timeout(self) -> int | None:
        sweep = None if self._sweep is None else self._sweep.next_in()
        waits = [wait for wait in (sweep, self._branches.next_in()) if wait is not None]
        return math.ceil(min(waits) * 1000) if waits else None

    def _handle(self, message: Message) -> None:
        self._OPERATIONS[message.header["op"]](self, message)

    def _signal(self, message: Message) -> None:
        self._workers.signal(message.header["keys"], message.header["signum"])
        self._send({"fact": "done", "command": message.header["command"]})

    def _kill(self, message: Message) -> None:
        self._workers.kill(message.header["keys"])
        kill_with_below(self._orphans())
        self._send({"fact": "done", "command": message.header["command"]})

    def _begin_sweep(self, message: Message) -> None:
        self._sweep = Sweep(message.header["sweep"])

    def _end_sweep(self, _: Message) -> None:
        """Let what a sweep cannot end be: later workers shall not be ended for it, nor wait."""
        if self._sweep is not None:
            orphans, everything = self._orphans(), proc.processes()
            # those that are gone, whose numbers may come to mean others
            self._spared &= {process.pid for process in everything}
            self._spared.update(orphans)
            # what is below one that ends becomes a child of this process
            below = (each for pid in orphans for each in proc.descendants(pid, everything))
            self._spared.update(process.pid for process in below)
            self._sweep = None

    def _end_check(self, message: Message) -> None:
        self._checks.cancel(message.header["check"])

    def _adopt(self, message: Message) -> None:
        assert self._around is not None
        self._around = replace(self._around, cgroup=message.header["cgroup"])
        for number, fd in enumerate(message.fds, 1):
            os.dup2(fd, number)
            os.close(fd)

    def _hold(self, message: Message) -> None:
        """Keep locks: somebody else may have what they stand for when all here has ended."""
        for fd in self._held:
            os.close(fd)
        self._held = [*message.fds]

    def _send(self, header: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        self._channel.queue(header, fds=fds)
        if self._channel.pending and not self._channel.drain(self._wakeups.launcher):
            self._end()

    def _configure(self, message: Message) -> None:
        header = message.header
        self._around = Surroundings(
            spawner=os.getpid(),
            ignored=self._ignored,
            open_files=(header["open_files"][0], header["open_files"][1]),
            base_path=tuple(path for path in sys.path if path),
            interpreter=tuple(header["interpreter"]),
            cgroup=header["cgroup"],
            private_fds=self._wakeups.private,
        )
        os.environ.clear()
        os.environ.update(header["environ"])
        if header["preload"]:
            # While modules are imported the loop does not run. Should the launcher die now, the
            # kernel does what the loop would: there is nothing else to end yet.
            set_parent_death_signal(signal.SIGKILL)
            if process_ended(self._wakeups.launcher):
                self._end()
        try:
            self._preloaded = preload(header["cwd"], header["preload"])
        except PreloadFailed as error:
            facts = {"module": error.module, "reason": error.reason, "traceback": error.traceback}
            self._send({"fact": "broken"} | facts)
            return
        set_parent_death_signal(signal.SIGCONT)
        # What preloads started for themselves (a resource tracker) is nobody's leftover.
        self._spared.update(proc.children(os.getpid()))
        done = self._preloaded
        self._send({"fact": "ready", "seconds": done.seconds, "fork_safe": done.fork_safe})

    def _check(self, message: Message) -> None:
        assert self._around is not None
        openmp.pause(self._preloaded.runtimes)
        self._checks.start(message, self._around, self._foreign_fds())

    def _spawn(self, message: Message) -> None:
        assert self._around is not None
        openmp.pause(self._preloaded.runtimes)
        order = Order.decode(message)
        if not self._preloaded.fork_safe:
            order = replace(order, fresh=True)
        if message.lost:
            self._workers.refuse(order.key, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        else:
            self._workers.start(order, self._around, self._foreign_fds())
        for fd in message.fds:
            os.close(fd)

    def _foreign_fds(self) -> list[int]:
        """Descriptors of workers' that happen to be open here now."""
        arrived = [fd for message in self._inbox for fd in message.fds]
        own = [*self._workers.reports, *self._checks.pipes, *self._branches.launchers]
        return [*own, *arrived, *self._held, *self._channel.unclaimed]

    def _branch(self, message: Message) -> None:
        """Fork another spawner, which has all that this one has imported, for another launcher."""
        assert self._around is not None
        openmp.pause(self._preloaded.runtimes)
        try:
            sock, launcher = message.fds
            pid = os.fork()
        except (OSError, ValueError):
            # No process or descriptor is left. Who waits for the branch sees its connection close.
            for fd in message.fds:
                os.close(fd)
            return
        if pid == 0:
            self._become_branch(sock, launcher, self._around)
        os.close(sock)
        self._branches.add(pid, launcher)

    def _become_branch(self, sock: int, launcher: int, around: Surroundings) -> NoReturn:
        try:
            leave_behind(self._wakeups.private, self._foreign_fds())
            branch = Server(socket.socket(fileno=sock), launcher, self._ignored, self._preloaded)
            branch.begin(around)
        finally:
            # It must never go on as the spawner that it was forked from.
            os._exit(1)

    def begin(self, around: Surroundings) -> NoReturn:
        """Serve as a branch, which needs no configuring.

        Args:
            around: what the workers of the spawner that this one was forked from had in common.
        """
        private = self._wakeups.private
        self._around = replace(around, spawner=os.getpid(), private_fds=private, cgroup="")
        pidfd = open_pidfd(os.getpid())
        assert pidfd is not None  # our own
        self._send({"fact": "branched", "pid": os.getpid()}, (pidfd,))
        os.close(pidfd)
        self.serve()

    # Ending

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._spared.discard(pid)
            if not self._workers.reaped(pid, status, usage) and not self._checks.ended(pid, status):
                self._branches.ended(pid)

    def _orphans(self) -> list[int]:
        """Children that are no workers: what workers left behind."""
        known = self._spared.union(self._workers.pids, self._checks.pids, self._branches.pids)
        return [pid for pid in proc.children(os.getpid()) if pid not in known]

    def _continue_sweep(self) -> None:
        if self._sweep is not None and self._sweep.go_on(self._orphans()):
            found = {"sweep": self._sweep.number, "leftovers": self._sweep.leftovers()}
            self._send({"fact": "swept"} | found)
            self._sweep = None

    def _end(self) -> NoReturn:
        """Kill all that descends from this process, wait until nothing is left, exit.

        Branches end by themselves, since their launchers end, too. Until they have, they hold the
        locks of what their workers use.
        """
        pauses, patient_until = Pauses(), time.monotonic() + _BRANCH_SECONDS
        while time.monotonic() - pauses.changed < _GIVE_UP_SECONDS:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                os._exit(0)
            spared = self._branches.pids if time.monotonic() < patient_until else ()
            others = [pid for pid in proc.children(os.getpid()) if pid not in spared]
            pauses.note([process.pid for process in kill_with_below(others)])
            self._wakeups.wait_child(pauses.seconds)
        os._exit(1)

    _OPERATIONS: ClassVar[dict[str, Callable[[Server, Message], None]]] = {
        "configure": _configure,
        "spawn": _spawn,
        "signal": _signal,
        "kill": _kill,
        "sweep": _begin_sweep,
        "end_sweep": _end_sweep,
        "check": _check,
        "end_check": _end_check,
        "branch": _branch,
        "adopt": _adopt,
        "hold": _hold,
    }


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
    os.set_inheritable(fd, False)
    ignored = signals.ignored_at_start()
    signals.ignore_all()
    set_lineage(os.environ[MARK])
    set_parent_death_signal(signal.SIGCONT)
    pidfd = open_pidfd(launcher)
    if pidfd is None or os.getppid() != launcher:
        os._exit(1)
    # What a fresh interpreter's path would be; the client prepended the place of this package.
    Server(socket.socket(fileno=fd), pidfd, ignored).serve()
