"""Writes the launcher's messages to a stream; never fails because of it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, TextIO

from lllaunch.console.stream import Outlet, encodable
from lllaunch.console.wording import StyledText, counted, shown_path
from lllaunch.run.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.text import duration, visible
from lllaunch.watchdog.findings import Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.errors import LaunchError
    from lllaunch.run.hang import Hang
    from lllaunch.run.outcome import AttemptOutcome, RunOutcome
    from lllaunch.watchdog.progress import Progress

# Workers wait for the launcher while it talks during a run, seconds.
_PATIENCE_S = 0.2
# As long as the tee waits in the end, seconds.
_LAST_PATIENCE_S = 10.0


class Console:
    """The launcher's voice.

    Every message is one write of whole lines, so that it does not mix with teed output. A stream
    that was closed (``| head``) is forgotten: a training run must not end for want of a reader.
    Nor may it stand still for one: what a stream does not take in time is left out.

    Args:
        stream: where messages go; standard error of the moment of writing if None.
        cwd: directory that paths are shown relative to; the working directory of now if None.
        patience: a message waits at most so many seconds to be taken.
        last_patience: the same for a message after which nothing else is to be done.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        cwd: str | None = None,
        patience: float = _PATIENCE_S,
        last_patience: float = _LAST_PATIENCE_S,
    ) -> None:
        self._stream = stream
        self._cwd = working_directory() if cwd is None else cwd
        self._patience = patience
        self._last_patience = last_patience
        self._outlet: Outlet | None = None
        self._hide: Callable[[str], str] = str
        self._policy = ConsolePolicy()

    def hide(self, redact: Callable[[str], str]) -> None:
        """Applies ``redact`` to every message from now on, so that no secret is shown."""
        self._hide = redact

    def obey(self, policy: ConsolePolicy) -> None:
        """Shows what a policy says, from now on.

        A quiet one says nothing of what goes well: that attempts begin, and a success.
        """
        self._policy = policy

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """Says that an attempt begins.

        Args:
            attempt: its number.
            workers: how many are started.
            what: the entrypoint, as the user wrote it.
            directory: where it writes.
        """
        if self._policy.quiet:
            return
        where = shown_path(directory, self._cwd)
        self._say(f"attempt {attempt}: {counted(workers, 'worker')} of {what}, logs in {where}")

    def restarting(
        self, attempt: AttemptOutcome, restart: int, of: int | None, wait: float = 0.0
    ) -> None:
        """Says that a failed attempt is followed by another one.

        Args:
            attempt: the one that failed.
            restart: which restart this is, from 1.
            of: how many there may be; None if this one does not count.
            wait: seconds until then.
        """
        from lllaunch.console.report import at_step, failure_text  # noqa: PLC0415 - see `finished`
        from lllaunch.run.causes import SpawnerLost  # noqa: PLC0415 - as above

        count = "" if of is None else f" ({restart} of {of})"
        when = f" in {duration(wait)}" if wait else ""
        root = attempt.root_cause
        why = f"{failure_text(root, self._cwd)}{at_step(attempt)}"
        self._say(f"attempt {attempt.number}: {why}; restarting{when}{count}")
        if root is not None and isinstance(root.cause, SpawnerLost) and root.explanation:
            # Nothing of the experiment's failed, so nothing else says why.
            self._say(f"why ({root.explanation.sure}): {root.explanation.text}")

    def signalled(
        self,
        signum: int,
        workers: int | None,
        grace: float,
        *,
        forwarded: bool,
        announced: int | None = None,
    ) -> None:
        """Says that a signal came and what follows.

        Args:
            signum: the signal.
            workers: how many live workers got it; None if it is their preflight.
            grace: seconds that they have until SIGKILL.
            forwarded: False if they get it from elsewhere (a Slurm step).
            announced: the signal that it stands for, if that announced the end of a batch job.
        """
        whom = _whom(workers)
        if announced is not None:
            told = f"{_signal_name(signum)} goes to {whom}" if forwarded else f"{whom} got it too"
            self._say(
                f"{_signal_name(announced)} received, the batch job is about to end: {told}; "
                f"SIGKILL follows in {duration(grace)}"
            )
            return
        whom = f"forwarded to {whom}" if forwarded else f"{whom} got it too"
        self._say(
            f"{_signal_name(signum)} received, {whom}; SIGKILL follows in {duration(grace)}, or "
            "now on a second signal"
        )

    def killing(self, signum: int | None, workers: int | None) -> None:
        """Says that workers are killed.

        Args:
            signum: the second signal, or None if the grace period is over.
            workers: how many live; None if it is their preflight.
        """
        why = "the grace period is over" if signum is None else f"{_signal_name(signum)} again"
        self._say(f"{why}, killing {_whom(workers)}")

    def fired(self, hang: Hang) -> None:
        """Says what the watchdog found."""
        from lllaunch.console.hang import fired_text  # noqa: PLC0415 - only where it is needed

        self._say(f"watchdog: {fired_text(hang, self._cwd)}; taking stacks")

    def looking(self, signum: int, silent: float | None) -> None:
        """Says why a signal is not passed on at once.

        Args:
            signum: the signal.
            silent: seconds since the last output, None where that is not known.
        """
        why = f"no output for {duration(silent)}, " if silent else ""
        name = _signal_name(signum)
        self._say(f"{name} received; {why}taking stacks before it is passed on")

    def stacks_shown(self, hang: Hang) -> None:
        """Says where the workers stand, for a user who asked or a finding that ends nothing."""
        from lllaunch.console.hang import (  # noqa: PLC0415 - only where it is needed
            fired_text,
            look_lines,
        )

        if isinstance(hang.finding, Asked):
            title = str(hang.finding)
        else:
            title = f"watchdog: {fired_text(hang, self._cwd)}; the run goes on"
        self._write([StyledText(f"lllaunch: {title}"), *look_lines(hang, self._cwd)])

    def stacks_taken(self, hang: Hang) -> None:
        """Says who hangs, as far as that can be told, and where all stacks are."""
        from lllaunch.console.hang import located_text  # noqa: PLC0415 - as above

        text = located_text(hang, self._cwd)
        if text:
            self._say(text if isinstance(hang.finding, Asked) else f"watchdog: {text}")

    def process_signalled(self, rank: int, pid: int, signum: int) -> None:
        """Says that a process gets the signal that its timer asks for.

        Args:
            rank: the worker that it is or descends from.
            pid: its process id.
            signum: the signal.
        """
        name = _signal_name(signum)
        self._say(f"watchdog: {name} to process {pid} of rank {rank}, as its timer asks")

    def ending(self, signum: int, workers: int | None, grace: float) -> None:
        """Says that the workers are asked to end for what the watchdog found.

        Args:
            signum: the signal that they get.
            workers: how many live workers get it; None if it is their preflight.
            grace: seconds that they have until SIGKILL.
        """
        whom = _whom(workers)
        name, after = _signal_name(signum), duration(grace)
        self._say(f"watchdog: {name} to {whom}; SIGKILL follows in {after}")

    def progressed(self, progress: Progress) -> None:
        """Nothing: it is shown where somebody looks."""

    def note(self, text: str) -> None:
        """Says what is worth knowing."""
        self._say(text)

    def warning(self, text: str) -> None:
        """Says what went wrong and does not end the run."""
        self._say(f"warning: {text}")

    def error(self, error: LaunchError) -> None:
        """Says why nothing was started."""
        self.refused(str(error))

    def refused(self, message: str) -> None:
        """The same in words; of several lines the others are indented."""
        first, *rest = visible(message).split("\n")
        lines = [
            StyledText(f"lllaunch: {first}", "error"),
            *(StyledText(f"  {text}") for text in rest),
        ]
        self._write(lines, last=True)

    def finished(self, outcome: RunOutcome) -> None:
        """Shows the report of a run that is over."""
        # What only the end needs is imported then: it would delay every start.
        from lllaunch.console.report import report_lines  # noqa: PLC0415

        lines = report_lines(outcome, self._cwd)
        if self._policy.quiet and outcome.state == "succeeded":
            del lines[0]
        if lines:
            self._write(lines, last=True)

    def _say(self, text: str) -> None:
        self._write([StyledText(f"lllaunch: {text}")])

    def _write(self, lines: Sequence[StyledText], *, last: bool = False) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        if stream is None:  # started without one (pythonw, a closed descriptor 2)
            return
        if self._outlet is None or self._outlet.stream is not stream:
            self._outlet = Outlet(stream)
        lines = [StyledText(self._hide(line.text), line.style) for line in lines]
        # closed by its reader, by us, or full: there is nowhere left to say so
        with contextlib.suppress(OSError, ValueError):
            text = _rendered(stream, lines)
            patience = self._last_patience if last else self._patience
            self._outlet.write(text, patience, last=last)


def _signal_name(signum: int) -> str:
    from lllaunch.run.causes import signal_name  # noqa: PLC0415 - see `Console.finished`

    return signal_name(signum)


def _rendered(stream: TextIO, lines: Sequence[StyledText]) -> str:
    texts = [line.text for line in lines]
    if any(line.style for line in lines) and stream.isatty():
        from lllaunch.console.table import painted  # noqa: PLC0415 - only on a terminal

        texts = painted([(line,) for line in lines], stream)
    return encodable("".join(f"{text}\n" for text in texts), stream)


def _whom(workers: int | None) -> str:
    return "the preflight" if workers is None else counted(workers, "worker")
