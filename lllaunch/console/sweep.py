"""What the user sees of a sweep: a live table on a terminal, a line for each change elsewhere.

`SweepConsole` is the voice of the sweep's launcher, `JobConsole` that of one job, which is silent
where the launcher speaks of it anyway. `lllaunch.console.board` has what is known and its table,
`lllaunch.console.summary` what is said in the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from msgspec.structs import replace

from lllaunch.console.board import (
    Began,
    Board,
    Change,
    Draining,
    Held,
    JobOver,
    JobRetried,
    Signalled,
    StartsBlocked,
    StartsUnblocked,
    heartbeat_text,
    lease_text,
    table_rows,
)
from lllaunch.console.console import Console
from lllaunch.console.display import display
from lllaunch.console.stream import KEPT, Outlet, same_file
from lllaunch.console.table import Painter, Row, cells, decoded, is_terminal
from lllaunch.documents import signal_name
from lllaunch.run.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.sweep.processes import tell_progress
from lllaunch.sweep.protocol import JobPrinted, Stopping, Tick
from lllaunch.sweep.schedule import JobState
from lllaunch.text import coloured, duration, printable
from lllaunch.words import StyledText, counted, ending, shown_path
from lllaunch.workers.terminal import in_foreground, moves_cursor

if TYPE_CHECKING:
    from lllaunch.run.result import RunResult
    from lllaunch.spec import RestartCause
    from lllaunch.sweep.objective import Objectives
    from lllaunch.sweep.pool import Lease
    from lllaunch.watchdog.progress import Progress
from lllaunch.sweep.history import SweepResult
from lllaunch.sweep.policy import SweepPolicy

_LONGEST_CAUSE = 300
_FAILED: dict[RestartCause, str] = {
    "failure": "failed",
    "oom": "ran out of memory",
    "hang": "hung",
    "signal": "was ended by a signal",
    "timeout": "took too long",
    "node": "lost a node",
}


def change_lines(change: Change, directory: str, cwd: str) -> list[StyledText]:
    """Returns what is said of a change, the first line without ``lllaunch:``.

    Args:
        change: what changed.
        directory: the sweep's, absolute.
        cwd: directory that paths below it are shown relative to.
    """
    if isinstance(change, JobOver):
        return _over(change, directory, cwd)
    if isinstance(change, Began):
        return [StyledText(_began(change))]
    if isinstance(change, Held):
        slots = lease_text(change.slots)
        return [StyledText(f"job {change.number} waits for {slots}: held by another launcher")]
    if isinstance(change, StartsUnblocked):
        return [StyledText("what failed works again: jobs are started", "good")]
    return [StyledText(_cause(change), "cause")]


def _cause(change: JobRetried | Signalled | Draining | StartsBlocked) -> str:
    if isinstance(change, JobRetried):
        return _again(change)
    if isinstance(change, Signalled):
        return _signalled(change)
    return _draining(change) if isinstance(change, Draining) else _blocked(change)


def _began(change: Began) -> str:
    text = f"job {change.number} started"
    if change.overrides:
        text += f" ({change.overrides})"
    slots = lease_text(change.lease)
    if slots:
        text += f" on {slots}"
    return f"{text}, attempt {change.attempt}" if change.attempt else text


def _over(change: JobOver, directory: str, cwd: str) -> list[StyledText]:
    job, after = f"job {change.number}", duration(change.seconds)
    if change.state is JobState.SUCCEEDED:
        return [StyledText(f"{job} succeeded in {after}", "good")]
    if change.state is JobState.CANCELLED:
        return [StyledText(f"{job} was cancelled after {after}")]
    if not change.attempts:
        return _unable(change)
    where = shown_path(os.path.join(directory, change.directory), cwd)
    text = f"{job} failed after {after}"
    if change.attempts > 1:
        text += f" in attempt {change.attempts - 1}"
    return [StyledText(f"{text}: {ending(change.exit_code, change.why)}; logs in {where}", "bad")]


def _unable(change: JobOver) -> list[StyledText]:
    """A job that was never started: why, perhaps in several lines."""
    job = f"job {change.number}"
    if change.overrides:
        job += f" ({change.overrides})"
    first, *rest = change.why.strip().splitlines() or [""]
    code = f" (exit code {change.exit_code})" if change.exit_code is not None else ""
    head = StyledText(f"{job} cannot run{code}: {printable(first, _LONGEST_CAUSE)}", "bad")
    return [head, *(StyledText(f"  {printable(text, _LONGEST_CAUSE)}") for text in rest)]


def _again(change: JobRetried) -> str:
    failed = f"{_FAILED[change.cause]} after {duration(change.seconds)}"
    text = f"job {change.number}: attempt {change.attempt} {failed}"
    when = f" in {duration(change.wait)}" if change.wait else ""
    count = f" ({change.retry}" + (")" if change.of is None else f" of {change.of})")
    return f"{text}: {ending(change.exit_code, change.why)}; trying again{when}{count}"


def _signalled(change: Signalled) -> str:
    name, jobs = signal_name(change.signum), counted(change.running, "running job")
    if change.again:
        return f"{name} received again: {jobs} killed"
    text = f"{name} received: no new jobs start"
    if not change.running:
        return text
    after = "SIGKILL follows after the grace period, or now on a second signal"
    return f"{text}; forwarded to {jobs}; {after}"


def _blocked(change: StartsBlocked) -> str:
    why = printable(change.why, _LONGEST_CAUSE)
    return f"{why}; no job is started until that works again, those that run go on"


def _draining(change: Draining) -> str:
    have = "has" if change.failed == 1 else "have"
    text = f"{counted(change.failed, 'job')} {have} failed: no more are started"
    if not change.running:
        return text
    goes = "goes" if change.running == 1 else "go"
    return f"{text}; {counted(change.running, 'running job')} {goes} on"


# A table that stays at the bottom of a terminal while lines scroll above it.
#
# No thread draws it, since the launcher forks, and nothing of the terminal is set that would have
# to be put back: the cursor rests on the line below the table, and each drawing begins by moving it
# up. A drawing begins only when the one before was taken as a whole, so that a terminal which was
# stopped by Ctrl-S shows what it is meant to when it goes on; the lines wait until then.

_ERASE_LINE, _ERASE_BELOW = "\x1b[K", "\x1b[J"
# A row that is wider than it was thought to be must not take two lines.
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Size(NamedTuple):
    """Of a terminal, in characters; all 0 if it cannot be told."""

    columns: int = 0
    lines: int = 0


def size_of(stream: TextIO) -> Size:
    """Returns the size of the terminal that a stream is."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return Size(*os.get_terminal_size(stream.fileno()))
    return Size()


class BottomTable:
    """The bottom of a terminal.

    Args:
        flow: to the terminal.
        size: gives the terminal's size.
        paint: makes texts of rows, with colours.
    """

    def __init__(
        self,
        flow: Outlet,
        size: Callable[[], Size],
        paint: Callable[[list[Row]], list[str]],
    ) -> None:
        self._flow = flow
        self._paint = paint
        self._size = size
        self._lines: deque[str] = deque()
        self._held = 0
        self._left_out = 0
        # How wide the rows are that the terminal shows, and how large it was.
        self._shown: list[int] = []
        self._drawn_for = Size()

    @property
    def resized(self) -> bool:
        """Whether the terminal has another size than it was drawn for."""
        return self._size() != self._drawn_for

    def say(self, line: str) -> None:
        """Takes a line that is shown above the table with the next drawing."""
        if self._lines and self._held + len(line) > KEPT:
            self._left_out += 1
            return
        self._lines.append(line)
        self._held += len(line)

    def draw(
        self, table: Callable[[Size], list[Row]], patience: float = 0.0, *, last: bool = False
    ) -> bool:
        """Shows the lines and, below them, a table.

        Nothing is drawn while the terminal has not taken what was drawn before.

        Args:
            table: gives the rows for a size; each less wide than the terminal.
            patience: waits at most so many seconds.
            last: waits even if the terminal took nothing before.

        Returns:
            Whether it was drawn.
        """
        self._flow.push(patience, last=last)
        if self._flow.pending:
            return False
        size = self._size()
        rows = table(size) if size.columns and in_foreground(self._flow.stream.fileno()) else []
        text = self._above(size) + self._rows(rows)
        self._drawn_for = size
        self._shown = [sum(cells(span.text) for span in row) for row in rows]
        self._flow.put(text, patience, last=last)
        return True

    def _above(self, size: Size) -> str:
        """Goes to where the table began, and shows the lines from there on."""
        up = sum(_lines_of(width, size.columns) for width in self._shown)
        text = f"\r\x1b[{up}A" if up else ""
        if self._lines or size.columns != self._drawn_for.columns:
            text += _ERASE_BELOW if up else ""
        lines = list(self._lines)
        if self._left_out:
            were = "was" if self._left_out == 1 else "were"
            lines.append(f"lllaunch: {counted(self._left_out, 'line')} {were} not shown")
        self._lines.clear()
        self._held = self._left_out = 0
        return text + "".join(f"{line}\n" for line in lines)

    def _rows(self, rows: list[Row]) -> str:
        if not rows:
            return _ERASE_BELOW if self._shown else ""
        lines = "".join(f"{text}{_ERASE_LINE}\n" for text in self._paint(rows))
        return f"{_NO_WRAP}{lines}{_WRAP}{_ERASE_BELOW}"


def _lines_of(width: int, columns: int) -> int:
    """How many lines a row takes: most terminals break those that no longer fit when narrowed."""
    return 1 if columns <= 0 else max(1, -(-width // columns))


# How long a message waits for a stream, seconds; jobs wait for the launcher meanwhile.
_PATIENCE_S = 0.2
# The same for what is said when all is over.
_LAST_PATIENCE_S = 10.0
# The table is drawn at most every so many seconds.
_FRAME_S = 0.1
# It shows times, and what a burst of changes has left undrawn.
_TICK_S = 0.25
_LEAST = Size(columns=40, lines=6)


@display("more messages of this sweep", "finished", "close")
class SweepConsole:
    """The voice of a sweep's launcher.

    On a terminal a table of the jobs stays at the bottom, what jobs print and what fails scrolls
    above. Elsewhere each change is one line, written as a whole, and now and then one says how far
    the sweep is. As for a run, no stream makes the sweep fail or stand still.

    Args:
        stream: where messages go; standard error if None.
        cwd: directory that paths are shown relative to; the working directory of now if None.
        live: whether there is a table; None for what the policy says.
        machine: what the sweep may lease, for people (``"8 GPUs, 2 cores"``).
        out: where jobs' standard output goes; standard output if None.
        clock: the time, seconds; that of ``handle``'s ``now``.
        policy: what is shown, and how.
    """

    is_off: bool

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        cwd: str | None = None,
        live: bool | None = None,
        machine: str = "",
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: ConsolePolicy | None = None,
    ) -> None:
        policy = ConsolePolicy() if policy is None else policy
        stream = sys.stderr if stream is None else stream
        out = sys.stdout if out is None else out
        self._cwd = working_directory() if cwd is None else cwd
        self._machine = machine
        self._clock = clock
        # None where the launcher was started without that stream.
        self._flow = None if stream is None else _kept(stream, clock)
        joint = stream is not None and out is not None and same_file(stream, out)
        self._out = self._flow if joint else None if out is None else _kept(out, clock)
        self._live = _shows(stream, policy) if live is None else live and stream is not None
        self._quiet = policy.quiet
        self._interval = None if self._live or policy.quiet else policy.interval
        self._paint = (lambda _: []) if stream is None else Painter(stream, policy.color).paint
        self._screen: BottomTable | None = None
        self._board = Board()
        self._begun: float | None = None
        self._directory = self._cwd
        self._common: Collection[str] = ()
        self._drawn = float("-inf")
        self._changed = False
        # When it is to be said next how far the sweep is.
        self._beat = float("inf")

    @property
    def live(self) -> bool:
        """Whether there is a table."""
        return self._live

    def tick_in(self) -> float | None:
        """In how many seconds there is something to be shown though nothing happens; or None."""
        if self._live:
            return _TICK_S
        return None if self._interval is None else max(0.0, self._beat - self._clock())

    def began(
        self,
        directory: str,
        total: int,
        overrides: Callable[[int], Sequence[str]],
        resumed: int = 0,
        *,
        common: Collection[str] = (),
        policy: SweepPolicy | None = None,
        batch: int | None = None,
        slots: Lease | None = None,
        objectives: Objectives | None = None,
    ) -> None:
        """Says that a sweep begins.

        Args:
            directory: of the sweep, absolute.
            total: number of jobs, those included that need not run.
            overrides: gives the task overrides of a job, redacted, by number.
            resumed: how many jobs had succeeded before; 0 if this is no resume.
            common: overrides that all jobs share, which are not shown.
            policy: of the sweep; tells how often jobs are tried again, and how many may fail.
            batch: number of this batch of jobs, from 0, where the sweeper asks for several; only
                the first begins the sweep. None where it asks for all at once.
            slots: all that jobs may lease, None if that is not known.
            objectives: those that are known by now; others are added as jobs end.
        """
        self._begun = self._clock()
        if self._interval is not None:
            self._beat = self._begun + self._interval
        self._directory, self._common = directory, frozenset(common)
        self._board = Board(
            *(total, overrides, self._common, policy, self._begun, resumed, slots, objectives)
        )
        where = shown_path(directory, self._cwd)
        text = f"sweep of {counted(total, 'job')} in {where}"
        if batch is not None:
            text = f"sweep in {where}, whose jobs the sweeper chooses as it goes on"
        text += f", {self._machine}" if self._machine else ""
        if resumed:
            text += f"; {resumed} of them had succeeded before"
        if not batch and not self._quiet:
            self._say([(StyledText(f"lllaunch: {text}"),)])
        if self._live and self._flow is not None:
            stream = self._flow.stream
            self._screen = BottomTable(self._flow, lambda: size_of(stream), self._paint)
            self._draw(self._clock())

    def awaited(self) -> tuple[int, ...]:
        """Descriptors that are writable when what is kept can be shown; nothing if all was."""
        flows = [flow for flow in (self._flow, self._out) if flow is not None]
        return tuple({flow.awaited() for flow in flows} - {-1})

    def observe(self, event: object) -> None:
        """Takes note of an event, an action, or what a job printed.

        Args:
            event: whatever a sweep tells its observer.
        """
        now = self._clock()
        if isinstance(event, JobPrinted):
            self._printed(event)
        changes = self._board.take(event, now)
        rows = [row for change in changes for row in self._rows(change)]
        if rows:
            self._say(rows)
        if isinstance(event, Stopping):
            self._give_way()
            return
        if isinstance(event, Tick):
            self._tick(now)
        else:
            self._changed = True
        self._refresh(now)

    def note(self, text: str) -> None:
        """Says something about the sweep as a whole."""
        self._say([(StyledText(f"lllaunch: {text}"),)])

    def finished(
        self,
        result: SweepResult,
        numbers: Collection[int] | None = None,
        *,
        resume: str | None = "",
    ) -> None:
        """Shows the summary of a sweep that is over.

        Args:
            result: what became of it.
            numbers: of the jobs that are meant: a sweep that is resumed may have had others. None
                for all, also those of batches before.
            resume: how the app was called, where that and the directory are all that a resume
                needs; empty where it needs the whole command line; None if there is none.
        """
        # What only the end needs is imported then.
        from lllaunch.console.summary import Setting, summary_rows  # noqa: PLC0415

        self.close()
        setting = Setting(
            directory=self._directory,
            cwd=self._cwd,
            total=0 if numbers is None else self._board.total,
            common=self._common,
            # a board that is off does not know what became of the jobs
            counts=None if numbers is None or self.is_off else self._board.summary(),
            cancelled=self._board.cancelled,
            columns=0 if self._flow is None else _columns(self._flow.stream),
            resume=resume,
            seconds=None if numbers is None else self._since_begun(),
        )
        if numbers is not None:
            numbers = numbers if isinstance(numbers, range) else frozenset(numbers)
            jobs = tuple(job for job in result.jobs if job.job in numbers)
            result = replace(result, jobs=jobs)
        if not (self._quiet and result.exit_code == 0):
            self._say(summary_rows(result, setting), last=True)

    def _since_begun(self) -> float | None:
        return None if self._begun is None else self._clock() - self._begun

    def close(self) -> None:
        """Takes the table away and lets go what was not shown yet; idempotent."""
        if self._screen is not None:
            self._screen.draw(lambda _: [], _LAST_PATIENCE_S, last=True)
            self._screen = None
        for flow in (self._flow, self._out):
            if flow is not None:
                flow.push(_LAST_PATIENCE_S, last=True)

    def _rows(self, change: Change) -> list[Row]:
        """What is said of a change; the table tells by itself who began and who succeeded."""
        succeeded = isinstance(change, JobOver) and change.state is JobState.SUCCEEDED
        silent = self._quiet or self._screen is not None
        if silent and (succeeded or isinstance(change, Began)):
            return []
        first, *rest = change_lines(change, self._directory, self._cwd)
        return [
            (first._replace(text=f"lllaunch: {first.text}"),),
            *((line,) for line in rest),
        ]

    def _printed(self, event: JobPrinted) -> None:
        flow = self._out if event.stream == 1 else self._flow
        if flow is None:
            return
        text = f"[{event.number}] {decoded(event.line)}"
        if self._screen is not None and flow is self._flow:
            self._screen.say(coloured(text))
        else:
            flow.put(f"{text}\n", _PATIENCE_S)

    def _say(self, rows: Sequence[Row], *, last: bool = False) -> None:
        """Writes rows at once, or above the table with its next drawing."""
        if self._flow is None:
            return
        lines = self._paint(rows)
        if self._screen is not None:
            for line in lines:
                self._screen.say(line)
            return
        patience = _LAST_PATIENCE_S if last else _PATIENCE_S
        self._flow.put("".join(f"{line}\n" for line in lines), patience, last=last)

    def _give_way(self) -> None:
        """Take the table away until something happens again: the shell writes now."""
        if self._screen is not None:
            self._screen.draw(lambda _: [], _PATIENCE_S)
            self._changed = True

    def _tick(self, now: float) -> None:
        """Time has passed."""
        for flow in (self._flow, self._out):
            if flow is not None:
                flow.push()
        if self._screen is not None and (now - self._drawn >= 1 or self._screen.resized):
            self._changed = True
        if self._interval is not None and now >= self._beat:
            self._beat = now + self._interval
            self.note(heartbeat_text(self._board, now))

    def _refresh(self, now: float) -> None:
        """Draws the table if it has changed and was not drawn a moment ago."""
        if self._screen is not None and self._changed and now - self._drawn >= _FRAME_S:
            self._draw(now)

    def _draw(self, now: float) -> None:
        assert self._screen is not None
        self._drawn = now
        self._changed = not self._screen.draw(lambda size: table_rows(self._board, *size, now))


def _kept(stream: TextIO, clock: Callable[[], float]) -> Outlet:
    return Outlet(stream, clock, room=KEPT, elsewhere="the jobs' logs")


def _shows(stream: TextIO | None, policy: ConsolePolicy) -> bool:
    """Whether there is a table on a stream."""
    if policy.live is None:
        return not policy.quiet and _can_show(stream)
    return policy.live and stream is not None and _can_draw(stream)


def _can_show(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can show a table."""
    if stream is None or not _can_draw(stream):
        return False
    size = size_of(stream)
    return size.columns >= _LEAST.columns and size.lines >= _LEAST.lines


def _can_draw(stream: TextIO) -> bool:
    return moves_cursor() and is_terminal(stream)


def _columns(stream: TextIO) -> int:
    return size_of(stream).columns if is_terminal(stream) else 0


# Bytes of what stands for a failure, and how many there may be: later ones are all reported.
_DIGEST = 8
_MOST = 512


class Reported:
    """The failures that jobs have reported, shared by all processes that are forked later."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _DIGEST * _MOST)

    def is_new(self, text: str) -> bool:
        """Return whether nobody has reported this before; two at the same moment both may."""
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=_DIGEST).digest()
        for at in range(0, _DIGEST * _MOST, _DIGEST):
            seen = self._memory[at : at + _DIGEST]
            if seen == digest:
                return False
            if not any(seen):
                self._memory[at : at + _DIGEST] = digest
                return True
        return True


@display("more messages of this job", "finished")
class JobConsole(Console):
    """Says what happens within a job: restarts, hangs, warnings, and the report of a failure.

    Args:
        reported: what other jobs have reported. Of a failure like one of these the sweep's launcher
            says in one line which job it was, and that is enough.
    """

    def __init__(self, reported: Reported) -> None:
        super().__init__()
        self._reported = reported

    def started(self, attempt: int, workers: int, what: str, directory: str) -> None:
        """Nothing: the sweep tells that the job was started."""

    def signalled(self, *_: object, **__: object) -> None:
        """Nothing: the sweep's launcher got the signal first, and said so."""

    def doing(self, what: str, seconds: float | None = None) -> None:
        """Nothing: the sweep shows what its jobs do."""

    def killing(self, signum: int | None, workers: int | None) -> None:
        """Says that workers are killed because they did not end by themselves."""
        if signum is None:
            super().killing(signum, workers)

    def sampled(self, progress: Mapping[int, Progress], memory: int) -> None:  # noqa: ARG002 - an override
        """Tells the sweep's launcher how far the furthest worker is; its table shows that."""
        if progress:
            furthest = max(progress.values(), key=lambda each: each.step)
            tell_progress(furthest.step, furthest.total, furthest.eta)

    def finished(self, outcome: RunResult) -> None:
        """Shows the report of a run that failed by itself, in a way that no other has."""
        if not outcome.exit_code or outcome.state == "signalled":
            return
        if self._reported.is_new(f"{outcome.state}: {_failure(outcome)}"):
            super().finished(outcome)


def _failure(outcome: RunResult) -> str:
    root = outcome.root_cause
    return outcome.error or (f"{root.cause} {root.traceback}" if root else str(outcome.limit))
