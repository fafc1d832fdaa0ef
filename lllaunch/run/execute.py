"""One run, from its resolved description to its outcome: the entrance of `lllaunch.run`.

`Run` writes what a run leaves, whatever its end is; `RunGroup` takes its worker group through the
attempts.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import stat
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from lllaunch.clock import RunClock, now_ns
from lllaunch.documents import Record, decode_record
from lllaunch.errors import (
    ConfigError,
    Diagnostic,
    ExitCode,
    LaunchError,
    NotPicklable,
    OutputError,
    PreloadFailed,
    RendezvousFailed,
)
from lllaunch.events import PreloadBroken
from lllaunch.files import LineFile, read_text, write_atomic
from lllaunch.linux.cgroup import Memory, read_memory, shortage
from lllaunch.linux.proc import has_gpu_driver
from lllaunch.locks import PATIENCE
from lllaunch.run.directory import (
    EVENTS,
    PLAN,
    RESULT,
    SAMPLES,
    RunDirectory,
    forget_result,
    free_space,
)
from lllaunch.run.observer import RunObserver
from lllaunch.secret_names import redactor_for
from lllaunch.signal_source import (
    DEFAULT_SIGNALS,
    QUIET,
    SignalException,
    SignalSource,
    named_signals,
)
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.evidence import CRASH, CRASH_FILE
from lllaunch.spawner.forks import NOTICE
from lllaunch.spawner.interpreter import acts_at_import, in_common, told
from lllaunch.spawner.protocol import Function, Module, Program, Script, Target
from lllaunch.spec import ENABLE_FILE_TIMER, Std, WatchdogPolicy, substitute, to_map
from lllaunch.supervisor.environ import (
    LOOPBACK,
    HeldPort,
    WorkerContext,
    contract,
    store_can_be_served,
    virtual_rank,
)
from lllaunch.supervisor.machine import (
    PREFLIGHT_RANK,
    AttemptProgress,
    Machine,
    RestartHistory,
    StartWorkers,
)
from lllaunch.supervisor.supervisor import GroupHooks, GroupOptions, Supervisor
from lllaunch.supervisor.watchdog import WatchdogDriver
from lllaunch.text import size, spans
from lllaunch.watchdog.findings import limit_of
from lllaunch.watchdog.sampling import kernel_sleep
from lllaunch.watchdog.stall import look_interval
from lllaunch.workers.group import WorkerProcesses, start_processes
from lllaunch.workers.log_files import CONSOLE, LogsDest, announce, destinations
from lllaunch.workers.tail import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lllaunch.console.console import Console
    from lllaunch.linux.gpus import GpuMemoryWait
    from lllaunch.run.nodes import RunNodes
    from lllaunch.run.repository import Build, Host
    from lllaunch.run.result import RunResult
    from lllaunch.run.submission import BatchJob
    from lllaunch.spec import LaunchSpec
    from lllaunch.supervisor.control import RunControl
    from lllaunch.watchdog.findings import Finding

    Targeted = Mapping[int, Target]
    Envs = Mapping[int, Mapping[str, str]]

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# Of a watched run, seconds.
_LONGEST_CHECK = 60.0


def host_facts(memory: Memory) -> Host:
    """Returns name, kernel, CPUs, memory and the Python version."""
    from lllaunch.run.repository import Host  # noqa: PLC0415 - see `RunObserver`

    system = os.uname()
    return Host(
        hostname=socket.gethostname(),
        kernel=f"{system.sysname} {system.release} {system.machine}",
        cpus=len(os.sched_getaffinity(0)),
        memory=memory.total,
        memory_limit=memory.limit,
        python=sys.version.split()[0],
    )


@dataclass
class Run:
    """One run of an experiment; `execute` takes it from its resolved description to its outcome."""

    spec: LaunchSpec
    plan_text: str
    plan_hash: str
    console: Console
    # one that was started early; it stays open. None: one of the run's own
    spawner: Spawner | None = None
    target: Target | None = None  # what all workers run, instead of the entrypoint
    # tells what the code is that ran (`lllaunch.run.repository`); asked in the end
    build: Callable[[], Build] | None = None
    # the run's directory if it is claimed already; it stays so
    directory: RunDirectory | None = None
    # called with the exit code when all is written and shown, while signals are still kept from
    # having another effect
    ended: Callable[[int], None] | None = None
    # of several nodes, what all of them must have in common; redacted
    shared_plan: Mapping[str, Any] | None = None
    # the batch job that this is, or None. A signal that announces its end ends the run, as SIGTERM
    # does; and a run that has been in one before goes on counting its restarts
    job: BatchJob | None = None

    def __post_init__(self) -> None:
        self.redact = redactor_for(self.spec)
        self.nodes: RunNodes | None = None
        self._started_ns = now_ns()
        self._memory = read_memory()

    def execute(self) -> RunResult:
        """Runs the experiment to its end and says on the console what became of it.

        Claims the run's directory, writes plan.yaml, takes the worker group through its attempts,
        records every event and action in events.jsonl, and writes result.json in the end, whatever
        that end is. What goes wrong in lllaunch itself is told as one message and stands in the
        outcome, whose ``exit_code`` is the launcher's; nothing is raised for it.
        """
        spec, console = self.spec, self.console
        console.hide(self.redact)
        # those of this process that workers write to themselves, past any file
        shared: list[TextIO | None] = [
            stream
            for std, stream in ((Std.OUT, sys.stdout), (Std.ERR, sys.stderr))
            if not all(spec.redirects.get(rank, Std.NONE) & std for rank in range(spec.nproc))
        ]
        console.obey(spec.console, shared)
        if self.directory is not None:
            return self._perform(self.directory)
        try:
            claimed = RunDirectory.claim(spec.directory, PATIENCE, console.warning)
        except LaunchError as error:
            from lllaunch.run.result import RunResult  # noqa: PLC0415 - see `RunObserver`

            outcome = RunResult("error", int(error.exit_code), spec.directory, error=str(error))
            outcome = replace(outcome, started_ns=self._started_ns, ended_ns=now_ns())
            console.finished(outcome)
            return outcome
        with claimed:
            return self._perform(claimed)

    def _perform(self, directory: RunDirectory) -> RunResult:
        """Runs all attempts, then writes and shows the outcome."""
        spec, job = self.spec, self.job
        events = LineFile(directory.file(EVENTS), self._warn)
        observer = RunObserver(spec, events, self.console, self.redact, directory.file(SAMPLES))
        signum: int | None = None
        failure: tuple[str, int] | None = None
        if os.environ.get(ENABLE_FILE_TIMER) == "1" and not spec.watchdog.timers:
            text = f"{ENABLE_FILE_TIMER}=1 serves no timers here; set launch.watchdog.timers=true"
            self.console.warning(text)
        if spec.detected:
            taken = (f"{each.setting}={each.value} ({each.variable})" for each in spec.detected)
            self.console.note(f"from the environment: {', '.join(taken)}")
        source = SignalSource(
            spec.signals,
            quiet=QUIET,
            stops=True,
            notice=None if job is None else NOTICE,
            noticed=None if job is None else job.signalled,
        )
        with source as signals, _reserve() as reserve:
            try:
                forget_result(directory.path)
                plan = self.plan_text.encode("utf-8", "surrogateescape")
                write_atomic(directory.file(PLAN), plan)
                if job is not None and job.early is not None:
                    # there is no time to begin
                    job.signalled(job.early)
                    signum = signal.SIGTERM
                else:
                    signum = self._attempts(directory, observer, signals)
            except LaunchError as error:
                failure = str(error), error.exit_code
            except SignalException as error:
                signum = int(error.sigval)
            except KeyboardInterrupt:
                signum = signal.SIGINT
            except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with its result.json
                # what is no shortage, and has no words of ours, is a bug of ours
                worded = isinstance(error, OSError) and error.errno is None and str(error)
                bug = f"internal error\n{traceback.format_exc()}".rstrip()
                text = shortage(error) or worded or bug
                failure = text, ExitCode.ERROR
            reserve.close()
            # whatever it is that signals do otherwise
            with SignalSource({*spec.signals, *named_signals(DEFAULT_SIGNALS)}) as late:
                outcome = self._end(directory, observer, signum, failure, late)
            # a console that takes nothing
            with contextlib.suppress(SignalException), signals.raising():
                self.console.finished(outcome)
            observer.close()
            if self.ended is not None:
                self.ended(outcome.exit_code)
        return outcome

    def _attempts(
        self, directory: RunDirectory, observer: RunObserver, signals: SignalSource
    ) -> int | None:
        """Runs all attempts; returns the signal to the launcher that ended the run, or None."""
        if self.spec.nodes is not None:
            # the launcher of one node does without
            from lllaunch.run.nodes import RunNodes  # noqa: PLC0415

            self.nodes = RunNodes(self.spec, directory, observer, self.shared_plan or {})
        with contextlib.ExitStack() as stack:
            spawner = self.spawner or stack.enter_context(Spawner())
            # a launcher that is killed leaves workers for a moment: nobody else shall have it then
            spawner.hold(directory.locks)
            stack.callback(spawner.hold, ())
            return RunGroup(self, directory, observer, signals, spawner).run()

    def _end(
        self,
        directory: RunDirectory,
        observer: RunObserver,
        signum: int | None,
        failure: tuple[str, int] | None,
        signals: SignalSource,
    ) -> RunResult:
        """Completes the outcome and writes result.json."""
        from lllaunch.run.excerpts import complete  # noqa: PLC0415 - as above
        from lllaunch.run.judge import judge_attempt, summarize  # noqa: PLC0415 - as above

        spec, records, interrupted = self.spec, observer.records(), signum is not None
        attempts = [judge_attempt(record) for record in records[:-1]]
        attempts += [judge_attempt(record, interrupted=interrupted) for record in records[-1:]]
        outcome = summarize(
            attempts,
            directory=spec.directory,
            # where it comes from the environment, from where
            run_id=str(spec.sources.get(("run_id",), spec.run_id)),
            plan_hash=self.plan_hash,
            started_ns=self._started_ns,
            ended_ns=now_ns(),
            signum=signum,
            reason=observer.reason,
            limit=observer.limit,
            no_progress=observer.no_progress,
            importing=spec.imports if interrupted and observer.is_importing else (),
            look=observer.look,
            detected=spec.detected,
            host=host_facts(self._memory),
            build=None if self.build is None else self.build(),
        )
        outcome = complete(outcome, failure, self.redact)
        outcome = self._write(outcome, directory.file(RESULT))
        if self.nodes is None:
            return outcome
        whole = self.nodes.finish(outcome, signals)
        return outcome if whole is None else self._write(whole, self.nodes.file(RESULT))

    def _write(self, outcome: RunResult, path: str) -> RunResult:
        from lllaunch.run.result import encode_result  # noqa: PLC0415 - as above

        try:
            write_atomic(path, encode_result(outcome, self.redact))
        except OutputError as error:
            if not outcome.exit_code:
                return outcome.with_error(str(error), error.exit_code)
            # there is already something worse to tell
            self._warn(error)
        return outcome

    def _warn(self, error: OutputError) -> None:
        self.console.warning(str(error))


@contextlib.contextmanager
def _reserve() -> Iterator[contextlib.ExitStack]:
    """Keep as many descriptors as the end needs at a time, for imports and for its files."""
    with contextlib.ExitStack() as kept:
        for _ in range(8):
            with contextlib.suppress(OSError):
                kept.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield kept


def target_of(spec: LaunchSpec, facts: Mapping[str, str]) -> Target:
    """Returns what one worker runs; its facts stand for the ``${worker:...}`` in its arguments.

    Raises:
        NotPicklable: an argument of a function cannot be sent to the worker.
    """
    entrypoint = spec.entrypoint
    args = substitute(spec.args, facts)
    if entrypoint.form == "function":
        kwargs = dict(substitute(spec.kwargs, facts))
        try:
            call = pickle.dumps((args, kwargs), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickle raises whatever the object's own methods raise
            what = f"an argument of worker {facts.get('rank', '?')}"
            raise NotPicklable(what, f"{type(error).__name__}: {error}") from error
        return Function(entrypoint.name, entrypoint.qualname, call)
    argv = tuple(str(arg) for arg in args)
    if entrypoint.form == "script":
        # As it was written, where that means the same file: it is the script's sys.argv[0].
        same = os.path.join(spec.cwd, entrypoint.text) == entrypoint.name
        return Script(entrypoint.text if same else entrypoint.name, argv)
    if entrypoint.form == "module":
        return Module(entrypoint.name, argv)
    return Program(entrypoint.name, argv)


class _Remembered(Record, frozen=True):
    history: RestartHistory | None = None


def read_history(path: str) -> RestartHistory | None:
    """Return what became of the attempts of an earlier batch job of the same run.

    None if the file does not say. Restarts count in their own batch job only, so there is nothing
    in it of when they were.
    """
    for line in reversed((read_text(path) or "").split("\n")):
        if '"history": {' in line:
            # a line may be torn, or not be ours
            with contextlib.suppress(ValueError, RecursionError):
                found = decode_record(line.encode(), _Remembered).history
                if found is not None:
                    return replace(found, times_ns=())
    return None


class Attempt(Struct, frozen=True):
    """A new attempt's place, made before its workers start; mappings are by local rank.

    ``envs`` are the workers' variables, ``facts`` what is known of them
    (`lllaunch.spec.WORKER_NAMES`).
    """

    number: int
    path: str
    files: LogsDest
    facts: Mapping[int, Mapping[str, str]]
    envs: Envs = {}
    targets: Targeted = {}
    preflight_env: Mapping[str, str] = {}

    @property
    def preflight_log(self) -> str:
        """What the preflight writes, absolute."""
        return f"{self.path}/preflight.log"


class RunGroup:
    """The worker group of a run through its attempts; the observer knows what became of it.

    ``spawner``: stays open.
    """

    def __init__(
        self,
        run: Run,
        directory: RunDirectory,
        observer: RunObserver,
        signals: SignalSource,
        spawner: Spawner,
    ) -> None:
        self.spec = spec = run.spec
        self.nodes = run.nodes
        self.directory = directory
        self.observer = observer
        self.signals = signals
        self.spawner = spawner
        self._target = run.target
        # the batch job that goes on with a run of former ones
        self._job = run.job if run.job is not None and run.job.continues else None
        self._clock = RunClock()
        self._watchdog = WatchdogDriver(
            spec.watchdog,
            self._clock,
            observer.hide,
            kernel_sleep=kernel_sleep(),
            confirm=None if self.nodes is None else self._is_so_everywhere,
            samples=spec.samples,
            steps=spec.restart.looks_back,
        )
        observer.progress = self._watchdog.progress
        # whose memory is to be free before a restart
        self._uses_gpus = spec.restart.gpu_wait > 0 and has_gpu_driver()
        self._port: HeldPort | None = None
        self._attempt: Attempt | None = None
        self._checkpoint: Checkpoint | None = None
        if spec.restart.checkpoint is not None and spec.restart.looks_back:
            self._checkpoint = Checkpoint(os.path.join(spec.cwd, spec.restart.checkpoint))

    def run(self) -> int | None:
        """Runs all attempts; returns the signal to the launcher that ended the run, or None.

        Raises:
            ConfigError: the function is not there, or its arguments do not fit; nothing was
                started.
            PreloadFailed: a preload failed before anything was started.
            OutputError: a directory or file cannot be made.
            RendezvousFailed: the nodes could not meet for the first attempt.
            SignalException: a signal came while nothing could be done but wait.
        """
        spec = self.spec
        if self.nodes is not None:
            # torch is imported here while the spawner imports what the workers need
            self.spawner.configure(
                spawner_environment(spec), spec.spawner_cwd or spec.cwd, spec.imports
            )
            self.nodes.prepare()
        if self._target is None:
            _check(spec, self.spawner, self.observer, self.signals)
        # the directory may hold attempts of former runs
        first = self.directory.next_attempt()
        history = None
        if self._job is not None and spec.restart.looks_back:
            history = read_history(self.directory.file(EVENTS))
        machine = Machine(
            spec.max_restarts,
            policy=spec.restart,
            alone=self.nodes is None,
            first=first,
            earlier=first if self._job is not None else 0,
            history=history,
            pauses=self._uses_gpus,
        )
        preflight = None if spec.preflight is None else spec.preflight.timeout
        supervisor = Supervisor(
            machine,
            GroupOptions(spec.nproc, spec.grace_period, spec.leftovers, preflight),
            GroupHooks(
                self._start,
                self.observer.observe,
                self._start_workers,
                self._control,
                self._progress if spec.restart.looks_back else None,
                self._wait_for_gpus if self._uses_gpus else None,
                self.observer.console,
            ),
            signals=self.signals,
            watchdog=self._watchdog,
            clock=self._clock,
            nodes=self.nodes,
        )
        polite = signal.SIGTERM
        try:
            end = supervisor.run()
        except SignalException as error:
            polite = error.sigval
            raise
        except RendezvousFailed as error:
            if self._attempt is None:
                raise
            # what the last attempt ended for is the cause
            self.observer.console.warning(f"there is no other attempt: {error}")
            return None
        finally:
            supervisor.close(polite)
            if self._port is not None:
                self._port.close()
        broken = self.observer.broken
        if broken is not None and end.signum is None:
            raise PreloadFailed(broken.module, broken.reason, broken.traceback)
        return end.signum

    def _start(self, action: StartWorkers) -> WorkerProcesses:
        """Start the workers of the next attempt, or their preflight."""
        places = self._contexts(self.directory.next_attempt(), action.restart_count)
        try:
            self._attempt = attempt = self._make(places)
            self.observer.begin(attempt)
            preflight = self.spec.preflight
            if preflight is None:
                return self._start_workers()
            log = {PREFLIGHT_RANK: attempt.preflight_log}
            program = preflight.program(self.spec.runtime_cwd)
            return self._launch(
                WorkerProcesses("preflight", 1, LogsDest(log, log), attempt=attempt.number),
                {PREFLIGHT_RANK: Program(program, tuple(preflight.command[1:]))},
                {PREFLIGHT_RANK: attempt.preflight_env},
            )
        except Exception as error:
            if self.nodes is not None:
                # they have met, and would wait for this one
                self.nodes.fail(str(error).partition("\n")[0])
            raise

    def _control(self) -> RunControl | None:
        """Let other processes ask about the run; None where that cannot be."""
        from lllaunch.supervisor.control import (  # noqa: PLC0415 - not for short runs
            ControlUnavailable,
            RunControl,
        )

        hide = self.observer.hide
        try:
            return RunControl(self.directory.path, hide, self.nodes)
        except OSError as error:
            self.observer.observe(ControlUnavailable(error.strerror or str(error)))
            return None

    def _make(self, places: Mapping[int, WorkerContext]) -> Attempt:
        """Make the place of an attempt."""
        spec, ranks = self.spec, range(self.spec.nproc)
        found = None if spec.min_disk is None else free_space(self.directory.path)
        if spec.min_disk is not None and found is not None and found[1] < spec.min_disk:
            raise LaunchError(
                f"launch.min_disk: {size(found[1])} are free on {found[0]!r}, where "
                f"{self.directory.path!r} is, and {size(spec.min_disk)} must be"
            )
        facts = {rank: place.macro_values() for rank, place in places.items()}
        envs = {rank: self._environment(places[rank]) for rank in ranks}
        preflight_env = _variables(spec, places[0])
        targets = {rank: self._target or target_of(spec, facts[rank]) for rank in ranks}
        number, path = self.directory.make_attempt(spec.nproc, places[0].attempt)
        announce(envs, path)
        for rank, env in envs.items():
            env[CRASH_FILE] = f"{path}/{rank}/{CRASH}"
        redirects, tee = (to_map(masks, spec.nproc) for masks in (spec.redirects, spec.tee))
        shown = None if spec.local_ranks_filter is None else {*chain(*spec.local_ranks_filter)}
        files = destinations(path, redirects, tee, shown)
        return Attempt(number, path, files, facts, envs, targets, preflight_env)

    def _start_workers(self) -> WorkerProcesses:
        """Start the workers of the attempt, whose preflight has succeeded if it has one."""
        attempt = self._attempt
        assert attempt is not None
        if self._checkpoint is not None:
            self._checkpoint.look()
        spec, files = self.spec, attempt.files
        # the local ranks whose lines can reach the console
        shown = {*files.tee_stdouts, *files.tee_stderrs}
        for paths in (files.stdouts, files.stderrs):
            shown |= {rank for rank, path in paths.items() if path == CONSOLE}
        prefixes = None
        if spec.log_line_prefix is not None:
            prefixes = {
                rank: substitute(spec.log_line_prefix, known)
                for rank, known in attempt.facts.items()
            }
        how = Shown(
            prefixes,
            partial(_header, spec, attempt.facts, len(shown) > 1),
            collapse=prefixes is None if spec.collapse is None else spec.collapse,
            stdout_filters=spec.duplicate_stdout_filters or (),
            stderr_filters=spec.duplicate_stderr_filters or (),
            report=lambda _, text: self.observer.console.warning(text),
        )
        workers = WorkerProcesses(spec.role, spec.nproc, files, how, attempt=attempt.number)
        fresh = spec.start_method == "spawn"
        return self._launch(workers, attempt.targets, attempt.envs, fresh=fresh)

    def _launch(
        self, workers: WorkerProcesses, targets: Targeted, envs: Envs, *, fresh: bool = False
    ) -> WorkerProcesses:
        """Start processes by the spawner of the run, which serves their store."""
        spec = self.spec
        start_processes(
            workers,
            targets,
            envs,
            environ=spawner_environment(spec),
            spawner=self.spawner,
            fresh=fresh,
            preload=spec.imports,
            cwd=spec.cwd,
            spawner_cwd=spec.spawner_cwd,
        )
        workers.serve_store(self._port)
        return workers

    def _progress(self, ran: bool) -> AttemptProgress:
        """Return how far an attempt has come that is over; ``ran`` if its workers were started."""
        checkpoint = self._checkpoint if ran else None
        changed = False if checkpoint is None else checkpoint.has_changed()
        return AttemptProgress(self._watchdog.furthest_step(), changed, now_ns(), ran)

    def _wait_for_gpus(self, pids: frozenset[int]) -> GpuMemoryWait | None:
        """Wait until processes of the last attempt hold no memory on GPUs; None if none does."""
        seen = self._watchdog.visible.values()
        if all(visible is not None and not visible.strip() for visible in seen):
            # there are none for them
            return None
        from lllaunch.linux.gpus import GpuMemoryWait  # noqa: PLC0415 - seldom

        return GpuMemoryWait.begin(pids, self.spec.restart.gpu_wait)

    def _contexts(self, attempt: int, restart_count: int) -> dict[int, WorkerContext]:
        """Where all workers stand, by local rank; of several nodes, when those have met."""
        if self.nodes is not None:
            place = self.nodes.join(self.signals, attempt, restart_count)
            common: dict[str, Any] = {
                "attempt": max(attempt, place.attempt),
                "restart_count": place.restarts,
                "master_addr": place.master_addr,
                "master_port": place.master_port,
                "use_agent_store": place.use_agent_store,
                "group_rank": place.group_rank,
                "group_world_size": place.size,
                "world_size": place.share.world_size,
                "role_world_size": place.share.role_world_size,
            }
            base, role_base = place.share.base_rank, place.share.base_role_rank
        else:
            # A new one per attempt: sockets of the last may linger.
            if self._port is not None:
                self._port.close()
            served = store_can_be_served()
            self._port = HeldPort(listens=served)
            common = {
                "attempt": attempt,
                "restart_count": restart_count,
                "master_addr": LOOPBACK,
                "master_port": self._port.port,
                "use_agent_store": served,
            }
            base = role_base = 0
        common["hostname"] = socket.gethostname()
        return {
            rank: replace(
                _context_before(self.spec, rank),
                rank=base + rank,
                role_rank=role_base + rank,
                **common,
            )
            for rank in range(self.spec.nproc)
        }

    def _environment(self, place: WorkerContext) -> dict[str, str]:
        env = _variables(self.spec, place)
        if self.spec.virtual_local_rank:
            env |= virtual_rank(place.local_rank, {**os.environ, **env})
        return {**env, **self._watchdog.environment(place.local_rank, env)}

    def _is_so_everywhere(self, finding: Finding) -> bool:
        assert self.nodes is not None
        name = limit_of(finding)
        limit = getattr(self.spec.watchdog, name)
        seconds = limit.shortest if name == "progress" else limit
        # Two looks of another node, which has the same limits.
        valid = 2 * look_interval(seconds) + 2.0
        return self.nodes.are_all_idle(name, valid)


def _header(
    spec: LaunchSpec, facts: Mapping[int, Mapping[str, str]], several: bool, ranks: Sequence[int]
) -> str:
    """Return what stands on the console before a line."""
    # what differs between the workers of one node
    numbers = {
        name: spans(int(facts[rank][name]) for rank in ranks).replace(" ", "")
        for name in ("rank", "local_rank", "role_rank")
    }
    if spec.log_line_prefix is not None:
        return substitute(spec.log_line_prefix, {**facts[ranks[0]], **numbers})
    if not several:
        return ""
    return f"[{spec.role}{' ' if len(ranks) > 1 else ''}{numbers['local_rank']}]:"


def spawner_environment(spec: LaunchSpec) -> dict[str, str]:
    """Returns the environment that the run asks its spawner for.

    Runs whose spawners have the same, the same working directory and the same preloads can share
    one. What the config says for all workers is in it as it is written there: what differs between
    workers or attempts, by ``${worker:…}``, each worker is told.
    """
    envs = [spec.env_of(rank) for rank in range(spec.nproc)]
    known = contract(_context_before(spec, 0), os.environ)
    threads = {name: text for name, text in known.items() if acts_at_import(name)}
    return {**os.environ, **threads, **in_common(envs)}


def _check(
    spec: LaunchSpec, spawner: Spawner, observer: RunObserver, signals: SignalSource
) -> None:
    """Lets the spawner import the function and bind its arguments, before any attempt is made."""
    if spec.entrypoint.form != "function" or spec.entrypoint.decided:
        return
    target = target_of(spec, _context_before(spec, 0).macro_values())
    assert isinstance(target, Function)
    observer.console.doing(f"importing {', '.join((*spec.imports, target.module))}")

    def show() -> float | None:
        observer.console.tick()
        return observer.console.next_in()

    with signals.raising():
        # as the workers' own start does, so that the preloads are paid for once
        spawner.configure(spawner_environment(spec), spec.spawner_cwd or spec.cwd, spec.imports)
        problem = spawner.check_function(
            target,
            env=told(worker_environment(spec, 0)),
            cwd=spec.cwd,
            seconds=patience(spec.watchdog),
            meanwhile=show,
        )
    for event in spawner.dispatch():
        observer.observe(event)
        if isinstance(event, PreloadBroken):
            raise PreloadFailed(event.module, event.reason, event.traceback)
    # More than a line is the traceback of code that failed while it was imported: no matter of
    # the config, and its attempt will show it whole.
    if problem and "\n" not in problem:
        what, text = repr(spec.entrypoint.text), f"cannot be run: {problem}"
        raise ConfigError((Diagnostic("entrypoint", "launch.entrypoint", what, text),))


def patience(policy: WatchdogPolicy) -> float | None:
    """How long to wait for imports before an attempt: one that hangs is the attempt's to show.

    In seconds; None for as long as they take, where the run is not watched.
    """
    names = {"stall", "silence", "spin", "timeout", "run_timeout"} - policy.report
    known = [limit for name in names if (limit := getattr(policy, name)) is not None]
    others = (policy.heartbeat, policy.memory, policy.progress)
    watched = known or policy.timers or any(each is not None for each in others)
    return min([_LONGEST_CHECK, *known]) if watched else None


def _context_before(spec: LaunchSpec, rank: int) -> WorkerContext:
    """Where a worker will stand, as far as that is known before the attempt."""
    size = spec.nproc
    return WorkerContext(
        local_rank=rank,
        rank=rank,
        role_rank=rank,
        role_name=spec.role,
        local_world_size=size,
        world_size=size,
        role_world_size=size,
        max_restarts=spec.max_restarts,
        run_id=spec.run_id,
    )


def worker_environment(spec: LaunchSpec, rank: int) -> dict[str, str]:
    """Returns the variables that a worker gets on top of the launcher's own."""
    return _variables(spec, _context_before(spec, rank))


def _variables(spec: LaunchSpec, place: WorkerContext) -> dict[str, str]:
    own = substitute(spec.env_of(place.local_rank), place.macro_values())
    env = contract(place, os.environ) | dict(own)
    # where a host's own name leads to 127.0.1.1, gloo would take that for its address
    interface = None if spec.nodes is None else spec.nodes.interface
    if interface is not None and GLOO_INTERFACE not in os.environ:
        env.setdefault(GLOO_INTERFACE, interface)
    return env


# The launcher waits while it looks, so that there are bounds: of files and directories, and seconds
# where a file server is slow.
MOST_ENTRIES = 10_000
_SECONDS = 0.5


class Checkpoint:
    """The path that an experiment saves its state under: a file or a directory, or nothing yet."""

    def __init__(self, path: str, most: int | None = None) -> None:
        self._path = path
        self._most = MOST_ENTRIES if most is None else most

    def look(self) -> None:
        """Take note of what is there."""
        self._before, self._whole = self._now()

    def has_changed(self) -> bool | None:
        """Return whether a file has come or was written since; None if there is too much to tell.

        What has gone is no change: old checkpoints are removed, and what was left half written.
        """
        newest = max((file[0] for file in self._before), default=0)
        now, whole = self._now()
        # one that is not newer may have been there, beyond those that were looked at
        if any(self._whole or file[0] > newest for file in now - self._before):
            return True
        return False if self._whole and whole else None

    def _now(self) -> tuple[set[tuple[int, int, int, str]], bool]:
        """Return when each file or link was written or renamed, and if these are all files."""
        files: set[tuple[int, int, int, str]] = set()
        end = time.monotonic() + _SECONDS
        below = (
            os.path.join(top, name)
            for top, directories, names in os.walk(self._path)
            for name in (*names, *directories)
        )
        # where the path itself leads counts, too
        for seen, path in enumerate(chain((self._path, os.path.realpath(self._path)), below)):
            if seen > self._most or time.monotonic() > end:
                return files, False
            with contextlib.suppress(OSError):  # it has gone meanwhile
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode):
                    files.add((found.st_ctime_ns, found.st_size, found.st_ino, path))
        return files, True
