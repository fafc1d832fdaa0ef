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
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lllaunch.clock import now_ns
from lllaunch.events import Exited, Orphan, OrphansGone, SpawnerEvent, Started, StartFailed
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import (
    Alarm,
    Subreaper,
    process_ended,
    send_signal,
    set_lineage,
    set_parent_death_signal,
    signal_group,
    wait_readable,
)
from lllaunch.spawner import forks
from lllaunch.spawner.child import close_above_2, open_streams
from lllaunch.spawner.forks import flush_streams, fork
from lllaunch.spawner.orphans import (
    MARK,
    SETTLE_SECONDS,
    OrphanCleanup,
    adopted,
    end_adopted,
    kill_below,
    new_mark,
)

logger = logging.getLogger(__name__)

# How long SIGKILL may take to end workers, before they are left.
_CLOSE_SECONDS = 10.0
# Between two looks at what workers left behind, which does not say when it ends.
_PAUSE_SECONDS = 0.02
# Python's streams by their descriptors, and what they do with text that cannot be encoded.
_STREAMS = {1: ("stdout", "strict"), 2: ("stderr", "backslashreplace")}
# Of a worker whose exit status somebody else has taken; asyncio has the same.
_UNKNOWN = 255


@dataclass
class _Child:
    attempt: int
    rank: int
    pid: int
    pidfd: int
    abandoned: bool = False


class Forker:
    """Forks workers from this process and waits for them; not thread-safe.

    While it is open SIGCHLD is not ignored, since the kernel keeps no exit status where it is; that
    is only possible where it is made and closed in the main thread.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.mark = new_mark()
        self._children: dict[int, _Child] = {}
        self._events: list[SpawnerEvent] = []
        self._cleanup: OrphanCleanup | None = None
        self._ignored = _set_sigchld(signal.SIG_IGN, signal.SIG_DFL)
        Subreaper.need()
        self._epoll: select.epoll | None = select.epoll()
        # Fires when there is something to tell, or to do for a cleanup.
        self._alarm = Alarm()
        self._epoll.register(self._alarm.fileno(), select.EPOLLIN)

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
        attempt: int = 0,
    ) -> int:
        """Fork a worker that calls a function; `Started` or `StartFailed` follows.

        ``stdout``: file that standard output is appended to; empty for this process's own. Returns
        the worker's key: its process id, or the negative of its rank minus one if it failed.
        """
        try:
            pid, pidfd = self._fork(call, env, stdout, stderr)
        except OSError as error:
            path = str(error.filename or "")
            reason = shortage(error) or error.strerror or str(error)
            errno = error.errno or 0
            self._tell(StartFailed(rank, path, reason, errno, now_ns(), attempt))
            return -rank - 1
        assert self._epoll is not None
        self._epoll.register(pidfd, select.EPOLLIN)
        self._children[pid] = _Child(attempt, rank, pid, pidfd)
        self._tell(Started(rank, pid, now_ns(), attempt))
        return pid

    def _fork(
        self,
        call: tuple[Callable[..., Any], tuple[Any, ...]],
        env: Mapping[str, str],
        stdout: str,
        stderr: str,
    ) -> tuple[int, int]:
        """Return the process id of a fork, and its pidfd."""
        streams = open_streams(stdout, stderr)
        try:
            flush_streams()
            # The parent-death signal is about a thread. Of any but the main one nobody knows how
            # long it will live, so its workers go without.
            main_thread = threading.current_thread() is threading.main_thread()
            parent = os.getpid() if main_thread else 0
            pid = fork()
            if pid == 0:
                _become(call, {**env, MARK: self.mark}, streams, parent, self.mark)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                os.kill(pid, signal.SIGKILL)  # no descriptor is left to watch it by
                raise
            return pid, pidfd
        finally:
            for fd in streams:
                close_above_2(fd)

    def _tell(self, event: SpawnerEvent) -> None:
        self._events.append(event)
        self._alarm.set(0.0)

    def dispatch(self) -> list[SpawnerEvent]:
        """Reap what ended, without waiting; the events since the last call."""
        self._alarm.clear()
        self._reap()
        self._go_on_cleaning_up()
        events, self._events = self._events, []
        return events

    def _reap(self) -> None:
        for child in list(self._children.values()):
            try:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            except ChildProcessError:
                logger.warning(
                    "the exit status of process %d is lost: this process ignores SIGCHLD, or"
                    " something in it waits for all children; %d is reported",
                    *(child.pid, _UNKNOWN),
                )
                self._ended(
                    child, Exited(child.rank, child.pid, _UNKNOWN, now_ns(), attempt=child.attempt)
                )
                continue
            if pid:
                self._ended(
                    child,
                    Exited(
                        child.rank,
                        child.pid,
                        os.waitstatus_to_exitcode(status),
                        now_ns(),
                        usage.ru_maxrss * 1024,
                        usage.ru_utime + usage.ru_stime,
                        os.WCOREDUMP(status),
                        child.attempt,
                    ),
                )

    def _ended(self, child: _Child, event: Exited) -> None:
        self._drop(child)
        if not child.abandoned:
            self._events.append(event)

    def _drop(self, child: _Child) -> None:
        assert self._epoll is not None
        self._epoll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pid]

    def _go_on_cleaning_up(self) -> None:
        if self._cleanup is None:
            return
        try:
            nothing_is_left = self._cleanup.go_on(adopted(self.mark, self._children))
        except OSError:  # nobody knows what is: no descriptor is left
            nothing_is_left = False
        if nothing_is_left:
            left = tuple(Orphan(*each) for each in self._cleanup.orphans())
            self._cleanup = None
            self._events.append(OrphansGone(left))
        else:
            self._alarm.set(_PAUSE_SECONDS)

    def signal(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to the process groups of live workers."""
        for child in self._living(keys):
            # Unless somebody else waits for all children, the number is still its own.
            if not signal_group(child.pid, signum):
                send_signal(child.pidfd, signum)

    def notify(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to workers that have started, and to nothing else of their groups."""
        for child in self._living(keys):
            send_signal(child.pidfd, signum)

    def kill(self, keys: Iterable[int]) -> None:
        """SIGKILL workers and all that descends from them."""
        chosen = self._living(keys)
        kill_below([child.pid for child in chosen])
        for child in chosen:
            with contextlib.suppress(PermissionError):  # it has changed its user
                send_signal(child.pidfd, signal.SIGKILL)

    def _living(self, keys: Iterable[int]) -> list[_Child]:
        chosen = [self._children[pid] for pid in keys if pid in self._children]
        return [child for child in chosen if not process_ended(child.pidfd)]

    def clean_up(self, settle: float = SETTLE_SECONDS) -> None:
        """End what workers left behind; `OrphansGone` follows."""
        self._cleanup = OrphanCleanup(settle=settle)
        self._alarm.set(0.0)

    def abandon(self, keys: Iterable[int]) -> None:
        """Wait no longer for workers, nor for a cleanup: no event of either follows."""
        self._cleanup = None
        for pid in keys:
            if pid in self._children:
                self._children[pid].abandoned = True

    def close(self) -> None:
        """End all workers, and wait for that as long as it may take; idempotent."""
        if self._epoll is None:
            return
        self.kill(list(self._children))
        deadline = time.monotonic() + _CLOSE_SECONDS
        for child in list(self._children.values()):
            wait_readable(child.pidfd, max(0.0, deadline - time.monotonic()))
        self._reap()
        for child in list(self._children.values()):
            logger.error("SIGKILL does not end process %d; left behind", child.pid)
            self._drop(child)
        for pause in end_adopted(self.mark):
            time.sleep(pause)
        self._epoll.close()
        self._epoll = None
        self._alarm.close()
        Subreaper.release()
        if self._ignored:
            _set_sigchld(signal.SIG_DFL, signal.SIG_IGN)


def _set_sigchld(before: signal.Handlers, after: signal.Handlers) -> bool:
    """Change the disposition of SIGCHLD if it is ``before``; whether it was."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGCHLD) is not before:
        return False
    signal.signal(signal.SIGCHLD, after)
    return True


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
    streams: tuple[int, int],
    parent: int,
    mark: str,
) -> NoReturn:
    """The forked child: takes its place, calls the function, ends.

    ``streams``: descriptors for standard output and error; 1 and 2 are the parent's. ``parent``:
    process whose end shall be this one's; 0 for none.
    """
    try:
        from lllaunch.spawner.worker import run_call  # noqa: PLC0415 - in the child only

        os.setsid()
        set_lineage(mark)
        if parent:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)
        _disown()
        forks.reset(frozenset(), python=True)  # lifts the mask, too
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        for number, fd in enumerate(streams, start=1):
            if fd != number:
                os.dup2(fd, number)
                # The parent's stream object may be about something else (a notebook, a test).
                name, errors = _STREAMS[number]
                raw = io.FileIO(number, "w", closefd=False)
                setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, write_through=True))
        os.environ.update(env)
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent
        os._exit(127)
    run_call(*call)
