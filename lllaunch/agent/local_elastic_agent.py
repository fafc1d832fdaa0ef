"""Torch's agent of one machine, over `lllaunch.supervisor`: its workers are local processes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from string import Template
from typing import Any

from lllaunch.agent.api import (
    DEFAULT_ROLE,
    OneNode,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
)
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
    WorkerState,
)
from lllaunch.supervisor.supervisor import GroupHooks, GroupOptions, Supervisor
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.watchdog.sampling import TIMEOUT_VARIABLE, kernel_sleep

logger = logging.getLogger(__name__)

_ELASTIC = "torch.distributed.elastic"

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]


TORCHELASTIC_ENABLE_FILE_TIMER = ENABLE_FILE_TIMER
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = TIMER_FILE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = TIMEOUT_VARIABLE


def substitute_local_rank(args: tuple[object, ...], local_rank: int) -> tuple[object, ...]:
    """Replace ``${local_rank}`` in arguments that are text, as torch's argument macros do.

    They are templates of `string.Template`: ``$local_rank`` is replaced too, ``$$`` becomes ``$``,
    other names stay.
    """
    return tuple(
        Template(arg).safe_substitute(local_rank=str(local_rank)) if isinstance(arg, str) else arg
        for arg in args
    )


class LocalElasticAgent:
    """Run a worker group as processes of this machine.

    Events wake it, not a clock. Only nodes that wait to join are looked for, every
    ``monitor_interval`` seconds.

    ``spec``: what the workers run. Without a ``rdzv_handler`` neither a store nor torch is needed.
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
        # these names are torch's: its own methods are used where it is loaded (`_torchs`)
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time = 0
        self._in_exit_barrier = False
        self._logs_specs = logs_specs
        self._start_method = start_method
        self._prefix = log_line_prefix_template
        self._machine = Machine(spec.max_restarts, policy=restart)
        self._health_check_server = health_check_server
        self._observer = observer
        self._signals = SignalSource(signals)
        self._pcontext: PContext | None = None
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

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:  # noqa: ARG002
        """The group; there is one role. It changes while the agent runs."""
        return self._worker_group

    # What is torch's own

    def _torchs(self) -> Any:
        """Torch's agent with the attributes of this one: for events, metrics and other nodes."""
        base = import_module("torch.distributed.elastic.agent.server.api").SimpleElasticAgent
        # what is abstract is not called
        kind: Any = type("LocalElasticAgent", (base,), dict.fromkeys(base.__abstractmethods__))
        agent = kind.__new__(kind)
        agent.__dict__ = self.__dict__
        return agent

    def get_event_failed(self) -> Any:
        """Torch's event of an agent that failed; for use where its exception is handled."""
        return self._torchs().get_event_failed()

    def get_event_succeeded(self) -> Any:
        """Torch's event of an agent that succeeded."""
        return self._torchs().get_event_succeeded()

    def _record_start(self, worker: Worker) -> None:
        if _ELASTIC in sys.modules:
            events = import_module(f"{_ELASTIC}.events")
            event = self._torchs()._construct_event("START", events.EventSource.WORKER, worker)
            events.record(event, self._worker_group.spec.event_log_handler)

    def _record_result(self, result: RunResult) -> None:
        if _ELASTIC in sys.modules:
            put = import_module(f"{_ELASTIC}.metrics").put_metric
            name = f"workers.{self._worker_group.spec.role}"
            put(f"{name}.remaining_restarts", self._remaining_restarts)
            put(f"{name}.{result.state.name.lower()}", 1)
            self._torchs()._record_metrics(result)
            self._torchs()._record_worker_events(result)

    # Forming a group

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if not isinstance(worker_group.spec.rdzv_handler, OneNode):
            # It may wait for other nodes inside torch, where only an exception gets through.
            with self._signals.raising():
                self._torchs()._rendezvous(worker_group)
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

    def _start(self, action: StartWorkers) -> PContext:
        group = self._worker_group
        self._remaining_restarts = group.spec.max_restarts - action.restart_count
        self._rendezvous(group)
        context = self._start_workers(group)
        group.state = WorkerState.HEALTHY
        return context

    def _start_workers(self, worker_group: WorkerGroup) -> PContext:
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
        self._start_health_check()
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
        if not self._prefix:
            return None
        template = Template(self._prefix)
        return {
            rank: template.safe_substitute(place.macro_values()) for rank, place in places.items()
        }

    def _start_health_check(self) -> None:
        """Start the server of a site's monitoring, where torch's module of it is loaded."""
        port = os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT)
        if self._health_check_server is not None or port is None:
            return
        torchs = sys.modules.get("torch.distributed.elastic.agent.server.health_check_server")
        if torchs is None or not port.isdecimal():
            logger.warning("%s=%s: no server is started", TORCHELASTIC_HEALTH_CHECK_PORT, port)
            return
        alive = lambda: int(time.time())  # noqa: E731 - torch's argument
        self._health_check_server = torchs.create_healthcheck_server(alive, int(port), 60)
        self._health_check_server.start()

    # Running

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:  # noqa: ARG002 - there is one
        """Run the workers, and start them again when they fail, as often as the spec allows.

        Signals are handled until all is over.

        Raises:
            SignalException: a death signal arrived; the workers have been ended.
            RuntimeError: it has run already.
        """
        if self._machine.finished:
            raise RuntimeError("an agent runs once: make another one")
        started, signum = time.monotonic(), signal.SIGTERM
        with self._signals:
            try:
                result = self._invoke_run()
                self._total_execution_time = int(time.monotonic() - started)
                self._record_result(result)
            except SignalException as error:
                logger.warning("%s: ending the workers", error)
                signum = error.sigval
                raise
            except Exception as error:
                # A rendezvous that is over, for instance because another node completed it.
                if type(error).__name__ != "RendezvousGracefulExitError":
                    raise
                logger.info("the rendezvous ended: %s", error)
                result = RunResult(WorkerState.SUCCEEDED)
            finally:
                self._shutdown(signum, timeout=self._shutdown_timeout)
                self._total_execution_time = int(time.monotonic() - started)
        return result

    def _invoke_run(self) -> RunResult:
        spec = self._worker_group.spec
        self._supervisor = Supervisor(
            self._machine,
            GroupOptions(spec.local_world_size, self._shutdown_timeout),
            GroupHooks(self._start, self._seen),
            signals=self._signals,
            watchdog=self._watchdog,
            clock=self._clock,
            nodes=None if isinstance(spec.rdzv_handler, OneNode) else self,
        )
        end = self._supervisor.run()
        self._worker_group.state = end.state
        if end.signum is not None:
            received = signal.Signals(end.signum)
            raise SignalException(f"the agent received {received.name}", sigval=received)
        if self._pcontext is None:
            return RunResult(end.state)
        found = self._watchdog.at_fault() if end.reason in ("hang", "timeout", "oom") else None
        result = self._pcontext.result(found)
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        return RunResult(
            end.state,
            {ranks[rank]: value for rank, value in result.return_values.items()},
            {ranks[rank]: failure for rank, failure in result.failures.items()},
        )

    def _seen(self, item: object) -> object:
        # the machine gets to know of a start after this
        if not isinstance(item, GroupStarted):
            self._worker_group.state = self._machine.worker_state
        if self._observer is not None:
            self._observer(item)
        if isinstance(item, Started):
            worker = self._worker_group.workers[item.local_rank]
            worker.id = item.pid
            self._record_start(worker)
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
                self._torchs()._exit_barrier()
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
