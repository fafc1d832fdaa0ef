"""The launcher's messages, written to a stream; no error of that stream ends anything."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from lllaunch.console.bottom import Bottom, RunStatus, heartbeat_text, status_rows, stays
from lllaunch.console.stream import Outlet, display, given_or_nowhere, same_file
from lllaunch.console.table import is_terminal, painter
from lllaunch.documents import signal_name
from lllaunch.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.text import duration, visible
from lllaunch.watchdog.findings import Asked, limit_of
from lllaunch.words import StyledText, counted, ranks, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lllaunch.console.table import Row
    from lllaunch.run.result import AttemptResult, Hang, RunResult
    from lllaunch.watchdog.progress import Progress

# Workers wait for the launcher while it talks during a run, seconds.
_PATIENCE_S = 0.2
# As long as the tee waits in the end, seconds.
_LAST_PATIENCE_S = 10.0
# The line below the output is drawn anew so often, seconds.
_FRAME_S = 1.0


@display("more messages of this launcher", "error", "refused", "finished")
class Console:
    """The launcher's messages.

    Every message is one write of whole lines, so that it does not mix with teed output. A stream
    that was closed (``| head``) is forgotten: a training run must not end without a reader. Nor
    may it wait for one: what a stream does not take in time is left out. Messages may come from
    any thread.

    It also shows how far a run is: on a terminal in a line that stays below the output, elsewhere
    in a line now and then. The loop that waits for events asks when that is due (`next_in`), and
    calls `tick` then.

    Without a `stream` messages go to standard error. Paths are relative to `cwd`, or to the working
    directory of now. A message waits at most `patience` seconds to be taken, the
    last one `last_patience`.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        cwd: str | None = None,
        patience: float = _PATIENCE_S,
        last_patience: float = _LAST_PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outlet = Outlet(given_or_nowhere(sys.stderr if stream is None else stream))
        self._cwd = working_directory() if cwd is None else cwd
        self._patience = patience
        self._last_patience = last_patience
        # of the outlet; a signal may come while it is held
        self._speaks = threading.RLock()
        self._hide: Callable[[str], str] = str
        self._clock = clock
        self._policy = ConsolePolicy()
        self._beside: Collection[TextIO | None] = ()
        self._run: RunStatus | None = None
        # when something is to be shown of it
        self._due: float | None = None
        self._live = False
        self._bottom: Bottom | None = None

    def hide(self, redact: Callable[[str], str]) -> None:
        """Apply ``redact`` to every message from now on, so that no secret is shown."""
        self._hide = redact

    def obey(self, policy: ConsolePolicy, beside: Collection[TextIO | None] = ()) -> None:
        """Follow a policy from now on; a quiet one shows no starts and no success.

        Workers write to the streams ``beside``, too.
        """
        self._policy = policy
        self._beside = tuple(beside)

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """Report that an attempt of an entrypoint begins, which writes to a directory."""
        run = self._follow()
        run.attempt, run.doing, run.progress, run.memory = attempt, "", {}, 0
        if self._policy.quiet:
            return
        where = shown_path(directory, self._cwd)
        self.note(f"attempt {attempt}: {counted(workers, 'worker')} of {what}, logs in {where}")

    def restarting(
        self, attempt: AttemptResult, restart: int, of: int | None, wait: float = 0.0
    ) -> None:
        """Report that a failed attempt is followed by another one, in ``wait`` seconds.

        That is restart ``restart``, from 1, of so many; None if this one does not count.
        """
        from lllaunch.console.report import at_step, failure_text  # noqa: PLC0415 - see `finished`
        from lllaunch.run.result import SpawnerLost  # noqa: PLC0415 - as above

        if self._run is not None:
            # nobody has any more
            self._run.memory = 0
        count = "" if of is None else f" ({restart} of {of})"
        when = f" in {duration(wait)}" if wait else ""
        root = attempt.root_cause
        why = f"{failure_text(root, self._cwd)}{at_step(attempt)}"
        self.note(f"attempt {attempt.number}: {why}; restarting{when}{count}")
        if root is not None and isinstance(root.cause, SpawnerLost) and root.explanation:
            # Nothing of the experiment's failed, so nothing else says why.
            self.note(f"why ({root.explanation.sure}): {root.explanation.text}")

    def signalled(
        self, signum: int, workers: int | None, grace: float, announced: int | None = None
    ) -> None:
        """Report a signal and what follows: SIGKILL after ``grace`` seconds.

        So many live ``workers`` got it; None if it is their preflight. It may stand for one that
        announced the end of a batch job.
        """
        whom, after = _whom(workers), duration(grace)
        if announced is None:
            self.note(
                f"{signal_name(signum)} received, forwarded to {whom}; SIGKILL follows in {after}, "
                "or now on a second signal"
            )
        else:
            self.note(
                f"{signal_name(announced)} received, the batch job is about to end: "
                f"{signal_name(signum)} goes to {whom}; SIGKILL follows in {after}"
            )

    def killing(
        self, signum: int | None, workers: int | None, ignoring: Collection[int] = ()
    ) -> None:
        """Report that workers are killed, None for their preflight.

        That is because of a second signal, or because the grace period is over (None). Ranks that
        are ``ignoring`` SIGTERM are named.
        """
        why = "the grace period is over" if signum is None else f"{signal_name(signum)} again"
        who = f"; SIGTERM is ignored by {ranks(ignoring)}" if ignoring else ""
        self.note(f"{why}, killing {_whom(workers)}{who}")

    def fired(self, hang: Hang) -> None:
        """Report what the watchdog found."""
        from lllaunch.console.hang import fired_text  # noqa: PLC0415 - only where it is needed

        self._note_finding(hang)
        self.note(f"watchdog: {fired_text(hang, self._cwd)}; taking stacks")

    def looking(self, signum: int, silent: float | None) -> None:
        """Report why a signal is not passed on at once; no output came for ``silent`` seconds."""
        why = f"no output for {duration(silent)}, " if silent else ""
        self.note(f"{signal_name(signum)} received; {why}taking stacks before it is passed on")

    def stacks_shown(self, hang: Hang) -> None:
        """Show where the workers are, for a user who asked or a finding that ends nothing."""
        from lllaunch.console.hang import fired_text, look_lines  # noqa: PLC0415 - as above

        if isinstance(hang.finding, Asked):
            title = str(hang.finding)
        else:
            title = f"watchdog: {fired_text(hang, self._cwd)}; the run goes on"
            self._note_finding(hang)
        self._write([StyledText(f"lllaunch: {title}"), *look_lines(hang, self._cwd)])

    def stacks_taken(self, hang: Hang) -> None:
        """Report who hangs, as far as that is known, and where all stacks are."""
        from lllaunch.console.hang import located_text  # noqa: PLC0415 - as above

        text = located_text(hang, self._cwd)
        if text:
            self.note(text if isinstance(hang.finding, Asked) else f"watchdog: {text}")

    def process_signalled(self, rank: int, pid: int, signum: int) -> None:
        """Report that process `pid` of a rank gets the signal that its timer asks for."""
        who = f"process {pid} of rank {rank}"
        self.note(f"watchdog: {signal_name(signum)} to {who}, as its timer asks")

    def ending(self, signum: int, workers: int | None, grace: float) -> None:
        """Report that the workers get a signal because of what the watchdog found.

        ``workers`` and ``grace`` are as for `signalled`.
        """
        name, after = signal_name(signum), duration(grace)
        self.note(f"watchdog: {name} to {_whom(workers)}; SIGKILL follows in {after}")

    def sampled(self, progress: Mapping[int, Progress], memory: int) -> None:
        """Take note of how far the workers are, by rank, and of their memory together, bytes."""
        run = self._run
        if run is not None:
            run.progress, run.memory, run.seen = dict(progress), memory, self._clock()

    def doing(self, what: str, seconds: float | None = None) -> None:
        """Take note of what goes on while no workers run, for the line below the output.

        Such as ``importing torch``, for so many seconds if that is known; empty if they run.
        """
        run = self._follow()
        run.doing = self._hide(what)
        run.until = None if seconds is None else self._clock() + seconds

    # What is shown by itself

    def next_in(self) -> float | None:
        """Return the seconds until `tick` has something to show; None if there is nothing."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def tick(self, look: Callable[[], Mapping[int, Progress]] = dict) -> None:
        """Show how far the run is, if that is due; then ``look`` returns it, by rank."""
        run, now = self._run, self._clock()
        if self._bottom is not None and self._bottom.hidden:
            self._draw(self._bottom)
        if run is None or self._due is None or now < self._due:
            return
        every = _FRAME_S if self._live else self._policy.interval or math.inf
        # with the same distance from the beginning, however late this one is
        self._due = run.began + every * (math.floor((now - run.began) / every) + 1)
        if progress := look():
            run.progress, run.seen = dict(progress), now
        if not self._live:
            self.note(heartbeat_text(run, now))
        elif (bottom := self._below()) is not None:
            self._draw(bottom)

    def give_way(self) -> None:
        """Take away what is drawn below the output, as long as nobody calls `tick`."""
        if (bottom := self._below()) is not None:
            with self._speaks:
                bottom.hide(self._patience)
            if self._live:
                self._due = self._clock()

    def _follow(self) -> RunStatus:
        """Return what is known of the run; begin to show it if there is nothing yet."""
        if self._run is None:
            now = self._clock()
            self._run = RunStatus(now)
            stream = self._outlet.stream
            alone = not any(other and same_file(stream, other) for other in self._beside)
            self._live = stays(stream, self._policy, unasked=alone)
            every = None if self._policy.quiet else self._policy.interval
            every = _FRAME_S if self._live else every
            self._due = None if every is None else now + every
        return self._run

    def _below(self) -> Bottom | None:
        """Return what is drawn below the output; None where that is no terminal."""
        if not is_terminal(self._outlet.stream):
            return None
        if self._bottom is None:
            paint = painter(self._outlet.stream, self._policy.color)
            self._bottom = Bottom(self._outlet, paint, self._rows)
        return self._bottom

    def _rows(self, columns: int, lines: int) -> list[Row]:
        run = self._run if self._live else None
        return [] if run is None else status_rows(run, self._clock(), columns, lines)

    def _draw(self, bottom: Bottom) -> None:
        with self._speaks:
            bottom.draw()

    def _note_finding(self, hang: Hang) -> None:
        if self._run is not None:
            self._run.findings.append(limit_of(hang.finding))

    def note(self, text: str) -> None:
        """Show a message."""
        self._write([StyledText(f"lllaunch: {text}")])

    def warning(self, text: str) -> None:
        """Report a problem that does not end the run."""
        self.note(f"warning: {text}")

    def refused(self, message: str) -> None:
        """Report why nothing was started; lines after the first are indented."""
        first, *rest = visible(message).split("\n")
        more = (StyledText(f"  {text}") for text in rest)
        self._write([StyledText(f"lllaunch: {first}", "error"), *more], last=True)

    def finished(self, outcome: RunResult) -> None:
        """Show the report of a run that is over."""
        # What only the end needs is imported then: it would delay every start.
        from lllaunch.console.report import report_lines  # noqa: PLC0415

        # the line below the output goes for good
        self._due = self._run = None
        if self._bottom is not None:
            with self._speaks:
                self._bottom.end(self._patience)
            self._bottom = None
        lines = report_lines(outcome, self._cwd)
        if self._policy.quiet and outcome.state == "succeeded":
            del lines[0]
        if lines:
            self._write(lines, last=True)

    def _write(self, lines: Sequence[StyledText], *, last: bool = False) -> None:
        # what workers wrote cannot turn the direction of text either, or hide some
        rows = [(StyledText(visible(self._hide(line.text)), line.style),) for line in lines]
        patience = self._last_patience if last else self._patience
        with self._speaks:
            texts = painter(self._outlet.stream, self._policy.color)(rows)
            self._outlet.put("".join(f"{text}\n" for text in texts), patience, last=last)


def _whom(workers: int | None) -> str:
    return "the preflight" if workers is None else counted(workers, "worker")
