"""Takes note of every fact and decision of a run, as they happen.

The `Recorder` is the agent's observer. It writes everything to events.jsonl, keeps what
`lllaunch.run.judge` needs, and reads evidence that would be gone later: the memory counters at the
moment at which a worker's unexpected SIGKILL becomes known.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from lllaunch.linux.cgroup import Memory, read_memory
from lllaunch.moments import now_ns
from lllaunch.run.notes import NotedAttempt, NotedWorker
from lllaunch.run.records import Disk, SentSignal, WorkerFiles
from lllaunch.spawner.dump import CRASH
from lllaunch.spawner.protocol import (
    Died,
    Exited,
    PreloadBroken,
    Ready,
    Started,
    StartFailed,
    Swept,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lllaunch.agent.machine import (
        Fault,
        Finish,
        Reason,
        SignalProcess,
        StacksTaken,
        WatchdogFired,
    )
    from lllaunch.run.hang import Hang
    from lllaunch.run.logs import Attempt
    from lllaunch.run.records import AttemptRecord
    from lllaunch.watchdog.findings import Finding

# Ends that memory has to do with: SIGBUS by way of a full /dev/shm.
_MEMORY_SIGNALS = {-signal.SIGKILL, -signal.SIGBUS}


class Recorder:
    """What is known of a run so far.

    Args:
        hide: applied to what workers wrote before it is kept.
        read: reads the machine's memory counters.

    Attributes:
        reason: why the run did not succeed, once it is over; or None.
        limit: the limit of the run that was found to be over, or None.
        look: where the workers stood when a signal came that ends the run; or None.
        hide: applied to what workers wrote.
    """

    def __init__(
        self,
        hide: Callable[[str], str] = str,
        read: Callable[[], Memory] = read_memory,
    ) -> None:
        self.hide = hide
        self._read = read
        self._attempts: list[NotedAttempt] = []
        self.reason: Reason | None = None
        self.limit: Finding | None = None
        self.look: Hang | None = None
        self._ready = False

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt's directories were made; its workers are about to start."""
        workers = {
            local_rank: NotedWorker(
                local_rank,
                _number(env, "RANK", local_rank),
                WorkerFiles(
                    directory=f"{attempt.path}/{local_rank}",
                    stdout=_file(attempt.dest.stdouts, local_rank),
                    stderr=_file(attempt.dest.stderrs, local_rank),
                    error=_file(attempt.dest.error_files, local_rank),
                ),
                shown=local_rank in attempt.dest.tee_stderrs
                or attempt.dest.stderrs.get(local_rank) == "",
            )
            for local_rank, env in sorted(attempt.envs.items())
        }
        self._attempts.append(
            NotedAttempt(
                number=attempt.number,
                restart_count=_number(attempt.envs.get(0, {}), "TORCHELASTIC_RESTART_COUNT", 0),
                path=attempt.path,
                started_ns=now_ns(),
                workers=workers,
                memory=self._read(),
                master_port=attempt.envs.get(0, {}).get("MASTER_PORT", ""),
            )
        )

    @property
    def importing(self) -> bool:
        """Whether the workers of the current attempt have not started, since modules are imported.

        It stays so if the spawner was killed meanwhile.
        """
        if not self._attempts or self._ready:
            return False
        attempt = self._attempts[-1]
        lost = attempt.died is not None and not attempt.died.killed
        return not lost and not any(worker.started for worker in attempt.workers.values())

    def fact(self, fact: object) -> None:
        """Notes what the spawner told."""
        if isinstance(fact, (Ready, Died)):
            self._ready = isinstance(fact, Ready)
        if not self._attempts:
            return
        attempt = self._attempts[-1]
        if isinstance(fact, (Started, StartFailed, Exited)):
            attempt.ended_ns = max(attempt.ended_ns, fact.time_ns)
            worker = attempt.workers.get(fact.rank)
            if worker is not None:
                self._worker_fact(worker, fact)
        elif isinstance(fact, Died):
            attempt.died, attempt.died_ns = fact, now_ns()
            attempt.died_memory = self._read()
            attempt.ended_ns = attempt.died_ns
        elif isinstance(fact, PreloadBroken):
            attempt.broken, attempt.ended_ns = fact, now_ns()
        elif isinstance(fact, Swept):
            attempt.leftovers += fact.leftovers

    def _worker_fact(self, worker: NotedWorker, fact: Started | StartFailed | Exited) -> None:
        if isinstance(fact, Started):
            worker.started = fact
        elif isinstance(fact, StartFailed):
            worker.start_failed = fact
        else:
            worker.exited = fact
            _remove_empty(f"{worker.files.directory}/{CRASH}")
            if fact.exitcode > 0 and not os.path.exists(worker.files.error):
                worker.disk = _disk(worker.files.directory)
            # It may have ended before it was sent a signal, and be reaped after.
            if not fact.exitcode or (worker.sent and fact.time_ns >= worker.sent[0].time_ns):
                return
            # What it started may have been killed for want of memory, and it fails for that.
            if fact.exitcode > 0 or fact.exitcode in _MEMORY_SIGNALS:
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
        signal_ = SentSignal(int(signum), now_ns())
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

    def ending(self) -> None:
        """Notes that the current attempt is being ended: what is found from now on is too late."""
        if self._attempts:
            self._attempts[-1].ending = True

    def fired(self, fact: WatchdogFired) -> bool:
        """Notes what the watchdog found.

        Returns:
            Whether that is what the current attempt ends for: it was still well, and nothing had
            been found before.
        """
        if not fact.ends:
            return False
        if fact.whole_run:
            self.limit = fact.finding
        if not self._attempts:
            return False
        attempt = self._attempts[-1]
        gone = attempt.died is not None or attempt.broken is not None or not attempt.alive
        if attempt.ending or attempt.finding is not None or gone:
            return False
        attempt.finding, attempt.fired_ns = fact.finding, now_ns()
        return True

    def stacks_taken(self, fact: StacksTaken) -> Hang:
        """Notes where the workers of the current attempt stand.

        Returns:
            What that says.
        """
        from lllaunch.run.hang import hang_of  # noqa: PLC0415 - seldom
        from lllaunch.watchdog.findings import Asked  # noqa: PLC0415 - seldom

        attempt = self._attempts[-1]
        ends = attempt.finding == fact.finding
        if ends:
            attempt.stacks, attempt.blame = fact.stacks, fact.blame
        for stack in fact.stacks:
            worker = attempt.workers.get(stack.rank)
            if worker is not None:
                worker.files = replace(worker.files, stacks=stack.path)
        record = attempt.record(self.hide)
        if not ends:
            record = replace(
                record,
                finding=fact.finding,
                fired_ns=now_ns(),
                stacks=fact.stacks,
                blame=fact.blame,
            )
        hang = hang_of(record)
        assert hang is not None
        if isinstance(fact.finding, Asked) and attempt.ending:
            self.look = hang
        return hang

    def process_signalled(self, decision: SignalProcess) -> None:
        """Notes that a process of a worker is about to get a signal.

        If that is below the worker, what the worker makes of its loss is no failure of its own.
        """
        self.sent(decision.signum, [decision.rank])

    def finished(self, end: Finish) -> None:
        """Notes why the run ends."""
        self.reason = end.reason

    def fault(self, fact: Exited | StartFailed) -> Fault:
        """Tells in what way a worker failed, right after the fact of its end was noted."""
        plain: Fault = "died" if isinstance(fact, Exited) and fact.exitcode < 0 else "failure"
        if isinstance(fact, StartFailed) or not self._attempts:
            return plain
        if fact.exitcode < 0 and fact.exitcode != -signal.SIGKILL:
            return plain
        from lllaunch.run.failures import was_out_of_memory  # noqa: PLC0415 - imported by now

        record = self._attempts[-1].record(self.hide)
        worker = next((each for each in record.workers if each.local_rank == fact.rank), None)
        return "oom" if worker is not None and was_out_of_memory(worker, record) else plain

    def number(self, local_rank: int) -> int:
        """Returns the rank of a worker of the current attempt among all workers."""
        worker = self._attempts[-1].workers.get(local_rank) if self._attempts else None
        return local_rank if worker is None else worker.rank

    @property
    def alive(self) -> int:
        """How many workers of the current attempt were ordered and are not known to have ended."""
        return self._attempts[-1].alive if self._attempts else 0

    def latest(self) -> AttemptRecord | None:
        """Returns what is known of the current attempt; reads as `records` does."""
        return self._attempts[-1].record(self.hide) if self._attempts else None

    def records(self) -> list[AttemptRecord]:
        """Returns what is known of every attempt; reads the error files of workers that failed."""
        return [attempt.record(self.hide) for attempt in self._attempts]


def _remove_empty(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == 0:
            os.unlink(path)


def _disk(directory: str) -> Disk | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return Disk(directory, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


def _file(files: Mapping[int, str], rank: int) -> str:
    """Returns the file of a rank, an empty string where its stream goes elsewhere."""
    path = files.get(rank, "")
    return "" if path == "/dev/null" else path
