"""The live table: as many rows of a sweep as fit a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.fates import first_line
from lllaunch.console.sweep.cells import cells, cut, padded, plain
from lllaunch.console.sweep.naming import counts_text, lease_text
from lllaunch.sweep.vocabulary import JobState as J
from lllaunch.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.console.sweep.board import Board
    from lllaunch.console.sweep.view import JobView

_GAP = "  "
# Columns of the terminal that are needed for a column of the table to be shown.
_ROOM_FOR_LEASES, _ROOM_FOR_ATTEMPTS, _ROOM_FOR_LINES = 60, 70, 56
_WIDEST = 18
_LEAST_LINE = 10
_LEAST_WIDTH = 10
_LEAST_OVERRIDES = 12

_STYLES = {
    J.RUNNING: "busy",
    J.SUCCEEDED: "good",
    J.FAILED: "bad",
    J.CANCELLED: "bad",
}


class Span(NamedTuple):
    """A part of a row.

    Attributes:
        text: what it says.
        style: how it looks: ``busy``, ``good``, ``bad``, ``title``, ``faint``, or nothing special.
    """

    text: str
    style: str = ""


Row = tuple[Span, ...]


def table_rows(board: Board, columns: int, lines: int, now: float) -> list[Row]:
    """Returns the header and the jobs, each in less than ``columns`` columns.

    Running jobs come first, then those that failed last, those that are about to run, and those
    that succeeded last. Those fill half of the terminal at most, since what jobs print scrolls
    above.

    Args:
        board: the sweep.
        columns: of the terminal.
        lines: of the terminal; fewer are returned.
        now: the time, seconds.
    """
    width, room = columns - 1, lines - 3
    rows: list[Row] = [(Span(cut(_header(board, now), width), "title"),)]
    if room < 1 or width < _LEAST_WIDTH:
        return rows[: max(0, lines - 1)]
    shown, rest = _chosen(board, room, lines // 2)
    if shown:
        rows += _columns(shown, width, now)
    if rest:
        rows.append((Span(cut(f"and {rest}", width), "faint"),))
    return rows


def _header(board: Board, now: float) -> str:
    counts = board.counts
    done = counts[J.SUCCEEDED] + counts[J.SKIPPED]
    parts = counts_text(
        (
            (counts[J.FAILED], "failed"),
            (counts[J.CANCELLED], "cancelled"),
            (board.running, "running"),
            (counts[J.NOT_RUN], "not run"),
            (board.waiting, "waiting"),
        )
    )
    left = None if board.ending else board.left(now)
    ending = "no new jobs" if board.ending else ""
    if left:
        ending = f"about {_whole(left)} left"
    told = ", ".join(filter(None, (f"{done}/{board.total} done", parts, ending)))
    return f"{_whole(now - board.began)}: {told}"


def _chosen(board: Board, room: int, half: int) -> tuple[list[JobView], str]:
    """Returns the jobs that get a row, and what is said of the rest."""
    running = board.of_state(J.RUNNING)
    failed = list(reversed(board.failed))
    waiting = board.of_state(J.PAUSED, J.WAITING)
    order = [*running, *failed, *waiting, *reversed(board.succeeded)]
    size = min(room, max(len(running) + 1, half))
    shown = order[:size]
    rest = _rest(board, shown)
    if rest and len(shown) == size:
        # Its line takes room, too.
        shown = shown[: size - 1]
        rest = _rest(board, shown)
    return shown, rest


def _rest(board: Board, shown: Sequence[JobView]) -> str:
    states = [job.state for job in shown]
    ended = sum(board.counts[state] for state in (J.FAILED, J.CANCELLED))
    left = (
        (board.running - states.count(J.RUNNING), "more running"),
        (ended - states.count(J.FAILED) - states.count(J.CANCELLED), "more failed"),
        (board.waiting - states.count(J.WAITING) - states.count(J.PAUSED), "more waiting"),
    )
    return counts_text(left)


def _columns(jobs: Sequence[JobView], width: int, now: float) -> list[Row]:
    """Returns the titles and a row for each job."""
    table = _Table(width)
    table.add("job", [str(job.number) for job in jobs], right=True)
    state_at = 1
    # They are no narrower than this where there is room: columns that move are hard to read.
    steady = width >= _ROOM_FOR_ATTEMPTS
    columns = [
        ("state", [_state(job) for job in jobs], 9 * steady, True),
        ("tries", [str(job.tries) for job in jobs], 0, steady),
        ("on", [_lease(job) for job in jobs], 0, width >= _ROOM_FOR_LEASES),
        ("time", [_time(job, now) for job in jobs], 8 * steady, True),
    ]
    for title, texts, least, wanted in columns:
        if wanted and any(texts):
            right = title in {"tries", "time"}
            table.add(title, texts, least=least, most=_WIDEST, right=right)
    overrides = [job.overrides for job in jobs]
    lines = [_line(job) for job in jobs] if width >= _ROOM_FOR_LINES else []
    room = table.room
    if any(overrides):
        least = _LEAST_LINE + len(_GAP) if any(lines) else 0
        natural = max(*map(cells, overrides), len("overrides"))
        share = max(_LEAST_OVERRIDES, room // 2, room - least - _longest(lines))
        state_at += table.add("overrides", overrides, most=min(natural, share, room), at=1)
    if any(lines) and table.room >= _LEAST_LINE:
        table.add("last line", lines, most=table.room)
    styles = ["faint", *(_STYLES.get(job.state, "") for job in jobs)]
    return [
        tuple(_spans(row, state_at, style)) for row, style in zip(table.rows(), styles, strict=True)
    ]


def _longest(texts: Sequence[str]) -> int:
    return max(map(cells, texts), default=0)


def _spans(row: Sequence[str], state_at: int, style: str) -> list[Span]:
    if style == "faint" or state_at >= len(row):
        return [Span(_GAP.join(row).rstrip(), style)]
    before, after = _GAP.join(row[:state_at]), _GAP.join(row[state_at + 1 :])
    return [Span(f"{before}{_GAP}"), Span(row[state_at], style), Span(f"{_GAP}{after}".rstrip())]


class _Table:
    """Columns of text that share a width."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._columns: list[list[str]] = []

    @property
    def room(self) -> int:
        """How wide another column may be."""
        used = sum(cells(column[0]) + len(_GAP) for column in self._columns)
        return max(0, self._width - used)

    def add(
        self,
        title: str,
        texts: Sequence[str],
        *,
        least: int = 0,
        most: int | None = None,
        right: bool = False,
        at: int | None = None,
    ) -> bool:
        """Adds a column, so wide at least and at most; whether there was room at all."""
        width = max(least, *map(cells, [title, *texts]))
        width = min(width, self.room, width if most is None else most)
        if width:
            column = [padded(text, width, right=right) for text in [title, *texts]]
            self._columns.insert(len(self._columns) if at is None else at, column)
        return width > 0

    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*self._columns, strict=True))


def _state(job: JobView) -> str:
    return "retry" if job.state is J.PAUSED else job.state.value


def _lease(job: JobView) -> str:
    return lease_text(job.lease) if job.state is J.RUNNING else ""


def _time(job: JobView, now: float) -> str:
    if job.state is J.RUNNING:
        return _whole(now - job.since)
    over = job.state not in {J.WAITING, J.PAUSED}
    return duration(job.seconds) if over and job.seconds else ""


def _whole(seconds: float) -> str:
    """Returns a time span that is still going on: no fractions that would flicker."""
    return f"{int(seconds)} s" if seconds < 10 else duration(int(seconds))


def _line(job: JobView) -> str:
    """Returns what a job printed last, or what it failed of."""
    return job.line if job.state is J.RUNNING else plain(first_line(job.why)) or job.line
