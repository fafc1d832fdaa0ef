"""Torch's agent of one machine, over `lllaunch.supervisor`: its workers are local processes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server import api, local_elastic_agent
from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, Worker, WorkerGroup
from torch.distributed.elastic.events.api import EventSource
from torch.distributed.elastic.metrics.api import put_metric

from lllaunch.clock import RunClock
from lllaunch.events import Started
from lllaunch.multiprocessing.api import LogsSpecs, PContext, context_of
from lllaunch.signal_source import SignalException, SignalSource
from lllaunch.spawner.evidence import WATCHED
from lllaunch.spec import ENABLE_FILE_TIMER, TIMER_FILE, RestartPolicy, WatchdogPolicy
from lllaunch.supervisor.environ import (
    LOOPBACK,
    HeldPort,
    WorkerContext,
    contract,
    store_can_be_served,
    virtual_rank,
)
from lllaunch.supervisor.machine import (
    Action,
    BarrierPassed,
    Event,
    GroupStarted,
    Machine,
    MembershipChanged,
    StartWorkers,
)
from lllaunch.supervisor.supervisor import GroupHooks, GroupOptions, Supervisor
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.watchdog.sampling import TIMEOUT_VARIABLE, kernel_sleep

logger = logging.getLogger(__name__)

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
    "WorkerSpec",
]


TORCHELASTIC_ENABLE_FILE_TIMER = ENABLE_FILE_TIMER
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = TIMER_FILE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = TIMEOUT_VARIABLE


class OneNode:
    """The rendezvous of a single node, as far as torch's agent asks for it."""

    use_agent_store = False

    def get_run_id(self) -> str:
        """It has none."""
        return ""

    get_backend = get_run_id

    def num_nodes_waiting(self) -> int:
        """Nobody can join."""
        return 0


@dataclass
class WorkerSpec(api.WorkerSpec):
    """What the workers of one role run; the same on every node.

    Beside torch's own: it needs no handler on one node, and has what later versions of torch have.

    Raises:
        ValueError: a number is not positive, or there is no entrypoint.
    """

    # a handler of ``torch.distributed.elastic.rendezvous`` for several nodes
    rdzv_handler: Any = field(default_factory=OneNode)
    event_log_handler: str = "null"  # destination of torch's events
    numa_options: Any = None
    # teed lines of stdout with one of these also go to another file
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False  # workers see their own GPU as device 0, and LOCAL_RANK=0

    def __post_init__(self) -> None:
        if self.local_world_size <= 0:
            raise ValueError(f"local_world_size: {self.local_world_size} is not positive")
        if self.monitor_interval <= 0:
            raise ValueError(f"monitor_interval: {self.monitor_interval} is not positive")
        if self.rdzv_handler is None:
            self.rdzv_handler = OneNode()
        if self.fn is not None:
            text = "WorkerSpec.fn is deprecated, use WorkerSpec.entrypoint instead"
            warnings.warn(text, DeprecationWarning, stacklevel=3)
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise ValueError("entrypoint: a function or a program is needed")


def substitute_local_rank(args: tuple[object, ...], local_rank: int) -> tuple[object, ...]:
    """Replace ``${local_rank}`` in arguments that are text, as torch's argument macros do.

    They are templates of `string.Template`: ``$local_rank`` is replaced too, ``$$`` becomes ``$``,
    other names stay.
    """
    return tuple(
        Template(arg).safe_substitute(local_rank=str(local_rank)) if isinstance(arg, str) else arg
        for arg in args
    )


class LocalElasticAgent(local_elastic_agent.LocalElasticAgent):
    """Run a worker group as processes of this machine.

    Events wake it, not a clock. Only nodes that wait to join are looked for, every
    ``monitor_interval`` seconds.

    ``spec``: what the workers run. Without a ``rdzv_handler`` no store is needed.
    ``start_method``: for functions: ``spawn``, ``forkserver`` or ``fork``.
    ``exit_barrier_timeout``: seconds that this node waits for the others at the end.
    ``log_line_prefix_template``: header of teed lines, with ``${role_name}``, ``${rank}`` and
    ``${local_rank}``. ``shutdown_timeout``: seconds between SIGTERM and SIGKILL.
    ``uninterruptible_state_timeout``: seconds after which a worker in uninterruptible sleep counts
    as failed, without a restart; None reads TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, whose
    default 0 is never. ``observer``: called with every event and action. ``signals``: signals to
    handle; None reads TORCHELASTIC_SIGNALS_TO_HANDLE. ``watchdog``: what to watch for; None is
    nothing, or timers if TORCHELASTIC_ENABLE_FILE_TIMER=1, at TORCHELASTIC_TIMER_FILE if that is
    set.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        observer: Callable[[object], None] | None = None,
        signals: Sequence[signal.Signals] | None = None,
        watchdog: WatchdogPolicy | None = None,
        restart: RestartPolicy | None = None,
    ) -> None:
        super().__init__(
            spec,
            logs_specs,  # type: ignore[arg-type]
            start_method,
            exit_barrier_timeout,
            log_line_prefix_template,
        )
        self._shutdown_timeout: float = shutdown_timeout  # type: ignore[assignment]
        self._machine = Machine(spec.max_restarts, policy=restart)
        self._health_check_server = health_check_server
        self._observer = observer
        self._signals = SignalSource(signals)
        self._pcontext: PContext | None = None  # type: ignore[assignment]
        self._port: HeldPort | None = None
        self._clock = RunClock()
        self._next_look = 0.0
        timer_file = None
        if watchdog is None and os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1":
            watchdog = WatchdogPolicy(timers=True)
            # In a worker of another launcher it names that one's FIFO.
            named = None if os.environ.get(WATCHED) else os.environ.get(TIMER_FILE)
            timer_file = os.path.abspath(named) if named else None
        self._watchdog = WatchdogDriver(
            watchdog,
            self._clock,
            kernel_sleep=kernel_sleep(uninterruptible_state_timeout),
            timer_file=timer_file,
        )
        # While it runs: each holds the other, and only the collector would free what both hold.
        self._supervisor: Supervisor | None = None

    # Forming a group

    def _rendezvous(self, worker_group: Any) -> None:
        if not isinstance(worker_group.spec.rdzv_handler, OneNode):
            # It may wait for other nodes inside torch, where only an exception gets through.
            with self._signals.raising():
                super()._rendezvous(worker_group)
            return
        spec = worker_group.spec
        size = spec.local_world_size
        worker_group.workers = [Worker(rank, rank, rank, size, size) for rank in range(size)]
        worker_group.group_rank, worker_group.group_world_size = 0, 1
        worker_group.master_addr = spec.master_addr or LOOPBACK
        worker_group.master_port = spec.master_port
        if spec.master_port is None:
            # A new one per attempt: sockets of the last may linger.
            self._let_port_go()
            self._port = HeldPort(listens=store_can_be_served())
            worker_group.master_port = self._port.port

    def _let_port_go(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _start_attempt(self, action: StartWorkers) -> PContext:
        group = self._worker_group
        self._remaining_restarts = group.spec.max_restarts - action.restart_count
        self._rendezvous(group)
        context = self._start_group(group)
        group.state = api.WorkerState.HEALTHY
        return context

    def _start_group(self, worker_group: WorkerGroup) -> PContext:
        spec, places, envs = worker_group.spec, self._places(worker_group), {}
        for rank, place in places.items():
            env = contract(place, os.environ)
            if spec.virtual_local_rank:
                env |= virtual_rank(rank, {**os.environ, **env})
            envs[rank] = {**env, **self._watchdog.environment(rank, env)}
        assert spec.entrypoint is not None
        self._pcontext = context_of(
            spec.entrypoint,
            self._start_method,
            name=spec.role,
            args={rank: substitute_local_rank(spec.args, rank) for rank in places},
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=self._prefixes(places),
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            handle_signals=False,
            attempt=self._machine.attempt,
        )
        self._pcontext.start()
        self._pcontext.serve_store(self._port)
        self._setup_healthcheck()
        return self._pcontext

    def _places(self, group: WorkerGroup) -> dict[int, WorkerContext]:
        """Where every worker of a group stands, by local rank."""
        spec, handler, machine = group.spec, group.spec.rdzv_handler, self._machine
        run_id, hostname = handler.get_run_id(), socket.gethostname()
        served = self._port is not None and self._port.listener is not None
        return {
            worker.local_rank: WorkerContext(
                local_rank=worker.local_rank,
                rank=worker.global_rank,
                group_rank=group.group_rank or 0,
                role_rank=worker.role_rank,
                role_name=spec.role,
                local_world_size=spec.local_world_size,
                world_size=worker.world_size,
                group_world_size=group.group_world_size or 1,
                role_world_size=worker.role_world_size,
                master_addr=group.master_addr or LOOPBACK,
                master_port=group.master_port or 0,
                restart_count=machine.restart_count,
                max_restarts=spec.max_restarts,
                run_id=run_id,
                attempt=machine.attempt,
                hostname=hostname,
                use_agent_store=served or bool(handler.use_agent_store),
            )
            for worker in group.workers
        }

    def _prefixes(self, places: dict[int, WorkerContext]) -> dict[int, str] | None:
        if not self._log_line_prefix_template:
            return None
        template = Template(self._log_line_prefix_template)
        return {
            rank: template.safe_substitute(place.macro_values()) for rank, place in places.items()
        }

    # Running

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, and start them again when they fail, as often as the spec allows.

        Signals are handled until all is over.

        Raises:
            SignalException: a death signal arrived; the workers have been ended.
            RuntimeError: it has run already.
        """
        if self._machine.finished:
            raise RuntimeError("an agent runs once: make another one")
        with self._signals:
            # None: the rendezvous is over, for instance because another node completed it
            return super().run(role) or RunResult(api.WorkerState.SUCCEEDED)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:  # noqa: ARG002
        try:
            result = self._supervise()
        except SignalException as error:
            logger.warning("%s: ending the workers", error)
            self._shutdown(error.sigval, self._shutdown_timeout)
            raise
        spec = self._worker_group.spec
        put_metric(f"workers.{spec.role}.remaining_restarts", self._remaining_restarts)
        put_metric(f"workers.{spec.role}.{result.state.name.lower()}", 1)
        return result

    def _supervise(self) -> RunResult:
        spec = self._worker_group.spec
        self._supervisor = Supervisor(
            self._machine,
            GroupOptions(spec.local_world_size, self._shutdown_timeout),
            GroupHooks(self._start_attempt, self._seen),
            signals=self._signals,
            watchdog=self._watchdog,
            clock=self._clock,
            nodes=None if isinstance(spec.rdzv_handler, OneNode) else self,
        )
        end = self._supervisor.run()
        state = self._worker_group.state = api.WorkerState(end.state)
        if end.signum is not None:
            received = signal.Signals(end.signum)
            raise SignalException(f"the agent received {received.name}", sigval=received)
        if self._pcontext is None:
            return RunResult(state)
        found = self._watchdog.at_fault() if end.reason in ("hang", "timeout", "oom") else None
        result = self._pcontext.result(found)
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        return RunResult(
            state,
            {ranks[rank]: value for rank, value in result.return_values.items()},
            {ranks[rank]: failure for rank, failure in result.failures.items()},  # type: ignore[misc]
        )

    def _seen(self, item: object) -> object:
        # the machine gets to know of a start after this
        if not isinstance(item, GroupStarted):
            self._worker_group.state = api.WorkerState(self._machine.worker_state)
        if self._observer is not None:
            self._observer(item)
        if isinstance(item, Started):
            worker = self._worker_group.workers[item.local_rank]
            worker.id = item.pid
            event = self._construct_event("START", EventSource.WORKER, worker)
            events.record(event, self._worker_group.spec.event_log_handler)
        return item

    # The other nodes, as the supervisor asks for them

    @property
    def restarts(self) -> int | None:
        """None: torch's agents count for themselves."""
        return None

    @property
    def base_rank(self) -> int:
        """Rank of this node's first worker among those of all nodes."""
        return self._worker_group.workers[0].global_rank

    def files(self) -> Sequence[Any]:
        """None: a rendezvous cannot wake anybody."""
        return ()

    def next_in(self) -> float | None:
        """Seconds until the next look at who waits to join."""
        return max(0.0, self._next_look - time.monotonic()) if self._machine.alive else None

    def events(self) -> list[Event]:
        """Whether nodes wait to join the rendezvous; looked for every ``monitor_interval``."""
        now = time.monotonic()
        if not self._machine.alive or now < self._next_look:
            return []
        first, self._next_look = not self._next_look, now + self._worker_group.spec.monitor_interval
        waiting = not first and self._worker_group.spec.rdzv_handler.num_nodes_waiting() > 0
        return [MembershipChanged()] if waiting else []

    def perform(self, action: Action) -> list[Event]:  # noqa: ARG002 - it is `WaitForOthers`
        """Wait for the agents of other nodes, as long as the exit barrier lasts."""
        if self._store is not None:
            with self._signals.raising():
                self._exit_barrier()
        return [BarrierPassed()]

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        if self._health_check_server is not None:
            self._health_check_server.stop()
            self._health_check_server = None
        if self._supervisor is not None:
            self._supervisor.close(death_sig)
            self._supervisor = None
        if self._pcontext is not None:
            # also one that failed while it was started
            self._pcontext.close(death_sig, timeout)
        self._let_port_go()
