"""What verbs show: tables of what goes on and of the end of a sweep, a run in time. Pure.

The columns of ``top`` are those of both ways to show it: the plain table, and
`lllaunch.verbs.top_app`. In time a run has a bar for each rank of each attempt; ranks that look
alike share a line, so that hundreds of them fit on a screen.
"""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from lllaunch.console.console import Part, fitted
from lllaunch.console.table import GAP, Column, Row, aligned, end_of, padded, rows_of
from lllaunch.results.live import LiveView
from lllaunch.results.store import LIVE, ListEntry
from lllaunch.results.sweeps import objectives_of, without_common
from lllaunch.sweep.history import SweepResult
from lllaunch.text import count, duration, plain, printable, size, spans
from lllaunch.words import (
    MEANINGS,
    StyledText,
    capitalised,
    cause_line,
    counted,
    counts_text,
    done_text,
    ending,
    extremes_text,
    job_state,
    named_jobs,
    objective_text,
    passed,
    progress_text,
    ranks,
    rate_text,
    resume_override,
    short_extremes,
    short_overrides,
    short_step,
    shown_path,
    state_style,
    state_text,
    step_text,
    time_left,
    took,
    verdict_text,
)
from lllaunch.workers.terminal import cells, cut

if TYPE_CHECKING:
    from lllaunch.results.history import AttemptTimeline, Lane, Mark, TimeSpan
    from lllaunch.results.view import Log, RunTimeline, Series
    from lllaunch.run.result import Reached
    from lllaunch.watchdog.progress import Progress

_MOST_METRICS = 3
_FINDINGS = 3
_ANY = 1_000_000  # columns or lines where there is no terminal
_IDLE = 10.0  # seconds; a worker that takes some for a step is no news


def columns_of(kind: Literal["run", "sweep", "all"], cwd: str) -> list[Column]:
    """Return the columns of a view of some kind, those that are empty included."""
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
    }[kind]
    own = Column("overrides", _own, right=False, cut=cut)
    return [
        name,
        *([own] if kind == "sweep" else []),
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
        Column("what", _said if kind == "sweep" else what_text, right=False, cut=cut),
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
    return rows_of(columns_of(view.kind, cwd), shown, styles, width)


# The end of a sweep

_MOST_ROWS = 50
_MOST_FAILURES = 12
_MOST_LOGS = 3
_INDENT = "  "
# Columns of the end; failures are told below.
_OF_THE_END = frozenset({"job", "overrides", "state", "time", "tries", "value"})
_RANK = re.compile(r"\brank \d+: ")


class Setting(NamedTuple):
    """What a summary needs to know beside sweep.json."""

    directory: str
    cwd: str
    total: int = 0  # number of jobs
    common: Collection[str] = ()  # overrides that all jobs share
    cancelled: Collection[int] = ()  # numbers of the jobs that a signal to the launcher ended
    columns: int = 0  # of the terminal; 0 where there is none
    # how the app was called, where that and the directory are all that a resume needs; empty where
    # it needs the whole command line; None if there is no resuming
    resume: str | None = ""


def summary_rows(result: SweepResult, jobs: Iterable[ListEntry], setting: Setting) -> list[Row]:
    """Return what is shown of a sweep that is over."""
    jobs = [
        replace(without_common(job, setting.common), state=_state(job, setting)) for job in jobs
    ]
    failed = [job for job in jobs if job.state == "failed"]
    ran = [job for job in jobs if job.state != "not run"]
    counts = Counter(job.state for job in jobs)
    # some of them are known by now, and others were not even composed
    counts["not run"] += max(0, setting.total - len(jobs))
    chosen = ran if len(ran) <= _MOST_ROWS else failed[:_MOST_ROWS]
    rows: list[Row] = []
    if chosen:
        columns = [
            each._replace(show=took) if each.title == "time" else each
            for each in columns_of("sweep", "")
            if each.title in _OF_THE_END
        ]
        styles = [state_style(job.state) for job in chosen]
        width = setting.columns and setting.columns - 1 - len(_INDENT)
        table = rows_of(columns, chosen, styles, width, spare=())
        rows += [(), *((StyledText(_INDENT), *row) for row in table)]
        more = len(failed) - len(chosen)
        if len(ran) > _MOST_ROWS and more > 0:
            rows.append((StyledText(f"  and {more} more failed, see sweep.json", "faint"),))
        if not_run := counts["not run"]:
            were = "was" if not_run == 1 else "were"
            text = f"  and {counted(not_run, 'job')} that {were} not run"
            rows.append((StyledText(text, "faint"),))
    if failed:
        rows += [(), *_failures(failed, setting)]
    objectives = extremes_text(objectives_of(jobs, result.direction, setting.common))
    rows += [(), *([(StyledText(f"lllaunch: objective: {objectives}"),)] if objectives else [])]
    all_good = counts["succeeded"] == counts.total()
    path = shown_path(os.path.join(setting.directory, "sweep.json"), setting.cwd)
    style = "good" if all_good and not result.exit_code else "error"
    verdict = verdict_text(counts, result.seconds, result.exit_code)
    rows.append((StyledText(f"lllaunch: {verdict}; {path}", style),))
    if not all_good and setting.resume is not None:
        again = resume_override(shown_path(setting.directory, setting.cwd))
        how = f": {setting.resume}" if setting.resume else ", add to the same command:"
        rows.append((StyledText(f"lllaunch: to run the rest{how} {again}"),))
    return rows


def _state(job: ListEntry, setting: Setting) -> str:
    if job.number in setting.cancelled and job.state != "succeeded":
        return "cancelled"
    # one whose end is not known is no success
    return job_state(job.state).replace("unknown", "failed")


def _failures(failed: Sequence[ListEntry], setting: Setting) -> Iterator[Row]:
    """Report why jobs failed, those that failed for the same reason together."""
    groups: dict[str, list[ListEntry]] = {}
    for job in failed:
        groups.setdefault(_RANK.sub("", ending(job.exit_code, job.root_cause)), []).append(job)
    for cause, jobs in list(groups.items())[:_MOST_FAILURES]:
        first = jobs[0]
        name = short_overrides(first.overrides) if len(jobs) == 1 else ""
        who = named_jobs(job.number or 0 for job in jobs) + (f" ({name})" if name else "")
        # the rank is named where it was the same in all of them
        ranked = {ending(job.exit_code, job.root_cause) for job in jobs}
        why = ranked.pop() if len(ranked) == 1 else cause
        yield (StyledText(f"  {who} failed: ", "bad"), StyledText(why))
        tried = [job for job in jobs if job.attempts]
        logs = [shown_path(job.path, setting.cwd) for job in tried[:_MOST_LOGS]]
        more = f" and {len(tried) - len(logs)} more" if len(tried) > len(logs) else ""
        if logs:
            yield (StyledText(f"    logs in {', '.join(logs)}{more}", "faint"),)
    rest = sum(len(jobs) for jobs in list(groups.values())[_MOST_FAILURES:])
    if rest:
        yield (StyledText(f"  and {counted(rest, 'more job')} for other reasons, see sweep.json"),)


# A run in time

_LEAST_BAR = 20
_MOST_BAR = 100
_LONGEST_LABEL = 24
_MOST_LINES = 12
# Of a run with more attempts the first ones and the last ones are shown.
_FIRST, _LAST = 2, 6
_NO_BREAK = "\N{NO-BREAK SPACE}"


class Sign(NamedTuple):
    """What stands in a bar: a character of one column, and what it says, also on a page."""

    drawn: str
    meaning: str


SPANS = {
    "preload": Sign("i", "imports"),
    "rendezvous": Sign("m", "nodes meet"),
    "preflight": Sign("p", "preflight"),
    "pause": Sign("\N{MIDDLE DOT}", "pause"),
    "spawn": Sign("\N{BOX DRAWINGS LIGHT TRIPLE DASH HORIZONTAL}", "starts"),
    "run": Sign("\N{BOX DRAWINGS HEAVY HORIZONTAL}", "runs"),
    "hang": Sign("\N{LIGHT SHADE}", "hangs"),
    "grace": Sign("\N{MEDIUM SHADE}", "grace period"),
}
# The later ones hide the earlier ones.
MARKS = {
    "stacks": Sign("s", "stacks taken"),
    "restart": Sign("r", "restart"),
    "signal": Sign("\N{DOWNWARDS ARROW}", "signal"),
    "finding": Sign("!", "finding"),
    "root_cause": Sign("\N{MULTIPLICATION SIGN}", "root cause"),
}
_SIGNS = {**SPANS, **MARKS}
_STARTS = {"preload", "spawn"}
_STYLES = {
    "succeeded": "good",
    "failed": "error",
    "victim": "bad",
    "running": "busy",
    "lost": "bad",
}
_WRONG = {"hang", "root_cause", "finding"}
DRAWN = "".join(sign.drawn for sign in _SIGNS.values())
"""All that is drawn: a stream that cannot encode one of these gets ASCII."""
_ASCII = str.maketrans(DRAWN, "imp.:=~-srv!X")


# What stands in each column: the kind of a span or a mark, or nothing.
Bar: TypeAlias = tuple[str, ...]


class _Scale(NamedTuple):
    start_ns: int
    end_ns: int
    columns: int

    def at(self, time_ns: int) -> int:
        """Return the column of a time."""
        column = (time_ns - self.start_ns) * self.columns // max(1, self.end_ns - self.start_ns)
        return min(self.columns - 1, max(0, column))


class _Line(NamedTuple):
    label: str
    bar: Bar
    text: str
    style: str
    first: bool = False


def timeline_rows(run: RunTimeline, width: int, *, ascii_only: bool = False) -> list[Row]:
    """Return a run in time; nothing if no attempt was begun.

    A `width` of the terminal (columns) that is very narrow is exceeded.
    """
    attempts = [list(each) for _, each in itertools.groupby(run.attempts, lambda at: at.number)]
    if not attempts:
        return []
    left = len(attempts) - _FIRST - _LAST
    if left > 1:
        del attempts[_FIRST:-_LAST]
    guess = _Scale(run.start_ns, run.end_ns, _LEAST_BAR)
    lines = [line for attempt in attempts for line in _lines(attempt, guess)]
    label = max(cells(line.label) for line in lines) + len(GAP)
    fate = max(cells(line.text) for line in lines)
    columns = min(_MOST_BAR, max(_LEAST_BAR, width - label - len(GAP) - fate))
    scale, indent = guess._replace(columns=columns), " " * label
    end = duration((scale.end_ns - scale.start_ns) / 1e9)
    rows: list[Row] = [(StyledText(f"{indent}0{end.rjust(columns - 1)}", "faint"),)]
    used: set[str] = set()
    for place, attempt in enumerate(attempts):
        if place == _FIRST and left > 1:
            rows.append((StyledText(f"... {counted(left, 'more attempt')} ...", "faint"),))
        for line in _lines(attempt, scale):
            used.update(line.bar)
            rows.append(_row(line, label))
    signs = (f"{sign.drawn} {sign.meaning}" for kind, sign in _SIGNS.items() if kind in used)
    # a sign and its meaning stay together
    legend = "   ".join(each.replace(" ", _NO_BREAK) for each in signs)
    for text in textwrap.wrap(legend, max(width - label, columns), break_long_words=False):
        rows.append((StyledText(f"{indent}{text.replace(_NO_BREAK, ' ')}", "faint"),))
    if not ascii_only:
        return rows
    return [tuple(part._replace(text=part.text.translate(_ASCII)) for part in row) for row in rows]


def _row(line: _Line, label: int) -> Row:
    name = padded(line.label, label)
    parts = [StyledText(name, "" if line.first else "faint")]
    for kind, same in itertools.groupby(line.bar):
        sign = _SIGNS.get(kind)
        drawn = " " if sign is None else sign.drawn
        style = line.style if kind == "run" else "error" if kind in _WRONG else ""
        parts.append(StyledText(drawn * len(list(same)), style))
    return (*parts, StyledText(f"{GAP}{line.text}" if line.text else "", line.style))


def _lines(group: Sequence[AttemptTimeline], scale: _Scale) -> Iterator[_Line]:
    """Yield the lines of an attempt, of all nodes: one for all its workers, then those of ranks."""
    states = {attempt.state for attempt in group}
    state = next((each for each in ("failed", "stopped", "lost") if each in states), group[0].state)
    spans = [span for attempt in group for span in attempt.spans]
    marks = [mark for attempt in group for mark in attempt.marks]
    bar = _bar(spans, marks, scale)
    yield _Line(f"attempt {group[0].number}", bar, state, _STYLES.get(state, ""), first=True)
    lanes = [lane for attempt in group for lane in attempt.lanes]
    alike: dict[tuple[Bar, str], list[Lane]] = {}
    for lane in lanes:
        alike.setdefault((_bar(lane.spans, lane.marks, scale), lane.fate), []).append(lane)
    # what went wrong is not left out
    left = sorted(alike.items(), key=lambda item: _IMPORTANT.get(item[0][1], 2))[:_MOST_LINES]
    left.sort(key=lambda item: item[1][0].rank)
    for (bar, fate), members in left:
        name = printable(ranks(lane.rank for lane in members), _LONGEST_LABEL)
        yield _Line(f"  {name}", bar, fate.replace("_", " "), _STYLES.get(fate, ""))
    missing = len(lanes) - sum(len(members) for _, members in left)
    if missing:
        empty = ("",) * scale.columns
        yield _Line(f"  {counted(missing, 'more rank')}", empty, "", "")


_IMPORTANT = {"failed": 0, "victim": 1, "lost": 1, "not_started": 1}


def _bar(spans: Iterable[TimeSpan], marks: Iterable[Mark], scale: _Scale) -> Bar:
    """Return what is seen of spans and marks; what lies within another is above it."""
    kinds = [""] * scale.columns
    order = list(SPANS)
    for span in sorted(spans, key=lambda span: order.index(span.kind)):
        first, last = scale.at(span.start_ns), scale.at(span.end_ns)
        # of what is short one column is seen; but some milliseconds are taken by any start
        if span.end_ns > span.start_ns and (last > first or span.kind not in _STARTS):
            kinds[first : last + 1] = [span.kind] * (last + 1 - first)
    order = list(MARKS)
    for mark in sorted(marks, key=lambda mark: order.index(mark.kind)):
        kinds[scale.at(mark.time_ns)] = mark.kind
    return tuple(kinds)


def progress_of_ranks(known: Mapping[int, Progress | Reached]) -> str:
    """Return how far the ranks are: ``step 12 of 12 (100 %), loss 0.3; rank 1 is at step 9``."""
    if not known:
        return ""
    furthest = max(known, key=lambda rank: (known[rank].step, -rank))
    text = progress_text(known[furthest])
    least = min(each.step for each in known.values())
    slowest = [rank for rank, each in known.items() if each.step == least]
    if least == known[furthest].step:
        return text
    verb = "is" if len(slowest) == 1 else "are"
    return f"{text}; {ranks(slowest)} {verb} at {step_text(least, known[slowest[0]].total)}"


_PEAKS: dict[str, tuple[str, Callable[[float], str]]] = {
    "rss": ("memory", lambda value: size(round(value))),
    "cpu": ("CPU", lambda value: f"{value:.3g} {'core' if f'{value:.3g}' == '1' else 'cores'}"),
    "read": ("read", lambda value: f"{size(round(value))}/s"),
    "written": ("written", lambda value: f"{size(round(value))}/s"),
    "gpu_use": ("GPU use", lambda value: f"{100 * value:.0f} %"),
    "gpu_memory": ("GPU memory", lambda value: size(round(value))),
    "gpu_power": ("GPU power", lambda value: f"{value:.0f} W"),
}


def peak_rows(measured: Sequence[Series], *, attempts: int) -> list[Row]:
    """Return the most that a run used of each thing that was measured."""
    table = []
    for name, (title, shown) in _PEAKS.items():
        known = (each for each in measured if each.name == name and not each.metric)
        found = [(value, each) for each in known for _, value in each.points]
        if not found:
            continue
        most, of = max(found, key=lambda pair: pair[0])
        where = f"{of.of} in attempt {of.attempt}" if attempts > 1 else of.of
        mean = shown(sum(value for value, _ in found) / len(found))
        more = f"{mean} on average" if name == "gpu_use" else ""
        table.append((title, shown(most), where, more))
    return [(StyledText(f"{GAP}{line}"),) for line in aligned(table)] if table else []


def log_rows(logs: Iterable[Log], cwd: str) -> list[Row]:
    """Return the ends of logs."""
    rows: list[Row] = []
    for log in logs:
        if not log.lines:
            continue
        what = f"the last {counted(len(log.lines), 'line')}" if log.cut else "all"
        text = f"{GAP}{capitalised(what)} of {shown_path(log.path, cwd)}:"
        rows.append((StyledText(text, "faint"),))
        rows += [(StyledText(f"{GAP}| {line}".rstrip(), "quote"),) for line in log.lines]
    return rows
