"""What becomes a worker group: its specification, its ranks, and torch's classes of agents.

Every agent tells its role and size; the agent of group rank 0 lays out all workers, node by node,
and tells every agent where its own begin. Keys and values are torch's, so that agents of both kinds
could meet in one store.

`SimpleElasticAgent` is the base for agents of one's own: it asks its subclass to start, watch and
stop workers. Subclasses written for torch's class of the same name work unchanged.
"""

from __future__ import annotations

import abc
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lllaunch.cluster.membership import Share
from lllaunch.cluster.rendezvous import agree, arrive, await_barrier
from lllaunch.multiprocessing.errors import ProcessFailure
from lllaunch.signal_source import SignalException
from lllaunch.supervisor.machine import WorkerState

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

logger = logging.getLogger(__name__)

DEFAULT_ROLE = "default"
_EVENTS = "torch.distributed.elastic.events"


@dataclass
class WorkerSpec:
    """What the workers of one role run; the same on every node.

    Raises:
        ValueError: a number is not positive, or there is no entrypoint.
    """

    role: str
    local_world_size: int  # workers on this node, at least 1
    # a handler of ``torch.distributed.elastic.rendezvous`` for several nodes; None on one node
    rdzv_handler: Any = None
    fn: Callable[..., Any] | None = None  # older name of ``entrypoint``
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()  # its arguments; ``${local_rank}`` in text is replaced per worker
    max_restarts: int = 3
    # seconds between looks for nodes that wait to join, and at the workers of agents that poll
    monitor_interval: float = 0.1
    master_port: int | None = None  # port of rank 0's store; default: a free one
    master_addr: str | None = None  # its host; default: this one, or group rank 0's
    local_addr: str | None = None  # address of this node, if a rendezvous needs it
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
        if self.fn is not None:
            warnings.warn(
                "WorkerSpec.fn is deprecated, use WorkerSpec.entrypoint instead",
                DeprecationWarning,
                stacklevel=3,
            )
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise ValueError("entrypoint: a function or a program is needed")

    def get_entrypoint_name(self) -> str:
        """Qualified name of a function, base name of a program."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))


@dataclass(slots=True, eq=False)
class Worker:
    """One worker, as its agent knows it."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    # what the agent knows it by; a process id, for a local agent
    id: Any = field(default=None, init=False)

    def __repr__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers of one spec on one node."""

    spec: WorkerSpec
    workers: list[Worker] = field(init=False)  # by local rank
    store: Any = field(default=None, init=False)  # the store of the rendezvous, or None
    group_rank: int | None = field(default=None, init=False)
    group_world_size: int | None = field(default=None, init=False)
    master_addr: str | None = field(default=None, init=False)
    master_port: int | None = field(default=None, init=False)
    state: WorkerState = field(default=WorkerState.INIT, init=False)

    def __post_init__(self) -> None:
        self.workers = [Worker(local_rank) for local_rank in range(self.spec.local_world_size)]


@dataclass
class RunResult:
    """The result of a worker group."""

    state: WorkerState  # its last state
    # what functions returned, by global rank, of this node's workers
    return_values: dict[int, Any] = field(default_factory=dict)
    # the workers that failed, by global rank, the root cause first, without those that were ended
    # because of it
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the group failed."""
        return self.state == WorkerState.FAILED


def workers_of(share: Share, local_world_size: int) -> list[Worker]:
    """The workers of a node."""
    return [
        Worker(
            local_rank=local_rank,
            global_rank=share.base_rank + local_rank,
            role_rank=share.base_role_rank + local_rank,
            world_size=share.world_size,
            role_world_size=share.role_world_size,
        )
        for local_rank in range(local_world_size)
    ]


class ElasticAgent(abc.ABC):
    """Responsible for the workers of one node."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, and start them again when they fail, as often as the spec allows.

        Raises:
            Exception: anything but the failure of a worker.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group of a role; it changes while the agent runs."""


class SimpleElasticAgent(ElasticAgent):
    """An agent of one role.

    ``exit_barrier_timeout``: seconds that a node which is done waits for the others.
    ``shutdown_timeout``: seconds between the polite signal and SIGKILL.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = 300,
        shutdown_timeout: float = 30,
    ) -> None:
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time = 0
        self._in_exit_barrier = False

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:  # noqa: ARG002
        """The group; there is one role."""
        return self._worker_group

    # What subclasses provide

    @abc.abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the workers; their ids by local rank."""

    @abc.abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End all workers, in whatever state they are, also if there are none."""

    @abc.abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers; the state of the group."""

    @abc.abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        """End everything: workers get ``death_sig``, and SIGKILL after ``timeout`` seconds."""

    # Forming a group

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Agree with the agents of other nodes on ranks and on the place of rank 0's store."""
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            info = spec.rdzv_handler.next_rendezvous()
        self._store = info.store
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            where = info.store, info.rank, info.world_size
            share = agree(*where, spec.role, spec.local_world_size)
        place = info.bootstrap_store_info
        worker_group.workers = workers_of(share, spec.local_world_size)
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr = spec.master_addr or place.master_addr
        worker_group.master_port = spec.master_port or place.master_port

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Rendezvous and start a fresh set of workers."""
        self._rendezvous(worker_group)
        for local_rank, worker_id in self._start_workers(worker_group).items():
            worker = worker_group.workers[local_rank]
            worker.id = worker_id
            self._record("START", worker)
        worker_group.state = WorkerState.HEALTHY

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """End the workers, if any live, and start a fresh set."""
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    # Running

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """As `ElasticAgent.run`.

        Raises:
            SignalException: a death signal arrived; the workers have been ended.
        """
        started = time.monotonic()
        signum = signal.SIGTERM
        try:
            result = self._invoke_run(role)
            self._total_execution_time = int(time.monotonic() - started)
            self._record_metrics(result)
            for worker in self._worker_group.workers:
                failure = result.failures.get(worker.global_rank)
                failed = result.state in (WorkerState.UNHEALTHY, WorkerState.FAILED)
                # one that did not fail was ended because others failed
                state = "TERMINATED" if failed and failure is None else result.state.value
                self._record(state, worker, failure=failure)
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

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:  # noqa: ARG002 - there is one
        """Start the workers and look at them every ``monitor_interval`` seconds, to the end."""
        group, spec = self._worker_group, self._worker_group.spec
        self._initialize_workers(group)
        while True:
            time.sleep(spec.monitor_interval)
            result = self._monitor_workers(group)
            group.state = result.state
            if result.state is WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                if not self._remaining_restarts:
                    self._stop_workers(group)
                    group.state = WorkerState.FAILED
                    return result
                self._remaining_restarts -= 1
                self._restart_workers(group)
            elif result.state is not WorkerState.HEALTHY:
                raise RuntimeError(f"[{spec.role}] the agent lost track of its workers")
            elif self._nodes_are_waiting():
                self._restart_workers(group)

    def _nodes_are_waiting(self) -> bool:
        handler = self._worker_group.spec.rdzv_handler
        return handler is not None and handler.num_nodes_waiting() > 0

    def _exit_barrier(self) -> None:
        """Wait for the agents of other nodes, so that none of them takes this one for lost."""
        if self._store is None:
            return
        self._in_exit_barrier = True
        try:
            size = self._worker_group.group_world_size or 1
            if size > 1:
                arrive(self._store, size)
                await_barrier(self._store, self._exit_barrier_timeout)
        except SignalException:
            raise
        except Exception:
            # This node's work is done; what the others make of it is theirs to report.
            logger.exception("the other nodes did not come to the exit barrier")
        finally:
            self._in_exit_barrier = False

    # Events and metrics, as torch's agent has them, for who has loaded torch's modules of them

    def get_event_failed(self) -> Any:
        """The event of an agent that failed; for use where its exception is handled."""
        return self._construct_event("FAILED", raw_error=traceback.format_exc())

    def get_event_succeeded(self) -> Any:
        """The event of an agent that succeeded."""
        return self._construct_event("SUCCEEDED")

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record an event with the duration of what runs inside, milliseconds."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._record(state, duration_ms=(time.perf_counter() - started) * 1000)

    def _record(self, state: str, worker: Worker | None = None, **known: Any) -> None:
        # not there yet, while another thread imports the module
        record = getattr(sys.modules.get(_EVENTS), "record", None)
        if record is not None:
            event = self._construct_event(state, worker, **known)
            record(event, self._worker_group.spec.event_log_handler)

    def _construct_event(
        self,
        state: str,
        worker: Worker | None = None,
        failure: ProcessFailure | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
    ) -> Any:
        """An event, of a worker or of the agent itself: torch's, or one that looks like it."""
        group, spec = self._worker_group, self._worker_group.spec
        details: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            details |= {
                "local_rank": [worker.local_rank],
                "role_rank": [worker.role_rank],
                "role_world_size": [worker.role_world_size],
                "exit_code": [failure.exitcode if failure else None],
                "worker_pid": [failure.pid if failure else None],
            }
        if failure is not None:
            raw_error = json.dumps(failure.error_file_data)
        handler = spec.rdzv_handler
        metadata = {
            "run_id": handler.get_run_id() if handler is not None else "",
            "global_rank": worker.global_rank if worker is not None else None,
            "group_rank": group.group_rank,
            "worker_id": str(worker.id) if worker is not None else None,
            "role": spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": self._total_execution_time,
            "rdzv_backend": handler.get_backend() if handler is not None else "",
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "agent_restarts": spec.max_restarts - self._remaining_restarts,
            "duration_ms": duration_ms,
        }
        name, source = (
            f"torchelastic.worker.status.{state}",
            "AGENT" if worker is None else "WORKER",
        )
        torchs = sys.modules.get(_EVENTS)
        if torchs is None:
            return SimpleNamespace(name=name, source=source, timestamp=0, metadata=metadata)
        return torchs.Event(name, source=torchs.EventSource(source), metadata=metadata)

    def _record_metrics(self, result: RunResult) -> None:
        spec = self._worker_group.spec
        failed = result.is_failed()
        retried = self._remaining_restarts != spec.max_restarts
        outcome = f"run_{'failed' if failed else 'success'}_{'with' if retried else 'no'}_retries"
        # How much of its allowance a run needed, in percent.
        flakiness = 100.0
        if not failed:
            flakiness -= 100.0 * (self._remaining_restarts + 1) / (spec.max_restarts + 1)
        metrics = {
            "remaining_restarts": self._remaining_restarts,
            result.state.name.lower(): 1,
            "flakiness": int(flakiness),
            "run_total": 1,
            "run_success_with_retries": 0,
            "run_success_no_retries": 0,
            "run_failed_with_retries": 0,
            "run_failed_no_retries": 0,
            outcome: 1,
        }
        for name, value in metrics.items():
            put_metric(f"workers.{spec.role}.{name}", value)


def put_metric(name: str, value: int) -> None:
    """Publish a number where torch's module of metrics is loaded."""
    put = getattr(sys.modules.get("torch.distributed.elastic.metrics"), "put_metric", None)
    if put is not None:
        put(name, value, "torchelastic")
