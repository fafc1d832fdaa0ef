"""The launcher's messages, written to a stream; no error of that stream ends anything."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple, TextIO

from lllaunch.console.stream import Outlet, display, given_or_nowhere, same_file, showing
from lllaunch.console.table import is_terminal, painter
from lllaunch.documents import signal_name
from lllaunch.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.text import duration, plain, size, visible
from lllaunch.watchdog.findings import Asked, limit_of
from lllaunch.words import (
    StyledText,
    counted,
    passed,
    ranks,
    rate_text,
    short_step,
    shown_path,
    time_left,
)
from lllaunch.workers.terminal import cells, cut, moves_cursor, screen_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lllaunch.console.table import Row
    from lllaunch.run.result import AttemptResult, Hang, RunResult
    from lllaunch.watchdog.progress import Progress

_BETWEEN = ", "
_LONGEST_DOING = 60
# Of a terminal that has room for a line below the output.
_LEAST_COLUMNS, _LEAST_LINES = 40, 4


def stays(stream: TextIO, policy: ConsolePolicy, *, unasked: bool) -> bool:
    """Return whether a policy has something stay below the output; ``unasked``: if it is open."""
    if not (moves_cursor() and is_terminal(stream)):
        return False
    return policy.live if policy.live is not None else unasked and not policy.quiet


def size_of(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal that a stream is, in characters; 0 if it cannot be found."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.get_terminal_size(stream.fileno())
    return os.terminal_size((0, 0))


class Bottom:
    """Rows at the bottom of a terminal, below all that is written to it.

    No thread draws them, since the launcher forks. A drawing begins only when the one before was
    taken as a whole, so that a terminal which was stopped by Ctrl-S shows the right things when it
    goes on. Methods wait at most ``patience`` seconds for the terminal.

    ``flow``: to the terminal. ``paint``: returns the texts of rows, with colours. ``rows``: returns
    the rows for so many columns and lines; asked once for each drawing.
    """

    def __init__(
        self,
        flow: Outlet,
        paint: Callable[[list[Row]], list[str]],
        rows: Callable[[int, int], list[Row]],
    ) -> None:
        self._flow = flow
        # who shows it is not kept alive
        self._paint, self._rows = paint, weakref.WeakMethod(rows)
        # what all who write to the terminal share; it lives as long as somebody has it
        self._screen = screen_of(flow.stream)
        self._held: list[str] = []
        self._drawn_for = os.terminal_size((0, 0))
        # other threads draw them again with each line that they write
        self._painted: tuple[tuple[int, int], list[str]] | None = None
        self._broken = False

    def _texts(self, columns: int, lines: int) -> list[str]:
        size = columns, lines
        if self._painted is None or self._painted[0] != size:
            self._painted = size, []
            if not self._broken:
                self._broken = True
                with showing("live view"):
                    rows = self._rows()
                    self._painted = size, [] if rows is None else self._paint(rows(columns, lines))
                    self._broken = False
        return self._painted[1]

    @property
    def hidden(self) -> bool:
        """Whether it was taken away until the next drawing."""
        return self._screen.hidden

    @property
    def resized(self) -> bool:
        """Whether the terminal has another size than it was drawn for."""
        return size_of(self._flow.stream) != self._drawn_for

    def say(self, line: str) -> None:
        """Show a line above it with the next drawing."""
        self._held.append(line)

    def draw(self, patience: float = 0.0) -> bool:
        """Show the lines and, below them, the rows; return whether the terminal took all of it."""
        self._screen.hidden = False
        # the screen keeps none alive
        asked = weakref.WeakMethod(self._texts)
        self._screen.status = lambda *size: texts(*size) if (texts := asked()) else ()
        self._painted = None
        self._drawn_for = size_of(self._flow.stream)
        return self._show(patience)

    def hide(self, patience: float) -> None:
        """Take it away until the next drawing."""
        # first of all: other threads write to the terminal meanwhile
        self._screen.hidden = True
        self._show(patience)

    def end(self, patience: float) -> None:
        """Show the last lines, and take the rows away for good."""
        self._screen.hidden = False
        self._screen.status = None
        self._show(patience, last=True)

    def _show(self, patience: float, *, last: bool = False) -> bool:
        for line in self._held:
            self._flow.hold(f"{line}\n")
        self._held.clear()
        with contextlib.suppress(OSError, ValueError):
            if self._flow.pending:
                self._flow.push(patience, last=last)
            else:
                return self._flow.redraw(patience)
        return not self._flow.pending


# The line of a run


class RunStatus:
    """How far a run is, for whatever shows that.

    ``seen``: when these two were seen, seconds.
    """

    def __init__(self, began: float) -> None:
        self.began = self.seen = began  # when it began, seconds
        self.attempt: int | None = None  # number of the present one; None before the first
        self.doing = ""  # what goes on while no workers run, such as ``importing torch``; or empty
        self.until: float | None = None  # when that is over, seconds; None if unknown
        self.progress: dict[int, Progress] = {}  # how far the ranks are, of those that show it
        self.memory = 0  # of all workers of this node, bytes; 0 if it is not known yet
        self.findings: list[str] = []  # the settings of the watchdog that something was found by


class Part(NamedTuple):
    """A part of the line; where there is no room, parts with less weight are left out first."""

    text: str
    weight: int
    style: str = "faint"


# The colour of the line, too, says whose it is.
_OURS = Part("lllaunch: ", 3)


def _parts_of(run: RunStatus, now: float) -> list[Part]:
    """Return what is known of a run but for the time, in its order."""
    parts = []
    if run.attempt is not None:
        parts.append(Part(f"attempt {run.attempt}", 6 if run.attempt else 4))
    if run.doing:
        text = cut(plain(run.doing), _LONGEST_DOING)
        if run.until is not None:
            text += f" {passed(math.ceil(run.until - now))}"
        parts.append(Part(text, 9, "cause"))
    if progress := run.progress:
        furthest = max(progress.values(), key=lambda each: each.step)
        slowest = min(progress, key=lambda rank: progress[rank].step)
        parts.append(Part(f"step {short_step(furthest.step, furthest.total)}", 9, "title"))
        if furthest.rate:
            parts.append(Part(rate_text(furthest.rate), 1))
        lefts = [each.eta for each in progress.values() if each.eta is not None]
        if lefts:
            # all are done when the last one is
            parts.append(Part(time_left(max(0.0, max(lefts) - (now - run.seen))), 7))
        if progress[slowest].step < furthest.step:
            behind = short_step(progress[slowest].step, None)
            parts.append(Part(f"rank {slowest} is slowest (step {behind})", 5))
    if run.memory:
        parts.append(Part(size(run.memory), 2))
    if run.findings:
        last = run.findings[-1]
        named = f" ({last})" if last else ""
        parts.append(Part(f"{counted(len(run.findings), 'finding')}{named}", 10, "bad"))
    return parts


def fitted(parts: Sequence[Part], columns: int, name: Part = _OURS) -> list[StyledText]:
    """Return a line of at most so many columns, in pieces; `name` precedes the parts."""
    everything = [name, *parts]
    kept: set[int] = set()
    room = columns + len(_BETWEEN)
    for index in sorted(range(len(everything)), key=lambda index: -everything[index].weight):
        width = cells(everything[index].text) + (len(_BETWEEN) if index else 0)
        if width <= room:
            kept.add(index)
            room -= width
    shown = sorted(kept - {0})
    if not shown:
        # not even the most important one fits
        first = max(parts, key=lambda part: part.weight)
        return [StyledText(cut(first.text, columns), first.style)]
    found = [StyledText(name.text, name.style)] if 0 in kept else []
    for index in shown:
        if index > shown[0]:
            found.append(StyledText(_BETWEEN, "faint"))
        found.append(StyledText(everything[index].text, everything[index].style))
    return found


def heartbeat_text(run: RunStatus, now: float) -> str:
    """Return the line for where no line stays: ``10 min: step 1200/5000, ...``.

    It has no rate, and the first attempt is named only if nothing else is known.
    """
    parts = [part for part in _parts_of(run, now) if part.weight != 1]
    if len(parts) > 1 and run.attempt == 0:
        del parts[0]
    return f"{passed(now - run.began)}: {_BETWEEN.join(part.text for part in parts)}"


def status_rows(run: RunStatus, now: float, columns: int, lines: int) -> list[Row]:
    """Return the line below the output that fits a terminal; none where there is no room."""
    if columns < _LEAST_COLUMNS or lines < _LEAST_LINES:
        return []
    parts = _parts_of(run, now)
    parts.insert(0 if run.attempt is None else 1, Part(passed(now - run.began), 8))
    return [tuple(fitted(parts, columns - 1))]


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
    may it wait for one: what a stream does not take in time comes later. Messages may come from
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
        # returns how far the run is, by rank
        self.look: Callable[[], Mapping[int, Progress]] = dict
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
        from lllaunch.console.report import fired_text  # noqa: PLC0415 - only where it is needed

        self._note_finding(hang)
        self.note(f"watchdog: {fired_text(hang, self._cwd)}; taking stacks")

    def looking(self, signum: int, silent: float | None) -> None:
        """Report why a signal is not passed on at once; no output came for ``silent`` seconds."""
        why = f"no output for {duration(silent)}, " if silent else ""
        self.note(f"{signal_name(signum)} received; {why}taking stacks before it is passed on")

    def stacks_shown(self, hang: Hang) -> None:
        """Show where the workers are, for a user who asked or a finding that ends nothing."""
        from lllaunch.console.report import fired_text, look_lines  # noqa: PLC0415 - as above

        if isinstance(hang.finding, Asked):
            title = str(hang.finding)
        else:
            title = f"watchdog: {fired_text(hang, self._cwd)}; the run goes on"
            self._note_finding(hang)
        self._write([StyledText(f"lllaunch: {title}"), *look_lines(hang, self._cwd)])

    def stacks_taken(self, hang: Hang) -> None:
        """Report who hangs, as far as that is known, and where all stacks are."""
        from lllaunch.console.report import located_text  # noqa: PLC0415 - as above

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

    def tick(self) -> None:
        """Show how far the run is, if that is due; waits for nothing."""
        run, now = self._run, self._clock()
        if self._bottom is not None and self._bottom.hidden:
            self._draw(self._bottom)
        if run is None or self._due is None or now < self._due:
            return
        every = _FRAME_S if self._live else self._policy.interval or math.inf
        # with the same distance from the beginning, however late this one is
        self._due = run.began + every * (math.floor((now - run.began) / every) + 1)
        if progress := self.look():
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
