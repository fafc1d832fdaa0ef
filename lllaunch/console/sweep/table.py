"""A table of the terminal: rows, their cells, and what is called how in them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.fates import first_line
from lllaunch.console.places import printable
from lllaunch.console.wording import counted
from lllaunch.sweep.schedule import JobState as J
from lllaunch.units import duration, spans

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from lllaunch.console.sweep.board import Board, JobView
    from lllaunch.sweep.pool import Lease


_LONGEST = 200  # characters of a job's overrides
_LONGEST_NUMBER = 12
_LONGEST_SLOT = 19  # columns of a GPU's name


def short_overrides(overrides: Sequence[str], common: Collection[str] = ()) -> str:
    """Returns ``lr=0.1 nproc=2`` of ``params.lr=0.1 launch.nproc=2 +exp=resnet``.

    Args:
        overrides: of the job.
        common: those that say nothing, since all jobs have them.
    """
    own = [each for each in overrides if each not in common]
    last = [_last(each) for each in own]
    often = Counter(key for key, _ in last)
    # Two keys with one name are told apart by all of it.
    texts = [
        f"{key}={_short(value)}" if value is not None and often[key] == 1 else each
        for each, (key, value) in zip(own, last, strict=True)
    ]
    return printable(" ".join(texts), _LONGEST)


def _short(value: str) -> str:
    """Returns a value; of a number with more digits than anybody compares, the first ones."""
    if len(value) <= _LONGEST_NUMBER:
        return value
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def _last(override: str) -> tuple[str, str | None]:
    """Returns the last part of an override's key, and its value if it has one."""
    key, equals, value = override.partition("=")
    return re.split(r"[./]", key.lstrip("+"))[-1], value if equals else None


def lease_text(lease: Lease) -> str:
    """Returns ``GPU 0,1, cores 0-3``; an empty string if nothing is leased."""
    return ", ".join(filter(None, (_gpus(lease.gpus), _cores(lease.cpus))))


def _gpus(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"GPU {','.join(cut(plain(name), _LONGEST_SLOT) for name in names)}"


def _cores(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"{'core' if len(numbers) == 1 else 'cores'} {spans(numbers).replace(' ', '')}"


def named_jobs(numbers: Iterable[int]) -> str:
    """Returns ``job 3`` or ``jobs 0-2, 5``."""
    known = set(numbers)
    return f"{'job' if len(known) == 1 else 'jobs'} {spans(known)}"


def counts_text(counts: Iterable[tuple[int, str]]) -> str:
    """Returns ``3 failed, 2 running``; nothing of what is 0."""
    return ", ".join(f"{number} {what}" for number, what in counts if number)


def running_jobs(number: int) -> str:
    """Returns ``1 running job`` or ``2 running jobs``."""
    return counted(number, "running job")


# Colours and the like; they move nothing.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
# Other sequences that a terminal obeys: they are dropped as a whole.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MORE = "..."


def cells(text: str) -> int:
    """How many columns a text takes that has no control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """Returns a text of at most so many columns; one that was longer ends in ``...``."""
    if cells(text) <= width:
        return text
    more = _MORE if width > 2 * len(_MORE) else ""
    room = width - len(more)
    kept = []
    for letter in text:
        room -= _cells(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + more


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Returns a text that takes exactly so many columns.

    Args:
        text: the text.
        width: how many.
        right: whether it stands at the right end.
    """
    text = cut(text, width)
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def decoded(line: bytes) -> str:
    """Returns a line that a job printed; of a progress bar what it showed last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")


def harmless(text: str) -> str:
    """Returns a text that may have colours and cannot move the cursor."""
    if text.isprintable():
        return text
    found, end = [], 0
    for match in _COLOURS.finditer(text):
        found += [_plain(text[end : match.start()], tab="\t"), match[0]]
        end = match.end()
    return "".join([*found, _plain(text[end:], tab="\t"), "\x1b[0m" if end else ""])


def plain(text: str) -> str:
    """Returns a text without anything that is not shown, for a cell of a table."""
    return text if text.isprintable() else _plain(_COLOURS.sub("", text), tab=" ")


def _plain(text: str, tab: str) -> str:
    text = _SEQUENCES.sub("", text)
    return "".join(
        each if each.isprintable() else tab if each == "\t" else _named(each) for each in text
    )


def _named(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


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


class StyledText(NamedTuple):
    """A part of a row.

    Attributes:
        text: what it says.
        style: how it looks: ``busy``, ``good``, ``bad``, ``title``, ``faint``, or nothing special.
    """

    text: str
    style: str = ""


Row = tuple[StyledText, ...]


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
    rows: list[Row] = [(StyledText(cut(_header(board, now), width), "title"),)]
    if room < 1 or width < _LEAST_WIDTH:
        return rows[: max(0, lines - 1)]
    shown, rest = _chosen(board, room, lines // 2)
    if shown:
        rows += _columns(shown, width, now)
    if rest:
        rows.append((StyledText(cut(f"and {rest}", width), "faint"),))
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


def _spans(row: Sequence[str], state_at: int, style: str) -> list[StyledText]:
    if style == "faint" or state_at >= len(row):
        return [StyledText(_GAP.join(row).rstrip(), style)]
    before, after = _GAP.join(row[:state_at]), _GAP.join(row[state_at + 1 :])
    return [
        StyledText(f"{before}{_GAP}"),
        StyledText(row[state_at], style),
        StyledText(f"{_GAP}{after}".rstrip()),
    ]


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
