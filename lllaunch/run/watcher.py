"""Sees every fact and decision of a run: notes them, and tells the user of the few that matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from lllaunch.run.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lllaunch.agent.machine import Fault
    from lllaunch.run.events import EventLog
    from lllaunch.run.hang import Hang
    from lllaunch.run.logs import Attempt
    from lllaunch.run.speaker import Speaker
    from lllaunch.spawner.protocol import Exited, StartFailed
    from lllaunch.spec import LaunchSpec

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
        if received is None or (self._spec.preload and self.recorder.importing):
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
