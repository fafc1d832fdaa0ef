"""The tables of ``top``: what goes on, the ranks of a run, the jobs of a sweep. Pure.

The columns are those of both ways to show it: the plain table, and `lllaunch.verbs.top_app`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.console.slots import slots_row
from lllaunch.console.status import Part, fitted
from lllaunch.console.table import GAP, Row, Table
from lllaunch.results.live import LiveView, count_states
from lllaunch.results.store import LIVE, ListEntry
from lllaunch.sweep.objective import Objective, Objectives
from lllaunch.text import count, plain, printable, size, spans
from lllaunch.words import (
    MEANINGS,
    StyledText,
    cause_line,
    counted,
    counts_text,
    done_text,
    extremes_text,
    objective_text,
    passed,
    rate_text,
    short_extremes,
    short_overrides,
    short_step,
    shown_path,
    time_left,
)
from lllaunch.workers.terminal import cells, cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lllaunch.sweep.history import SweepResult


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        key: returns what rows are sorted by: a number or a text, None for the last ones.
        most: how wide it is at most; 0 for as wide as it needs.
    """

    title: str
    text: Callable[[ListEntry], str]
    key: Callable[[ListEntry], float | str | None]
    right: bool = True
    most: int = 0


STYLES: Mapping[str, str] = {
    "running": "busy",
    "queued": "busy",
    "starting": "busy",
    "succeeded": "good",
    "ended": "good",
    "failed": "bad",
    "signalled": "bad",
    "error": "bad",
    "died": "bad",
    "not_submitted": "bad",
}
"""How states look."""

# What is left out first where a terminal is narrow.
_SPARE = (
    *("cores", "pid", "gpu mem", "rate", "tries", "metrics", "slow", "mem", "gpu", "cpu", "idle"),
    "time",
)
_LEAST_TEXT, _WANTED_TEXT = 10, 24
_LEAST_NAME, _WANTED_NAME = 12, 24
_MOST_METRICS = 3
_IDLE = 10.0  # seconds; a worker that takes some for a step is no news


def columns_of(view: LiveView, cwd: str) -> list[Column]:
    """Return the columns of a view, those that are empty included."""
    name = {
        "all": Column("path", lambda row: path_text(row, cwd), lambda row: row.path, right=False),
        "sweep": Column("job", _number, lambda row: row.number),
        "run": Column(
            "rank",
            lambda row: f"{_number(row)} {plain(row.node)}".rstrip(),
            lambda row: row.number,
        ),
    }[view.kind]
    return [
        name,
        # those that ls has, too, stand in its order
        Column("state", lambda row: state_text(row.state), lambda row: row.state, right=False),
        Column("time", lambda row: _seconds(row.seconds), lambda row: row.seconds),
        Column("step", _step, lambda row: row.step and row.step / (row.total or 1)),
        Column("rate", lambda row: rate_text(row.rate) if row.rate else "", lambda row: row.rate),
        Column("left", lambda row: _seconds(row.eta), lambda row: row.eta),
        # of ranks the head says it, and the first try is none of note
        Column(
            "tries",
            lambda row: str(row.attempt + 1) if row.attempt and row.kind != "rank" else "",
            lambda row: row.attempt,
        ),
        Column(
            "idle",
            lambda row: _seconds(row.idle) if row.is_live and (row.idle or 0) >= _IDLE else "",
            lambda row: row.idle,
        ),
        Column(
            "slow",
            lambda row: "" if row.slowest is None else f"rank {row.slowest}",
            lambda row: row.slowest,
        ),
        Column(
            "cpu",
            lambda row: "" if row.cpu is None else f"{100 * row.cpu:.0f}%",
            lambda row: row.cpu,
        ),
        Column("mem", lambda row: _bytes(row.memory), lambda row: row.memory),
        Column("gpu", _gpu, lambda row: row.gpu_use, right=False),
        Column("gpu mem", lambda row: _bytes(row.gpu_memory), lambda row: row.gpu_memory),
        Column("cores", lambda row: spans(row.cpus).replace(" ", ""), lambda row: len(row.cpus)),
        Column("pid", lambda row: "" if row.pid is None else str(row.pid), lambda row: row.pid),
        Column("metrics", _metrics, _first_metric, right=False, most=40),
        Column("value", lambda row: objective_text(row.value), _objective),
        Column("what", what_text, what_text, right=False),
    ]


def sorted_rows(
    rows: Sequence[ListEntry], column: Column | None, *, reverse: bool = False
) -> list[ListEntry]:
    """Return rows sorted by a column, those that have nothing there last."""
    if column is None:
        return [*reversed(rows)] if reverse else [*rows]
    keyed: list[tuple[Any, ListEntry]] = [(column.key(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None and pair[0] != ""]
    rest = [row for key, row in keyed if key is None or key == ""]
    # numbers before texts: a sweep's jobs may return either
    known.sort(key=lambda pair: (isinstance(pair[0], str), pair[0]), reverse=reverse)
    return [*(row for _, row in known), *rest]


def matches(row: ListEntry, wanted: str, cwd: str) -> bool:
    """Return whether a row has all words of a filter somewhere in what is shown of it."""
    if not wanted:
        return True
    number = "" if row.number is None else f"{row.kind} {row.number}"
    said = (path_text(row, cwd), number, state_text(row.state), what_text(row), row.node)
    text = " ".join((*said, *row.overrides)).casefold()
    return all(word in text for word in wanted.casefold().split())


# Cells


def state_text(state: str) -> str:
    """Return a state as it is shown."""
    return state.replace("_", "-")


def path_text(row: ListEntry, cwd: str) -> str:
    """Return a path as a user would type it."""
    return plain(shown_path(os.path.normpath(os.path.join(cwd, row.path)), cwd))


def _number(row: ListEntry) -> str:
    return "" if row.number is None else str(row.number)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else passed(seconds)


def _step(row: ListEntry) -> str:
    return "" if row.step is None else short_step(row.step, row.total)


def _bytes(number: int | None) -> str:
    return "" if number is None else size(number)


def _gpu(row: ListEntry) -> str:
    names = ",".join(plain(name) for name in row.gpus)
    use = "" if row.gpu_use is None else f"{100 * row.gpu_use:.0f}%"
    return f"{cut(names, 19)} {use}".strip()


def _metrics(row: ListEntry) -> str:
    ordered = sorted(row.metrics.items(), key=lambda pair: "loss" not in pair[0])
    return " ".join(
        f"{printable(plain(name), 16)}={count(value)}" for name, value in ordered[:_MOST_METRICS]
    )


def _first_metric(row: ListEntry) -> float | None:
    ordered = sorted(row.metrics.items(), key=lambda pair: "loss" not in pair[0])
    return ordered[0][1] if ordered else None


def _objective(row: ListEntry) -> float | str | None:
    value: Any = row.value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number else objective_text(value)


def what_text(row: ListEntry) -> str:
    """Return what is to be said of a row: what went wrong, else what it is."""
    said = plain(cause_line(row.text)) if row.text else ""
    own = "" if row.kind == "rank" else plain(short_overrides(row.overrides))
    if row.kind == "sweep":
        own = GAP.join(filter(None, (done_text(row.counts, MEANINGS), own)))
    return f"{said}; {own}" if said and own else said or own


# Above the table


def head_rows(view: LiveView, width: int, cwd: str) -> list[Row]:
    """Return what stands above the table, each row in at most so many columns."""
    width = width or 10_000
    if view.subject is None:
        return [(StyledText(cut(_of_all(view), width), "title"),)]
    subject = view.subject
    name = Part(f"{_end_of(path_text(subject, cwd), max(_LEAST_NAME, width // 2))}: ", 9, "title")
    rows: list[Row] = [tuple(fitted([*_facts(view, subject)], width, name))]
    rows += [(StyledText(cut(plain(text), width), "bad"),) for text in view.findings[-_FINDINGS:]]
    if subject.text and not any(text.endswith(subject.text) for text in view.findings):
        style = STYLES.get(subject.state, "")
        rows.append((StyledText(cut(plain(cause_line(subject.text)), width), style),))
    overrides = plain(short_overrides(subject.overrides))
    if overrides:
        rows.append((StyledText(cut(overrides, width), "faint"),))
    return rows + (_of_sweep(view, view.result, width) if view.result is not None else [])


def _objectives(view: LiveView, result: SweepResult) -> Objectives:
    common = frozenset(() if view.subject is None else view.subject.overrides)
    jobs = {job.job: job for job in result.jobs}
    known = Objectives(
        result.direction,
        (Objective(job.objective, job.job) for job in result.jobs if job.objective is not None),
    )
    # only these are named
    return Objectives(
        result.direction,
        [
            found._replace(name=short_overrides(jobs[found.job].overrides, common))
            for _, found in known.extremes
        ],
    )


def _of_sweep(view: LiveView, result: SweepResult, width: int) -> list[Row]:
    """Return the best objective, and who holds which GPU or core."""
    objectives = _objectives(view, result)
    text = plain(extremes_text(objectives))
    if cells(text) > width:
        text = cut(plain(short_extremes(objectives)), width)
    rows: list[Row] = [(StyledText(text),)] if text else []
    running = [row for row in view.rows if row.state == "running"]
    gpus = {name: str(row.number) for row in running for name in row.gpus}
    cores = {str(core): str(row.number) for row in running for core in row.cpus}
    slots = result.slots
    if slots is None or not running:
        return rows
    if slots.gpus:
        rows.append(slots_row("GPU", slots.gpus, gpus, width))
    if slots.cpus and (cores or not slots.gpus):
        rows.append(slots_row("core", [str(core) for core in slots.cpus], cores, width))
    return [row for row in rows if row]


_FINDINGS = 3


def _of_all(view: LiveView) -> str:
    counts = count_states(view.rows)
    live = counts_text((counts[state], state_text(state)) for state in MEANINGS if state in LIVE)
    over = sum(number for state, number in counts.items() if state not in LIVE)
    parts = [live or "nothing runs", f"{over} ended of late" if over else ""]
    roots = [f"{plain(root.rstrip('/'))}/" for root in view.roots]
    return f"{', '.join(filter(None, parts))}; in {' '.join(roots)}"


def _facts(view: LiveView, subject: ListEntry) -> Iterable[Part]:
    """Yield what is known of a run or a sweep; what has less weight goes first."""
    state = state_text(subject.state)
    code = f" (exit code {subject.exit_code})" if subject.exit_code else ""
    yield Part(f"{state}{code}", 10, STYLES.get(subject.state, ""))
    if view.kind == "sweep":
        done, _, others = done_text(subject.counts, MEANINGS).partition(", ")
        yield Part(done, 9, "title")
        if others:
            yield Part(others, 5, "")
    elif subject.attempt is not None:
        yield Part(f"attempt {subject.attempt}", 6 if subject.attempt else 2, "")
    if subject.seconds is not None:
        yield Part(passed(subject.seconds), 4, "")
    if view.kind == "run":
        yield Part(counted(len(view.rows), "rank"), 1, "")
        if subject.step is not None:
            yield Part(f"step {_step(subject)}", 8, "title")
    if subject.is_live and subject.eta is not None:
        yield Part(time_left(subject.eta), 7, "")
    if subject.is_live and subject.slowest is not None and subject.behind is not None:
        yield Part(f"rank {subject.slowest} is slowest (step {count(subject.behind)})", 5, "")


# The plain table


def view_rows(view: LiveView, columns: int, lines: int, cwd: str) -> list[Row]:
    """Return a view for a terminal.

    Args:
        columns: of the terminal; 0 if there is none: nothing is cut or left out then.
        lines: of the terminal; fewer are returned. 0 if there is none.
    """
    width = max(1, columns - 1) if columns else 0
    rows = head_rows(view, width, cwd)
    if lines:
        rows = rows[: max(1, lines - 4)]
    shown = view.rows
    room = lines - len(rows) - 2 if lines else len(shown)
    if lines and len(shown) + bool(view.unseen) > room:
        shown = shown[: max(0, room - 1)]
    if shown:
        rows += table_rows(view, shown, width, cwd)
    left = counts_text(_left_out(view.rows[len(shown) :], view.unseen))
    if left and (not lines or len(rows) < lines - 1):
        rows.append((StyledText(cut(f"and {left}", width) if width else f"and {left}", "faint"),))
    return rows


def _left_out(rows: Sequence[ListEntry], unseen: Mapping[str, int]) -> Iterable[tuple[int, str]]:
    counts = Counter(row.state for row in rows)
    counts.update(unseen)
    for state, number in counts.items():
        yield number, f"more {state_text(state)}"


def table_rows(view: LiveView, shown: Sequence[ListEntry], width: int, cwd: str) -> list[Row]:
    """Return the table of some rows of a view, with titles.

    Args:
        width: columns that there are; 0 if nothing is to be cut or left out.
    """
    table = Table()
    for column, texts in fitting(columns_of(view, cwd), shown, width):
        table.add(column.title, texts, right=column.right)
    rows = table.rows([STYLES.get(row.state, "") for row in shown], "state")
    return [_cut_row(row, width) for row in rows] if width else rows


def fitting(
    columns: Sequence[Column], rows: Sequence[ListEntry], width: int
) -> list[tuple[Column, list[str]]]:
    """Return the columns that have something to show and fit, each with the texts of its cells.

    The first three say what a row is, and are there in any case, as is the last one where it has
    room: its texts are cut, and paths, too.
    """
    found = {column.title: (column, [column.text(row) for row in rows]) for column in columns}
    found = {title: pair for title, pair in found.items() if any(pair[1])}
    for title, (column, texts) in found.items():
        if column.most:
            found[title] = column, [cut(text, column.most) for text in texts]
    if not width:
        return [*found.values()]
    what = found.pop("what", None)
    widths = {
        title: max(map(cells, [title, *texts])) + len(GAP) for title, (_, texts) in found.items()
    }
    longest = 0 if what is None else max(map(cells, what[1]))
    wanted = min(_WANTED_TEXT, longest)
    spare = max(0, widths.get("path", 0) - len(GAP) - _WANTED_NAME)
    for title in _SPARE:
        if title in found and width - sum(widths.values()) + spare < wanted:
            del found[title], widths[title]
    if "path" in found:
        column, texts = found["path"]
        over = sum(widths.values()) + wanted - width
        if over > 0:
            room = max(_LEAST_NAME, widths["path"] - len(GAP) - over)
            texts = [_end_of(text, room) for text in texts]
            found["path"] = column, texts
            widths["path"] = max(map(cells, ["path", *texts])) + len(GAP)
    room = width - sum(widths.values())
    if what is not None and room >= min(_LEAST_TEXT, longest):
        found["what"] = what[0], [cut(text, room) for text in what[1]]
    return [*found.values()]


def _end_of(path: str, width: int) -> str:
    """Return the end of a path: that is where those of one directory differ."""
    if cells(path) <= width:
        return path
    while cells(path) > width - 3:
        path = path[1:]
    return f"...{path}"


def _cut_row(row: Row, width: int) -> Row:
    """Return a row of at most so many columns."""
    parts = []
    for span in row:
        text = cut(span.text, width) if width > 0 else ""
        parts.append(StyledText(text, span.style))
        width -= cells(text)
    return tuple(parts)
