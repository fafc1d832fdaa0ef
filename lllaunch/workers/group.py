"""The workers of one attempt as processes: started, signalled, ended; their output is shown."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable
from signal import Signals
from typing import TYPE_CHECKING, TypeVar

from lllaunch.events import (
    Exited,
    OrphansGone,
    PreloadBroken,
    SpawnerEvent,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.linux.process import HasFileno, wait_readable
from lllaunch.signal_source import SignalException
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.interpreter import acts_at_import, in_common, told
from lllaunch.spawner.orphans import SETTLE_SECONDS
from lllaunch.spawner.protocol import Forked
from lllaunch.workers.tail import Shown, Tees

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lllaunch.spawner.protocol import Target
    from lllaunch.supervisor.environ import HeldPort
    from lllaunch.workers.log_files import LogsDest


logger = logging.getLogger(__name__)

# How long SIGKILL may take to end processes, at least, before they are given up: freeing gigabytes,
# or what a GPU driver holds, takes longer than a short grace period.
UNKILLABLE_SECONDS = 10.0
# The local rank of the process that serves torch's store.
_STORE = -2
_ENDS_NOBODY = (Signals.SIGSTOP, Signals.SIGCONT)


class WorkerProcesses:
    """The processes of one attempt, which share one fate, for an event loop.

    Nothing here blocks but `close`: a caller waits for `fileno` and calls `dispatch`.

    ``name``: short name, the default header of teed lines. ``nprocs``: number of workers; their
    local ranks are 0 to ``nprocs - 1``.
    """

    def __init__(
        self,
        name: str,
        nprocs: int,
        files: LogsDest,
        shown: Shown | None = None,
        *,
        attempt: int = 0,
    ) -> None:
        self.name = name
        self.nprocs = nprocs
        self.attempt = attempt
        self.dest = files
        self.stdouts, self.stderrs = files.stdouts, files.stderrs
        self.error_files = files.error_files
        self.exits: dict[int, Exited | StartFailed] = {}  # the ends that are known, by local rank
        # called with every event; or None
        self.observer: Callable[[SpawnerEvent], object] | None = None
        self._pids: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        self._terminated_by: dict[int, int] = {}
        self._gone: SpawnerGone | None = None
        self._broken: PreloadBroken | None = None
        self._cleaned_up = False
        self._released = False
        self._starter: Spawner | None = None
        self._owns_starter = False
        # On one node: where torch's store is asked for, and the key of its process.
        self._listener: socket.socket | None = None
        self._store_key = 0

        self._tees = Tees(name, files, shown or Shown())

    # Starting

    def serve_store(self, port: HeldPort | None) -> None:
        """Serve torch's store from the first connection until all workers have ended."""
        self._listener = None if port is None else port.listener

    def _start_store(self, starter: Spawner, listener: socket.socket) -> int:
        from lllaunch.cluster.rendezvous import serve_store  # noqa: PLC0415 - seldom
        from lllaunch.spawner.pickling import dump  # noqa: PLC0415 - imports multiprocessing

        target = dump(serve_store, (listener,), None, "the store")
        nowhere, errors = os.devnull, self.stderrs[min(self.stderrs)]
        # an error of it is no worker's
        env = {"TORCHELASTIC_ERROR_FILE": nowhere}
        return starter.spawn(_STORE, target, cwd="/", env=env, stdout=nowhere, stderr=errors)

    def _end_store(self) -> None:
        if self._starter is not None and self._store_key:
            self._starter.signal([self._store_key], Signals.SIGKILL)
            self._starter.abandon([self._store_key])
        self._listener, self._store_key = None, 0

    # Without blocking

    def files(self) -> list[HasFileno]:
        """What is readable when `dispatch` has something to do."""
        return [self] if self._listener is None or self._store_key else [self, self._listener]

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        assert self._starter is not None
        return self._starter.fileno()

    def dispatch(self) -> tuple[SpawnerEvent, ...]:
        """Take note of what happened since the last call, without waiting; the events."""
        if self._starter is None:
            return ()
        if self._listener is not None and not self._store_key and wait_readable(self._listener, 0):
            self._store_key = self._start_store(self._starter, self._listener)
        events = [event for event in self._starter.dispatch() if not self._is_of_store(event)]
        for event in events:
            if self.observer is not None:
                self.observer(event)
            if isinstance(event, Started):
                self._pids[event.local_rank] = event.pid
            elif isinstance(event, (Exited, StartFailed)):
                self.exits[event.local_rank] = event
            elif isinstance(event, OrphansGone):
                self._cleaned_up = True
            elif isinstance(event, PreloadBroken):
                self._broken = event
            elif isinstance(event, SpawnerGone):
                self._gone = event
        return tuple(events)

    def _is_of_store(self, event: SpawnerEvent) -> bool:
        if getattr(event, "local_rank", None) != _STORE:
            return False
        if self._listener is not None and not isinstance(event, Started):
            logger.error("%s: the process of torch's store at MASTER_PORT has ended", self.name)
            # else who connects would wait for an answer
            self._listener.close()
            self._listener = None
        return True

    @property
    def parent(self) -> int:
        """Process id of the workers' parent; 0 before they are started."""
        return 0 if self._starter is None else self._starter.pid

    @property
    def alive(self) -> frozenset[int]:
        """Local ranks that are not known to have ended."""
        if self._gone is not None or self._broken is not None or self._starter is None:
            return frozenset()
        return frozenset(self._keys) - frozenset(self.exits)

    def known_pids(self) -> dict[int, int]:
        """Process ids by local rank, of those that are known to have started; does not wait."""
        return dict(self._pids)

    def watched_pids(self) -> dict[int, int]:
        """Process ids by local rank of the processes that live; does not wait.

        For one that is not known to have started, the process that is to start it, if there is one.
        """
        pids = {rank: self._pids.get(rank, self.parent) for rank in sorted(self.alive)}
        return {rank: pid for rank, pid in pids.items() if pid}

    def signal(self, signum: int, ranks: Iterable[int] | None = None) -> None:
        """Send a signal to the process groups of live workers.

        ``ranks``: local ranks; None for all.
        """
        chosen = sorted(self.alive if ranks is None else self.alive.intersection(ranks))
        if chosen and self._starter is not None:
            if signum not in _ENDS_NOBODY:
                self._terminated_by.update(dict.fromkeys(chosen, int(signum)))
            self._starter.signal([self._keys[rank] for rank in chosen], signum)

    def pass_on(self, signum: int) -> tuple[int, ...]:
        """Send live workers a signal that is no reason to end; return their local ranks.

        Not to their process groups: what a worker has started may not handle it, and end.
        """
        chosen = tuple(sorted(self.alive))
        if chosen and self._starter is not None:
            self._starter.notify([self._keys[rank] for rank in chosen], signum)
        return chosen

    def kill(self) -> None:
        """SIGKILL the live workers and all that descends from them."""
        chosen = self.alive
        if chosen and self._starter is not None:
            self._terminated_by.update(dict.fromkeys(chosen, int(Signals.SIGKILL)))
            self._starter.kill([self._keys[rank] for rank in sorted(chosen)])

    def clean_up(self, settle: float = SETTLE_SECONDS) -> None:
        """Ask for the end of what the workers left behind; `OrphansGone` follows.

        ``settle``: seconds that it has to end by itself.
        """
        if self._starter is not None:
            self._end_store()
            self._starter.clean_up(settle)

    def release(self) -> None:
        """Show what is left of the output and close files; idempotent.

        Workers that live all the same, and what is still being cleaned up, are given up: others may
        use the same spawner, and must not take late ends for those of their own workers.
        """
        if self._released:
            return
        self._released = True
        if self._starter is not None:
            if self._owns_starter:
                self._starter.close()
            else:
                self._end_store()
                self._starter.abandon([self._keys[rank] for rank in self.alive])
        self._tees.stop()

    def close(self, death_sig: Signals | None = None, timeout: float = 30) -> None:
        """End all processes and what they left behind; show the rest of their output.

        ``timeout``: seconds after which SIGKILL follows.

        Raises:
            SignalException: one arrived meanwhile; all was killed at once and is gone.
        """
        interruption: BaseException | None = None
        death_sig = death_sig or Signals.SIGTERM
        if not self._released:
            try:
                self.signal(death_sig)
                if not self._until(lambda: not self.alive, timeout):
                    text = "%s: ranks %s did not end within %s s of %s; killing them"
                    logger.warning(text, self.name, sorted(self.alive), timeout, death_sig.name)
                    self._kill_all(timeout)
            except (SignalException, KeyboardInterrupt) as error:
                interruption = error
                self._kill_all(timeout)
            if self._keys and not (self._cleaned_up or self._gone or self._broken):
                self.clean_up()
                self._until(lambda: self._cleaned_up or self._gone is not None, UNKILLABLE_SECONDS)
        self.release()
        if interruption is not None:
            raise interruption

    def _kill_all(self, timeout: float) -> None:
        self.kill()
        # What sleeps uninterruptibly in the kernel cannot be killed, and must not be waited for.
        if not self._until(lambda: not self.alive, max(timeout, UNKILLABLE_SECONDS)):
            pids = [self._pids.get(rank) for rank in sorted(self.alive)]
            logger.error("%s: SIGKILL does not end the processes %s; left behind", self.name, pids)

    def _until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._starter is None:
                return True
            wait_readable(self, left)
            self.dispatch()
        return True


W = TypeVar("W", bound=WorkerProcesses)


def start_processes(
    workers: W,
    targets: Mapping[int, Target],
    envs: Mapping[int, Mapping[str, str]],
    *,
    environ: Mapping[str, str] | None = None,
    spawner: Spawner | None = None,
    fresh: bool = False,
    preload: Sequence[str] = (),
    cwd: str = "",
    spawner_cwd: str = "",
) -> W:
    """Start the workers of one attempt; they run when their `Started` comes.

    All workers are started here: those of a configured run, of a job of a sweep, and of torch's
    `lllaunch.multiprocessing.start_processes`.

    ``workers``: with the number of their attempt, its log files, and what of these is shown; they
    are closed if they cannot be started. ``targets``: what each local rank runs; all are forked
    from this process, or none is. ``environ``: the spawner's whole environment; None: this
    process's, with what must be right early and has one value in all of ``envs``. ``spawner``: the
    one to use, which stays open; None: one of their own. ``fresh``: whether each gets a fresh
    interpreter, instead of a fork. ``cwd``: working directory of the workers; empty: this
    process's. ``spawner_cwd``: that of the preloads; empty: the workers'.
    """
    cwd = cwd or os.getcwd()
    try:
        calls = {rank: each for rank, each in targets.items() if isinstance(each, Forked)}
        workers._owns_starter = spawner is None or bool(calls)
        if calls:
            workers._starter = spawner = Spawner.forked(calls)
        else:
            if environ is None:
                common = in_common(envs.values()).items()
                environ = os.environ | {name: text for name, text in common if acts_at_import(name)}
            workers._starter = spawner = spawner or Spawner()
            spawner.configure(environ, spawner_cwd or cwd, preload)
        for rank, target in sorted(targets.items()):
            workers._keys[rank] = spawner.spawn(
                rank,
                target,
                cwd=cwd,
                env=told(envs[rank]),
                stdout=workers.stdouts[rank],
                stderr=workers.stderrs[rank],
                fresh=fresh,
                attempt=workers.attempt,
            )
        workers._tees.start()
    except BaseException:
        workers.close()
        raise
    return workers
