"""An agent whose processes and time are played by a test."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, Any, ClassVar, cast

from lllaunch.agent import LocalElasticAgent, WorkerGroup, WorkerSpec
from lllaunch.events import Exited, OrphansGone, SpawnerEvent
from lllaunch.linux.process import HasFileno, wait
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.multiprocessing.api import LogsSpecs, PContext
from lllaunch.spec import RestartPolicy, WatchdogPolicy
from lllaunch.supervisor import supervisor
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.testing import FakeClock
from lllaunch.watchdog.collector import Written
from lllaunch.watchdog.evidence import Frame, RankStack, Thread
from lllaunch.workers.log_files import LogsDest

if TYPE_CHECKING:
    import pytest

    from lllaunch.clock import RunClock


@dataclass(frozen=True)
class Order:
    """What was asked of a `PlayedStarter`."""

    what: str
    ranks: tuple[int, ...] = ()
    signum: int = 0


class PlayedStarter:
    """A `lllaunch.workers.group.Starter` without processes; a worker's key is its rank."""

    pid = 4_000_000

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self._batches: deque[tuple[SpawnerEvent, ...]] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def tell(self, *facts: SpawnerEvent) -> None:
        """Something happens: facts that one `dispatch` returns together."""
        self._batches.append(facts)
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """Readable when there is something to tell."""
        return self._fd

    def dispatch(self) -> list[SpawnerEvent]:
        """The next facts."""
        if not self._batches:
            return []
        os.eventfd_read(self._fd)
        return list(self._batches.popleft())

    def signal(self, keys: Iterable[int], signum: int) -> None:
        """Noted."""
        self.orders.append(Order("signal", tuple(keys), signum))

    def notify(self, keys: Iterable[int], signum: int) -> None:
        """Noted."""
        self.orders.append(Order("notify", tuple(keys), signum))

    def kill(self, keys: Iterable[int]) -> None:
        """Noted."""
        self.orders.append(Order("kill", tuple(keys)))

    def clean_up(self, settle: float) -> None:
        """Noted."""
        self.orders.append(Order("clean_up"))

    def abandon(self, keys: Iterable[int]) -> None:
        """Nothing more is told of them."""

    def close(self) -> None:
        """Noted; idempotent."""
        if self._fd >= 0:
            self.orders.append(Order("close"))
            os.close(self._fd)
            self._fd = -1


class _NoFiles(LogsSpecs):
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nothing = dict.fromkeys(envs, "")
        return LogsDest(stdouts=dict(nothing), stderrs=dict(nothing), error_files=nothing)

    @property
    def root_log_dir(self) -> str:
        return ""


class PlayedContext(PContext):
    """A process context whose processes a test plays, by telling its ``starter`` what happens."""

    def __init__(self, nprocs: int = 1) -> None:
        envs: dict[int, dict[str, str]] = {rank: {} for rank in range(nprocs)}
        arguments: dict[int, tuple[object, ...]] = dict.fromkeys(envs, ())
        super().__init__("fake", "fake", arguments, envs, _NoFiles(), handle_signals=False)
        self.starter = PlayedStarter()

    def _start(self) -> None:
        self._starter = self.starter
        self._keys = {rank: rank for rank in range(self.nprocs)}

    def close(self, death_sig: Signals | None = None, timeout: float = 30) -> None:
        """There is nothing to end: as `release`."""
        self.release()

    def release(self) -> None:
        """As `PContext.release`."""
        self.starter.close()
        super().release()


def ended(rank: int, exitcode: int = 0) -> Exited:
    return Exited(rank, 100 + rank, exitcode, time_ns=1)


class Rendezvous:
    """What the agent asks of a handler while workers run."""

    use_agent_store = False

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting

    def num_nodes_waiting(self) -> int:
        return self.waiting

    def get_run_id(self) -> str:
        return "id"

    def get_backend(self) -> str:
        return "fake"


class Played(LocalElasticAgent):
    """An agent whose processes are played: ``react`` is called with every event and action.

    While something is waited for, ``idle`` may let something happen.
    """

    def __init__(
        self,
        nprocs: int = 1,
        max_restarts: int = 0,
        handler: Any = None,
        watchdog: WatchdogPolicy | None = None,
        restart: RestartPolicy | None = None,
    ) -> None:
        spec = WorkerSpec(
            "r", nprocs, handler, entrypoint="x", max_restarts=max_restarts, master_port=1
        )
        super().__init__(
            spec, DefaultLogsSpecs(), shutdown_timeout=5, observer=self._note, restart=restart
        )
        self.clock = FakeClock()
        self._clock = cast("RunClock", self.clock)
        self.watch(WatchdogDriver(watchdog, clock=self.clock))
        self.contexts: list[PlayedContext] = []
        self.seen: list[object] = []
        self.react: Callable[[object], None] = lambda item: None
        self.idle: Callable[[], None] = lambda: None

    def watch(self, watchdog: WatchdogDriver) -> None:
        """Let another one watch."""
        self._watchdog = watchdog

    @property
    def now(self) -> PlayedStarter:
        return self.contexts[-1].starter

    def orders(self, attempt: int = -1) -> list[Order]:
        return [order for order in self.contexts[attempt].starter.orders if order.what != "close"]

    def _note(self, item: object) -> None:
        self.seen.append(item)
        self.react(item)

    def _wait(self, files: Iterable[HasFileno], *, seconds: float | None) -> frozenset[int]:
        """Stands for `wait`; the time passes at once."""
        self.idle()
        ready = wait(files, seconds=0)
        if not ready:
            assert seconds is not None, "a wait for ever: nothing is readable and nothing is due"
            self.clock.advance(seconds)
        return ready

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        for worker in worker_group.workers:
            worker.global_rank = 10 + worker.local_rank

    def _start_group(self, worker_group: WorkerGroup) -> PContext:
        assert not any(context.alive for context in self.contexts), "started while others live"
        context = PlayedContext(worker_group.spec.local_world_size)
        self._pcontext = context
        self.contexts.append(context)
        context.start()
        return context


def script(agent: Played, *happenings: Callable[[], None] | tuple[SpawnerEvent, ...]) -> None:
    """One of these happens at every wait: facts are told, anything else is called."""
    left = list(happenings)

    def idle() -> None:
        happening = left.pop(0) if left else ()
        if callable(happening):
            happening()
        elif happening:
            agent.now.tell(*happening)

    agent.idle = idle


SWEPT = (OrphansGone(),)


Make = Callable[..., Played]


def playing(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes played agents; the one made last is the one that waits in its own way."""

    def make(*args: Any, **options: Any) -> Played:
        agent = Played(*args, **options)
        monkeypatch.setattr(supervisor, "wait", agent._wait)
        return agent

    return make


class PlayedCollector:
    """Stands for the thread that takes stacks: done at once, or never where it is not ``done``.

    Attributes:
        made: all that there were; one that was closed has a negative ``fd``.
    """

    done = True
    problem = ""
    frames = (Frame("/t.py", 3, "step", "login('hunter2')"),)
    made: ClassVar[list[PlayedCollector]] = []

    def __init__(
        self, workers: Mapping[int, int], written: Written | None = None, **more: object
    ) -> None:
        self.workers, self.written, self.more = dict(workers), written, more
        self.unwanted = threading.Event()
        self.fd = os.eventfd(int(self.done), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.made.append(self)

    def start(self) -> None:
        """It is done, or never will be."""

    def fileno(self) -> int:
        """Readable when it is done."""
        return self.fd

    def result(self) -> tuple[RankStack, ...]:
        """All at one place."""
        threads = (Thread("MainThread", self.frames),)
        return tuple(
            RankStack(rank, frames=self.frames, threads=threads, process=pid)
            for rank, pid in self.workers.items()
        )

    def stop(self) -> None:
        """Nobody wants them any more."""
        self.unwanted.set()
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Once."""
        os.close(self.fd)
        self.fd = -1


def collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stacks be taken by a `PlayedCollector`."""
    monkeypatch.setattr("lllaunch.watchdog.collector.StackCollector", PlayedCollector)
    monkeypatch.setattr(PlayedCollector, "made", [])
