"""One run, from its resolved description to its outcome: the entrance of `lllaunch.run`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.errors import ExitCode, LaunchError, OutputError
from lllaunch.files import write_atomic
from lllaunch.linux.cgroup import Memory, read_memory, shortage
from lllaunch.locks import PATIENCE
from lllaunch.run.directory import EVENTS, PLAN, RESULT, SAMPLES, RunDirectory, forget_result
from lllaunch.run.events import EventLog
from lllaunch.run.group import RunGroup
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
from lllaunch.spawner.forks import NOTICE
from lllaunch.spec import ENABLE_FILE_TIMER, Std

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lllaunch.console.console import Console
    from lllaunch.run.build import Build, Host
    from lllaunch.run.nodes import RunNodes
    from lllaunch.run.result import RunResult
    from lllaunch.run.submission import BatchJob
    from lllaunch.spawner.protocol import Target
    from lllaunch.spec import LaunchSpec


def host_facts(memory: Memory) -> Host:
    """Returns name, kernel, CPUs, memory and the Python version."""
    from lllaunch.run.build import Host  # noqa: PLC0415 - see `RunObserver`

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
    # tells what the code is that ran (`lllaunch.run.build`); asked in the end
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
        events = EventLog(directory.file(EVENTS), self._warn, self.redact)
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
        from lllaunch.run.judge import result_of  # noqa: PLC0415 - as above

        outcome = result_of(observer, self.spec, self.plan_hash, self._started_ns, signum)
        outcome = replace(
            complete(outcome, failure, self.redact),
            host=host_facts(self._memory),
            build=None if self.build is None else self.build(),
        )
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
