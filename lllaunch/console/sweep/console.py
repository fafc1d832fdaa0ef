"""Tells the user of a sweep: what changes, what jobs print, and how it ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from lllaunch.console.sweep.board import Began, Board, Change, JobOver
from lllaunch.console.sweep.lines import change_lines
from lllaunch.console.sweep.paint import is_terminal, painted
from lllaunch.console.sweep.screen import BottomTable, Flow, Size, same_file, size_of
from lllaunch.console.sweep.table import Row, StyledText, decoded, harmless, table_rows
from lllaunch.console.wording import counted, shown_path
from lllaunch.run.files import working_directory
from lllaunch.sweep.protocol import JobPrinted, Stopping, Tick
from lllaunch.sweep.schedule import JobState

if TYPE_CHECKING:
    from lllaunch.sweep.policy import SweepPolicy

# How long a message waits for a stream, seconds; jobs wait for the launcher meanwhile.
_PATIENCE_S = 0.2
# The same for what is said when all is over.
_LAST_PATIENCE_S = 10.0
# The table is drawn at most every so many seconds.
_FRAME_S = 0.1
_LEAST = Size(columns=40, lines=6)


class SweepConsole:
    """The voice of a sweep's launcher.

    On a terminal a table of the jobs stays at the bottom, what jobs print and what fails scrolls
    above. Elsewhere each change is one line, written as a whole. As for a run, no stream makes the
    sweep fail or stand still.

    Args:
        stream: where messages go; standard error if None.
        cwd: directory that paths are shown relative to; the working directory of now if None.
        live: whether there is a table; None for one if the stream is a terminal that can show it.
        machine: what the sweep may lease, for people (``"8 GPUs, 2 cores"``).
        out: where jobs' standard output goes; standard output if None.
        clock: the time, seconds; that of ``handle``'s ``now``.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        cwd: str | None = None,
        live: bool | None = None,
        machine: str = "",
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        out = sys.stdout if out is None else out
        self._cwd = working_directory() if cwd is None else cwd
        self._machine = machine
        self._clock = clock
        # None where the launcher was started without that stream.
        self._flow = None if stream is None else Flow(stream, clock)
        joint = stream is not None and out is not None and same_file(stream, out)
        self._out = self._flow if joint else None if out is None else Flow(out, clock)
        self._live = _can_show(stream) if live is None else live and stream is not None
        self._screen: BottomTable | None = None
        self._board = Board()
        self._begun: float | None = None
        self._directory = self._cwd
        self._common: Collection[str] = ()
        self._drawn = float("-inf")
        self._changed = False

    @property
    def live(self) -> bool:
        """Whether there is a table."""
        return self._live

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
        """
        self._begun = self._clock()
        self._directory, self._common = directory, frozenset(common)
        self._board = Board(total, overrides, self._common, policy, self._clock(), resumed)
        where = shown_path(directory, self._cwd)
        text = f"sweep of {counted(total, 'job')} in {where}"
        if batch is not None:
            text = f"sweep in {where}, whose jobs the sweeper chooses as it goes on"
        text += f", {self._machine}" if self._machine else ""
        if resumed:
            text += f"; {resumed} of them had succeeded before"
        if not batch:
            self._say([(StyledText(f"lllaunch: {text}"),)])
        if self._live and self._flow is not None:
            stream = self._flow.stream
            self._screen = BottomTable(self._flow, lambda: _size(stream))
            self._draw(self._clock())

    def awaited(self) -> tuple[int, ...]:
        """Descriptors that are writable when what is kept can be shown; nothing if all was."""
        flows = [flow for flow in (self._flow, self._out) if flow is not None]
        return tuple({flow.awaited() for flow in flows} - {-1})

    def observe(self, event: object) -> None:
        """Takes note of a fact, a decision, or what a job printed.

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

    def finished(
        self,
        document: Mapping[str, Any],
        numbers: Collection[int] | None = None,
        *,
        resume: str | None = "",
    ) -> None:
        """Shows the summary of a sweep that is over.

        Args:
            document: what sweep.json holds, see `lllaunch.sweep.history`.
            numbers: of the jobs that are meant: a sweep that is resumed may have had others. None
                for all, also those of batches before.
            resume: how the app was called, where that and the directory are all that a resume
                needs; empty where it needs the whole command line; None if there is none.
        """
        # What only the end needs is imported then.
        from lllaunch.console.sweep.summary import Setting, summary_rows  # noqa: PLC0415

        self.close()
        setting = Setting(
            directory=self._directory,
            cwd=self._cwd,
            total=0 if numbers is None else self._board.total,
            common=self._common,
            counts=None if numbers is None else self._board.summary(),
            cancelled=self._board.cancelled,
            columns=0 if self._flow is None else _columns(self._flow.stream),
            resume=resume,
            seconds=None if numbers is None else self._since_begun(),
        )
        if numbers is not None:
            numbers = numbers if isinstance(numbers, range) else frozenset(numbers)
            jobs = [job for job in document["jobs"] if job["job"] in numbers]
            document = {**document, "jobs": jobs}
        self._say(summary_rows(document, setting), last=True)

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
        if self._screen is not None and (succeeded or isinstance(change, Began)):
            return []
        first, *rest = change_lines(change, self._directory, self._cwd)
        style = "bad" if first.style == "title" else first.style
        return [
            (StyledText(f"lllaunch: {first.text}", style),),
            *((StyledText(line.text),) for line in rest),
        ]

    def _printed(self, event: JobPrinted) -> None:
        flow = self._out if event.stream == 1 else self._flow
        if flow is None:
            return
        text = f"[{event.number}] {decoded(event.line)}"
        if self._screen is not None and flow is self._flow:
            self._screen.say(harmless(text))
        else:
            flow.put(f"{text}\n", _PATIENCE_S)

    def _say(self, rows: Sequence[Row], *, last: bool = False) -> None:
        """Writes rows at once, or above the table with its next drawing."""
        if self._flow is None:
            return
        lines = painted(rows, self._flow.stream)
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

    def _refresh(self, now: float) -> None:
        """Draws the table if it has changed and was not drawn a moment ago."""
        if self._screen is not None and self._changed and now - self._drawn >= _FRAME_S:
            self._draw(now)

    def _draw(self, now: float) -> None:
        assert self._screen is not None
        self._drawn = now
        self._changed = not self._screen.draw(lambda size: table_rows(self._board, *size, now))


def _can_show(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can show a table."""
    if stream is None or not is_terminal(stream):
        return False
    size = _size(stream)
    able = os.environ.get("TERM", "") not in {"", "dumb"}
    return able and size.columns >= _LEAST.columns and size.lines >= _LEAST.lines


def _size(stream: TextIO) -> Size:
    try:
        return size_of(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return Size()


def _columns(stream: TextIO) -> int:
    return _size(stream).columns if is_terminal(stream) else 0
