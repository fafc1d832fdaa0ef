"""The launcher's side of the spawner: start it, order workers, receive events, end everything.

A launcher that has a spawner makes a branch and hands it over to a fork of its own: that adopts it,
and forgets the spawner that its parent has.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from lllaunch.errors import SpawnerDied
from lllaunch.events import PreloadBroken, Ready, SpawnerEvent, SpawnerGone, Started
from lllaunch.linux.cgroup import Cgroup
from lllaunch.linux.process import (
    Subreaper,
    hold_standard_fds,
    process_ended,
    raise_open_files_limit,
    send_signal,
    wait,
    wait_readable,
)
from lllaunch.spawner.interpreter import Shared, exec_part, interpreter_command, start_interpreter
from lllaunch.spawner.orphans import (
    MARK,
    SETTLE_SECONDS,
    Inherited,
    end_adopted,
    kill_below,
    new_mark,
)
from lllaunch.spawner.protocol import (
    Channel,
    Forked,
    Function,
    Message,
    Pickled,
    SpawnRequest,
    Target,
    connected,
    dated,
)

# The local rank of a check, which is no worker.
_CHECK = -3
# How long the spawner may take to confirm a signal before the launcher sends it itself.
ACKNOWLEDGE_SECONDS = 1.0


class Branch(NamedTuple):
    """A branch, for the process that will adopt it."""

    sock: socket.socket
    shared: Shared  # what the workers of the spawner have in common
    mark: str


# How long an ending spawner may take to end what is left, before it is killed; and how long that,
# and the end of its cgroup, may take in turn.
_CLOSE_SECONDS = 10.0
# Between two looks at a cgroup that is about to be empty.
_PAUSE_SECONDS = 0.01


class Spawner:
    """A spawner process, seen from the launcher.

    It is started by `prestart`, or by `configure` when that has not been called; or it is a branch
    of another one (`branch`, `adopt`). Not thread-safe: one thread uses it at a time.
    """

    # of this run; they outlive the process that stands behind this object
    _locks: tuple[int, ...] = ()

    def __init__(self) -> None:
        hold_standard_fds()
        self._begin()

    def _begin(self) -> None:
        """Be without a process, as at first."""
        self.pid = 0
        self.mark = new_mark()
        self.dead: SpawnerGone | None = None
        self._ready = False
        self._pidfd = -1
        self._key: Shared | None = None
        self._exec_env: dict[str, str] = {}
        # The pidfds, or -1, of those that are not known to have ended, by their order's number:
        # one spawner may serve several runs, each of which has a worker (attempt 0, local rank 0),
        # and the end of one that was abandoned must not be taken for another's.
        self._workers: dict[int, int] = {}
        self._confirmed = 0  # the number of the last signal that the spawner has confirmed
        self._events: list[SpawnerEvent] = []
        self._numbers = itertools.count(1)
        self._awaited_cleanup = 0  # the cleanup that is waited for; 0: none
        self._sent: list[int] = []
        self._arrival: Callable[[], None] | None = None
        self._channel: Channel | None = None
        self._epoll: select.epoll | None = None
        self._reminder = -1  # always readable; waited for while events are kept
        self._cgroup: Cgroup | None = None

    # Starting and configuring

    @classmethod
    def prestart(cls) -> Spawner:
        """Start the interpreter now; it waits, having imported next to nothing, for `configure`."""
        spawner = cls()
        spawner._start(os.environ)
        return spawner

    @classmethod
    def forked(cls, calls: Mapping[int, Forked]) -> Spawner:
        """Fork this process to be the spawner of some calls, by local rank, each of which it forks.

        What is forked shares the memory of this process as it is, threads excepted; whether that is
        safe is the caller's to judge, as with ``multiprocessing.get_context("fork")``.
        """
        from lllaunch.spawner import server  # noqa: PLC0415 - the rarest start method

        spawner = cls()
        spawner._make(lambda end, ours: server.fork_server(end, ours, spawner.mark, calls))
        spawner._ready = True
        return spawner

    def _start(self, environ: Mapping[str, str]) -> None:
        raise_open_files_limit()
        self._make(lambda end, _: start_interpreter(end, {**environ, MARK: self.mark}))
        self._exec_env = exec_part(environ)

    def _make(self, process: Callable[[socket.socket, socket.socket], tuple[int, int]]) -> None:
        """Make the process, whose end of the connection comes first."""
        ours, theirs = connected()
        with theirs:
            try:
                self.pid, self._pidfd = process(theirs, ours)
            except OSError:  # no room for another process
                ours.close()
                raise
        self._connect(ours)

    def hold(self, locks: tuple[int, ...]) -> None:
        """Let the spawner hold locks, too, until all that it started has ended.

        ``locks``: descriptors, which stay open until the next call. It replaces those of this one.
        """
        self._locks = locks
        self._hand_locks()

    def _hand_locks(self) -> None:
        # not before a branch is there: on their way they would be held though this process ends
        if self._arrival is None:
            self._send({"op": "hold"}, fds=(*Inherited.held, *self._locks))

    def _connect(self, sock: socket.socket) -> None:
        self._epoll = select.epoll()
        Subreaper.need()
        self._cgroup = Cgroup.create(self.mark)
        self._channel = Channel(sock)
        self._reminder = os.eventfd(1, os.EFD_CLOEXEC)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._epoll.register(self._reminder, 0)
        self._hand_locks()

    def configure(self, environ: Mapping[str, str], cwd: str, preload: Sequence[str] = ()) -> None:
        """Say what workers of this spawner share; starts or restarts it where that is needed.

        ``cwd``: working directory of the preloads, put on ``sys.path``.
        """
        try:
            self._complete()
        except SpawnerDied:
            self._begin()
        key = Shared(dict(environ), cwd, tuple(preload))
        if self.pid and self.dead is None and self._key is not None and self._key.serves(key):
            return
        replace = self.dead or self._key is not None or self._exec_env != exec_part(environ)
        if self.pid and replace:
            self.close()
            self._begin()
        if not self.pid:
            self._start(environ)
        self._key = key
        self._send(
            {
                "op": "configure",
                "environ": {**environ, MARK: self.mark},
                "cwd": cwd,
                "preload": list(preload),
                "open_files": raise_open_files_limit(),
                "cgroup": self._cgroup.procs if self._cgroup is not None else "",
                "interpreter": interpreter_command(),
            }
        )

    @property
    def ready(self) -> bool:
        """Whether the preloads are done, and it is not known to be ending."""
        return self._ready and self.dead is None

    # Orders

    def spawn(
        self,
        rank: int,
        target: Target,
        *,
        cwd: str,
        env: Mapping[str, str],
        stdout: str = "",
        stderr: str = "",
        fresh: bool = False,
        attempt: int = 0,
    ) -> int:
        """Order a worker; `Started` or `StartFailed` follows.

        ``stdout``: file that its standard output is appended to; empty for the launcher's own.
        """
        key = next(self._numbers)
        self._workers[key] = -1
        what = None if isinstance(target, Forked) else target
        request = SpawnRequest(what, cwd, dict(env), stdout, stderr, fresh)
        fds = target.fds if isinstance(target, Pickled) else ()
        order = {"op": "spawn", "key": key, "rank": rank, "attempt": attempt, "request": request}
        self._send(order, fds, close_fds=True)
        return key

    def signal(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to the process groups of workers, through the spawner.

        If it does not confirm within a second, the launcher signals the workers itself. A spawner
        that is still preloading is killed, unless the signal ends nobody: there is no worker yet,
        and nobody wants to wait.
        """
        ends = signum not in (signal.SIGSTOP, signal.SIGCONT)
        preloads = self._key is not None and self._key.preload and not self._ready
        if ends and preloads and self.dead is None:
            self._kill_spawner()
        else:
            self._command("signal", list(keys), signum)

    def notify(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to workers that have started, and to nothing else of their groups.

        The spawner knows which have; the launcher may not have read it yet.
        """
        self._send({"op": "notify", "keys": list(keys), "signum": int(signum)})

    def kill(self, keys: Iterable[int]) -> None:
        """SIGKILL workers and all that descends from them.

        A spawner that is still preloading is killed itself.
        """
        if not self._ready and self.dead is None and self._pidfd >= 0:
            self._kill_spawner()
            return
        self._command("kill", list(keys), signal.SIGKILL)

    def clean_up(self, settle: float = SETTLE_SECONDS) -> None:
        """End what workers left behind; `OrphansGone` follows."""
        self._awaited_cleanup = next(self._numbers)
        self._send({"op": "clean_up", "cleanup": self._awaited_cleanup, "settle": settle})

    def abandon(self, keys: Iterable[int]) -> None:
        """Wait no longer for workers, nor for a cleanup: no event of either follows.

        To be called by who gives them up, since the next run may use this spawner as well.
        """
        for key in keys:
            self._forget_worker(key)
        if self._awaited_cleanup:
            self._awaited_cleanup = 0
            self._send({"op": "end_cleanup"})

    def _command(self, operation: str, keys: list[int], signum: int) -> None:
        """Order a signal, and wait until the spawner confirms it.

        The workers of a deaf one are signalled directly; it dies if that must be forced.
        """
        number = next(self._numbers)
        self._send({"op": operation, "command": number, "keys": keys, "signum": int(signum)})
        forced = operation == "kill"
        if forced:
            self._signal_directly(keys, signum)
        until = time.monotonic() + ACKNOWLEDGE_SECONDS
        while self._confirmed < number and self._channel is not None and self.dead is None:
            left = until - time.monotonic()
            if left <= 0:
                self._signal_directly(keys, signum)
                if forced:
                    self._kill_spawner()
                return
            wait((self._channel,), (self._channel,) if self._channel.pending else (), left)
            self._keep(self.dispatch())

    def _signal_directly(self, keys: Iterable[int], signum: int) -> None:
        """Signal workers through their pidfds."""
        for key in keys:
            pidfd = self._workers.get(key, -1)
            if pidfd >= 0:
                send_signal(pidfd, signum)

    def _forget_worker(self, key: int) -> None:
        pidfd = self._workers.pop(key, -1)
        if pidfd >= 0:
            os.close(pidfd)

    def _kill_spawner(self) -> None:
        """SIGKILL it, and what it started first: that would be more work once it is gone."""
        if self._pidfd < 0 or process_ended(self._pidfd):
            return
        kill_below([self.pid])
        send_signal(self._pidfd, signal.SIGKILL)
        self._sent.append(signal.SIGKILL)

    def _send(
        self, header: dict[str, Any], fds: tuple[int, ...] = (), close_fds: bool = False
    ) -> None:
        if self._channel is not None and self.dead is None:
            self._channel.queue(header, fds, close_fds)
            self._watch_writes()
        elif close_fds:
            for fd in fds:
                os.close(fd)

    def _watch_writes(self) -> None:
        if self._epoll is not None and self._channel is not None and not self._channel.closed:
            events = select.EPOLLIN | (select.EPOLLOUT if self._channel.pending else 0)
            self._epoll.modify(self._channel.fileno(), events)

    def flush(self) -> None:
        """Wait until all orders have left; what arrives meanwhile is told by `dispatch`.

        For callers that do something else before they wait for events: an order with large
        arguments does not fit into the socket at once.
        """
        while self._channel is not None and self._channel.pending and self.dead is None:
            wait((self._channel,), (self._channel,))
            self._keep(self.dispatch())

    def _keep(self, events: list[SpawnerEvent]) -> None:
        """Leave events to the next `dispatch`."""
        self._events = events
        if self._epoll is not None:
            self._epoll.modify(self._reminder, select.EPOLLIN if events else 0)

    # Events

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        if self._epoll is None:
            raise SpawnerDied(self.pid, None, "it was never started")
        return self._epoll.fileno()

    def dispatch(self) -> list[SpawnerEvent]:
        """Send and receive what can be without waiting; the events that arrived."""
        if self._channel is not None and self.dead is None:
            self._channel.flush()
            for message in self._channel.receive():
                self._note(message)
            self._watch_writes()
            if self._channel.closed:
                self._bury()
        events = self._events
        self._keep([])
        return events

    def _note(self, message: Message) -> None:
        header = message.header
        if "done" in header:
            self._confirmed = header["done"]
        elif "branched" in header:
            if message.lost:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.pid, self._pidfd = header["branched"], message.fds[0]
        elif "key" in header:
            self._note_worker(header["key"], dated(header["event"]), message.fds)
        elif "cleanup" not in header or header["cleanup"] == self._awaited_cleanup:
            event = dated(header["event"])
            self._ready = self._ready or isinstance(event, Ready)
            self._events.append(event)

    def _note_worker(self, key: int, event: SpawnerEvent, fds: list[int]) -> None:
        if key not in self._workers:  # nobody waits for it any more
            for fd in fds:
                os.close(fd)
            return
        if getattr(event, "local_rank", None) != _CHECK:
            self._events.append(event)
        if not isinstance(event, Started):
            self._forget_worker(key)
        elif fds:
            self._workers[key] = fds[0]

    # Branches: warm spawners for other launchers

    def branch(self, launcher: int) -> Branch:
        """Let a branch of this spawner, which is configured, begin when the preloads are done.

        What is returned is to be sent to the process that will `adopt` it.

        ``launcher``: a pidfd of that process; it is closed when it has been sent.
        """
        assert self._key is not None
        ours, theirs = connected()
        self._send({"op": "branch"}, fds=(theirs.detach(), launcher), close_fds=True)
        return Branch(ours, self._key, self.mark)

    @classmethod
    def adopt(
        cls,
        branch: Branch,
        seconds: float | None = None,
        *,
        adopted: Callable[[int], object] = lambda pid: None,  # noqa: ARG005
        later: bool = False,
    ) -> Self:
        """Take a branch over, in the process that it is meant for; waits for the preloads.

        It is configured as the spawner that it comes from: `configure` with other values replaces
        it by a spawner of this process's own.

        ``seconds``: how long it is waited for; None: as long as somebody may still let it begin.

        Raises:
            SpawnerDied: it ended, or did not begin.
        """
        spawner = cls()
        spawner.mark, spawner._key = branch.mark, branch.shared
        raise_open_files_limit()
        until = None if seconds is None else time.monotonic() + seconds
        spawner._arrival = lambda: spawner._await_branch(until, adopted)
        spawner._connect(branch.sock)
        if not later:
            spawner._complete()
        return spawner

    def _complete(self) -> None:
        """Wait for a branch that is being adopted; raises SpawnerDied if it does not begin."""
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival()

    def _await_branch(self, until: float | None, adopted: Callable[[int], object]) -> None:
        while not self.pid:
            left = None if until is None else until - time.monotonic()
            late = left is not None and left <= 0
            if late or self._channel is None or self._channel.closed:
                self.forget()
                if self._cgroup is not None:
                    self._cgroup.remove()
                raise SpawnerDied(0, None, "it did not hand over a branch")
            wait_readable(self._channel, left)
            for message in self._channel.receive():
                self._note(message)
        self._ready = True
        adopted(self.pid)
        self._hand_locks()
        cgroup = self._cgroup.procs if self._cgroup is not None else ""
        # a worker whose stream goes to no file writes to where this process's goes
        self._send({"op": "adopt", "cgroup": cgroup}, fds=(1, 2))

    def forget(self) -> None:
        """Close what this process has of the spawner, and leave the spawner itself alone.

        For a fork of its launcher, which still has it.
        """
        self._release()
        self._channel = None
        self._let_go()
        self.pid = 0

    def check_function(
        self,
        target: Function,
        *,
        env: Mapping[str, str],
        cwd: str,
        seconds: float | None = None,
        meanwhile: Callable[[], float | None] = lambda: None,
    ) -> str:
        """Import a function in a child of the spawner and bind its arguments.

        ``seconds``: how long an answer is waited for; None for as long as it takes. ``meanwhile``:
        called before each wait; returns in how many seconds it is to be called again, or None.
        Returns what is wrong; an empty string if nothing is, or if that is not known in time.

        Raises:
            SpawnerDied: the spawner ended meanwhile.
        """
        answer = os.memfd_create("lllaunch-check", os.MFD_CLOEXEC)
        call = pickle.dumps(((*target, f"/proc/{os.getpid()}/fd/{answer}"), {}))
        check = Function("lllaunch.spawner.worker", "check", call)
        nowhere = os.devnull  # its workers will show what the import prints
        key = self.spawn(_CHECK, check, cwd=cwd, env=env, stdout=nowhere, stderr=nowhere)
        kept: list[SpawnerEvent] = []
        until = None if seconds is None else time.monotonic() + seconds
        try:
            while self.dead is None and key in self._workers:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                waits = [each for each in (left, meanwhile()) if each is not None]
                wait_readable(self, min(waits, default=None))
                kept += self.dispatch()
                if any(isinstance(event, PreloadBroken) for event in kept):
                    break
            if self.dead is not None:
                raise SpawnerDied(self.dead.pid, self.dead.status, self.dead.detail)
            return os.pread(answer, os.fstat(answer).st_size, 0).decode(errors="replace")
        finally:
            if key in self._workers:
                # Whatever hangs there is nobody's any more.
                self._send({"op": "kill", "command": 0, "keys": [key]})
                self._forget_worker(key)
            self._keep(kept + self._events)
            os.close(answer)

    # Ending

    def _bury(self) -> None:
        """Wait for a spawner that is ending or was killed, and end what it leaves behind.

        What the handler of a signal interrupts is done again by who closes this.
        """
        assert self._channel is not None
        self._channel.close()
        if not wait_readable(self._pidfd, _CLOSE_SECONDS):
            self._kill_spawner()
            wait_readable(self._pidfd, _CLOSE_SECONDS)
        status = None
        # A branch is no child, and somebody else in this process may wait for all children.
        with contextlib.suppress(ChildProcessError):
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
        group = self._cgroup
        if status != 0:
            # One that ends by itself has ended everything below it first.
            if group is not None:
                group.kill()
            end_adopted(self.mark)
        if group is not None:
            until = time.monotonic() + _CLOSE_SECONDS
            while not group.empty() and time.monotonic() < until:
                time.sleep(_PAUSE_SECONDS)
            group.remove()
        self.dead = SpawnerGone(self.pid, status, sent=tuple(self._sent))
        self._events.append(self.dead)
        self._release()

    def _release(self) -> None:
        for key in list(self._workers):
            self._forget_worker(key)
        if self._channel is not None:
            self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def close(self) -> None:
        """End the spawner and everything below it, and wait for that; idempotent."""
        if self.pid and self.dead is None:
            if not self._ready:
                # It may be importing for seconds, and nothing below it is worth waiting for.
                self._kill_spawner()
            self._bury()
        elif self._arrival is not None:
            # a branch that nobody has waited for; it ends with its connection
            self.forget()
        self._let_go()

    def _let_go(self) -> None:
        """Close what is left when the spawner is gone, or is another's."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
            os.close(self._reminder)
            Subreaper.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
