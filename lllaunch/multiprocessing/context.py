"""The n processes of one entrypoint, which share one fate, for an event loop; and torch's class.

Nothing here blocks: a caller waits for `fileno` and calls `dispatch`. `PContext` adds the methods
of torch's class, which wait.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Any, TextIO

from lllaunch.errors import PreloadFailed, SpawnerDied
from lllaunch.linux.process import wait_readable
from lllaunch.multiprocessing.errors import ProcessFailure
from lllaunch.multiprocessing.follow import Tees, open_filtered
from lllaunch.multiprocessing.signals import SignalException, SignalSource
from lllaunch.spawner.protocol import Died, Exited, Fact, PreloadBroken, Started, StartFailed, Swept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lllaunch.multiprocessing.logs import LogsSpecs
    from lllaunch.spawner.starter import Starter


# Exit codes of a program that could not be executed, as shells have them.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_ENOENT = 2


@dataclass
class RunProcsResult:
    """Results of processes started with `start_processes`; every field is by local rank.

    Attributes:
        return_values: what functions returned; None for programs.
        failures: the workers that failed. Those that were ended because another failed are not
            among them.
        stdouts: path of the file that stdout went to; empty if it was not redirected.
        stderrs: the same for stderr.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any worker failed."""
        return bool(self.failures)


def judge(
    exits: Mapping[int, Exited | StartFailed],
    error_files: Mapping[int, str],
    terminated_by: Mapping[int, int],
    at_fault: Mapping[int, str] | None = None,
) -> dict[int, ProcessFailure]:
    """The failures among the ends of workers, the root cause first.

    Args:
        exits: how each ended.
        error_files: where each would have left its error.
        terminated_by: the last signal that each was sent by us. One that ended by it is no failure.
        at_fault: those that failed all the same, and why: they hung, for instance.
    """
    found, blamed = {}, at_fault or {}
    for rank, end in exits.items():
        error_file = error_files.get(rank, "")
        if isinstance(end, StartFailed):
            exitcode = _NOT_FOUND if end.errno == _ENOENT else _NOT_EXECUTABLE
            failure = ProcessFailure(rank, -1, exitcode, error_file, exit_time_ns=end.time_ns)
            where = f"{end.path!r}: " if end.path else ""
            failure.message = f"worker {rank} could not be started: {where}{end.reason}"
        elif rank not in blamed and end.exitcode in (0, -terminated_by.get(rank, 0)):
            continue
        else:
            failure = ProcessFailure(
                rank, end.pid, end.exitcode, error_file, exit_time_ns=end.time_ns
            )
            failure.message = blamed.get(rank, failure.message)
        found[rank] = failure
    return dict(sorted(found.items(), key=lambda item: item[1].timestamp_ns))


def validate_full_rank(mapping: Mapping[int, Any], nprocs: int, what: str) -> None:
    """Check that a mapping has exactly the local ranks 0 to ``nprocs - 1``.

    Raises:
        RuntimeError: ranks are missing or too many.
    """
    expected = set(range(nprocs))
    if set(mapping) != expected:
        missing, extra = sorted(expected - set(mapping)), sorted(set(mapping) - expected)
        raise RuntimeError(
            f"{what}: local rank mapping mismatch, expected ranks 0 to {nprocs - 1};"
            f" missing: {missing}, too many: {extra}"
        )


class WorkerProcesses(abc.ABC):
    """A set of processes, however they are launched; public attributes are torch's.

    Args:
        name: short name, the default header of teed lines.
        entrypoint: what runs, for messages and for those who look.
        args: arguments per local rank, every rank from 0 listed.
        envs: variables per local rank, on top of this process's environment.
        logs_specs: says which streams go where.
        log_line_prefixes: header of teed lines per local rank, instead of ``[<name><rank>]:``.
        duplicate_stdout_filters: teed lines of stdout that hold one of these texts go to
            ``filtered_stdout`` as well.
        duplicate_stderr_filters: the same for stderr.
        handle_signals: install handlers that raise `SignalException` when `start` is called from
            the main thread (torch's behaviour); a caller with its own handling says False.

    Raises:
        RuntimeError: ranks are missing.
        OutputError: a log directory or file cannot be made.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        *,
        handle_signals: bool = True,
        progbar_events: Mapping[str, Any] | None = None,
        interval_sec: float = 0.1,
    ) -> None:
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.nprocs = len(args)
        self.envs = {
            rank: {key: str(value) for key, value in env.items()} for rank, env in envs.items()
        }
        dest = logs_specs.reify(self.envs)
        validate_full_rank(dest.stdouts, self.nprocs, "stdouts")
        validate_full_rank(dest.stderrs, self.nprocs, "stderrs")
        self.stdouts, self.stderrs = dest.stdouts, dest.stderrs
        self.error_files = dest.error_files
        self.filtered_stdout: TextIO | None = None
        self.filtered_stderr: TextIO | None = None
        self.exits: dict[int, Exited | StartFailed] = {}
        self.observer: Callable[[Fact], None] | None = None
        self._pids: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        self._terminated_by: dict[int, int] = {}
        self._died: Died | None = None
        self._broken: PreloadBroken | None = None
        self._swept = False
        self._released = False
        self._starter: Starter | None = None
        self._handle_signals = handle_signals
        self._handlers = contextlib.ExitStack()

        tees = Tees(name, log_line_prefixes, progbar_events, interval_sec)
        tees.show(dest.tee_stdouts, sys.stdout)
        tees.show(dest.tee_stderrs, sys.stderr)
        if duplicate_stdout_filters:
            self.filtered_stdout = open_filtered(dest.filtered_stdout)
            tees.show(dest.tee_stdouts, self.filtered_stdout, duplicate_stdout_filters)
        if duplicate_stderr_filters:
            self.filtered_stderr = open_filtered(dest.filtered_stderr)
            tees.show(dest.tee_stderrs, self.filtered_stderr, duplicate_stderr_filters)
        self._tees = tees

    # Starting

    def start(self) -> None:
        """Start the processes. They run when this returns, or their failure is known to `wait`."""
        if self._handle_signals:
            self._handlers.enter_context(SignalSource(raises=True))
        self._start()
        self._tees.start()

    @abc.abstractmethod
    def _start(self) -> None:
        """Order the processes; sets ``_starter`` and ``_keys``."""

    # Without blocking

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        assert self._starter is not None
        return self._starter.fileno()

    def dispatch(self) -> tuple[Fact, ...]:
        """Take note of what happened since the last call, without waiting; the facts."""
        if self._starter is None:
            return ()
        facts = self._starter.dispatch()
        for fact in facts:
            if self.observer is not None:
                self.observer(fact)
            if isinstance(fact, Started):
                self._pids[fact.rank] = fact.pid
            elif isinstance(fact, (Exited, StartFailed)):
                self.exits[fact.rank] = fact
            elif isinstance(fact, Swept):
                self._swept = True
            elif isinstance(fact, PreloadBroken):
                self._broken = fact
            elif isinstance(fact, Died):
                self._died = fact
        return tuple(facts)

    @property
    def parent(self) -> int:
        """Process id of the workers' parent; 0 before they are started."""
        return 0 if self._starter is None else self._starter.pid

    @property
    def alive(self) -> frozenset[int]:
        """Local ranks that are not known to have ended."""
        if self._died is not None or self._broken is not None or self._starter is None:
            return frozenset()
        return frozenset(self._keys) - frozenset(self.exits)

    def signal(self, signum: int, ranks: Iterable[int] | None = None) -> None:
        """Send a signal to the process groups of live workers.

        Args:
            signum: the signal.
            ranks: local ranks; None for all.
        """
        chosen = self.alive if ranks is None else self.alive.intersection(ranks)
        if chosen and self._starter is not None:
            self._terminated_by.update(dict.fromkeys(chosen, int(signum)))
            self._starter.signal([self._keys[rank] for rank in sorted(chosen)], signum)

    def stop_or_continue(self, signum: int) -> None:
        """Send SIGSTOP or SIGCONT to the process groups of live workers; it ends none of them."""
        if self.alive and self._starter is not None:
            self._starter.signal([self._keys[rank] for rank in sorted(self.alive)], signum)

    def kill(self) -> None:
        """SIGKILL the live workers and all that descends from them."""
        chosen = self.alive
        if chosen and self._starter is not None:
            self._terminated_by.update(dict.fromkeys(chosen, int(Signals.SIGKILL)))
            self._starter.kill([self._keys[rank] for rank in sorted(chosen)])

    def sweep(self) -> None:
        """Ask for the end of what the workers left behind; a `Swept` fact follows."""
        if self._starter is not None:
            self._starter.sweep()

    def result(self, at_fault: Mapping[int, str] | None = None) -> RunProcsResult:
        """What became of the processes, once none is alive.

        Args:
            at_fault: local ranks that this process ended because they hung, and so failed, with
                a message for each; None if nothing like that was.

        Raises:
            SpawnerDied: the spawner was killed; nothing is known of the workers but that they are
            dead. PreloadFailed: a preload could not be imported.
        """
        if self._broken is not None:
            raise PreloadFailed(self._broken.module, self._broken.reason, self._broken.traceback)
        if self._died is not None and len(self.exits) < self.nprocs:
            raise SpawnerDied(self._died.pid, self._died.status, self._died.detail)
        failures = judge(self.exits, self.error_files, self._terminated_by, at_fault)
        complete = at_fault is None and len(self.exits) == self.nprocs
        values = self._return_values() if complete and not failures else {}
        return RunProcsResult(values, failures, self.stdouts, self.stderrs)

    def _return_values(self) -> dict[int, Any]:
        """Return values by local rank; programs have none."""
        return dict.fromkeys(range(self.nprocs))

    def release(self) -> None:
        """Show what is left of the output and close files; idempotent.

        Workers that live all the same, and what is still being swept, are given up: others may use
        the same spawner, and must not take late ends for those of their own workers.
        """
        if self._released:
            return
        self._released = True
        if self._starter is not None:
            self._starter.abandon([self._keys[rank] for rank in self.alive])
        self._tees.stop()
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file is not None:
                file.close()
        self._handlers.close()


__all__ = ["PContext", "validate_full_rank"]

logger = logging.getLogger(__name__)

# How long SIGKILL may take to end processes, at least, before they are given up.
_UNKILLABLE_SECONDS = 10.0


class PContext(WorkerProcesses):
    """A set of processes that is waited for; see `WorkerProcesses` for its arguments.

    Public attributes and methods are those of torch's ``PContext``.
    """

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:  # noqa: ARG002
        """Wait until all processes succeeded or one failed; then end the others.

        Args:
            timeout: seconds; negative for ever, 0 only asks.
            period: torch's polling interval. Accepted, not needed: an exit wakes this up.

        Returns:
            The result, or None if the processes still run after ``timeout``.

        Raises:
            SignalException: a death signal arrived (see ``handle_signals``).
            SpawnerDied, PreloadFailed: see `result`.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            found = self._poll()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            wait_readable(self, left)

    def _poll(self) -> RunProcsResult | None:
        """The result if all succeeded or any failed, after ending the others; else None."""
        if self._starter is None:
            return None
        if not self._released:
            self.dispatch()
        failed = any(not _succeeded(end) for end in self.exits.values())
        if self.alive and not failed:
            return None
        self.close()
        return self.result()

    def pids(self) -> dict[int, int]:
        """Process ids by local rank; waits for starts that are under way."""
        while self._starter is not None and not self._released:
            waiting = self.alive - frozenset(self._pids)
            if not waiting:
                break
            wait_readable(self)
            self.dispatch()
        return dict(sorted(self._pids.items()))

    def known_pids(self) -> dict[int, int]:
        """Process ids by local rank, of those that are known to have started; does not wait."""
        return dict(self._pids)

    def watched_pids(self) -> dict[int, int]:
        """Process ids by local rank of the processes that live; does not wait.

        For one that is not known to have started, the process that is to start it, if there is one.
        """
        pids = {rank: self._pids.get(rank, self.starter_pid) for rank in sorted(self.alive)}
        return {rank: pid for rank, pid in pids.items() if pid}

    @property
    def starter_pid(self) -> int:
        """Id of the process that starts the others; 0 if that is this one, or nothing starts."""
        return getattr(self._starter, "pid", 0)

    def close(self, death_sig: Signals | None = None, timeout: float = 30) -> None:
        """End all processes and what they left behind; show the rest of their output.

        Args:
            death_sig: the polite signal, SIGTERM if not given.
            timeout: seconds after which SIGKILL follows.

        Raises:
            SignalException: one arrived meanwhile; all was killed at once and is gone.
        """
        interruption: BaseException | None = None
        if not self._released:
            try:
                self._terminate(death_sig or Signals.SIGTERM, timeout)
            except (SignalException, KeyboardInterrupt) as error:
                interruption = error
                self._kill_all(timeout)
            self._finish_sweep()
        self.release()
        if interruption is not None:
            raise interruption

    def _terminate(self, death_sig: Signals, timeout: float) -> None:
        self.signal(death_sig)
        if not self._until(lambda: not self.alive, timeout):
            logger.warning(
                "%s: ranks %s did not end within %s s of %s; killing them",
                self.name,
                sorted(self.alive),
                timeout,
                death_sig.name,
            )
            self._kill_all(timeout)

    def _kill_all(self, timeout: float) -> None:
        self.kill()
        # What sleeps uninterruptibly in the kernel cannot be killed, and must not be waited for.
        if not self._until(lambda: not self.alive, max(timeout, _UNKILLABLE_SECONDS)):
            pids = [self._pids.get(rank) for rank in sorted(self.alive)]
            logger.error("%s: SIGKILL does not end the processes %s; left behind", self.name, pids)

    def _finish_sweep(self) -> None:
        if self._swept or self._starter is None or not self._keys:
            return
        if self._died is None and self._broken is None:
            self.sweep()
            self._until(lambda: self._swept or self._died is not None, _UNKILLABLE_SECONDS)

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


def _succeeded(end: Exited | StartFailed) -> bool:
    return isinstance(end, Exited) and end.exitcode == 0
