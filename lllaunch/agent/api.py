"""Agents: what takes a worker group through its attempts. Names and hooks are torch's.

`SimpleElasticAgent` is the base for agents of one's own: it drives `lllaunch.agent.machine` and
asks its subclass to start, watch and stop workers. Subclasses written for torch's class of the same
name work unchanged.
"""

from __future__ import annotations

import abc
import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lllaunch.agent import vocabulary as v
from lllaunch.agent.events import EventSource
from lllaunch.agent.machine import Machine
from lllaunch.agent.metrics import prof, put_metric
from lllaunch.agent.ranks import agree, barrier, workers_of
from lllaunch.agent.reporting import Reporting
from lllaunch.agent.states import WorkerState
from lllaunch.agent.worker_group import DEFAULT_ROLE, RunResult, Worker, WorkerGroup, WorkerSpec
from lllaunch.multiprocessing.signals import SignalException

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

_TERMINAL_STATE = "torchelastic/agent/terminal_state"


class ElasticAgent(abc.ABC):
    """Responsible for the workers of one node."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, and start them again when they fail, as often as the spec allows.

        Returns:
            What became of them, by global rank.

        Raises:
            Exception: anything but the failure of a worker.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group of a role; it changes while the agent runs."""


class SimpleElasticAgent(Reporting, ElasticAgent):
    """An agent of one role.

    Args:
        spec: what the workers run.
        exit_barrier_timeout: seconds that a node which is done waits for the others.
        shutdown_timeout: seconds between the polite signal and SIGKILL.
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
        self._machine = Machine(spec.max_restarts)
        self._observer: Callable[[object], None] | None = None
        self._last_result = RunResult(WorkerState.INIT)

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

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Agree with the agents of other nodes on ranks and on the place of rank 0's store."""
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            info = spec.rdzv_handler.next_rendezvous()
        self._store = info.store
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
        place = info.bootstrap_store_info
        worker_group.workers = workers
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr = spec.master_addr or place.master_addr
        worker_group.master_port = spec.master_port or place.master_port

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Agree on ranks through the store; this node's workers."""
        share = agree(store, group_rank, group_world_size, spec)
        return workers_of(share, spec.local_world_size)

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Rendezvous and start a fresh set of workers."""
        self._rendezvous(worker_group)
        for local_rank, worker_id in self._start_workers(worker_group).items():
            worker = worker_group.workers[local_rank]
            worker.id = worker_id
            self._record(self._construct_event("START", EventSource.WORKER, worker))
        worker_group.state = WorkerState.HEALTHY

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """End the workers, if any live, and start a fresh set."""
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    # Running

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """As `ElasticAgent.run`.

        Raises:
            SignalException: a death signal arrived; the workers have been ended.
            RuntimeError: it has run already.
        """
        if self._machine.finished:
            raise RuntimeError("an agent runs once: make another one")
        started = time.monotonic()
        signum = signal.SIGTERM
        try:
            result = self._invoke_run(role)
            self._total_execution_time = int(time.monotonic() - started)
            self._record_metrics(result)
            self._record_worker_events(result)
        except SignalException as error:
            if self._observer is None:
                # An observer tells its user; and a console may be what keeps this process here.
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
        """Drive the machine: perform its decisions, feed back what happens, until it finishes."""
        facts: deque[v.Fact] = deque([v.Begin()])
        while True:
            fact = facts.popleft() if facts else None
            if fact is None:
                facts.extend(self._await_facts())
                continue
            self._observe(fact)
            for decision in self._machine.handle(fact):
                self._observe(decision)
                if isinstance(decision, v.Finish):
                    return self._conclude(decision)
                if isinstance(decision, v.StartWorkers):
                    # What else was found is about the attempt that is over, if not about the run.
                    facts = deque(filter(_outlasts_an_attempt, facts))
                facts.extendleft(reversed(self._perform(decision)))
            self._worker_group.state = self._machine.state

    def _observe(self, item: object) -> None:
        if self._observer is not None:
            self._observer(item)

    def _conclude(self, end: v.Finish) -> RunResult:
        self._worker_group.state = end.state
        role = self._worker_group.spec.role
        put_metric(f"workers.{role}.remaining_restarts", self._remaining_restarts)
        put_metric(f"workers.{role}.{end.state.name.lower()}", 1)
        if end.signum is not None:
            received = signal.Signals(end.signum)
            raise SignalException(f"the agent received {received.name}", sigval=received)
        if end.state is WorkerState.UNKNOWN:
            raise RuntimeError(f"[{role}] the agent lost track of its workers")
        self._last_result.state = end.state
        return self._last_result

    def _perform(self, decision: v.Decision) -> list[v.Fact]:
        """Carry out a decision; the facts that it brings about at once."""
        group = self._worker_group
        if isinstance(decision, v.StartWorkers):
            self._remaining_restarts = group.spec.max_restarts - decision.restart_count
            start = self._initialize_workers if decision.attempt == 0 else self._restart_workers
            start(group)
            return [v.GroupStarted(frozenset(range(group.spec.local_world_size)))]
        if isinstance(decision, v.SignalWorkers):
            # The hook ends them all before it returns.
            self._stop_workers(group)
            return [v.WorkerEnded(rank, ok=False) for rank in sorted(self._machine.alive)]
        if isinstance(decision, v.SweepLeftovers):
            return [v.LeftoversGone()]
        if isinstance(decision, v.WaitForOthers):
            self._exit_barrier()
            return [v.BarrierPassed()]
        return []

    def _await_facts(self) -> list[v.Fact]:
        """Wait for something to happen; here by looking every ``monitor_interval`` seconds."""
        group = self._worker_group
        time.sleep(group.spec.monitor_interval)
        result = self._monitor_workers(group)
        if result.state is WorkerState.SUCCEEDED:
            self._last_result = result
            return [v.WorkerEnded(rank, ok=True) for rank in sorted(self._machine.alive)]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._last_result = result
            ranks = {w.local_rank for w in group.workers if w.global_rank in result.failures}
            failed = sorted(self._machine.alive & ranks) or sorted(self._machine.alive)[:1]
            return [v.WorkerEnded(rank, ok=False) for rank in failed[:1]]
        if result.state is not WorkerState.HEALTHY:
            return [v.MonitorLost()]
        return [v.MembershipChanged()] if self._nodes_are_waiting() else []

    def _nodes_are_waiting(self) -> bool:
        handler = self._worker_group.spec.rdzv_handler
        return handler is not None and handler.num_nodes_waiting() > 0

    def _exit_barrier(self) -> None:
        """Wait for the agents of other nodes, so that none of them takes this one for lost."""
        if self._store is None:
            return
        self._in_exit_barrier = True
        try:
            barrier(
                self._store,
                self._worker_group.group_world_size or 1,
                _TERMINAL_STATE,
                self._exit_barrier_timeout,
            )
        except SignalException:
            raise
        except Exception:
            # This node's work is done; what the others make of it is theirs to report.
            logger.exception("the other nodes did not come to the exit barrier")
        finally:
            self._in_exit_barrier = False


def _outlasts_an_attempt(fact: v.Fact) -> bool:
    if isinstance(fact, v.WatchdogFired):
        return fact.whole_run
    return isinstance(fact, v.SignalReceived)
