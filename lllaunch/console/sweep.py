"""What the user sees of a sweep: a live table on a terminal, a line for each change elsewhere.

`SweepConsole` speaks for the sweep's launcher, `JobConsole` for one job, which is silent where the
launcher reports the same. `lllaunch.console.board` has what is known and its table,
`lllaunch.console.summary` the end.
"""

from __future__ import annotations

import hashlib
import mmap
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

from lllaunch.console.board import Board, heartbeat_text, view_of
from lllaunch.console.bottom import Bottom, size_of, stays
from lllaunch.console.console import Console
from lllaunch.console.stream import KEPT, Outlet, display, given_or_nowhere, same_file
from lllaunch.console.table import Row, decoded, is_terminal, painter
from lllaunch.files import working_directory
from lllaunch.spec import ConsolePolicy
from lllaunch.sweep.processes import tell_progress
from lllaunch.sweep.protocol import JobPrinted, Stopping, Tick
from lllaunch.text import coloured
from lllaunch.words import StyledText, counted, shown_path

if TYPE_CHECKING:
    from lllaunch.run.result import RunResult
    from lllaunch.sweep.history import SweepResult
    from lllaunch.watchdog.progress import Progress


# How long a message waits for a stream, seconds; jobs wait for the launcher meanwhile.
_PATIENCE_S = 0.2
# The same for the last messages.
_LAST_PATIENCE_S = 10.0
# The table is drawn at most every so many seconds.
_FRAME_S = 0.1
# It shows times, and what a burst of changes has left undrawn.
_TICK_S = 0.25
_LEAST_COLUMNS, _LEAST_LINES = 40, 6
# Rows of the table that are no jobs.
_AROUND = 6


@display("more messages of this sweep", "finished", "close")
class SweepConsole:
    """The messages of a sweep's launcher.

    On a terminal a table of the jobs stays at the bottom, what jobs print and what fails scrolls
    above. Elsewhere each change is one line, written as a whole, and now and then a line reports
    how far the sweep is. No stream makes the sweep fail or wait.

    Messages go to `stream` (standard error), what jobs print to `out` (standard output). Paths are
    relative to `cwd` (the working directory). `machine` is what the sweep may lease, for people
    (``"8 GPUs, 2 cores"``). Without `live` the policy says whether there is a table.
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
        stream = given_or_nowhere(sys.stderr if stream is None else stream)
        out = given_or_nowhere(sys.stdout if out is None else out)
        self._cwd = working_directory() if cwd is None else cwd
        self._machine = machine
        self._clock = clock
        outlet = partial(Outlet, clock=clock, room=KEPT, elsewhere="the jobs' logs")
        self._flow = outlet(stream)
        self._out = self._flow if same_file(stream, out) else outlet(out)
        size = size_of(stream)
        fits = size.columns >= _LEAST_COLUMNS and size.lines >= _LEAST_LINES
        # whether there is a table
        self.live = stays(stream, policy, unasked=fits) if live is None else live
        self._quiet = policy.quiet
        self._interval = None if self.live or policy.quiet else policy.interval
        self._paint = painter(stream, policy.color)
        self._table: Bottom | None = None
        self._board = Board(self._cwd)
        self._drawn = float("-inf")
        self._changed = False
        # when the next line reports how far the sweep is
        self._beat = float("inf")

    def tick_in(self) -> float | None:
        """Return in how many seconds `Tick` has something to show even if nothing happens."""
        if self.live:
            return _TICK_S
        return None if self._interval is None else max(0.0, self._beat - self._clock())

    def began(self, board: Board, batch: int | None = None) -> None:
        """Report that a sweep begins.

        Where the sweeper asks for several batches of jobs, `batch` is the number of this one, and
        only the first begins the sweep.
        """
        self._board, now = board, self._clock()
        board.began, board.cwd = now, self._cwd
        if self._interval is not None:
            self._beat = now + self._interval
        where = shown_path(board.directory, self._cwd)
        text = f"sweep of {counted(board.total, 'job')} in {where}"
        if batch is not None:
            text = f"sweep in {where}, whose jobs the sweeper chooses as it goes on"
        text += f", {self._machine}" if self._machine else ""
        if board.resumed:
            text += f"; {board.resumed} of them had succeeded before"
        if not batch and not self._quiet:
            self.note(text)
        if self.live:
            self._table = Bottom(self._flow, self._paint, self._rows)
            self._draw(now)

    def _rows(self, columns: int, lines: int) -> list[Row]:
        from lllaunch.console.live_table import view_rows  # noqa: PLC0415 - of terminals

        view = view_of(self._board, self._clock())
        # what jobs print scrolls above
        most = max(lines // 2, self._board.running + _AROUND)
        return view_rows(view, columns, min(lines, most), self._cwd)

    def awaited(self) -> tuple[int, ...]:
        """Return descriptors that are writable when what is kept can be shown."""
        return tuple({flow.awaited() for flow in (self._flow, self._out)} - {-1})

    def observe(self, event: object) -> None:
        """Take note of whatever a sweep tells its observer."""
        now = self._clock()
        if isinstance(event, JobPrinted):
            self._printed(event)
        for message in self._board.take(event, now):
            if not (message.routine and (self._quiet or self._table is not None)):
                first, *rest = message.lines
                head = first._replace(text=f"lllaunch: {first.text}")
                self._say([(line,) for line in (head, *rest)])
        if isinstance(event, Stopping):
            # the shell writes now
            if self._table is not None:
                self._table.hide(_PATIENCE_S)
                self._changed = True
            return
        if isinstance(event, Tick):
            self._tick(now)
        else:
            self._changed = True
        if self._table is not None and self._changed and now - self._drawn >= _FRAME_S:
            self._draw(now)

    def note(self, text: str) -> None:
        """Show a message about the sweep as a whole."""
        self._say([(StyledText(f"lllaunch: {text}"),)])

    def finished(
        self,
        result: SweepResult,
        numbers: Collection[int] | None = None,
        *,
        resume: str | None = "",
    ) -> None:
        """Show the summary of a sweep that is over.

        A sweep that is resumed may have had other jobs than those with `numbers`; None for all,
        also those of batches before. `resume` is as `lllaunch.console.summary.Setting` has it.
        """
        # what only the end needs is imported then
        from lllaunch.console.summary import Setting, summary_rows  # noqa: PLC0415

        self.close()
        stream = self._flow.stream
        setting = Setting(
            directory=self._board.directory,
            cwd=self._cwd,
            total=0 if numbers is None else self._board.total,
            common=self._board.common,
            cancelled=self._board.cancelled,
            columns=size_of(stream).columns if is_terminal(stream) else 0,
            resume=resume,
        )
        if numbers is not None:
            numbers = numbers if isinstance(numbers, range) else frozenset(numbers)
            jobs = tuple(job for job in result.jobs if job.job in numbers)
            result = replace(result, jobs=jobs, seconds=self._clock() - self._board.began)
        if not (self._quiet and result.exit_code == 0):
            self._say(summary_rows(result, setting), last=True)

    def close(self) -> None:
        """Take the table away and write what was not shown yet; idempotent."""
        if self._table is not None:
            self._table.end(_LAST_PATIENCE_S)
            self._table = None
        for flow in (self._flow, self._out):
            flow.push(_LAST_PATIENCE_S, last=True)

    def _printed(self, event: JobPrinted) -> None:
        flow = self._out if event.stream == 1 else self._flow
        text = f"[{event.number}] {decoded(event.line)}"
        if self._table is not None and flow is self._flow:
            self._table.say(coloured(text))
        else:
            flow.put(f"{text}\n", _PATIENCE_S)

    def _say(self, rows: Sequence[Row], *, last: bool = False) -> None:
        """Write rows at once, or above the table with its next drawing."""
        lines = self._paint(rows)
        if self._table is not None:
            for line in lines:
                self._table.say(line)
            return
        patience = _LAST_PATIENCE_S if last else _PATIENCE_S
        self._flow.put("".join(f"{line}\n" for line in lines), patience, last=last)

    def _tick(self, now: float) -> None:
        """Show what is due: time has passed."""
        for flow in (self._flow, self._out):
            flow.push()
        if self._table is not None and (now - self._drawn >= 1 or self._table.resized):
            self._changed = True
        if self._interval is not None and now >= self._beat:
            self._beat = now + self._interval
            self.note(heartbeat_text(self._board, now))

    def _draw(self, now: float) -> None:
        assert self._table is not None
        self._drawn = now
        self._changed = not self._table.draw()


# Bytes of the digest of a failure, and how many there may be: later ones are all reported.
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
    """Reports what happens within a job: restarts, hangs, warnings, and why it failed.

    A failure like one that other jobs have `reported` is shown by the sweep's launcher in one line,
    and that is enough.
    """

    def __init__(self, reported: Reported) -> None:
        super().__init__()
        self._reported = reported

    def _left_to_sweep(self, *_: object, **__: object) -> None:
        """Do nothing: the sweep's launcher shows what its jobs do, and the signals that it got."""

    started = signalled = doing = _left_to_sweep

    def killing(
        self, signum: int | None, workers: int | None, ignoring: Collection[int] = ()
    ) -> None:
        """Report that workers are killed because they did not end by themselves."""
        if signum is None:
            super().killing(signum, workers, ignoring)

    def sampled(self, progress: Mapping[int, Progress], memory: int) -> None:  # noqa: ARG002 - an override
        """Tell the sweep's launcher how far the furthest worker is; its table shows that."""
        if progress:
            furthest = max(progress.values(), key=lambda each: each.step)
            tell_progress(furthest.step, furthest.total, furthest.eta)

    def finished(self, outcome: RunResult) -> None:
        """Show the report of a run that failed by itself, in a way that no other has."""
        if not outcome.exit_code or outcome.state == "signalled":
            return
        root = outcome.root_cause
        failure = f"{root.cause} {root.traceback}" if root else str(outcome.limit)
        if self._reported.is_new(f"{outcome.state}: {outcome.error or failure}"):
            super().finished(outcome)
