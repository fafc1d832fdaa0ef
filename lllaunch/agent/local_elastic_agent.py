"""The agent of one machine: its workers are local processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lllaunch.agent import vocabulary as v
from lllaunch.agent.api import SimpleElasticAgent
from lllaunch.agent.carry_out import carry_out, plain_fault
from lllaunch.agent.clock import Deadlines, RunClock
from lllaunch.agent.events import EventSource
from lllaunch.agent.guard import ENABLE_FILE_TIMER, Guard
from lllaunch.agent.health_check_server import HealthCheckServer, create_healthcheck_server
from lllaunch.agent.kernel_sleep import TIMEOUT_VARIABLE, KernelSleep
from lllaunch.agent.machine import Machine
from lllaunch.agent.metrics import prof
from lllaunch.agent.ports import HeldPort
from lllaunch.agent.ranks import Share, workers_of
from lllaunch.agent.recipe import LOOPBACK, Recipe, places_of
from lllaunch.agent.states import WorkerState
from lllaunch.agent.worker_group import DEFAULT_ROLE, RunResult, WorkerGroup, WorkerSpec
from lllaunch.linux.process import wait_any_readable
from lllaunch.multiprocessing.api import LogsSpecs, PContext
from lllaunch.multiprocessing.signals import SignalSource, forwards
from lllaunch.policies import TIMER_FILE, RestartPolicy, WatchdogPolicy
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import (
    Died,
    Exited,
    Forked,
    PreloadBroken,
    Started,
    StartFailed,
    Swept,
    Target,
)

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]

logger = logging.getLogger(__name__)

TORCHELASTIC_ENABLE_FILE_TIMER = ENABLE_FILE_TIMER
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = TIMER_FILE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = TIMEOUT_VARIABLE


class LocalElasticAgent(SimpleElasticAgent):
    """Runs a worker group as processes of this machine.

    It is woken by what happens, not by a clock; only nodes that wait to join are looked for every
    ``monitor_interval`` seconds, since a rendezvous cannot wake anybody.

    Args:
        spec: what the workers run. Without a ``rdzv_handler`` they are the only ones, and neither a
            store nor torch is needed.
        logs_specs: where their streams go.
        start_method: of functions: ``spawn``, ``forkserver`` or ``fork``; with ``targets``, the
            first two.
        exit_barrier_timeout: seconds that this node waits for the others when it is done.
        log_line_prefix_template: header of teed lines, with ``${role_name}``, ``${rank}`` and
            ``${local_rank}``.
        shutdown_timeout: seconds between the polite signal and SIGKILL.
        health_check_server: answers health checks while the agent runs.
        uninterruptible_state_timeout: seconds after which a worker in uninterruptible sleep counts
            as failed, and nothing is started again; None for
            TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, which is 0 (never) if not set.
        spawner: the spawner to use; it stays open.
        observer: is told every fact and decision as it happens.
        targets: what a worker runs, from what is known of it (`lllaunch.macros.WORKER_NAMES`);
            takes the place of the spec's entrypoint.
        env: variables of the user's for a worker, from the same.
        preload: modules that the spawner imports before it forks, with ``targets``.
        cwd: working directory of the workers, with ``targets``.
        spawner_cwd: that of the preloads, if it is another one.
        run_id: id of the run where there is no rendezvous.
        signals: signals to handle, or what takes note of them already; None for those of
            TORCHELASTIC_SIGNALS_TO_HANDLE.
        watchdog: what the workers are watched for; None for nothing, unless
            TORCHELASTIC_ENABLE_FILE_TIMER=1 asks for timers, at the path in TORCHELASTIC_TIMER_FILE
            if that is set.
        restart: what a failed group is started again for, and how soon.
        fault: tells in what way a worker failed, from the fact of its end; None for what its exit
            status alone tells.
        run_began: moment of the monotonic clock from which the run's own time limit counts; None
            for the start of the first attempt.
        hide: applied to stacks before they are written.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        spawner: Spawner | None = None,
        observer: Callable[[object], None] | None = None,
        targets: Callable[[Mapping[str, str]], Target | Forked] | None = None,
        env: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
        preload: Sequence[str] = (),
        cwd: str | None = None,
        spawner_cwd: str | None = None,
        run_id: str = "",
        signals: Sequence[signal.Signals] | SignalSource | None = None,
        watchdog: WatchdogPolicy | None = None,
        restart: RestartPolicy | None = None,
        fault: Callable[[Exited | StartFailed], v.Fault] | None = None,
        run_began: float | None = None,
        hide: Callable[[str], str] = str,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._recipe = Recipe(
            *(logs_specs, start_method, log_line_prefix_template, spawner, targets, env, preload),
            *(cwd, spawner_cwd),
        )
        self._machine = Machine(spec.max_restarts, policy=restart)
        kernel_sleep = KernelSleep.configured(uninterruptible_state_timeout)
        self._clock = RunClock()
        self._guard = Guard(watchdog, kernel_sleep, self._clock, run_began=run_began, hide=hide)
        self._fault = fault or plain_fault
        self._health_check_server = health_check_server
        self._observer = observer
        self._run_id = run_id
        self._signals = signals if isinstance(signals, SignalSource) else SignalSource(signals)
        self._pcontext: PContext | None = None
        self._port: HeldPort | None = None
        self._deadlines = Deadlines(self._clock)

    # Forming a group

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if worker_group.spec.rdzv_handler is not None:
            # It may wait for other nodes inside torch, where only an exception gets through.
            with self._signals.raising():
                super()._rendezvous(worker_group)
            return
        size, spec = worker_group.spec.local_world_size, worker_group.spec
        worker_group.workers = workers_of(Share(0, size, 0, size), size)
        worker_group.group_rank, worker_group.group_world_size = 0, 1
        worker_group.master_addr = spec.master_addr or LOOPBACK
        if spec.master_port is None:
            # A new one per attempt: sockets of the last may linger.
            self._let_port_go()
            self._port = HeldPort()
        worker_group.master_port = spec.master_port or (self._port.port if self._port else 0)

    def _let_port_go(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        state = self._machine
        places = places_of(worker_group, state.attempt, state.restart_count, self._run_id)
        self._guard.prepare(len(places))
        self._pcontext = self._recipe.context(
            worker_group.spec, places, more=self._guard.environment
        )
        self._pcontext.start()
        self._guard.begin(self._pcontext)
        self._start_health_check()
        # Their ids are known when they have started; nobody waits for that here.
        return {}

    def _start_health_check(self) -> None:
        port = os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT)
        if self._health_check_server is None and port is not None:
            if not port.isdecimal():
                logger.warning("%s: %r is not a port", TORCHELASTIC_HEALTH_CHECK_PORT, port)
                return
            self._health_check_server = create_healthcheck_server(self._alive_time, int(port), 60)
            self._health_check_server.start()

    @staticmethod
    def _alive_time() -> int:
        return int(time.time())

    # Watching

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """As `ElasticAgent.run`; signals are handled until all is over."""
        with self._signals:
            return super().run(role)

    def _await_facts(self) -> list[v.Fact]:
        healthy = self._machine.state is WorkerState.HEALTHY
        files: list[Any] = [self._signals, *self._guard.files()]
        if self._pcontext is not None and (self._machine.alive or self._sweeping):
            files.append(self._pcontext)
        if self._worker_group.spec.rdzv_handler is not None and self._machine.alive:
            self._deadlines.start("membership", self._worker_group.spec.monitor_interval)
        waits = (self._deadlines.next_in(), self._guard.next_in(healthy=healthy))
        wait_any_readable(files, min((wait for wait in waits if wait is not None), default=None))
        signals = self._signals.received()
        if self._signals.stopping:
            self._stop_until_continued()
        found = [self._signalled(signum) for signum in signals]
        found += self._worker_facts()
        # What they lead to may set or take back a deadline: look at those afterwards.
        return found or [
            *self._timed_facts(),
            *self._guard.facts(healthy=healthy, observe=self._observe),
        ]

    def _stop_until_continued(self) -> None:
        """Stop the workers and this process (Ctrl-Z); until SIGCONT no time passes for the run.

        Workers have sessions of their own, where SIGTSTP would do nothing.
        """
        if self._pcontext is not None:
            self._pcontext.stop_or_continue(signal.SIGSTOP)
        self._clock.leave_out(self._signals.stop_until_continued())
        if self._pcontext is not None:
            self._pcontext.stop_or_continue(signal.SIGCONT)

    def _signalled(self, signum: int) -> v.Fact:
        if signum == self._signals.quiet:
            from lllaunch.watchdog.findings import Asked  # noqa: PLC0415 - seldom

            return v.StacksAsked(Asked(signum))
        wait = forwards() and self._machine.state is WorkerState.HEALTHY
        look = self._guard.interrupted(signum) if wait else None
        return v.SignalReceived(signum, forwards(), look)

    @property
    def _sweeping(self) -> bool:
        return self._machine.state in (WorkerState.STOPPED, WorkerState.SUCCEEDED)

    def _worker_facts(self) -> list[v.Fact]:
        if self._pcontext is None:
            return []
        found: list[v.Fact] = []
        for fact in self._pcontext.dispatch():
            self._observe(fact)
            if isinstance(fact, Started):
                worker = self._worker_group.workers[fact.rank]
                worker.id = fact.pid
                self._record(self._construct_event("START", EventSource.WORKER, worker))
            elif isinstance(fact, (Exited, StartFailed)):
                ok = isinstance(fact, Exited) and fact.exitcode == 0
                fault = "failure" if ok else self._fault(fact)
                found.append(v.WorkerEnded(fact.rank, ok, fault))
            elif isinstance(fact, Swept):
                found.append(v.LeftoversGone())
            elif isinstance(fact, PreloadBroken):
                found.append(v.PreloadLost())
            elif isinstance(fact, Died):
                found.append(v.SpawnerLost())
        return found

    def _timed_facts(self) -> list[v.Fact]:
        found: list[v.Fact] = []
        for name in self._deadlines.passed():
            if name == "grace":
                found.append(v.GraceExpired())
            elif name == "pause":
                found.append(v.PauseOver())
            elif name == "sweep":
                logger.error("SIGKILL does not end all that the workers left behind")
                found.append(v.LeftoversStuck())
            elif name == "membership" and self._nodes_are_waiting():
                found.append(v.MembershipChanged())
        return found

    # Ending

    def _perform(self, decision: v.Decision) -> list[v.Fact]:
        if isinstance(decision, (v.StartWorkers, v.Finish)):
            self._deadlines.clear()
            return super()._perform(decision)
        if isinstance(decision, v.WaitForOthers):
            with self._signals.raising():
                return super()._perform(decision)
        carry_out(decision, self._pcontext, self._deadlines, self._guard, self._shutdown_timeout)
        return []

    def _conclude(self, end: v.Finish) -> RunResult:
        if self._pcontext is not None:
            # A console that takes nothing (a full pipe) may keep this waiting.
            with self._signals.raising():
                self._pcontext.release()
        if end.signum is None and end.state is not WorkerState.UNKNOWN and self._pcontext:
            found = self._guard.at_fault() if end.reason in ("hang", "timeout", "oom") else None
            self._last_result = self._global_result(self._pcontext, end.state, found)
        return super()._conclude(end)

    def _global_result(
        self, context: PContext, state: WorkerState, at_fault: dict[int, str] | None = None
    ) -> RunResult:
        result = context.result(at_fault)
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        return RunResult(
            state,
            {ranks[rank]: value for rank, value in result.return_values.items()},
            {ranks[rank]: failure for rank, failure in result.failures.items()},
        )

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - torch's hook
        if self._pcontext is not None:
            # As in `_conclude`: they have ended, and the console may take nothing.
            with self._signals.raising():
                self._pcontext.close(signal.SIGTERM, self._shutdown_timeout)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # noqa: ARG002
        """Torch's hook: a look at the workers. The agent itself is woken by their ends."""
        result = self._pcontext.wait(0) if self._pcontext is not None else None
        if result is None:
            return RunResult(WorkerState.HEALTHY)
        state = WorkerState.FAILED if result.is_failed() else WorkerState.SUCCEEDED
        assert self._pcontext is not None
        return self._global_result(self._pcontext, state)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        if self._health_check_server is not None:
            self._health_check_server.stop()
            self._health_check_server = None
        self._guard.close()
        if self._pcontext is not None:
            if self._pcontext.alive and not self._machine.finished:
                # not by a decision of the machine: an error, or an exception of a signal's
                with contextlib.suppress(Exception):
                    self._observe(v.SignalWorkers(int(death_sig), "signal"))
                self._pcontext.observer = self._observe
            self._pcontext.close(death_sig, timeout)
        self._let_port_go()
