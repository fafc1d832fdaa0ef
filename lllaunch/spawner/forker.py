"""Start method ``fork``: workers forked from the calling process itself, for closures.

It has the same methods as the spawner's client, as far as a process context needs them. What is
forked here shares the caller's memory as it is, threads excepted; whether that is safe is the
caller's to judge, as with ``multiprocessing.get_context("fork")``.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lllaunch.linux.process import (
    Subreaper,
    open_pidfd,
    set_parent_death_signal,
    signal_group,
)
from lllaunch.moments import now_ns
from lllaunch.spawner import signals
from lllaunch.spawner.adoption import end_adopted
from lllaunch.spawner.client import MARK
from lllaunch.spawner.facts import Exited, Fact, Started, StartFailed, Swept
from lllaunch.spawner.forks import flush_streams, fork
from lllaunch.spawner.tree import kill_below


@dataclass
class _Child:
    rank: int
    pid: int
    pidfd: int


class Forker:
    """Forks workers from this process and waits for them; not thread-safe."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.mark = os.urandom(16).hex()
        self._children: dict[int, _Child] = {}
        self._pids: set[int] = set()
        self._facts: list[Fact] = []
        Subreaper.need()
        self._epoll: select.epoll | None = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        assert self._epoll is not None
        return self._epoll.fileno()

    def spawn(
        self,
        rank: int,
        call: tuple[Callable[..., Any], tuple[Any, ...]],
        *,
        env: Mapping[str, str],
        stdout: str = "",
        stderr: str = "",
    ) -> int:
        """Fork a worker that calls a function; `Started` or `StartFailed` follows.

        Args:
            rank: local rank.
            call: the function and its positional arguments.
            env: variables on top of this process's.
            stdout: file that standard output is appended to; empty for this process's own.
            stderr: the same for standard error.

        Returns:
            The worker's key: its process id, or the negative of its rank minus one if it failed.
        """
        try:
            streams = [_open(path) for path in (stdout, stderr)]
        except OSError as error:
            reason = error.strerror or str(error)
            failure = StartFailed(rank, error.filename, reason, error.errno or 0, now_ns())
            self._tell(failure)
            return -1 - rank
        flush_streams()
        # The signal comes when the forking thread ends, and other threads do that all the time.
        main_thread = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if main_thread else 0
        pid = fork()
        if pid == 0:
            _become(call, {**env, MARK: self.mark}, streams, parent)
        for fd in streams:
            if fd is not None:
                os.close(fd)
        pidfd = open_pidfd(pid)
        assert pidfd is not None and self._epoll is not None  # noqa: PT018 - our own unreaped child
        self._epoll.register(pidfd, select.EPOLLIN)
        self._children[pid] = _Child(rank, pid, pidfd)
        self._pids.add(pid)
        self._tell(Started(rank, pid, now_ns()))
        return pid

    def _tell(self, fact: Fact) -> None:
        self._facts.append(fact)
        os.write(self._wake_write, b"x")

    def dispatch(self) -> list[Fact]:
        """Reap what ended, without waiting; the facts since the last call."""
        for child in list(self._children.values()):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._reaped(child, status, usage)
        facts, self._facts = self._facts, []
        if facts and self._epoll is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return facts

    def _reaped(self, child: _Child, status: int, usage: Any) -> None:
        assert self._epoll is not None
        self._epoll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pid]
        self._facts.append(
            Exited(
                child.rank,
                child.pid,
                os.waitstatus_to_exitcode(status),
                now_ns(),
                usage.ru_maxrss * 1024,
                usage.ru_utime + usage.ru_stime,
                os.WCOREDUMP(status),
            )
        )

    def signal(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to the process groups of live workers."""
        for pid in keys:
            # Only this object waits for them: the number is still theirs.
            if pid in self._children and not signal_group(pid, signum):
                os.kill(pid, signum)

    def kill(self, keys: Iterable[int]) -> None:
        """SIGKILL workers and all that descends from them."""
        chosen = [pid for pid in keys if pid in self._children]
        kill_below(chosen)
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)

    def sweep(self) -> None:
        """End what workers left behind; `Swept` follows."""
        end_adopted(f"{MARK}={self.mark}".encode(), self._pids)
        self._tell(Swept())

    def close(self) -> None:
        """End all workers and wait for that; idempotent."""
        if self._epoll is None:
            return
        self.kill(list(self._children))
        for child in list(self._children.values()):
            os.waitpid(child.pid, 0)
            os.close(child.pidfd)
        self._children.clear()
        end_adopted(f"{MARK}={self.mark}".encode(), self._pids)
        self._epoll.close()
        self._epoll = None
        os.close(self._wake_read)
        os.close(self._wake_write)
        Subreaper.release()


def _open(path: str) -> int | None:
    if not path:
        return None
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _set_stream(name: str, fd: int) -> None:
    errors = "backslashreplace" if name == "stderr" else "strict"
    raw = io.FileIO(fd, "w", closefd=False)
    setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, write_through=True))


def _disown() -> None:
    """Forget what is the forking process's to do: its exit functions, finalizers and children.

    Its objects are frozen, so that its open files are not flushed a second time at the end.
    """
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    gc.freeze()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
        # What the worker itself starts is joined at its end, as ever.
        atexit.register(util._exit_function)
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children.clear()


def _become(
    call: tuple[Callable[..., Any], tuple[Any, ...]],
    env: Mapping[str, str],
    streams: list[int | None],
    parent: int,
) -> NoReturn:
    """The forked child: takes its place, calls the function, ends.

    Args:
        call: the function and its arguments.
        env: variables to set.
        streams: descriptors for standard output and error; None keeps the parent's.
        parent: process whose end shall be this one's; 0 for none.
    """
    try:
        from lllaunch.spawner.worker import run_call  # noqa: PLC0415 - in the child only

        os.setsid()
        if parent:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)
        _disown()
        signals.reset(frozenset(), python=True)  # lifts the mask, too
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        for number, fd in enumerate(streams, start=1):
            if fd is not None:
                os.dup2(fd, number)
                # The parent's stream object may be about something else (a notebook, a test).
                _set_stream("stdout" if number == 1 else "stderr", number)
        os.environ.update(env)
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent
        os._exit(127)
    run_call(*call)
