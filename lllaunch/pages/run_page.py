"""The page of a run: what failed and where, when, how it went, and what was run. Pure.

`lllaunch.results.view` reads what is known of the run, ``run.html.j2`` has the page's layout. A
page of hundreds of ranks stays small: ranks that look alike share a lane, charts of many ranks show
the lowest, the highest and the middle one, logs and tables are cut. Every such place says so.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.console.report import failure_text, report_body, title_text
from lllaunch.console.views import MARKS, SPANS
from lllaunch.documents import signal_name
from lllaunch.pages import charts, html
from lllaunch.pages.charts import Point
from lllaunch.results.report import message_of
from lllaunch.results.view import node_state
from lllaunch.run.excerpts import place_of
from lllaunch.run.result import RunResult
from lllaunch.text import count, duration, shorten, size, spans
from lllaunch.words import capitalised, counted, progress_text, shown_path, state_title

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.results.history import AttemptTimeline, Lane, Mark, TimeSpan
    from lllaunch.results.view import RunTimeline, RunView, Series


def marks_of(timeline: RunTimeline) -> Iterator[Mark]:
    """Yield what happened in a run: of each attempt what is about all, then what is about one."""
    for attempt in timeline.attempts:
        yield from attempt.marks
        for lane in attempt.lanes:
            yield from lane.marks


# Lanes

_MOST_LANES = 64
_MOST_PARTS = 40  # attempts, of each node
_FIRST_PARTS = 5
_TELLING = frozenset({"root_cause", "finding"})
_FATES = {
    "succeeded": "succeeded",
    "failed": "failed: the root cause, or hung",
    "victim": "failed after the root cause",
    "ended": "ended by the launcher",
    "lost": "nobody knows how it ended",
    "running": "running",
}
_SPANS = {kind: sign.meaning for kind, sign in SPANS.items() if kind != "run"} | {
    "waited": "waits, for one that hangs or in vain",
}


def lanes_of(timeline: RunTimeline) -> Markup:
    """Return the ranks of all attempts in time; there is an attempt at least."""
    start, end = timeline.start_ns, timeline.end_ns
    number = sum(len(attempt.lanes) for attempt in timeline.attempts)
    left_out = max(0, len(timeline.attempts) - _MOST_PARTS)
    rows: list[charts.ChartLane] = []
    for place, attempt in enumerate(timeline.attempts):
        if not _FIRST_PARTS <= place < _FIRST_PARTS + left_out:
            rows += _attempt(attempt, start, end, together=number > _MOST_LANES)
        elif place == _FIRST_PARTS:
            rows.append(charts.ChartLane("", title=f"{left_out} more, which the table has"))
    areas = {span.kind for row in rows for span in row.spans}
    marks = {mark.kind for row in rows for mark in row.marks}
    named = {f"run {kind}": text for kind, text in _FATES.items()} | _SPANS
    legend = [charts.Entry(f"span {kind}", "area", named[kind]) for kind in named if kind in areas]
    legend += [
        charts.Entry(kind, "mark", sign.meaning) for kind, sign in MARKS.items() if kind in marks
    ]
    seconds = (end - start) / _SECOND
    attempts = len({attempt.number for attempt in timeline.attempts})
    description = (
        f"{counted(number, 'worker')} of {counted(attempts, 'attempt')} over {duration(seconds)}. "
        "The table of all workers has the same facts."
    )
    axis = charts.Axis("time since the beginning", "duration", low=0.0, high=seconds)
    return charts.lanes(charts.Words("lanes", "Ranks in time", description), rows, axis, legend)


def _attempt(
    attempt: AttemptTimeline, start_ns: int, end_ns: int, *, together: bool
) -> Iterator[charts.ChartLane]:
    took = duration(max(0.0, ((attempt.end_ns or end_ns) - attempt.start_ns) / _SECOND))
    where = f" on {attempt.node}" if attempt.node else ""
    when = "for" if attempt.state == "running" else "after"
    yield charts.ChartLane(
        "", title=f"Attempt {attempt.number}{where}: {attempt.state} {when} {took}"
    )
    if attempt.spans or attempt.marks:
        shown = []
        for span in attempt.spans:
            said = ": ".join(filter(None, (_SPANS.get(span.kind, span.kind), span.text)))
            shown.append(_span([span], start_ns, span.kind, said))
        yield charts.ChartLane("all", shown, [_mark(mark, start_ns) for mark in attempt.marks])
    groups: dict[object, list[Lane]] = {}
    for lane in attempt.lanes:
        # who is to blame stays alone
        alone = not together or any(mark.kind in _TELLING for mark in lane.marks)
        kinds = tuple(span.kind for span in lane.spans)
        key = id(lane) if alone else (lane.fate, kinds, lane.exitcode)
        groups.setdefault(key, []).append(lane)
    for alike in groups.values():
        yield _lane(alike, start_ns)


def _mark(mark: Mark, start_ns: int) -> charts.ChartMark:
    return charts.ChartMark((mark.time_ns - start_ns) / _SECOND, mark.kind, mark.text)


def _span(same: Sequence[TimeSpan], start_ns: int, kind: str, said: str) -> charts.ChartSpan:
    begin = (min(each.start_ns for each in same) - start_ns) / _SECOND
    end = (max(each.end_ns for each in same) - start_ns) / _SECOND
    return charts.ChartSpan(begin, end, kind, f"{said}, {duration(max(0.0, end - begin))}")


def _lane(alike: Sequence[Lane], start_ns: int) -> charts.ChartLane:
    """Return a lane of ranks with spans of the same kinds: from the first to the last of them."""
    first, alone = alike[0], len(alike) == 1
    who = f"rank {first.rank}" if alone else f"{len(alike)} ranks"
    ranks = who if alone else f"ranks {shorten(spans(lane.rank for lane in alike), 80)}"
    shown = []
    for place, span in enumerate(first.spans):
        kind: str = span.kind
        name, said = _SPANS.get(kind, ""), span.text
        if kind == "run":
            kind = f"run {first.fate.replace('_', '-')}"
            name, said = _FATES.get(first.fate, first.fate), first.text
        elif kind == "hang" and first.fate in ("ended", "victim"):
            # who is ended by the launcher was not the one that hung
            kind, name = "waited", _SPANS["waited"]
        same = [lane.spans[place] for lane in alike]
        text = (alone and said) or name
        shown.append(_span(same, start_ns, kind, f"{ranks}: {text}"))
    marks = [_mark(mark, start_ns) for mark in first.marks]
    return charts.ChartLane(who, shown, marks, first.fate)


# Curves


class _Kind(NamedTuple):
    """Something that is measured, and how its chart is called."""

    name: str
    title: str
    unit: charts.Unit = "number"
    from_zero: bool = True


_PROGRESS = (_Kind("step", "Progress, steps"),)
_USE = (
    _Kind("cpu", "CPU, cores"),
    _Kind("rss", "Memory", "bytes"),
    _Kind("gpu_use", "GPU use", "share"),
    _Kind("gpu_memory", "GPU memory", "bytes"),
    _Kind("gpu_power", "GPU power, W"),
)
_TRAFFIC = (
    _Kind("read", "Read, per second", "bytes"),
    _Kind("written", "Written, per second", "bytes"),
    _Kind("output", "Output so far", "bytes"),
)
_MOST_METRICS = 12
_COLUMNS = 240
_MOST_EVENTS = 50


class Measured(NamedTuple):
    """What was measured in a run, and how many metrics have no chart; traffic is I/O."""

    panels: Sequence[Markup]
    more: int
    traffic: Sequence[Markup]


def curves_of(timeline: RunTimeline, blamed: Sequence[int] = ()) -> Measured:
    """Return what was measured in a run; curves of blamed ranks are always drawn."""
    known: dict[tuple[bool, str], list[Series]] = {}
    for series in timeline.series:
        if series.points:
            known.setdefault((series.metric, series.name), []).append(series)
    metrics = sorted(
        (name for metric, name in known if metric), key=lambda name: ("loss" not in name, name)
    )
    told = [_Kind(name, shorten(name, 60), from_zero=False) for name in metrics[:_MOST_METRICS]]

    # names may be anything
    numbers = {key: number for number, key in enumerate(known)}

    def drawn(kinds: Iterable[_Kind], *, metric: bool = False) -> list[Markup]:
        return [
            _panel(kind, f"curve-{numbers[metric, kind.name]}", found, timeline, blamed)
            for kind in kinds
            if (found := known.get((metric, kind.name)))
        ]

    panels = [*drawn(_PROGRESS), *drawn(told, metric=True), *drawn(_USE)]
    return Measured(panels, len(metrics) - len(told), drawn(_TRAFFIC))


def _panel(
    kind: _Kind, id_: str, given: Sequence[Series], timeline: RunTimeline, blamed: Sequence[int]
) -> Markup:
    by_name: dict[str, list[Series]] = {}
    for series in given:
        by_name.setdefault(series.of, []).append(series)
    lines = {name: _line(each, timeline.start_ns) for name, each in by_name.items()}
    seconds = (timeline.end_ns - timeline.start_ns) / _SECOND
    guilty = {f"rank {rank}" for rank in blamed}
    values = [(value, name) for name, points in lines.items() for _, value in points]
    known = [pair for pair in values if math.isfinite(pair[0])]
    show = functools.partial(charts.tick_text, unit=kind.unit)
    (low, lowest), (high, highest) = min(known), max(known)
    said = f"Of {len(lines)}: at most {show(high)} ({highest}), at least {show(low)} ({lowest})."
    return charts.line_chart(
        charts.Words(id_, kind.title, said),
        _curves(lines, guilty, seconds),
        charts.Axis(unit="duration", low=0.0, high=seconds),
        charts.Axis(unit=kind.unit, low=0.0 if kind.from_zero else None),
        events=_events(timeline),
    )


def _line(given: Sequence[Series], start_ns: int) -> list[Point]:
    """Return the points of one rank or GPU; the line is broken between attempts."""
    points: list[Point] = []
    for series in sorted(given, key=lambda each: each.attempt):
        if points:
            points.append((points[-1][0], math.nan))
        points += [((at - start_ns) / _SECOND, value) for at, value in series.points]
    return points


def _curves(
    lines: Mapping[str, Sequence[Point]], guilty: set[str], seconds: float
) -> list[charts.Curve]:
    """Return what is drawn: each line, or of very many what they have in common."""
    if len(lines) <= charts.STYLES:
        return [charts.Curve(name, points) for name, points in lines.items()]
    columns: dict[int, list[float]] = {}
    wide = max(seconds, 1e-9) / _COLUMNS
    for points in lines.values():
        for at, value in points:
            if math.isfinite(value):
                columns.setdefault(int(at / wide), []).append(value)
    found = [((column + 0.5) * wide, values) for column, values in sorted(columns.items())]
    low = [(at, min(values)) for at, values in found]
    high = [(at, max(values)) for at, values in found]
    middle = [(at, statistics.median(values)) for at, values in found]
    curves = [
        charts.Curve("from the lowest to the highest", high, 0, low=low),
        charts.Curve(f"the middle of {len(lines)}", middle, 0),
    ]
    named = [name for name in lines if name in guilty][: charts.STYLES - 1]
    return curves + [charts.Curve(name, lines[name], at) for at, name in enumerate(named, start=1)]


def _events(timeline: RunTimeline) -> list[charts.ChartMark]:
    """Return restarts, and what the run failed for."""
    found: dict[tuple[str, float], charts.ChartMark] = {}
    for mark in marks_of(timeline):
        if mark.kind in ("root_cause", "restart"):
            event = _mark(mark, timeline.start_ns)
            found.setdefault((mark.kind, round(event.at, 3)), event)
    return [*found.values()][:_MOST_EVENTS]


_SECOND = 1e9
_LONGEST_COMMAND = 240
_LONGEST_VALUE = 2000
_MOST_FINDINGS = 20
_MOST_FOLDED = 12  # rows of a table that is shown at first
_MOST_PLAN_LINES = 1500
_MOST_ROWS = 2000
_MOST_VALUES = 64
_WITHOUT_END = RunResult("error", 1, "")


def run_page(run: RunView, version: str) -> str:
    """Return the page of a run, made by this version of lllaunch."""
    timeline, root = run.timeline, run.root
    outcome = run.result or _WITHOUT_END
    plan = (run.plan or "").splitlines()
    own = [("Run id", outcome.run_id), ("Plan hash", html.long(outcome.plan_hash, "code"))]
    return html.render(
        "run.html.j2",
        kind="Run",
        directory=run.path,
        state=run.entry.state,
        word=_word(run),
        sentence=_verdict(run),
        more=html.joined(_where(run), " · "),
        summary=[*_summary(run)],
        version=version,
        run=run,
        report=_report(run),
        findings=[] if run.result is not None else _findings(timeline),
        lanes=lanes_of(timeline) if timeline.attempts else "",
        attempts_in_all=len({attempt.number for attempt in timeline.attempts}),
        workers=_workers(run),
        workers_in_all=sum(len(attempt.lanes) for attempt in timeline.attempts),
        folded_rows=_MOST_FOLDED,
        measured=curves_of(timeline, () if root is None else root.ranks),
        # what stderr says before a traceback; without one its end is above
        opened_log="stderr" if root is not None and root.traceback else "",
        returned=html.table(
            "Return values", _VALUES, [*outcome.return_values.items()][:_MOST_VALUES]
        ),
        plan_lines=len(plan),
        plan=plan[:_MOST_PLAN_LINES],
        overrides=[html.code(each) for each in run.entry.overrides[:_MOST_VALUES]],
        environment=html.environment_facts(run.result, own),
        nodes=html.table("Nodes", _NODES, outcome.nodes[:_MOST_ROWS]),
    )


# Above all


def _word(run: RunView) -> str:
    outcome = run.result
    if outcome is not None and outcome.signum is not None:
        return f"Ended by {signal_name(outcome.signum)}"
    return "Unreadable" if outcome is None and run.problem else state_title(run.entry.state)


def _verdict(run: RunView) -> str:
    """Return what became of a run in one sentence."""
    outcome = run.result
    if outcome is None:
        progress = run.entry.progress
        far = "" if progress is None else progress_text(progress)
        if progress is not None and progress.eta:
            far += f", about {duration(progress.eta)} left"
        return capitalised(far or run.problem or message_of(run.entry))
    if outcome.root_cause is None or outcome.state == "succeeded":
        return capitalised(str(outcome.limit or title_text(outcome)))
    text = capitalised(failure_text(outcome.root_cause, run.cwd))
    return text if outcome.no_progress is None else f"{outcome.no_progress}: {text}"


def _where(run: RunView) -> Iterator[str]:
    """Yield where in the code that was, in which attempt, and what the launcher exited with."""
    outcome, root = run.result, run.root
    if root is not None and run.entry.state != "succeeded":
        if (call := place_of(root)) is not None:
            where = html.code(f"{shown_path(call.file, run.cwd)}:{call.line}")
            yield html.fill("at {} in {}", where, html.code(call.function))
        if len(run.attempts) > 1:
            yield f"attempt {root.attempt}, the last of {len(run.attempts)}"
    seconds = run.entry.seconds
    if run.entry.state == "running" and seconds is not None:
        yield f"for {duration(seconds)} until this page was made"
    elif outcome is not None and run.entry.state != "succeeded":
        yield f"after {duration(outcome.seconds)}"
    if run.entry.exit_code:
        yield f"exit code {run.entry.exit_code}"


def _summary(run: RunView) -> Iterator[tuple[str, str]]:
    outcome, timeline, entry = run.result, run.timeline, run.entry
    started = (outcome.started_ns if outcome is not None else 0) or entry.started_ns
    yield "Started", html.moment(started or timeline.start_ns)
    if outcome is not None:
        yield "Took", html.took(outcome.seconds)
    numbers = {attempt.number for attempt in timeline.attempts}
    yield "Attempts", str(len(numbers)) if numbers else ""
    last = [attempt for attempt in timeline.attempts if attempt.number == max(numbers)]
    workers = sum(len(attempt.lanes) for attempt in last)
    on = f" on {len(timeline.nodes)} nodes" if len(timeline.nodes) > 1 else ""
    yield "Workers", f"{workers}{on}" if workers else ""
    # of all, as `show` has it; that of the worker that failed is told with the cause
    workers_of_last = run.attempts[-1].workers if run.attempts else ()
    steps = [worker.progress for worker in workers_of_last if worker.progress is not None]
    yield "Progress", progress_text(max(steps, key=lambda each: each.step)) if steps else ""
    yield "Batch job", f"{entry.batch_job} {entry.queue}".strip()
    yield "Starts", "" if entry.batch is None else entry.batch.text
    yield "Not put back", "" if entry.batch is None else entry.batch.reason
    yield "Commit", html.short_commit(run.result)
    yield "Command line", html.long(shorten(" ".join(entry.overrides), _LONGEST_COMMAND), "code")
    if outcome is not None:
        yield "Note", capitalised(run.problem)


# What happened


def _report(run: RunView) -> list[Markup]:
    """Return the report of the terminal, of which the first line is above all; causes stand out."""
    outcome = run.outcome
    lines = [] if outcome is None else report_body(outcome, run.cwd)
    shown = '<span class="hot">{}</span>'
    return [html.fill(shown if line.style == "cause" else "{}", line.text) for line in lines]


def _findings(timeline: RunTimeline) -> list[Markup]:
    """Return what was found in a run that has left no word of its end."""
    kinds = ("finding", "restart", "root_cause")
    marks = sorted(marks_of(timeline), key=lambda mark: mark.time_ns)
    return [
        html.fill("{}: {}", html.moment(mark.time_ns), mark.text)
        for mark in [mark for mark in marks if mark.kind in kinds][-_MOST_FINDINGS:]
    ]


# In time


def _workers(run: RunView) -> html.PageTable:
    """Return a table of all workers of all attempts, the newest attempt first.

    result.json has the most memory of a worker, samples the last.
    """
    timeline = run.timeline
    told = {
        (attempt.number, worker.rank): worker
        for attempt in run.attempts
        for worker in attempt.workers
    }
    last = {
        (series.name, series.attempt, series.of): series.points[-1][1]
        for series in timeline.series
        if series.name in ("rss", "step") and not series.metric and series.points
    }

    def seconds(lane: Lane) -> float | None:
        ran = [span for span in lane.spans if span.kind == "run"]
        return (ran[-1].end_ns - ran[0].start_ns) / _SECOND if ran else None

    def seen(lane: Lane, name: str) -> float | None:
        worker = told.get((lane.attempt, lane.rank))
        if worker is None:
            return last.get((name, lane.attempt, f"rank {lane.rank}"))
        return {
            "rss": worker.max_rss or None,
            "cpu_seconds": None if worker.started_ns is None else worker.cpu_seconds,
            "step": None if worker.progress is None else worker.progress.step,
            "pid": worker.pid,
        }[name]

    again = len({attempt.number for attempt in timeline.attempts}) > 1
    memory = "Peak memory" if told else "Memory"
    columns = [
        html.numbers("Rank", lambda lane: lane.rank),
        html.numbers("Attempt", lambda lane: lane.attempt if again else None),
        html.PageColumn("Node", lambda lane: lane.node),
        html.PageColumn("Fate", lambda lane: html.badge(lane.fate, lane.fate.replace("_", " "))),
        html.PageColumn("What became of it", lambda lane: lane.text, "wide"),
        html.numbers(
            "Exit",
            lambda lane: lane.exitcode,
            lambda code: signal_name(-int(code)) if code < 0 else str(code),
        ),
        html.numbers("Took", seconds, duration),
        html.numbers(memory, lambda lane: seen(lane, "rss"), _bytes, minor=True),
        html.numbers("CPU time", lambda lane: seen(lane, "cpu_seconds"), duration, minor=True),
        html.numbers("Step", lambda lane: seen(lane, "step"), count, minor=True),
        html.numbers("Pid", lambda lane: seen(lane, "pid"), minor=True),
    ]
    newest = sorted(timeline.attempts, key=lambda each: -each.number)
    lanes = [lane for attempt in newest for lane in attempt.lanes][:_MOST_ROWS]
    caption = "All workers, the newest attempt first" if again else "All workers"
    return html.table(caption, columns, lanes, kind=lambda lane: lane.fate)


def _bytes(number: float) -> str:
    return size(round(number))


# A pair of a rank and what it returned
_VALUES = (
    html.numbers("Rank", lambda pair: pair[0]),
    html.PageColumn(
        "Value", lambda pair: html.code(shorten(pair[1].json or "", _LONGEST_VALUE)), "wide"
    ),
    html.PageColumn("Type", lambda pair: pair[1].type_name),
    html.numbers("Size", lambda pair: pair[1].size, _bytes),
)


_NODES = (
    html.PageColumn("Node", lambda node: node.name),
    html.PageColumn("State", lambda node: html.badge(node.state, node_state(node))),
    html.numbers("Workers", lambda node: node.nproc),
    html.numbers("Exit", lambda node: node.exit_code),
    html.PageColumn("What happened to it", lambda node: node.said, "wide"),
    html.numbers(
        "Clock ahead",
        lambda node: node.clock_offset,
        lambda ahead: f"{round(ahead * 1000, 1) + 0.0} ms",
        minor=True,
    ),
    html.PageColumn(
        "Directory",
        lambda node: node.directory if node.shared else f"{node.hostname}:{node.directory}",
        "minor wide",
    ),
)
