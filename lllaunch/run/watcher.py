"""Sees every fact and decision of a run: notes them, and tells the user of the few that matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.agent.vocabulary import (
    AbandonWorkers,
    GroupStarted,
    KillWorkers,
    SignalReceived,
    SignalWorkers,
    StartGrace,
    StartWorkers,
    WorkersStuck,
)
from lllaunch.run.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.run.events import EventLog
    from lllaunch.run.logs import Attempt
    from lllaunch.run.speaker import Speaker
    from lllaunch.spec import LaunchSpec

_SIGKILL = 9


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
        self._told_signals = 0

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt's directories were made."""
        self.recorder.begin(attempt)
        what = self._spec.entrypoint.text
        self._console.started(attempt.number, len(attempt.envs), what, attempt.path)

    def observe(self, event: object) -> None:
        """Takes a fact or decision; to be called before a decision is carried out."""
        self._events.write(event)
        self.recorder.fact(event)
        if isinstance(event, SignalReceived):
            self._signal = event
        elif isinstance(event, SignalWorkers):
            self._tell_signal()
            self.recorder.sent(event.signum)
        elif isinstance(event, StartGrace):
            self._tell_signal()
        elif isinstance(event, KillWorkers):
            self._tell_kill(event)
            self.recorder.sent(_SIGKILL)
        elif isinstance(event, AbandonWorkers):
            self.recorder.abandoned(event.ranks)
        elif isinstance(event, WorkersStuck):
            self.recorder.stuck()
        elif isinstance(event, StartWorkers):
            self._tell_restart(event)
        elif isinstance(event, GroupStarted):
            # What only the end needs is imported while the workers start, on another core.
            import lllaunch.run.ending  # noqa: F401, PLC0415

    def _tell_signal(self) -> None:
        """Says once of a signal to the launcher that it came and what follows."""
        received, self._signal = self._signal, None
        if received is None:
            return
        alive, grace = self.recorder.alive, self._spec.grace_period
        self._console.signalled(received.signum, alive, grace, forwarded=received.forward)

    def _tell_kill(self, event: KillWorkers) -> None:
        received, self._signal = self._signal, None
        signum = received.signum if received is not None and event.why == "signal" else None
        self._console.killing(signum, self.recorder.alive)

    def _tell_restart(self, event: StartWorkers) -> None:
        records = self.recorder.records()
        if event.reason is None or not records:
            return
        from lllaunch.run.ending import judge_attempt  # noqa: PLC0415 - imported by now

        failed = judge_attempt(records[-1])
        of = self._spec.max_restarts if event.reason == "failure" else None
        self._console.restarting(failed.number, failed.root_cause, event.restart_count, of)
