"""The spawner: one thread that starts workers, watches them and tells the launcher.

A branch is a spawner like any other: it has a launcher and a connection of its own, ends
everything below it when that launcher ends, and adopts what its workers orphan. When it dies
itself, the kernel gives the orphans to the spawner that it was forked from, which ends them.

One thread, one loop, woken by three things: the launcher's socket, the launcher's end (a pidfd,
since a forked child of the launcher may hold the other end of the socket open), and SIGCHLD. It
waits until workers run before it does anything else, so a signal that is sent later finds their
process groups and their dispositions. See the essay in this package's ``__init__``.

A stopped spawner sees none of them. Its parent-death signal is SIGCONT, so that it sees its
launcher's end all the same; a branch, whose parent is another spawner, gets it from that one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from lllaunch.clock import since_boot_ns
from lllaunch.errors import PreloadFailed
from lllaunch.events import (
    Exited,
    OrphansGone,
    PreloadBroken,
    Ready,
    Started,
    StartFailed,
)
from lllaunch.linux import proc
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import (
    open_pidfd,
    process_ended,
    set_child_subreaper,
    set_lineage,
    set_parent_death_signal,
    signal_group,
    wait,
    wait_readable,
)
from lllaunch.spawner import forks
from lllaunch.spawner.forks import ChildDefaults, failure_of, start
from lllaunch.spawner.interpreter import (
    Preloaded,
    comes_too_late,
    loaded_runtimes,
    pause,
    preload,
)
from lllaunch.spawner.orphans import MARK, OrphanCleanup, kill_below
from lllaunch.spawner.protocol import Channel, Forked, Message, Pickled, SpawnRequest

# What does not end although it was killed, and whose launcher is gone, is left after this long.
_GIVE_UP_SECONDS = 60.0
# How long branches get to end by themselves when this spawner ends.
_BRANCH_SECONDS = 5.0


class Server:
    """The state of a spawner.

    ``ignored``: signals that were ignored when this process was executed. ``around``: of one that
    needs no configuring. ``calls``: of a fork of the launcher, by local rank.
    """

    def __init__(
        self,
        sock: socket.socket,
        launcher: int,
        *,
        ignored: frozenset[signal.Signals] = frozenset(),
        around: ChildDefaults | None = None,
        calls: Mapping[int, Forked] | None = None,
    ) -> None:
        set_child_subreaper(True)
        self._ignored = ignored
        self._channel = Channel(sock)
        self._launcher = launcher
        self._children, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # descriptors that are nobody else's, closed in every child
        self._private = (self._channel.fileno(), launcher, self._children, write)
        # forked, and perhaps not running yet: process id, the order's header, report pipe
        self._starting: list[tuple[int, dict[str, Any], int]] = []
        self._workers: dict[int, dict[str, Any]] = {}  # the headers of their orders, by process id
        # the pidfds of their launchers, -1 for one that has ended, by process id
        self._branches: dict[int, int] = {}
        # by the number that the launcher knows it by; 0 for what branches may have left behind
        self._cleanups: dict[int, OrphanCleanup] = {}
        self._around = around
        self._inbox: list[Message] = []
        self._held: list[int] = []
        # Children that are neither workers nor orphans to be ended.
        self._spared: set[int] = set()
        self._calls = dict(calls or {})  # those that are still to be forked

    def serve(self) -> NoReturn:
        """Answer the launcher until it is gone, then end everything and exit."""
        while True:
            launchers = [launcher for launcher in self._branches.values() if launcher >= 0]
            files = (self._channel.fileno(), self._launcher, self._children, *launchers)
            cleanups = self._cleanups.values()
            ready = wait(files, seconds=min((each.next_in() for each in cleanups), default=None))
            if self._children in ready:
                os.read(self._children, 4096)
            if self._launcher in ready:
                self._end()
            for pid, launcher in self._branches.items():
                if launcher in ready:
                    # let the branch, if it was stopped, see that as well
                    os.kill(pid, signal.SIGCONT)  # a child that has not been waited for
                    os.close(launcher)
                    self._branches[pid] = -1
            self._reap()
            self._inbox += self._channel.receive()
            while self._inbox:
                message = self._inbox.pop(0)
                if message.header["op"] != "spawn":
                    self._await_starts()
                self._handle(message)
            self._await_starts()
            if self._channel.closed:
                self._end()
            self._clean_up()

    def _handle(self, message: Message) -> None:
        header = message.header
        match header["op"]:
            case "signal":
                # Workers are only reaped by this thread: the numbers are still theirs.
                for pid in self._pids(header["keys"]):
                    signal_group(pid, header["signum"])
                self._send({"done": header["command"]})
            case "notify":
                for pid in self._pids(header["keys"]):
                    with contextlib.suppress(PermissionError):  # it changed its user
                        os.kill(pid, header["signum"])
            case "kill":
                chosen = self._pids(header["keys"])
                kill_below(chosen)
                for pid in chosen:
                    signal_group(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):  # no descriptor is left
                    kill_below(self._orphans(), itself=True)
                self._send({"done": header["command"]})
            case "clean_up":
                self._cleanups[header["cleanup"]] = OrphanCleanup(header["settle"])
            case "hold":
                # somebody else may have what locks stand for when all here has ended
                for fd in self._held:
                    os.close(fd)
                self._held = [*message.fds]
            case "spawn" | "branch" if self._around is None:
                for fd in message.fds:
                    os.close(fd)
            case operation:  # configure, spawn, end_cleanup, branch, adopt
                getattr(self, f"_{operation}")(message)

    def _pids(self, keys: list[int]) -> list[int]:
        """Return the process ids of those of some workers that live."""
        return [pid for pid, order in self._workers.items() if order["key"] in keys]

    def _end_cleanup(self, _: Message) -> None:
        self._cleanups = {number: each for number, each in self._cleanups.items() if not number}

    def _adopt(self, message: Message) -> None:
        assert self._around is not None
        self._around = self._around._replace(cgroup=message.header["cgroup"])
        for number, fd in enumerate(message.fds, 1):
            os.dup2(fd, number)
            os.close(fd)

    def _send(self, header: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        self._channel.queue(header, fds=fds)
        if self._channel.pending and not self._channel.drain(self._launcher):
            self._end()

    def _configure(self, message: Message) -> None:
        header, base_path = message.header, tuple(path for path in sys.path if path)
        os.environ.clear()
        os.environ.update(header["environ"])
        time.tzset()
        if header["preload"]:
            # While modules are imported the loop does not run. Should the launcher die now, the
            # kernel does what the loop would: there is nothing else to end yet.
            set_parent_death_signal(signal.SIGKILL)
            if process_ended(self._launcher):
                self._end()
        try:
            done = preload(header["cwd"], header["preload"])
        except PreloadFailed as error:
            # nothing is started that was ordered meanwhile
            self._send({"event": PreloadBroken(error.module, error.reason, error.traceback)})
            return
        self._around = ChildDefaults(
            ignored=self._ignored,
            open_files=header["open_files"],
            base_path=base_path,
            interpreter=header["interpreter"],
            cgroup=header["cgroup"],
            preloaded=done,
        )
        set_parent_death_signal(signal.SIGCONT)
        # What preloads started for themselves (a resource tracker) is nobody's orphan.
        self._spared.update(proc.children(os.getpid()))
        self._send({"event": Ready(done.seconds, done.fork_safe, since_boot_ns())})

    def _spawn(self, message: Message) -> None:
        assert self._around is not None
        pause(self._around.preloaded.runtimes)
        try:
            request = self._request(message, self._around.preloaded)
            pid, report = start(request, self._around, self._own_fds())
        except OSError as error:
            self._refuse(message.header, failure_of(error))
        else:
            self._starting.append((pid, message.header, report))
            if isinstance(request.target, Forked) and not self._calls:
                # Who waits for the end of a pipe of the caller's would wait for this process, too.
                _close_inherited(self._own_fds())
        for fd in message.fds:
            os.close(fd)

    def _await_starts(self) -> None:
        """Wait until those that were forked run, or have said why they cannot; tell that."""
        while self._starting:
            pid, order, report = self._starting[0]
            ready = wait((report, self._launcher))
            text = os.read(report, 1 << 16) if report in ready else b""
            os.close(report)
            del self._starting[0]
            if text:
                os.waitpid(pid, 0)
                self._refuse(order, json.loads(text))
                continue
            self._workers[pid] = order
            pidfd = None
            with contextlib.suppress(OSError):  # no descriptor is left
                pidfd = open_pidfd(pid)
            started = Started(order["rank"], pid, since_boot_ns(), order["attempt"])
            self._send({"key": order["key"], "event": started}, () if pidfd is None else (pidfd,))
            if pidfd is not None:
                os.close(pidfd)

    def _refuse(self, order: dict[str, Any], failure: dict[str, Any]) -> None:
        """Tell that a worker cannot be started, and why."""
        when, attempt = since_boot_ns(), order["attempt"]
        failed = StartFailed(order["rank"], time_ns=when, attempt=attempt, **failure)
        self._send({"key": order["key"], "event": failed})

    def _request(self, message: Message, preloaded: Preloaded) -> SpawnRequest:
        if message.lost:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        request: SpawnRequest = message.header.pop("request")
        if isinstance(request.target, Pickled):
            # as they are numbered here
            target = request.target._replace(fds=tuple(message.fds))
            request = request._replace(target=target)
        if request.target is None:
            request = request._replace(target=self._calls.pop(message.header["rank"]))
        elif not preloaded.fork_safe or comes_too_late(request.env, preloaded.read):
            request = request._replace(fresh=True)
        return request

    def _own_fds(self) -> list[int]:
        """What is open here now, and is no child's: this process's own, and what is for others."""
        arrived = [fd for message in self._inbox for fd in message.fds]
        reports = [report for _, _, report in self._starting]
        launchers = [launcher for launcher in self._branches.values() if launcher >= 0]
        return [*self._private, *launchers, *reports, *arrived, *self._held]

    def _branch(self, message: Message) -> None:
        """Fork another spawner, which has all that this one has imported, for another launcher."""
        assert self._around is not None
        pause(self._around.preloaded.runtimes)
        try:
            sock, launcher = message.fds
            pid = os.fork()
        except (OSError, ValueError):
            # No process or descriptor is left. Who waits for the branch sees its connection close.
            for fd in message.fds:
                os.close(fd)
            return
        if pid == 0:
            try:
                # of what is the other's nothing stays open
                os.setsid()
                for fd in self._own_fds():
                    os.close(fd)
                other = socket.socket(fileno=sock)
                Server(other, launcher, around=self._around).begin()
            finally:
                # It must never go on as the spawner that it was forked from.
                os._exit(1)
        os.close(sock)
        self._branches[pid] = launcher

    def begin(self) -> NoReturn:
        """Serve as a branch."""
        pidfd = os.pidfd_open(os.getpid())
        self._send({"branched": os.getpid()}, (pidfd,))
        os.close(pidfd)
        self.serve()

    # Ending

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid, cpu = ended.si_pid, resource.RLIM_INFINITY
            with contextlib.suppress(OSError):
                # it may have set its own; that of a zombie can still be read
                _, cpu = resource.prlimit(pid, resource.RLIMIT_CPU)
            _, status, usage = os.wait4(pid, 0)
            self._spared.discard(pid)
            order, launcher = self._workers.pop(pid, None), self._branches.pop(pid, None)
            if order is not None:
                exited = Exited(
                    order["rank"],
                    pid,
                    os.waitstatus_to_exitcode(status),
                    since_boot_ns(),
                    max_rss=usage.ru_maxrss * 1024,
                    cpu_seconds=usage.ru_utime + usage.ru_stime,
                    core_dumped=os.WCOREDUMP(status),
                    attempt=order["attempt"],
                    cpu_limit=None if cpu == resource.RLIM_INFINITY else cpu,
                )
                self._send({"key": order["key"], "event": exited})
            if launcher is not None:
                if launcher >= 0:
                    os.close(launcher)
                self._cleanups[0] = OrphanCleanup(settle=0.0)

    def _orphans(self) -> list[int]:
        """Children that are no workers: what workers left behind."""
        known = self._spared.union(self._workers, self._branches)
        return [pid for pid in proc.children(os.getpid()) if pid not in known]

    def _clean_up(self) -> None:
        """Take the next step of the cleanups, if there are any."""
        with contextlib.suppress(OSError):  # no descriptor is left: they are looked for again
            for number, cleanup in [*self._cleanups.items()]:
                # What is below them comes here when they have died.
                if cleanup.go_on(self._orphans()):
                    del self._cleanups[number]
                    if number:
                        gone = OrphansGone(cleanup.orphans())
                        self._send({"cleanup": number, "event": gone})

    def _end(self) -> NoReturn:
        """Kill all that descends from this process, wait until nothing is left, exit.

        Branches end by themselves, since their launchers end, too. Until they have, they hold the
        locks of what their workers use.
        """
        cleanup, patient_until = OrphanCleanup(settle=0.0), time.monotonic() + _BRANCH_SECONDS
        while cleanup.stuck_for() < _GIVE_UP_SECONDS:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                os._exit(0)
            spared = self._branches if time.monotonic() < patient_until else ()
            with contextlib.suppress(OSError):  # no descriptor is left
                others = [pid for pid in proc.children(os.getpid()) if pid not in spared]
                cleanup.go_on(others)
            if wait_readable(self._children, cleanup.next_in()):
                os.read(self._children, 4096)
        os._exit(1)


def _close_inherited(keep: Collection[int]) -> None:
    """Close what the launcher's caller left open, as subprocess does for its children."""
    for fd in {*map(int, os.listdir("/proc/self/fd"))}.difference((0, 1, 2), keep):
        with contextlib.suppress(OSError):
            os.close(fd)


def fork_server(
    theirs: socket.socket, ours: socket.socket, mark: str, calls: Mapping[int, Forked]
) -> tuple[int, int]:
    """Fork this process to be a spawner; return its process id, and a pidfd of it."""
    from lllaunch.spawner import worker  # noqa: F401, PLC0415 - workers are forked with it

    runtimes = loaded_runtimes()
    pause(runtimes)
    forks.flush_streams()
    launcher = os.pidfd_open(os.getpid())
    try:
        pid = forks.fork()
        if pid == 0:
            try:
                os.setsid()
                forks.disown()
                forks.ignore_all()
                ours.close()
                os.environ[MARK] = mark
                set_lineage(mark)
                around = ChildDefaults(
                    ignored=frozenset(),
                    open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
                    base_path=tuple(sys.path),
                    interpreter=(),
                    cgroup="",
                    preloaded=Preloaded(runtimes=runtimes),
                )
                Server(theirs, launcher, around=around, calls=calls).serve()
            finally:
                os._exit(1)
        return pid, os.pidfd_open(pid)
    finally:
        os.close(launcher)


def main(fd: int, launcher: int) -> NoReturn:
    """Entry of the spawner's interpreter."""
    _close_inherited({fd})
    os.set_inheritable(fd, False)
    ignored = forks.ignored_at_start()
    forks.ignore_all()
    set_lineage(os.environ[MARK])
    set_parent_death_signal(signal.SIGCONT)
    pidfd = open_pidfd(launcher)
    if pidfd is None or os.getppid() != launcher:
        os._exit(1)
    # What a fresh interpreter's path would be; the client prepended the place of this package.
    try:
        server = Server(socket.socket(fileno=fd), pidfd, ignored=ignored)
    except OSError as error:
        if shortage(error):
            os._exit(1)  # the launcher has no more, and says so
        raise
    server.serve()
