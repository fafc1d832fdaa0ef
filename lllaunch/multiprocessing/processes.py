"""`Processes`: n processes of one entrypoint that share one fate, for an event loop.

Nothing here blocks: a caller waits for `fileno` and calls `dispatch`. `PContext` adds the methods
of torch's class, which wait.
"""

from __future__ import annotations

import abc
import contextlib
import sys
from signal import Signals
from typing import TYPE_CHECKING, Any, TextIO

from lllaunch.errors import PreloadFailed, SpawnerDied
from lllaunch.multiprocessing.results import RunProcsResult, judge
from lllaunch.multiprocessing.signals import SignalSource
from lllaunch.multiprocessing.tees import Tees, open_filtered
from lllaunch.spawner.protocol import (
    Died,
    Exited,
    Fact,
    PreloadBroken,
    Started,
    StartFailed,
    Swept,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lllaunch.multiprocessing.logs import LogsSpecs
    from lllaunch.spawner.starter import Starter


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


class Processes(abc.ABC):
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
