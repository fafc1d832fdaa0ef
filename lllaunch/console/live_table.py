"""The tables of ``top``: what goes on, the ranks of a run, the jobs of a sweep. Pure.

The columns are those of both ways to show it: the plain table, and `lllaunch.verbs.top_app`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lllaunch.console.console import Part, fitted
from lllaunch.console.table import GAP, Column, Row, end_of, rows_of
from lllaunch.results.live import LiveView
from lllaunch.results.store import LIVE, ListEntry
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
    state_style,
    state_text,
    time_left,
)
from lllaunch.workers.terminal import cells, cut

_MOST_METRICS = 3
_FINDINGS = 3
_ANY = 1_000_000  # columns or lines where there is no terminal
_IDLE = 10.0  # seconds; a worker that takes some for a step is no news


def columns_of(view: LiveView, cwd: str) -> list[Column]:
    """Return the columns of a view, those that are empty included."""
    name = {
        "all": Column(
            "path",
            lambda row: row.path,
            of=lambda row: path_text(row, cwd),
            right=False,
            cut=end_of,
        ),
        "sweep": Column("job", lambda row: row.number),
        "run": Column(
            "rank", lambda row: row.number, of=lambda row: f"{row.number} {plain(row.node)}".strip()
        ),
    }[view.kind]
    own = Column("overrides", _own, right=False, cut=cut)
    return [
        name,
        *([own] if view.kind == "sweep" else []),
        # those that ls has, too, stand in its order
        Column("state", lambda row: row.state, state_text, right=False),
        Column("time", lambda row: row.seconds, passed),
        Column("step", lambda row: row.step and row.step / (row.total or 1), of=_step),
        Column("rate", lambda row: row.rate or None, rate_text),
        Column("left", lambda row: row.eta, passed),
        # of ranks the head says it, and the first try is none of note
        Column(
            "tries",
            lambda row: (row.attempt or None) if row.kind != "rank" else None,
            lambda attempt: str(attempt + 1),
        ),
        Column(
            "idle",
            lambda row: row.idle if row.is_live and (row.idle or 0) >= _IDLE else None,
            passed,
        ),
        Column("slow", lambda row: row.slowest, lambda rank: f"rank {rank}"),
        Column("cpu", lambda row: row.cpu, lambda share: f"{100 * share:.0f}%"),
        Column("mem", lambda row: row.memory, size),
        Column("gpu", lambda row: row.gpu_use, of=_gpu, right=False),
        Column("gpu mem", lambda row: row.gpu_memory, size),
        Column("cores", lambda row: len(row.cpus), of=lambda row: spans(row.cpus).replace(" ", "")),
        Column("pid", lambda row: row.pid),
        Column("metrics", _first_metric, of=_metrics, right=False, most=40),
        Column("value", _objective, of=lambda row: objective_text(row.value)),
        Column("what", _said if view.kind == "sweep" else what_text, right=False, cut=cut),
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


def path_text(row: ListEntry, cwd: str) -> str:
    """Return a path as a user would type it."""
    return plain(shown_path(os.path.normpath(os.path.join(cwd, row.path)), cwd))


def _step(row: ListEntry) -> str:
    return "" if row.step is None else short_step(row.step, row.total)


def _gpu(row: ListEntry) -> str:
    names = ",".join(plain(name) for name in row.gpus)
    use = "" if row.gpu_use is None else f"{100 * row.gpu_use:.0f}%"
    return f"{cut(names, 19)} {use}".strip()


def _by_loss(row: ListEntry) -> list[tuple[str, float]]:
    return sorted(row.metrics.items(), key=lambda pair: "loss" not in pair[0])


def _metrics(row: ListEntry) -> str:
    known = _by_loss(row)[:_MOST_METRICS]
    return " ".join(f"{printable(plain(name), 16)}={count(value)}" for name, value in known)


def _first_metric(row: ListEntry) -> float | None:
    return next((value for _, value in _by_loss(row)), None)


def _objective(row: ListEntry) -> float | str | None:
    value: Any = row.value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number else objective_text(value)


def _said(row: ListEntry) -> str:
    return plain(cause_line(row.text)) if row.text else ""


def _own(row: ListEntry) -> str:
    return plain(short_overrides(row.overrides))


def what_text(row: ListEntry) -> str:
    """Return what is to be said of a row: what went wrong, else what it is."""
    said, own = _said(row), "" if row.kind == "rank" else _own(row)
    if row.kind == "sweep":
        own = GAP.join(filter(None, (done_text(row.counts), own)))
    return f"{said}; {own}" if said and own else said or own


# Above the table


def head_rows(view: LiveView, width: int, cwd: str) -> list[Row]:
    """Return what stands above the table, each row in at most so many columns."""
    width = width or _ANY
    if view.subject is None:
        return [(StyledText(cut(_of_all(view), width), "title"),)]
    subject = view.subject
    name = Part(f"{end_of(path_text(subject, cwd), max(12, width // 2))}: ", 9, "title")
    rows: list[Row] = [tuple(fitted([*_facts(view, subject)], width, name))]
    rows += [(StyledText(cut(plain(text), width), "bad"),) for text in view.findings[-_FINDINGS:]]
    if subject.text and not any(text.endswith(subject.text) for text in view.findings):
        style = state_style(subject.state)
        rows.append((StyledText(cut(plain(cause_line(subject.text)), width), style),))
    overrides = plain(short_overrides(subject.overrides))
    if overrides:
        rows.append((StyledText(cut(overrides, width), "faint"),))
    if view.objectives is not None and (best := plain(extremes_text(view.objectives))):
        best = best if cells(best) <= width else plain(short_extremes(view.objectives))
        rows.append((StyledText(cut(best, width)),))
    return rows


def _of_all(view: LiveView) -> str:
    counts = Counter(row.state for row in view.rows if row.kind in {"run", "sweep"})
    live = counts_text((counts[state], state_text(state)) for state in MEANINGS if state in LIVE)
    over = sum(number for state, number in counts.items() if state not in LIVE)
    parts = [live or "nothing runs", f"{over} ended of late" if over else ""]
    roots = [f"{plain(root.rstrip('/'))}/" for root in view.roots]
    return f"{', '.join(filter(None, parts))}; in {' '.join(roots)}"


def _facts(view: LiveView, subject: ListEntry) -> Iterable[Part]:
    """Yield what is known of a run or a sweep; what has less weight goes first."""
    state = state_text(subject.state)
    code = f" (exit code {subject.exit_code})" if subject.exit_code else ""
    yield Part(f"{state}{code}", 10, state_style(subject.state))
    if view.kind == "sweep":
        done, _, others = done_text(subject.counts).partition(", ")
        yield Part(done, 9, "title")
        if others:
            yield Part(others, 5, "")
        if gpus := view.slots.gpus:
            idle = {*gpus}.difference(*(row.gpus for row in view.rows if row.state == "running"))
            yield Part(f"{len(idle)} of {counted(len(gpus), 'GPU')} idle", 3, "")
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
    """Return a view for a terminal of so many columns and lines; fewer lines are returned.

    Without a terminal both are 0, and nothing is cut or left out.
    """
    width, lines = max(1, columns - 1) if columns else 0, lines or _ANY
    rows = head_rows(view, width, cwd)[: max(1, lines - 4)]
    shown, room = view.rows, lines - len(rows) - 2
    if len(shown) + bool(view.unseen) > room:
        shown = shown[: max(0, room - 1)]
    if shown:
        rows += table_rows(view, shown, width, cwd)
    rest = Counter(row.state for row in view.rows[len(shown) :])
    rest.update(view.unseen)
    left = counts_text((number, f"more {state_text(state)}") for state, number in rest.items())
    if left and len(rows) < lines - 1:
        rows.append((StyledText(cut(f"and {left}", width or _ANY), "faint"),))
    return rows


def table_rows(view: LiveView, shown: Sequence[ListEntry], width: int, cwd: str) -> list[Row]:
    """Return the table of some rows of a view; `width` is 0 if nothing is to be cut or left out."""
    styles = [state_style(row.state) for row in shown]
    return rows_of(columns_of(view, cwd), shown, styles, width)
