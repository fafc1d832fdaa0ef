"""What is noted of a run while it goes on: its records, events.jsonl, and what the user is told.

The `RunObserver` gets every event. It writes it to events.jsonl, keeps what `lllaunch.run.judge`
needs, and shows the little that a user wants to know. It reads at once what would be gone later:
the memory counters when a worker's unexpected SIGKILL becomes known.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from lllaunch.clock import now_ns
from lllaunch.documents import signal_name
from lllaunch.events import (
    Exited,
    OrphansGone,
    PreloadBroken,
    Ready,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.linux.cgroup import UNKNOWN, Memory, read_memory
from lllaunch.run.directory import SampleLog, encode
from lllaunch.spawner.evidence import CRASH
from lllaunch.supervisor import machine
from lllaunch.supervisor.supervisor import SignalPassedOn
from lllaunch.text import duration, spans
from lllaunch.watchdog.findings import Asked, GaveUp, NotFinite

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lllaunch.console.console import Console
    from lllaunch.events import Orphan
    from lllaunch.files import LineFile
    from lllaunch.run.execute import Attempt
    from lllaunch.run.result import CalledExit, DiskFull, Hang, Reached
    from lllaunch.spec import LaunchSpec
    from lllaunch.supervisor.machine import GroupEnd, NoProgress, Reason
    from lllaunch.watchdog.evidence import Frame, RankStack, RankTrace
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.progress import Progress

# Ends that memory has to do with: SIGBUS by way of a full /dev/shm.
_MEMORY_SIGNALS = {-signal.SIGKILL, -signal.SIGBUS}
_OF_WATCHDOG = frozenset({"hang", "timeout", "oom"})


class SentSignal(Struct, frozen=True):
    """A signal that the launcher sent to a worker or below it, and when that was decided."""

    signum: int
    time_ns: int


class WorkerError(Struct, frozen=True):
    """What a worker wrote in its error.json, and when it says that it raised; or None."""

    message: str
    traceback: str = ""
    time_ns: int | None = None


class WorkerFiles(Struct, frozen=True):
    """Where one worker of one attempt writes; an empty string stands for 'nowhere of ours'."""

    directory: str = ""
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    stacks: str = ""


class WorkerRecord(Struct):
    """One worker of one attempt, as far as it is known."""

    local_rank: int
    rank: int
    files: WorkerFiles = WorkerFiles()
    started: Started | None = None
    start_failed: StartFailed | None = None
    exited: Exited | None = None
    sent: tuple[SentSignal, ...] = ()
    abandoned: bool = False  # whether the launcher gave up waiting for its end
    error: WorkerError | None = None
    # where its code called ``sys.exit``, if that gave its exit status
    exit_call: CalledExit | None = None
    # the machine's when its end became known, where that was worth reading
    memory: Memory = UNKNOWN
    # set if it failed without an error.json, and there was no room for one
    disk: DiskFull | None = None
    trace: RankTrace | None = None  # which collectives it had come to at last
    # bytes that gloo had received for a collective, and that its own call had room for, where it
    # aborted the worker for that
    misfit: tuple[int, int] | None = None
    # the call whose gradient is wrong, where torch's anomaly mode has found one
    forward: Frame | None = None
    kernel_check: str = ""  # the check of a CUDA kernel that failed
    # where it stood when a fatal signal ended it, innermost first
    crash: tuple[Frame, ...] = ()
    shown: bool = False  # whether its standard error is on the console already
    # whether what it wrote of its failure was read; it writes nothing more then
    was_read: bool = False
    progress: Reached | None = None  # how far it was when it ended

    @property
    def live(self) -> bool:
        """Whether it is not known to have ended; its start may not be known yet either."""
        return self.exited is None and self.start_failed is None

    @property
    def was_asked(self) -> bool:
        """Whether it ended after the launcher had sent it a signal.

        It may have ended before, and be reaped after.
        """
        exited = self.exited
        return bool(exited and self.sent and exited.time_ns >= self.sent[0].time_ns)

    @property
    def succeeded(self) -> bool:
        """Whether it ended with status 0, and by itself."""
        return self.exited is not None and self.exited.exitcode == 0 and not self.was_asked


class PreflightRecord(WorkerRecord, kw_only=True):
    """The preflight of one attempt; its log is its standard error."""

    command: str
    timeout: float
    timed_out: bool = False


class AttemptRecord(Struct):
    """One attempt, as far as it is known; times are nanoseconds since the epoch, 0 for none."""

    number: int
    restart_count: int
    path: str
    started_ns: int
    ended_ns: int = 0
    workers: tuple[WorkerRecord, ...] = ()  # in order of local rank
    memory: Memory = UNKNOWN
    died: SpawnerGone | None = None
    died_ns: int = 0
    died_memory: Memory = UNKNOWN
    broken: PreloadBroken | None = None
    leftovers: tuple[Orphan, ...] = ()
    stuck: bool = False  # whether workers were found to hang in the kernel
    ending: bool = False  # whether it is being ended: what is found from now on is too late
    # what the watchdog found first while the attempt ran, and where the workers stood then
    hang: Hang | None = None
    looks: tuple[RankStack, ...] = ()  # where those stood on whom others gave up
    master_port: str = ""
    group_end: GroupEnd | None = None  # of several nodes, what all have agreed that it ended for
    # of several nodes, one that was found to be gone when it ended
    group_lost: GroupEnd | None = None
    preflight: PreflightRecord | None = None

    @property
    def in_preflight(self) -> bool:
        """Whether the preflight has not ended; the workers have not been started then."""
        return self.preflight is not None and self.preflight.live

    @property
    def alive(self) -> int:
        """How many workers were ordered and are not known to have ended; a preflight is one."""
        if self.in_preflight:
            return 1
        return sum(worker.live for worker in self.workers)

    def worker(self, local_rank: int) -> WorkerRecord | None:
        """Return the worker of a local rank, or the preflight."""
        everyone = (*self.workers, self.preflight)
        return next((each for each in everyone if each and each.local_rank == local_rank), None)

    def ran_seconds(self, worker: WorkerRecord) -> float:
        """Return how long a worker ran that has ended."""
        assert worker.exited is not None
        started = worker.started
        began = started.time_ns if started is not None else self.started_ns
        return max(0, worker.exited.time_ns - began) / 1e9


class RunObserver:
    """Sees all of a run: writes it down, and tells the user of the little that matters.

    Samples go to a file of their own, if one is named.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        events: LineFile,
        console: Console,
        hide: Callable[[str], str] = str,
        samples: str = "",
        read: Callable[[], Memory] = read_memory,
    ) -> None:
        self.hide = hide
        # looks how far workers of the current attempt are, by local rank
        self.progress: Callable[[Collection[int]], Mapping[int, Progress]] = lambda _: {}
        self.reason: Reason | None = None  # why the run did not succeed, once it is over; or None
        self.limit: Finding | None = None  # the limit of the run that was found to be over, or None
        # the attempts that got no further, if the run ended for those; or None
        self.no_progress: NoProgress | None = None
        # where the workers stood when a signal came that ends the run; or None
        self.look: Hang | None = None
        self._spec = spec
        self._events = events
        self.console = console  # what tells the user
        console.look = self._progress_by_rank
        self._samples_path = samples
        self._samples: SampleLog | None = None
        self._read = read
        self._attempts: list[AttemptRecord] = []
        # the last of them; before the first one, what takes note of what nobody asks for
        self._attempt = AttemptRecord(-1, 0, "", 0)
        self._ready = False
        self._signal: machine.SignalReceived | None = None
        self._pausing = False
        self._told_rejection = False
        self._unclear = False

    def begin(self, attempt: Attempt) -> None:
        """Take note that an attempt's directories were made; its workers are about to start."""
        files, first, preflight = attempt.files, attempt.facts[0], None
        if self._spec.preflight is not None:
            preflight = PreflightRecord(
                machine.PREFLIGHT_RANK,
                machine.PREFLIGHT_RANK,
                WorkerFiles(stderr=attempt.preflight_log),
                command=self._spec.preflight.text,
                timeout=self._spec.preflight.timeout,
            )
        workers = tuple(
            WorkerRecord(
                rank,
                int(facts["rank"]),
                WorkerFiles(
                    f"{attempt.path}/{rank}",
                    # empty where its stream goes elsewhere
                    *(
                        "" if (path := each.get(rank, "")) == os.devnull else path
                        for each in (files.stdouts, files.stderrs, files.error_files)
                    ),
                ),
                shown=rank in files.tee_stderrs or files.stderrs.get(rank) == "",
            )
            for rank, facts in sorted(attempt.facts.items())
        )
        self._attempt = AttemptRecord(
            number=attempt.number,
            restart_count=int(first.get("restart_count", "0")),
            path=attempt.path,
            started_ns=now_ns(),
            workers=workers,
            memory=self._read(),
            master_port=first.get("master_port", ""),
            preflight=preflight,
        )
        self._attempts.append(self._attempt)
        what = self._spec.entrypoint.text
        self.console.started(attempt.number, len(attempt.facts), what, attempt.path)
        if preflight is not None:
            self.console.doing("preflight")
        else:
            self._tell_imports()

    @property
    def is_importing(self) -> bool:
        """Whether the workers of the current attempt have not started, since modules are imported.

        It stays so if the spawner was killed meanwhile.
        """
        attempt = self._attempt
        if not self._attempts or self._ready:
            return False
        lost = attempt.died is not None and not attempt.died.killed
        return not lost and not any(worker.started for worker in attempt.workers)

    @property
    def broken(self) -> PreloadBroken | None:
        """The preload that failed in the current attempt, or None."""
        return self._attempt.broken

    @property
    def alive(self) -> int | None:
        """How many workers were ordered and are not known to have ended; None in a preflight."""
        return None if self._attempt.in_preflight else self._attempt.alive

    def number(self, local_rank: int) -> int:
        """Return the rank of a worker of the current attempt among all workers."""
        worker = self._attempt.worker(local_rank)
        return local_rank if worker is None else worker.rank

    def latest(self) -> AttemptRecord | None:
        """Return what is known of the current attempt; reads as `records` does."""
        return self.records()[-1] if self._attempts else None

    def records(self) -> list[AttemptRecord]:
        """Return what is known of every attempt; reads the files of workers that have ended."""
        for attempt in self._attempts:
            for worker in attempt.workers:
                self._read_files(worker)
        return self._attempts

    def observe(self, event: object) -> object:
        """See an event, or an action before it is performed; return it with what was found out.

        The end of a worker tells whether memory had run out.
        """
        name = type(event).__name__
        if name == "Sample":  # whose module, as that of timers, is not imported for most runs
            self._sampled(event)
            return event
        if isinstance(event, Exited):
            event = self._ended(event)
        self._events.append(encode(event, now_ns(), self.hide))
        if name == "Rejected" and not self._told_rejection:
            self._told_rejection = True
            refused: Any = event
            pid = "" if refused.pid is None else f" of process {refused.pid}"
            told = f"a timer request{pid} was refused, {refused.reason}: {refused.text}"
            # one without a text counts others
            told = told if refused.text else refused.reason
            self.console.warning(f"{told} (further ones are in events.jsonl)")
        self._of_workers(self._attempt, event)
        self._of_end(self._attempt, event)
        self._of_restart(event)
        self._of_watchdog(self._attempt, event)
        return event

    def _of_workers(self, attempt: AttemptRecord, event: object) -> None:
        """Take note of what became of workers or their spawner."""
        match event:
            case Ready():
                self._ready = True
                if not event.fork_safe:
                    text = "what is preloaded cannot compute in a fork: each worker imports it anew"
                    self.console.warning(text)
                self._tell_imports()
            case machine.StartAfterPreflight():
                self._tell_imports()
            case machine.GroupStarted():
                # What only the end needs is imported while the workers start, on another core.
                import lllaunch.run.judge  # noqa: F401, PLC0415
            case Started():
                worker = attempt.worker(event.local_rank)
                if worker is not None:
                    attempt.ended_ns = max(attempt.ended_ns, event.time_ns)
                    worker.started = event
            case StartFailed():
                worker = attempt.worker(event.local_rank)
                if worker is not None:
                    attempt.ended_ns = max(attempt.ended_ns, event.time_ns)
                    worker.start_failed = event
            case SpawnerGone():
                self._ready = False
                # nobody tells of their ends any more
                self._note_progress(*(worker for worker in attempt.workers if worker.live))
                attempt.died, attempt.died_ns = event, now_ns()
                attempt.died_memory = self._read()
                attempt.ended_ns = attempt.died_ns
            case PreloadBroken():
                attempt.broken, attempt.ended_ns = event, now_ns()
            case OrphansGone():
                attempt.leftovers += event.orphans

    def _ended(self, event: Exited) -> Exited:
        """Take note of the end of a worker, or of the preflight."""
        attempt = self._attempt
        worker = attempt.worker(event.local_rank)
        if worker is None:
            return event
        attempt.ended_ns = max(attempt.ended_ns, event.time_ns)
        worker.exited = event
        if worker is attempt.preflight:
            return event
        self._note_progress(worker)
        with contextlib.suppress(OSError):
            if os.stat(crash := f"{worker.files.directory}/{CRASH}").st_size == 0:
                os.unlink(crash)
        # What it started may have been killed for want of memory, and it fails for that.
        if not worker.was_asked and (event.exitcode > 0 or event.exitcode in _MEMORY_SIGNALS):
            worker.memory = self._read()
        if event.exitcode > 0 or event.exitcode == -signal.SIGKILL:
            from lllaunch.run.judge import was_out_of_memory  # noqa: PLC0415 - imported by now

            self._read_files(worker)
            if was_out_of_memory(worker, attempt):
                worker.exited = event = event._replace(out_of_memory=True)
        return event

    def _note_progress(self, *workers: WorkerRecord) -> None:
        """Look how far workers are, or were: what tells it goes with the attempt."""
        found = self.progress([worker.local_rank for worker in workers])
        for worker in workers:
            if (far := found.get(worker.local_rank)) is not None:
                from lllaunch.run.result import Reached  # noqa: PLC0415 - imported by now

                at = now_ns() - int(far.idle * 1e9)
                worker.progress = Reached(far.step, far.total, at, far.metrics)

    def _read_files(self, worker: WorkerRecord) -> None:
        """Read, once, what a worker wrote of its end."""
        if worker.exited is not None and not worker.was_read:
            worker.was_read = True
            from lllaunch.run.excerpts import read_evidence  # noqa: PLC0415 - imported by now

            read_evidence(worker, self.hide)

    def _sent(self, signum: int, ranks: Iterable[int] | None = None) -> None:
        """Take note that a signal is about to be sent to workers, by default all that live."""
        sent, attempt = SentSignal(int(signum), now_ns()), self._attempt
        preflight = attempt.preflight
        for worker in (preflight,) if preflight and preflight.live else attempt.workers:
            if worker.live and (ranks is None or worker.local_rank in ranks):
                worker.sent += (sent,)

    def _progress_by_rank(self) -> dict[int, Progress]:
        live = [worker.local_rank for worker in self._attempt.workers if worker.live]
        found = self.progress(live) if live else {}
        return {self.number(local_rank): each for local_rank, each in found.items()}

    def _tell_imports(self) -> None:
        modules = self._spec.imports if self.is_importing else ()
        self.console.doing(f"importing {', '.join(modules)}" if modules else "")

    def close(self) -> None:
        """Close the files; idempotent."""
        self._events.close()
        if self._samples is not None:
            self._samples.close()

    def _sampled(self, sample: Any) -> None:
        progress = {self.number(rank): each for rank, each in sample.progress.items()}
        memory = sum(worker.rss for worker in sample.workers.values())
        self.console.sampled(progress, memory)
        if not self._samples_path:
            return
        if self._samples is None:
            self._samples = SampleLog(
                self._samples_path, lambda error: self.console.warning(str(error))
            )
        self._samples.write(sample, self._attempt.number, self.number)

    # How an attempt ends

    def _of_end(self, attempt: AttemptRecord, event: object) -> None:
        """Take note of what is done to end an attempt."""
        match event:
            case machine.SignalReceived():
                attempt.ending = True
                self._signal = event
                if event.look is not None:
                    self.console.looking(event.signum, event.look.silent)
            case machine.SignalWorkers():
                attempt.ending = True
                self._sent(event.signum)
                self._tell_signal()
                if event.reason in _OF_WATCHDOG and attempt.hang is not None:
                    self.console.ending(event.signum, self.alive, self._spec.grace_period)
                self.console.doing("ending, SIGKILL in", self._spec.grace_period)
            case machine.KillWorkers():
                attempt.ending = True
                self._sent(signal.SIGKILL)
                received, self._signal = self._signal, None
                signum = received.signum if received is not None and event.why == "signal" else None
                self.console.killing(signum, self.alive, self._ignoring())
                self.console.doing("killing")
            case machine.SignalProcess():
                # what a worker makes of the loss of one below it is no failure of its own
                self._sent(event.signum, [event.rank])
                self.console.process_signalled(self.number(event.rank), event.pid, event.signum)
            case machine.AbandonWorkers():
                for worker in attempt.workers:
                    worker.abandoned = worker.abandoned or worker.local_rank in event.ranks
            case machine.WorkersStuck():
                attempt.stuck = True
            case machine.PreflightTimedOut():
                preflight = attempt.preflight
                if preflight is not None:
                    preflight.timed_out = preflight.live and not preflight.sent

    def _ignoring(self) -> list[int]:
        """Return the ranks of live workers that ignore SIGTERM."""
        from lllaunch.watchdog.collector import has_signal, status  # noqa: PLC0415 - seldom

        pids = {
            each.rank: each.started.pid
            for each in self._attempt.workers
            if each.live and each.started is not None
        }
        return [
            rank
            for rank, pid in pids.items()
            if has_signal(status(pid), "SigIgn", signum=signal.SIGTERM)
        ]

    def _of_restart(self, event: object) -> None:
        """Take note of what follows the end of an attempt."""
        match event:
            case machine.AttemptProgress(checkpoint_changed=None) if not self._unclear:
                self._unclear = True
                self.console.warning(
                    f"{self._spec.restart.checkpoint} holds too much to tell whether a checkpoint "
                    "was written; name the file that is renamed into place "
                    "(launch.restart.checkpoint)"
                )
            case machine.GpuMemoryHeld():
                self._gpus_held(event)
            case machine.Pause():
                self._pausing = True
                self._tell_restart(event.seconds, event.restart)
                self.console.doing("starts again in", event.seconds)
            case machine.StartWorkers():
                told, self._pausing = self._pausing, False
                if event.reason is not None and not told:
                    self._tell_restart(0.0, event.restart)
            case machine.Finish():
                self.reason, self.no_progress = event.reason, event.no_progress
            case SignalPassedOn():
                then = "passed on to the workers" if event.ranks else "no worker runs"
                self.console.note(f"{signal_name(event.signum)} received, {then}")

    def _tell_signal(self) -> None:
        """Says once of a signal to the launcher that it came and what follows."""
        received, self._signal = self._signal, None
        if received is None or (self._spec.imports and self.is_importing):
            return  # the imports end at once: there is nothing to wait for
        grace = self._spec.grace_period
        self.console.signalled(received.signum, self.alive, grace, received.announced)

    def _tell_restart(self, wait: float, restart: int | None) -> None:
        record = self.latest()
        if record is None:
            return
        from lllaunch.run.judge import judge_attempt  # noqa: PLC0415 - imported by now

        of = None if restart is None else self._spec.max_restarts
        self.console.restarting(judge_attempt(record), restart or 0, of, wait)

    # The watchdog, and other nodes

    def _of_watchdog(self, attempt: AttemptRecord, event: object) -> None:
        """Take note of what the watchdog finds, here or on other nodes."""
        match event:
            case machine.WatchdogFired(ends=True):
                if event.whole_run:
                    self.limit = event.finding
                # the first finding counts, while the attempt is still well
                well = attempt.alive and not (attempt.ending or attempt.died or attempt.broken)
                if well and attempt.hang is None:
                    self._found(attempt, event.finding, now_ns())
            case NotFinite():
                self.console.warning(f"rank {self.number(event.rank)} {event}")
            case machine.StacksTaken():
                self._stacks_taken(attempt, event)
            case machine.GroupStacks():
                if attempt.hang is not None:
                    from lllaunch.run.judge import of_all_nodes  # noqa: PLC0415 - seldom

                    attempt.hang = of_all_nodes(attempt.hang, event)
                    self.console.stacks_taken(attempt.hang)
            case machine.NodesAgreed():
                attempt.group_end = attempt.group_end or event.ended
                finding = event.ended.finding if event.hangs else None
                if finding is not None and attempt.hang is None and not attempt.ending:
                    self._found(attempt, finding, event.ended.time_ns)
            case machine.NodesCounted():
                attempt.group_lost = event.gone

    def _found(self, attempt: AttemptRecord, finding: Finding, time_ns: int) -> None:
        from lllaunch.run.judge import hang_of  # noqa: PLC0415 - only where something was found

        attempt.hang = hang_of(attempt, finding, time_ns)
        self.console.fired(attempt.hang)

    def _stacks_taken(self, attempt: AttemptRecord, event: machine.StacksTaken) -> None:
        from lllaunch.run.judge import hang_of  # noqa: PLC0415 - as above

        for stack in event.stacks:
            worker = attempt.worker(stack.rank)
            if worker is not None:
                worker.files = structs.replace(worker.files, stacks=stack.path)
        if isinstance(event.finding, GaveUp):
            attempt.looks = event.stacks
            return
        known = attempt.hang
        ends = known is not None and known.finding == event.finding
        at = known.time_ns if known is not None and ends else now_ns()
        hang = hang_of(attempt, event.finding, at, event.stacks, event.blame)
        if ends:
            attempt.hang = hang
        if isinstance(event.finding, Asked) and attempt.ending:
            self.look = hang
        if ends and self._spec.nodes is not None:
            # that of all nodes follows
            return
        if ends or self._signal is not None:
            self.console.stacks_taken(hang)
        else:
            self.console.stacks_shown(hang)

    def _gpus_held(self, event: machine.GpuMemoryHeld) -> None:
        gpus = f"{'GPU' if len(event.gpus) == 1 else 'GPUs'} {spans(event.gpus)}"
        held = f"processes of the last attempt still hold memory on {gpus}"
        if not event.given_up:
            most = duration(self._spec.restart.gpu_wait)
            self.console.note(f"{held}; waiting up to {most} (launch.restart.gpu_wait)")
            return
        if not event.pids:
            held = "the driver does not say whether GPU memory is free again"
        self.console.warning(f"{held} after {duration(event.seconds)}; going on all the same")
