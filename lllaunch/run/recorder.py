"""Takes note of every fact and decision of a run, as they happen.

The `Recorder` is the agent's observer. It writes everything to events.jsonl, keeps what
`lllaunch.run.judge` needs, and reads evidence that would be gone later: the memory counters at the
moment at which a worker's unexpected SIGKILL becomes known.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lllaunch.linux.oom import UNKNOWN, Memory, read_memory
from lllaunch.run.excerpts import read_error
from lllaunch.run.records import AttemptRecord, SentSignal, WorkerFiles, WorkerRecord
from lllaunch.spawner.facts import Died, Exited, PreloadBroken, Started, StartFailed, Swept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lllaunch.run.logs import Attempt
    from lllaunch.run.records import WorkerError
    from lllaunch.spawner.facts import Leftover

# Ends that memory has to do with: SIGBUS by way of a full /dev/shm.
_MEMORY_SIGNALS = {-signal.SIGKILL, -signal.SIGBUS}


@dataclass
class _Worker:
    """One worker of the current attempt, as far as it is known."""

    local_rank: int
    rank: int
    files: WorkerFiles
    started: Started | None = None
    start_failed: StartFailed | None = None
    exited: Exited | None = None
    sent: list[SentSignal] = field(default_factory=list)
    abandoned: bool = False
    memory: Memory = UNKNOWN

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None

    def record(self, hide: Callable[[str], str]) -> WorkerRecord:
        return WorkerRecord(
            local_rank=self.local_rank,
            rank=self.rank,
            files=self.files,
            started=self.started,
            start_failed=self.start_failed,
            exited=self.exited,
            sent=tuple(self.sent),
            abandoned=self.abandoned,
            error=self._error(hide),
            memory=self.memory,
        )

    def _error(self, hide: Callable[[str], str]) -> WorkerError | None:
        if self.exited is None or self.exited.exitcode == 0 or not self.files.error:
            return None
        return read_error(self.files.error, hide)


@dataclass
class _Attempt:
    """One attempt, as far as it is known."""

    number: int
    restart_count: int
    path: str
    started_ns: int
    workers: dict[int, _Worker]
    memory: Memory
    ended_ns: int = 0
    died: Died | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Leftover, ...] = ()
    stuck: bool = False

    def record(self, hide: Callable[[str], str]) -> AttemptRecord:
        return AttemptRecord(
            number=self.number,
            restart_count=self.restart_count,
            path=self.path,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            workers=tuple(worker.record(hide) for worker in self.workers.values()),
            memory=self.memory,
            died=self.died,
            died_ns=self.died_ns,
            died_memory=self.died_memory,
            broken=self.broken,
            leftovers=self.leftovers,
            stuck=self.stuck,
        )


class Recorder:
    """What is known of a run so far.

    Args:
        hide: applied to what workers wrote before it is kept.
        read: reads the machine's memory counters.
    """

    def __init__(
        self,
        hide: Callable[[str], str] = str,
        read: Callable[[], Memory] = read_memory,
    ) -> None:
        self._hide = hide
        self._read = read
        self._attempts: list[_Attempt] = []

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt's directories were made; its workers are about to start."""
        workers = {
            local_rank: _Worker(
                local_rank,
                _number(env, "RANK", local_rank),
                WorkerFiles(
                    directory=f"{attempt.path}/{local_rank}",
                    stdout=_file(attempt.dest.stdouts, local_rank),
                    stderr=_file(attempt.dest.stderrs, local_rank),
                    error=_file(attempt.dest.error_files, local_rank),
                ),
            )
            for local_rank, env in sorted(attempt.envs.items())
        }
        self._attempts.append(
            _Attempt(
                number=attempt.number,
                restart_count=_number(attempt.envs.get(0, {}), "TORCHELASTIC_RESTART_COUNT", 0),
                path=attempt.path,
                started_ns=time.time_ns(),
                workers=workers,
                memory=self._read(),
            )
        )

    def fact(self, fact: object) -> None:
        """Notes what the spawner told."""
        if not self._attempts:
            return
        attempt = self._attempts[-1]
        if isinstance(fact, (Started, StartFailed, Exited)):
            attempt.ended_ns = max(attempt.ended_ns, fact.time_ns)
            worker = attempt.workers.get(fact.rank)
            if worker is not None:
                self._worker_fact(worker, fact)
        elif isinstance(fact, Died):
            attempt.died, attempt.died_ns = fact, time.time_ns()
            attempt.died_memory = self._read()
            attempt.ended_ns = attempt.died_ns
        elif isinstance(fact, PreloadBroken):
            attempt.broken, attempt.ended_ns = fact, time.time_ns()
        elif isinstance(fact, Swept):
            attempt.leftovers += fact.leftovers

    def _worker_fact(self, worker: _Worker, fact: Started | StartFailed | Exited) -> None:
        if isinstance(fact, Started):
            worker.started = fact
        elif isinstance(fact, StartFailed):
            worker.start_failed = fact
        else:
            worker.exited = fact
            if fact.exitcode in _MEMORY_SIGNALS and not worker.sent:
                worker.memory = self._read()

    def sent(self, signum: int, ranks: Iterable[int] | None = None) -> None:
        """Notes that a signal is about to be sent to workers.

        Args:
            signum: the signal.
            ranks: local ranks; None for all that are alive.
        """
        if not self._attempts:
            return
        workers = self._attempts[-1].workers
        signal_ = SentSignal(int(signum), time.time_ns())
        for local_rank in workers if ranks is None else ranks:
            worker = workers.get(local_rank)
            if worker is not None and worker.live:
                worker.sent.append(signal_)

    def abandoned(self, ranks: Iterable[int]) -> None:
        """Notes that nobody waits any longer for the ends of these local ranks."""
        for local_rank in ranks:
            self._attempts[-1].workers[local_rank].abandoned = True

    def stuck(self) -> None:
        """Notes that workers of the current attempt hang in the kernel."""
        self._attempts[-1].stuck = True

    @property
    def alive(self) -> int:
        """How many workers of the current attempt were ordered and are not known to have ended."""
        if not self._attempts:
            return 0
        workers = self._attempts[-1].workers.values()
        return sum(1 for each in workers if each.live)

    def records(self) -> list[AttemptRecord]:
        """Returns what is known of every attempt; reads the error files of workers that failed."""
        return [attempt.record(self._hide) for attempt in self._attempts]


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


def _file(files: Mapping[int, str], rank: int) -> str:
    """Returns the file of a rank, an empty string where its stream goes elsewhere."""
    path = files.get(rank, "")
    return "" if path == "/dev/null" else path
