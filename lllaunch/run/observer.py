"""What is noted of a run while it goes on: its records, events.jsonl, and what the user is told.

The `Recorder` is the agent's observer. It writes everything to events.jsonl, keeps what
`lllaunch.run.judge` needs, and reads evidence that would be gone later: the memory counters at the
moment at which a worker's unexpected SIGKILL becomes known.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from lllaunch.agent.machine import (
    AbandonWorkers,
    Finish,
    GroupStarted,
    KillWorkers,
    Pause,
    SignalProcess,
    SignalReceived,
    SignalWorkers,
    StacksTaken,
    StartGrace,
    StartWorkers,
    WatchdogFired,
    WorkersStuck,
)
from lllaunch.linux.cgroup import UNKNOWN, Memory, read_memory
from lllaunch.moments import now_ns
from lllaunch.run.excerpts import read_crash, read_error, read_exit_call
from lllaunch.run.records import AttemptRecord, Disk, SentSignal, WorkerFiles, WorkerRecord
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
from lllaunch.watchdog.findings import Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lllaunch.agent.machine import Fault, Reason
    from lllaunch.run.events import EventLog
    from lllaunch.run.group import Attempt
    from lllaunch.run.hang import Hang
    from lllaunch.run.outcome import RootCause, RunOutcome
    from lllaunch.run.records import ExitCall, WorkerError
    from lllaunch.spawner.protocol import Leftover
    from lllaunch.spec import LaunchSpec
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.stacks.frames import Blame, RankStack


@dataclass
class NotedWorker:
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
    left: tuple[WorkerError | None, ExitCall | None] | None = None
    disk: Disk | None = None
    shown: bool = False

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None

    def record(self, hide: Callable[[str], str]) -> WorkerRecord:
        """Returns what is known now; reads its error file if it failed."""
        error, exit_call = self._left(hide)
        return WorkerRecord(
            local_rank=self.local_rank,
            rank=self.rank,
            files=self.files,
            started=self.started,
            start_failed=self.start_failed,
            exited=self.exited,
            sent=tuple(self.sent),
            abandoned=self.abandoned,
            error=error,
            exit_call=exit_call,
            memory=self.memory,
            disk=self.disk,
            crash=self._crash(hide),
            shown=self.shown,
        )

    def _crash(self, hide: Callable[[str], str]) -> str:
        """Returns what Python wrote down when a fatal signal ended the worker."""
        if self.exited is None or self.exited.exitcode >= 0 or self.sent:
            return ""
        return read_crash(self.files.directory, self.files.stderr, hide)

    def _left(self, hide: Callable[[str], str]) -> tuple[WorkerError | None, ExitCall | None]:
        """Return what it wrote of its failure; read once, since it has ended."""
        if self.exited is None or self.exited.exitcode == 0 or not self.files.error:
            return None, None
        if self.left is None:
            path, exits = self.files.error, self.exited.exitcode > 0
            self.left = read_error(path, hide), read_exit_call(path, hide) if exits else None
        return self.left


@dataclass
class NotedAttempt:
    """One attempt, as far as it is known."""

    number: int
    restart_count: int
    path: str
    started_ns: int
    workers: dict[int, NotedWorker]
    memory: Memory
    ended_ns: int = 0
    died: Died | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Leftover, ...] = ()
    stuck: bool = False
    ending: bool = False
    finding: Finding | None = None
    fired_ns: int = 0
    stacks: tuple[RankStack, ...] = ()
    blame: Blame | None = None
    master_port: str = ""

    @property
    def alive(self) -> int:
        """How many workers were ordered and are not known to have ended."""
        return sum(1 for worker in self.workers.values() if worker.live)

    def record(self, hide: Callable[[str], str]) -> AttemptRecord:
        """Returns what is known now; reads the error files of workers that failed."""
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
            finding=self.finding,
            fired_ns=self.fired_ns,
            stacks=self.stacks,
            blame=self.blame,
            master_port=self.master_port,
        )


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
        from lllaunch.run.judge import was_out_of_memory  # noqa: PLC0415 - imported by now

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


class Speaker(Protocol):
    """Tells the user what happens; none of its methods raises for the stream's sake."""

    def hide(self, redact: Callable[[str], str]) -> None:
        """Applies ``redact`` to everything from now on."""

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """An attempt begins."""

    def restarting(
        self, attempt: int, root: RootCause | None, restart: int, of: int | None, wait: float = 0.0
    ) -> None:
        """A failed attempt is followed by another one, after ``wait`` seconds."""

    def signalled(self, signum: int, workers: int, grace: float, *, forwarded: bool) -> None:
        """A signal came; the workers get it, and SIGKILL after ``grace`` seconds."""

    def killing(self, signum: int | None, workers: int) -> None:
        """Workers are killed: a second signal came, or the grace period is over."""

    def fired(self, hang: Hang) -> None:
        """The watchdog found something; now it is looked where the workers stand."""

    def looking(self, signum: int, silent: float | None) -> None:
        """A signal came to a run that showed no sign of life: its workers get it after a look."""

    def stacks_shown(self, hang: Hang) -> None:
        """It was seen where the workers stand, and the run goes on."""

    def stacks_taken(self, hang: Hang) -> None:
        """It was written down where the workers stand."""

    def process_signalled(self, rank: int, pid: int, signum: int) -> None:
        """A process gets the signal that its timer asks for."""

    def ending(self, signum: int, workers: int, grace: float) -> None:
        """The workers are asked to end for what the watchdog found, and killed after ``grace``."""

    def warning(self, text: str) -> None:
        """Something went wrong that does not end the run."""

    def finished(self, outcome: RunOutcome) -> None:
        """The run is over."""


_SIGKILL = 9
_OF_WATCHDOG = frozenset({"hang", "timeout", "oom"})
_REJECTIONS = 5


class Watcher:
    """The agent's observer in a configured run.

    Args:
        spec: the run.
        events: where all of it is written.
        console: tells the user.
        hide: applied to what workers wrote before it is kept.

    Attributes:
        recorder: what is known so far.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        events: EventLog,
        console: Speaker,
        hide: Callable[[str], str] = str,
    ) -> None:
        self.recorder = Recorder(hide)
        self._spec = spec
        self._events = events
        self._console = console
        self._signal: SignalReceived | None = None
        self._pausing = False
        self._rejections = 0

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt's directories were made."""
        self.recorder.begin(attempt)
        what = self._spec.entrypoint.text
        self._console.started(attempt.number, len(attempt.envs), what, attempt.path)

    def observe(self, event: object) -> None:
        """Takes a fact or decision; to be called before a decision is carried out."""
        self._events.write(event)
        self.recorder.fact(event)
        action = _ACTIONS.get(type(event))
        if action is not None:
            action(self, event)
        elif type(event).__name__ == "Rejected":
            self._rejected(event)

    def fault(self, fact: Exited | StartFailed) -> Fault:
        """Tells in what way a worker failed, right after `observe` was told of its end."""
        return self.recorder.fault(fact)

    def _started(self, _: GroupStarted) -> None:
        # What only the end needs is imported while the workers start, on another core.
        import lllaunch.run.ending  # noqa: F401, PLC0415

    # How an attempt ends

    def _signal_received(self, event: SignalReceived) -> None:
        self._signal = event
        self.recorder.ending()
        if event.look is not None:
            self._console.looking(event.signum, event.look.silent)

    def _signal_workers(self, event: SignalWorkers) -> None:
        self._tell_signal()
        if event.reason in _OF_WATCHDOG and self._hang() is not None:
            alive, grace = self.recorder.alive, self._spec.grace_period
            self._console.ending(event.signum, alive, grace)
        self.recorder.ending()
        self.recorder.sent(event.signum)

    def _start_grace(self, _: StartGrace) -> None:
        self._tell_signal()
        self.recorder.ending()

    def _kill_workers(self, event: KillWorkers) -> None:
        received, self._signal = self._signal, None
        signum = received.signum if received is not None and event.why == "signal" else None
        self._console.killing(signum, self.recorder.alive)
        self.recorder.ending()
        self.recorder.sent(_SIGKILL)

    def _tell_signal(self) -> None:
        """Says once of a signal to the launcher that it came and what follows."""
        received, self._signal = self._signal, None
        if received is None or (self._spec.imports and self.recorder.importing):
            return  # the imports end at once: there is nothing to wait for
        alive, grace = self.recorder.alive, self._spec.grace_period
        self._console.signalled(received.signum, alive, grace, forwarded=received.forward)

    # What comes after it

    def _pause(self, event: Pause) -> None:
        self._pausing = True
        self._tell_restart(event.seconds, event.restart)

    def _start_workers(self, event: StartWorkers) -> None:
        told, self._pausing = self._pausing, False
        if event.reason is not None and not told:
            self._tell_restart(0.0, event.restart)

    def _tell_restart(self, wait: float, restart: int | None) -> None:
        record = self.recorder.latest()
        if record is None:
            return
        from lllaunch.run.ending import judge_attempt  # noqa: PLC0415 - imported by now

        failed = judge_attempt(record)
        of = None if restart is None else self._spec.max_restarts
        self._console.restarting(failed.number, failed.root_cause, restart or 0, of, wait)

    # The watchdog

    def _hang(self) -> Hang | None:
        record = self.recorder.latest()
        if record is None or record.finding is None:
            return None
        from lllaunch.run.hang import hang_of  # noqa: PLC0415 - only where something was found

        return hang_of(record)

    def _fired(self, event: WatchdogFired) -> None:
        if self.recorder.fired(event):
            hang = self._hang()
            assert hang is not None
            self._console.fired(hang)

    def _stacks_taken(self, event: StacksTaken) -> None:
        hang = self.recorder.stacks_taken(event)
        record = self.recorder.latest()
        ends = record is not None and record.finding == event.finding
        if ends or self._signal is not None:
            self._console.stacks_taken(hang)
        else:
            self._console.stacks_shown(hang)

    def _signal_process(self, event: SignalProcess) -> None:
        self.recorder.process_signalled(event)
        rank = self.recorder.number(event.rank)
        self._console.process_signalled(rank, event.pid, event.signum)

    def _rejected(self, event: Any) -> None:
        self._rejections += 1
        if self._rejections > _REJECTIONS + 1:
            return
        if self._rejections > _REJECTIONS:
            self._console.warning("more timer requests were refused, see events.jsonl")
            return
        if not event.text:  # it counts others
            self._console.warning(event.reason)
            return
        whose = "" if event.pid is None else f" of process {event.pid}"
        self._console.warning(f"a timer request{whose} was refused, {event.reason}: {event.text}")


# mypy cannot know that an action gets the event it stands for in the table.
_ACTIONS: Mapping[type, Callable[[Watcher, Any], None]] = {
    SignalReceived: Watcher._signal_received,
    SignalWorkers: Watcher._signal_workers,
    StartGrace: Watcher._start_grace,
    KillWorkers: Watcher._kill_workers,
    AbandonWorkers: lambda self, event: self.recorder.abandoned(event.ranks),
    WorkersStuck: lambda self, _: self.recorder.stuck(),
    StartWorkers: Watcher._start_workers,
    GroupStarted: Watcher._started,
    WatchdogFired: Watcher._fired,
    StacksTaken: Watcher._stacks_taken,
    SignalProcess: Watcher._signal_process,
    Pause: Watcher._pause,
    Finish: lambda self, event: self.recorder.finished(event),
}
