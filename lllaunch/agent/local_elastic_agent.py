"""The agent of one machine: its workers are local processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from lllaunch.agent import machine as v
from lllaunch.agent.api import (
    DEFAULT_ROLE,
    RunResult,
    Share,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    workers_of,
)
from lllaunch.agent.clock import Deadlines, RunClock
from lllaunch.agent.environ import WorkerPlace, contract, substitute_local_rank, virtual_rank
from lllaunch.agent.events import EventSource
from lllaunch.agent.guard import ENABLE_FILE_TIMER, Guard
from lllaunch.agent.health_check_server import HealthCheckServer, create_healthcheck_server
from lllaunch.agent.machine import Machine, WorkerState
from lllaunch.agent.metrics import prof
from lllaunch.agent.ports import HeldPort
from lllaunch.linux import proc
from lllaunch.linux.process import wait_any_readable
from lllaunch.multiprocessing.api import (
    LogsSpecs,
    MultiprocessContext,
    PContext,
    SubprocessContext,
    TargetContext,
)
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
from lllaunch.watchdog.findings import Asked

logger = logging.getLogger(__name__)

TIMEOUT_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_MAX_INTERVAL = 5.0


def _state(pid: int) -> str:
    facts = proc.facts(pid)
    return facts.state if facts is not None else ""


class KernelSleep:
    """Remembers since when processes are in uninterruptible sleep.

    Args:
        timeout: seconds after which one counts as stuck.
        clock: tells the time in seconds.
        state: tells the state letter of a process.
    """

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int], str] = _state,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._state = state
        self._since: dict[int, float] = {}

    @classmethod
    def configured(cls, timeout: float | None) -> KernelSleep | None:
        """One with the given timeout, or the environment's; None if it is 0 or no number."""
        if timeout is None:
            text = os.environ.get(TIMEOUT_VARIABLE, "0")
            try:
                timeout = float(text)
            except ValueError:
                logger.warning("%s: %r is not a number of seconds", TIMEOUT_VARIABLE, text)
                return None
        return cls(timeout) if timeout > 0 else None

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(_MAX_INTERVAL, self._timeout / 4)

    def stuck(self, pids: Mapping[int, int]) -> dict[int, float]:
        """Look at processes; those that sleep for too long, with the seconds.

        Args:
            pids: process ids, by local rank.
        """
        now = self._clock()
        asleep = {pid for pid in pids.values() if self._state(pid) == "D"}
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        return {
            pid: now - since for pid, since in self._since.items() if now - since >= self._timeout
        }


# How long SIGKILL may take to end processes, at least: freeing gigabytes, or what a GPU driver
# holds, takes longer than a short grace period.
_UNKILLABLE_SECONDS = 10.0


def _is_stopped(pid: int) -> bool:
    facts = proc.facts(pid)
    return facts is not None and facts.state == "T"


def plain_fault(fact: Exited | StartFailed) -> v.Fault:
    """In what way a worker failed, as far as its exit status alone tells."""
    return "died" if isinstance(fact, Exited) and fact.exitcode < 0 else "failure"


# On one node rank 0's store is reached over loopback, whatever the host's name resolves to.
LOOPBACK = "127.0.0.1"


def places_of(
    group: WorkerGroup, attempt: int, restart_count: int, run_id: str
) -> dict[int, WorkerPlace]:
    """Where every worker of a group stands, by local rank.

    Args:
        group: the group, after its rendezvous.
        attempt: number of the attempt.
        restart_count: restarts that counted.
        run_id: id of the run, where there is no rendezvous that has one.
    """
    spec, handler = group.spec, group.spec.rdzv_handler
    hostname = socket.gethostname()
    return {
        worker.local_rank: WorkerPlace(
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
            restart_count=restart_count,
            max_restarts=spec.max_restarts,
            run_id=handler.get_run_id() if handler is not None else run_id,
            attempt=attempt,
            hostname=hostname,
            use_agent_store=handler is not None and bool(handler.use_agent_store),
        )
        for worker in group.workers
    }


@dataclass(frozen=True)
class Recipe:
    """How the workers of an agent are started; attributes as for `LocalElasticAgent`."""

    logs_specs: LogsSpecs
    start_method: str
    log_line_prefix_template: str | None
    spawner: Spawner | None
    targets: Callable[[Mapping[str, str]], Target | Forked] | None
    env: Callable[[Mapping[str, str]], Mapping[str, str]] | None
    preload: Sequence[str]
    cwd: str | None
    spawner_cwd: str | None = None

    def context(
        self,
        spec: WorkerSpec,
        places: Mapping[int, WorkerPlace],
        more: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> PContext:
        """The processes of one attempt, not started yet.

        Args:
            spec: what they run.
            places: where they stand, by local rank.
            more: further variables, from a local rank.
        """
        envs = {
            rank: {**self.environment(spec, place), **more(rank)} for rank, place in places.items()
        }
        common: dict[str, Any] = {
            "name": spec.role,
            "envs": envs,
            "logs_specs": self.logs_specs,
            "log_line_prefixes": self._prefixes(places),
            "duplicate_stdout_filters": spec.duplicate_stdout_filters,
            "duplicate_stderr_filters": spec.duplicate_stderr_filters,
            "handle_signals": False,
        }
        if self.targets is not None:
            made = {rank: self.targets(place.facts()) for rank, place in places.items()}
            forked = {rank: target for rank, target in made.items() if isinstance(target, Forked)}
            if forked:
                return _forked_context(forked, spec.get_entrypoint_name(), common)
            return TargetContext(
                targets={r: target for r, target in made.items() if not isinstance(target, Forked)},
                spawner=self.spawner,
                start_method=self.start_method,
                preload=self.preload,
                cwd=self.cwd,
                spawner_cwd=self.spawner_cwd,
                entrypoint=spec.get_entrypoint_name(),
                **common,
            )
        common["args"] = {rank: substitute_local_rank(spec.args, rank) for rank in places}
        common["numa_options"] = spec.numa_options
        if isinstance(spec.entrypoint, str):
            return SubprocessContext(entrypoint=spec.entrypoint, **common)
        assert spec.entrypoint is not None
        method = self.start_method
        return MultiprocessContext(entrypoint=spec.entrypoint, start_method=method, **common)

    def environment(self, spec: WorkerSpec, place: WorkerPlace) -> dict[str, str]:
        """The variables of one worker, on top of the launcher's."""
        env = contract(place, os.environ)
        if self.env is not None:
            env |= self.env(place.facts())
        if spec.virtual_local_rank:
            env |= virtual_rank(place.local_rank, {**os.environ, **env})
        return env

    def _prefixes(self, places: Mapping[int, WorkerPlace]) -> dict[int, str] | None:
        if not self.log_line_prefix_template:
            return None
        template = Template(self.log_line_prefix_template)
        return {rank: template.safe_substitute(place.facts()) for rank, place in places.items()}


def _forked_context(
    targets: Mapping[int, Forked], entrypoint: str, common: Mapping[str, Any]
) -> PContext:
    from lllaunch.multiprocessing.forked_context import (  # noqa: PLC0415 - the rarest start method
        ForkedContext,
    )

    return ForkedContext(targets=targets, entrypoint=entrypoint, **common)


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
        self._carry_out(decision)
        return []

    def _carry_out(self, decision: v.Decision) -> None:
        """Carry out a decision that starts nothing and ends no run; waits for nothing."""
        if isinstance(decision, v.Pause):
            self._deadlines.clear()
            self._deadlines.restart("pause", decision.seconds)
            return
        context = self._pcontext
        assert context is not None
        if isinstance(decision, v.SignalWorkers):
            context.signal(decision.signum)
            if any(_is_stopped(pid) for pid in context.known_pids().values()):
                # One that is stopped would take notice of nothing but SIGKILL.
                context.signal(signal.SIGCONT)
        elif isinstance(decision, v.StartGrace):
            self._deadlines.start("grace", self._shutdown_timeout)
        elif isinstance(decision, v.KillWorkers):
            context.kill()
            # The bound on the wait for what cannot be killed; `StartGrace` follows and leaves it.
            self._deadlines.restart("grace", max(self._shutdown_timeout, _UNKILLABLE_SECONDS))
        elif isinstance(decision, v.TakeStacks):
            self._guard.take_stacks(decision.ranks, decision.finding)
        elif isinstance(decision, v.SignalProcess):
            self._guard.signal(decision)
        elif isinstance(decision, v.AbandonWorkers):
            pids = [context.known_pids().get(rank) for rank in sorted(decision.ranks)]
            logger.error("SIGKILL does not end the processes %s; they are abandoned", pids)
        elif isinstance(decision, v.SweepLeftovers):
            context.sweep()
            # They get SIGKILL at once, so this is for what hangs in the kernel.
            self._deadlines.restart("sweep", max(self._shutdown_timeout, _UNKILLABLE_SECONDS))

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
